//! The folder of the disk tier, as far as the rest of it needs to know: a seam, so that tests can tear
//! writes and fail reads.
//!
//! Layout: `<folder>/<ModelIdentity, 32 hex digits>/<parent>-<last>.kv`.
//! Invariant: a name that ends in `.kv` appears with its whole content on the medium, or not at all
//! (write beside it, sync, rename, sync the folder). Links are never followed and never written through.

use crate::limits::DISK_UNFINISHED_SECONDS;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// `<model>/<file>`, as [`Files::list`] gives it.
pub type Name = Arc<str>;

/// A file that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub name: Name,
    pub bytes: u64,
    /// When it was last written or its use noted: seconds since 1970.
    pub used: u64,
}

/// Where runs are kept. Calls may come from two threads at once.
pub trait Files: Send + Sync {
    /// All finished files, of all models.
    fn list(&self) -> io::Result<Vec<Entry>>;

    /// Fills `to` from `offset` on.
    fn read(&self, name: &str, offset: u64, to: &mut [u8]) -> io::Result<()>;

    /// Makes a file of `parts`, whole or not at all. One of that name is replaced.
    fn write(&self, name: &str, parts: &[Vec<u8>]) -> io::Result<()>;

    /// Writes into a file that is there, without care for crashes; its time of use becomes now.
    fn note(&self, name: &str, offset: u64, bytes: &[u8]) -> io::Result<()>;

    fn remove(&self, name: &str) -> io::Result<()>;

    /// Seconds since 1970, as files are stamped.
    fn now(&self) -> u64;
}

pub struct Folder {
    path: PathBuf,
    written: AtomicU64,
}

const ENDING: &str = ".kv";
const UNFINISHED: &str = ".unfinished";

impl Folder {
    /// Makes the folder if need be, readable by its owner alone: what is in it was said to a model.
    pub fn open(path: &Path) -> io::Result<Folder> {
        private_folders().recursive(true).create(path)?;
        let folder = Folder::existing(path);
        folder.sweep();
        Ok(folder)
    }

    /// A folder that is there; nothing is made.
    pub fn existing(path: &Path) -> Folder {
        Folder {
            path: path.to_owned(),
            written: AtomicU64::new(0),
        }
    }

    /// What is being written, or was when its process died.
    pub fn unfinished(&self) -> io::Result<Vec<Entry>> {
        self.list_ending(UNFINISHED)
    }

    fn list_ending(&self, ending: &str) -> io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        self.each_file(ending, |_, entry| entries.push(entry))?;
        Ok(entries)
    }

    /// Removes what processes left that died while they wrote.
    fn sweep(&self) {
        let now = self.now();
        let _ = self.each_file(UNFINISHED, |path, file| {
            if file.used + DISK_UNFINISHED_SECONDS < now {
                let _ = fs::remove_file(path);
            }
        });
    }

    fn each_file(&self, ending: &str, mut visit: impl FnMut(&Path, Entry)) -> io::Result<()> {
        for model in fs::read_dir(&self.path)? {
            let model = model?;
            // Neither a link to a folder nor a link to a file is what we made.
            if !model.file_type().is_ok_and(|t| t.is_dir()) {
                continue;
            }
            let Ok(files) = fs::read_dir(model.path()) else {
                continue;
            };
            for file in files.flatten() {
                let Ok(name) = file.file_name().into_string() else {
                    continue;
                };
                let is_file = file.file_type().is_ok_and(|t| t.is_file());
                if !is_file || !name.ends_with(ending) {
                    continue;
                }
                // It may have gone since.
                if let (Ok(about), Some(model)) = (file.metadata(), model.file_name().to_str()) {
                    let entry = Entry {
                        name: format!("{model}/{name}").into(),
                        bytes: about.len(),
                        used: about.modified().map_or(0, seconds),
                    };
                    visit(&file.path(), entry);
                }
            }
        }
        Ok(())
    }

    fn path(&self, name: &str) -> io::Result<PathBuf> {
        let plain = |part: &str| !part.is_empty() && !part.starts_with('.') && !part.contains('/');
        match name.split_once('/') {
            Some((model, file)) if plain(model) && plain(file) => {
                Ok(self.path.join(model).join(file))
            }
            _ => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a strange name",
            )),
        }
    }

    /// A file that is nobody else's: in containers processes share their numbers, and one that was killed leaves
    /// its file behind.
    fn beside(&self, folder: &Path) -> io::Result<(PathBuf, File)> {
        loop {
            let number = self.written.fetch_add(1, Ordering::Relaxed);
            let path = folder.join(format!("{}-{number}{UNFINISHED}", std::process::id()));
            let mut options = OpenOptions::new();
            let options = options.write(true).create_new(true).mode(0o600);
            match options.open(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                opened => return Ok((path, opened?)),
            }
        }
    }
}

impl Files for Folder {
    fn list(&self) -> io::Result<Vec<Entry>> {
        self.list_ending(ENDING)
    }

    fn read(&self, name: &str, offset: u64, to: &mut [u8]) -> io::Result<()> {
        open(&self.path(name)?, OpenOptions::new().read(true))?.read_exact_at(to, offset)
    }

    fn write(&self, name: &str, parts: &[Vec<u8>]) -> io::Result<()> {
        let path = self.path(name)?;
        let folder = path.parent().expect("a file is in a folder");
        private_folders().recursive(true).create(folder)?;
        if !fs::symlink_metadata(folder)?.is_dir() {
            return Err(io::Error::new(
                io::ErrorKind::NotADirectory,
                "the model's folder is a link",
            ));
        }
        let (beside, mut file) = self.beside(folder)?;
        let mut write = || {
            parts.iter().try_for_each(|part| file.write_all(part))?;
            file.sync_data()?;
            fs::rename(&beside, &path)
        };
        if let Err(error) = write() {
            let _ = fs::remove_file(&beside);
            return Err(error);
        }
        File::open(folder)?.sync_all()
    }

    fn note(&self, name: &str, offset: u64, bytes: &[u8]) -> io::Result<()> {
        open(&self.path(name)?, OpenOptions::new().write(true))?.write_all_at(bytes, offset)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path(name)?)
    }

    fn now(&self) -> u64 {
        seconds(SystemTime::now())
    }
}

/// Opens a file and nothing else: no link is followed, and a pipe of that name holds nobody up.
fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let file = options
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidData, "not a file")),
    }
}

fn private_folders() -> DirBuilder {
    let mut builder = DirBuilder::new();
    builder.mode(0o700);
    builder
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    fn folder() -> (tempfile::TempDir, Folder) {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::open(&dir.path().join("kv")).unwrap();
        (dir, folder)
    }

    #[test]
    fn files_appear_whole_are_private_and_leave_nothing_behind() {
        let (dir, folder) = folder();
        let parts = [vec![1; 10], vec![2; 20]];
        folder.write("model/a.kv", &parts).unwrap();
        let entries = folder.list().unwrap();
        assert_eq!(entries.len(), 1);
        assert_eq!((&*entries[0].name, entries[0].bytes), ("model/a.kv", 30));
        assert!(entries[0].used + 60 > folder.now());
        let mut bytes = [0; 4];
        folder.read("model/a.kv", 8, &mut bytes).unwrap();
        assert_eq!(bytes, [1, 1, 2, 2]);
        folder.note("model/a.kv", 9, &[7]).unwrap();
        folder.read("model/a.kv", 8, &mut bytes).unwrap();
        assert_eq!(bytes, [1, 7, 2, 2]);
        assert!(folder.read("model/a.kv", 28, &mut bytes).is_err());
        let mode = |path: &str| {
            let path = dir.path().join(path);
            fs::metadata(path).unwrap().permissions().mode() & 0o777
        };
        assert_eq!(mode("kv"), 0o700);
        assert_eq!(mode("kv/model"), 0o700);
        assert_eq!(mode("kv/model/a.kv"), 0o600);
        folder.remove("model/a.kv").unwrap();
        assert!(folder.list().unwrap().is_empty());
    }

    #[test]
    fn links_are_not_followed_and_names_do_not_lead_out() {
        let (dir, folder) = folder();
        folder.write("model/a.kv", &[vec![1; 8]]).unwrap();
        let outside = dir.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("x.kv"), b"precious").unwrap();
        symlink(outside.join("x.kv"), dir.path().join("kv/model/b.kv")).unwrap();
        symlink(&outside, dir.path().join("kv/linked")).unwrap();
        assert_eq!(folder.list().unwrap().len(), 1);
        let mut bytes = [0; 4];
        assert!(folder.read("model/b.kv", 0, &mut bytes).is_err());
        assert!(folder.note("model/b.kv", 0, b"x").is_err());
        assert!(folder.write("linked/y.kv", &[vec![1]]).is_err());
        for name in [
            "../a.kv",
            "a.kv",
            "model/../../x",
            "/x",
            "model/",
            "a/b/c.kv",
        ] {
            assert!(folder.read(name, 0, &mut bytes).is_err(), "{name}");
        }
        // A link in the way is replaced, not written through.
        folder.write("model/b.kv", &[vec![1; 8]]).unwrap();
        assert_eq!(fs::read(outside.join("x.kv")).unwrap(), b"precious");
    }

    #[test]
    fn what_a_dead_process_left_is_swept() {
        let (dir, folder) = folder();
        folder.write("model/a.kv", &[vec![1; 8]]).unwrap();
        let stale = dir.path().join("kv/model/1-0.unfinished");
        let fresh = dir.path().join("kv/model/2-0.unfinished");
        fs::write(&stale, b"half").unwrap();
        fs::write(&fresh, b"half").unwrap();
        let long_ago = SystemTime::now() - std::time::Duration::from_secs(100_000);
        let file = OpenOptions::new().write(true).open(&stale).unwrap();
        file.set_modified(long_ago).unwrap();
        drop(Folder::open(&dir.path().join("kv")).unwrap());
        assert!(!stale.exists() && fresh.exists());
    }
}
