//! Models from a hub, kept in the hub's own cache layout so that Python tools and ostler share files.
//!
//! The layout and the repository listing are hf-hub's. Resuming, checksums, waiting for another process,
//! redirects that do not carry the token, and the error texts are ours: hf-hub 0.5 has none of them.
//! Invariant: a name under `blobs/` or `snapshots/` is a complete, verified file.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hf_hub::api::sync::{Api, ApiBuilder};
use hf_hub::{Cache, CacheRepo, Repo};
use serde::Deserialize;

use super::disk::{Disk, create_dir, length_or_zero, publish};
use super::download::{Job, Means, download};
use super::error::StoreError;
use super::http::{Answer, Http, NoAnswer, header};
use super::lock::Lock;
use super::model_ref::{HubRef, Pick, is_plain_component};
use super::progress::Progress;
use super::receipt::{Kept, Receipt};
use super::select::select;
use crate::limits::FRUITLESS_ATTEMPTS_MAX;

pub struct HubOptions {
    /// The hub's folder; its cache is `hub/` below it, a token may lie in `token`.
    pub home: PathBuf,
    pub endpoint: Option<String>,
    pub token: Option<String>,
    pub offline: bool,
    pub retry_wait: Duration,
}

pub struct Hub {
    cache: Cache,
    api: Api,
    http: Http,
    offline: bool,
    retry_wait: Duration,
    disk: Arc<dyn Disk>,
    progress: Arc<dyn Progress>,
}

/// What the hub says about one file at one version.
#[derive(Debug)]
struct Meta {
    commit: String,
    /// Names the content; the sha256 for every large file.
    etag: String,
    size_bytes: Option<u64>,
}

impl Meta {
    fn sha256(&self) -> Option<&str> {
        let is_sha256 =
            self.etag.len() == 64 && self.etag.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_sha256.then_some(self.etag.as_str())
    }
}

/// The part of the hub's answer that we need.
#[derive(Deserialize)]
struct Listing {
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
}

impl Hub {
    pub fn new(
        options: HubOptions,
        disk: Arc<dyn Disk>,
        progress: Arc<dyn Progress>,
    ) -> Result<Hub, StoreError> {
        let cache = Cache::new(options.home.join("hub"));
        let token = options.token.clone().or_else(|| cache.token());
        let mut builder = ApiBuilder::from_cache(cache.clone())
            .with_progress(false)
            .with_token(token.clone());
        if let Some(endpoint) = &options.endpoint {
            builder = builder.with_endpoint(endpoint.trim_end_matches('/').to_owned());
        }
        let api = builder
            .build()
            .map_err(|error| StoreError::Place(format!("cannot set up the hub: {error}")))?;
        let endpoint = match &options.endpoint {
            Some(endpoint) => endpoint.clone(),
            None => default_endpoint(&api),
        };
        let http = Http::new(&endpoint, token)?;
        let HubOptions {
            offline,
            retry_wait,
            ..
        } = options;
        Ok(Hub {
            cache,
            api,
            http,
            offline,
            retry_wait,
            disk,
            progress,
        })
    }

    /// The file in the cache that `wanted` means, without asking the network.
    pub fn cached(&self, wanted: &HubRef) -> Option<Receipt> {
        let repo = self.repo(wanted);
        let commit = std::fs::read_to_string(ref_path(&self.cache, wanted)).ok()?;
        let commit = commit.trim();
        if !is_plain_component(commit) {
            return None;
        }
        let snapshot = repo.pointer_path(commit);
        let mut files = Vec::new();
        list_files(&snapshot, "", &mut files);
        files.sort();
        let files = select(&wanted.repo, &wanted.pick, &files).ok()?;
        let kept = files
            .iter()
            .map(|file| kept_before(&snapshot.join(file)))
            .collect::<Option<Vec<_>>>()?;
        whole_set(&files).then(|| self.receipt(wanted, &files, kept))
    }

    /// Fetches what is missing. The receipt says which files were ours to fetch.
    pub fn fetch(&self, wanted: &HubRef) -> Result<Receipt, StoreError> {
        if self.offline {
            return match self.cached(wanted) {
                Some(receipt) => Ok(receipt),
                None => Err(StoreError::Offline {
                    name: wanted.to_string(),
                }),
            };
        }
        let files = match &wanted.pick {
            Pick::File(file) if !file.contains("-of-") => vec![file.clone()],
            _ => select(&wanted.repo, &wanted.pick, &self.listing(&wanted.repo)?)?,
        };
        let kept = files
            .iter()
            .map(|file| self.fetch_file(wanted, file))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(self.receipt(wanted, &files, kept))
    }

    fn repo(&self, wanted: &HubRef) -> CacheRepo {
        self.cache.repo(Repo::model(wanted.repo.clone()))
    }

    fn receipt(&self, wanted: &HubRef, files: &[String], kept: Vec<Kept>) -> Receipt {
        Receipt {
            name: format!("{}/{}", wanted.repo, files[0]),
            source: format!("hub {}", wanted.repo),
            files: kept,
        }
    }

    fn fetch_file(&self, wanted: &HubRef, file: &str) -> Result<Kept, StoreError> {
        let what = format!("{file} of {}", wanted.repo);
        let address = self.api.model(wanted.repo.clone()).url(file);
        let meta = self.meta(wanted, file, &address, &what)?;
        let repo = self.repo(wanted);
        let blob = repo.blob_path(&meta.etag);
        let folder = blob.parent().unwrap_or(&blob);
        create_dir(folder)?;
        // The same lock file as Python's library takes.
        let lock_path = self
            .cache
            .path()
            .join(".locks")
            .join(Repo::model(wanted.repo.clone()).folder_name());
        let _lock = Lock::acquire(
            &lock_path.join(format!("{}.lock", meta.etag)),
            &what,
            &*self.progress,
        )?;
        let there = blob.is_file()
            && meta
                .size_bytes
                .is_none_or(|size| length_or_zero(&blob).is_ok_and(|l| l == size));
        let pointer = repo.pointer_path(&meta.commit).join(file);
        let mut ours = false;
        let mut sha256 = meta.sha256().map(str::to_owned);
        if !there {
            let part = folder.join(format!("{}.incomplete", meta.etag));
            let job = Job {
                address: &address,
                part: &part,
                size_bytes: meta.size_bytes,
                sha256: meta.sha256(),
                what: &what,
            };
            let means = Means {
                http: &self.http,
                disk: &*self.disk,
                progress: &*self.progress,
                retry_wait: self.retry_wait,
            };
            sha256 = Some(download(&means, &job)?);
            publish(&part, &blob)?;
            ours = true;
        }
        link(&blob, &pointer)?;
        repo.create_ref(&meta.commit)
            .map_err(StoreError::io("write the ref of", &pointer))?;
        let size_bytes = length_or_zero(&blob)?;
        let blob = std::fs::symlink_metadata(&pointer)
            .is_ok_and(|meta| meta.is_symlink())
            .then_some(blob);
        Ok(Kept {
            path: pointer,
            size_bytes,
            sha256,
            blob,
            ours,
        })
    }

    /// Asks for one byte, which tells version, size and checksum. Tries again while the trouble may pass.
    fn meta(
        &self,
        wanted: &HubRef,
        file: &str,
        address: &str,
        what: &str,
    ) -> Result<Meta, StoreError> {
        let mut tries = 0;
        let answer = loop {
            tries += 1;
            let (why, transient) = match self.http.get(address, Some("bytes=0-0")) {
                Ok(answer) if answer.status == 429 || answer.status >= 500 => {
                    (format!("HTTP {}", answer.status), true)
                }
                Ok(answer) => break answer,
                Err(NoAnswer { why, transient }) => (why, transient),
            };
            if !transient || tries >= FRUITLESS_ATTEMPTS_MAX {
                let why = format!("{} does not answer: {why}", self.http.endpoint());
                return Err(StoreError::Network {
                    what: what.to_owned(),
                    why,
                });
            }
            std::thread::sleep(self.retry_wait * tries);
        };
        match answer.status {
            200 | 206 => read_meta(&answer, what),
            401 | 403 => Err(self.refused(what, answer.status)),
            404 => Err(self.not_found(wanted, file)),
            status => Err(StoreError::Network {
                what: what.to_owned(),
                why: format!("HTTP {status}"),
            }),
        }
    }

    fn refused(&self, what: &str, status: u16) -> StoreError {
        StoreError::Refused {
            what: what.to_owned(),
            status,
            token_sent: self.http.sends_token(),
        }
    }

    /// A 404 for a file: says which files there are, or that there is no such repository.
    fn not_found(&self, wanted: &HubRef, file: &str) -> StoreError {
        match self.listing(&wanted.repo) {
            Err(error) => error,
            Ok(files) => match select(&wanted.repo, &Pick::File(file.to_owned()), &files) {
                Err(error) => error,
                Ok(_) => StoreError::BadHub {
                    what: format!("{file} of {}", wanted.repo),
                    why: "it lists the file and answers 404 for it".to_owned(),
                },
            },
        }
    }

    fn listing(&self, repo: &str) -> Result<Vec<String>, StoreError> {
        let address = format!(
            "{}/api/{}",
            self.http.endpoint(),
            Repo::model(repo.to_owned()).api_url()
        );
        let what = format!("the list of files of {repo}");
        let network = |why: String| StoreError::Network {
            what: what.clone(),
            why,
        };
        let answer = self.http.get(&address, None).map_err(|error| {
            network(format!(
                "{} does not answer: {}",
                self.http.endpoint(),
                error.why
            ))
        })?;
        match answer.status {
            200 => {}
            401 | 403 => return Err(self.refused(repo, answer.status)),
            404 => {
                return Err(StoreError::NoRepo {
                    repo: repo.to_owned(),
                    token_sent: self.http.sends_token(),
                });
            }
            status => return Err(network(format!("HTTP {status}"))),
        }
        let bad = |why: String| StoreError::BadHub {
            what: what.clone(),
            why,
        };
        let json = answer.json().map_err(|error| bad(error.why))?;
        let listing: Listing =
            serde_json::from_value(json).map_err(|error| bad(error.to_string()))?;
        let plain = |file: &String| file.split('/').all(is_plain_component);
        Ok(listing
            .siblings
            .into_iter()
            .map(|sibling| sibling.rfilename)
            .filter(plain)
            .collect())
    }
}

/// The public hub's address, which only hf-hub knows.
fn default_endpoint(api: &Api) -> String {
    let address = api.model("o/r".to_owned()).url("f");
    address
        .strip_suffix("/o/r/resolve/main/f")
        .unwrap_or(&address)
        .to_owned()
}

fn read_meta(answer: &Answer, what: &str) -> Result<Meta, StoreError> {
    let bad = |why: &str| StoreError::BadHub {
        what: what.to_owned(),
        why: why.to_owned(),
    };
    let hub = answer.hub_headers.as_ref().unwrap_or(&answer.headers);
    let commit = header(hub, "x-repo-commit").ok_or_else(|| bad("no X-Repo-Commit header"))?;
    let etag = header(hub, "x-linked-etag")
        .or_else(|| header(hub, "etag"))
        .or_else(|| header(&answer.headers, "etag"))
        .ok_or_else(|| bad("no ETag header"))?;
    let etag = etag.trim_start_matches("W/").trim_matches('"');
    // Both become names of files.
    if !is_plain_component(etag) || !is_plain_component(commit) {
        return Err(bad("its ETag or X-Repo-Commit is not a plain word"));
    }
    let number = |text: Option<&str>| text.and_then(|text| text.trim().parse::<u64>().ok());
    let size_bytes = number(header(hub, "x-linked-size"))
        .or_else(|| {
            number(
                header(&answer.headers, "content-range").and_then(|range| range.rsplit('/').next()),
            )
        })
        .or_else(|| {
            if answer.status == 200 {
                answer.body.content_length()
            } else {
                None
            }
        });
    Ok(Meta {
        commit: commit.to_owned(),
        etag: etag.to_ascii_lowercase(),
        size_bytes,
    })
}

/// Makes `pointer` lead to `blob`: a relative link, as Python's library writes it.
fn link(blob: &Path, pointer: &Path) -> Result<(), StoreError> {
    let (Some(folder), Some(repo)) = (pointer.parent(), blob.parent().and_then(Path::parent))
    else {
        return Ok(());
    };
    create_dir(folder)?;
    if std::fs::metadata(pointer).is_ok() {
        return Ok(());
    }
    super::disk::remove_if_there(pointer)?;
    let up = folder
        .strip_prefix(repo)
        .map_or(0, |below| below.components().count());
    let mut target = PathBuf::from_iter(std::iter::repeat_n("..", up));
    target.push("blobs");
    target.push(blob.file_name().unwrap_or_default());
    symlink_or_copy_name(&target, blob, pointer).map_err(StoreError::io("link", pointer))
}

#[cfg(unix)]
fn symlink_or_copy_name(target: &Path, _blob: &Path, pointer: &Path) -> std::io::Result<()> {
    match std::os::unix::fs::symlink(target, pointer) {
        // Another process was quicker.
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// Links need a privilege on Windows, so there the file moves, as hf-hub has it too.
#[cfg(not(unix))]
fn symlink_or_copy_name(_target: &Path, blob: &Path, pointer: &Path) -> std::io::Result<()> {
    std::fs::rename(blob, pointer)
}

fn ref_path(cache: &Cache, wanted: &HubRef) -> PathBuf {
    let repo = Repo::model(wanted.repo.clone());
    cache
        .path()
        .join(repo.folder_name())
        .join("refs")
        .join(repo.revision())
}

/// A file that lay in the cache before we asked.
fn kept_before(path: &Path) -> Option<Kept> {
    let size_bytes = std::fs::metadata(path).ok()?.len();
    let blob = std::fs::canonicalize(path)
        .ok()
        .filter(|_| path.is_symlink());
    Some(Kept {
        path: path.to_owned(),
        size_bytes,
        sha256: None,
        blob,
        ours: false,
    })
}

/// Paths below `folder`, with '/' between their parts.
fn list_files(folder: &Path, prefix: &str, out: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        let path = entry.path();
        if path.is_dir() && !path.is_symlink() {
            list_files(&path, &format!("{prefix}{name}/"), out);
        } else if path.is_file() {
            out.push(format!("{prefix}{name}"));
        }
    }
}

/// Whether no part of a split model is missing.
fn whole_set(files: &[String]) -> bool {
    let stem = files[0].trim_end_matches(".gguf");
    match stem.rsplit_once("-of-") {
        Some((head, count)) if head.ends_with("-00001") => count.parse() == Ok(files.len()),
        _ => files.len() == 1,
    }
}
