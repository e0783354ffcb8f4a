//! Storage as the store sees it: half-finished files that grow, finished files that appear at once.
//!
//! Invariant: a file under its final name is complete and verified. It is written beside its final place,
//! flushed to the disk, renamed, and the folder is flushed.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::Path;

use sha2::{Digest, Sha256};

use super::error::{StoreError, is_disk_full};
use crate::limits::COPY_CHUNK_BYTES;

/// Opens half-finished files. A test passes one that runs full.
pub trait Disk: Send + Sync {
    /// Opens `path` for writing at its end, creating it if need be, after cutting it to `keep_bytes`.
    fn open_part(&self, path: &Path, keep_bytes: u64) -> io::Result<Box<dyn PartFile>>;
}

/// A file being written.
pub trait PartFile: Write {
    /// Returns when what was written is on the disk.
    fn sync(&mut self) -> io::Result<()>;
}

/// The real thing.
pub struct RealDisk;

impl Disk for RealDisk {
    fn open_part(&self, path: &Path, keep_bytes: u64) -> io::Result<Box<dyn PartFile>> {
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)?;
        file.set_len(keep_bytes)?;
        io::Seek::seek(&mut file, io::SeekFrom::End(0))?;
        Ok(Box::new(file))
    }
}

impl PartFile for File {
    fn sync(&mut self) -> io::Result<()> {
        self.sync_all()
    }
}

/// Tells a full disk from other trouble while writing `path`, `need_bytes` short of the end.
pub fn write_failed(
    what: &str,
    path: &Path,
    need_bytes: u64,
) -> impl FnOnce(io::Error) -> StoreError {
    let (what, path) = (what.to_owned(), path.to_owned());
    move |source| {
        if is_disk_full(&source) {
            StoreError::DiskFull {
                what,
                path,
                need_bytes,
                source,
            }
        } else {
            StoreError::Io {
                doing: "write",
                path,
                source,
            }
        }
    }
}

/// Moves a finished file to its name, for good.
pub fn publish(part: &Path, target: &Path) -> Result<(), StoreError> {
    fs::rename(part, target).map_err(StoreError::io("put in place", target))?;
    if let Some(folder) = target.parent() {
        // Not every file system can flush a folder; the rename has happened either way.
        let _ = File::open(folder).and_then(|folder| folder.sync_all());
    }
    Ok(())
}

/// Writes a small file so that a reader sees the old one or the new one, never half of it.
pub fn write_whole(path: &Path, content: &[u8]) -> Result<(), StoreError> {
    let beside = path.with_extension("new");
    let write = |path: &Path| -> io::Result<()> {
        let mut file = File::create(path)?;
        file.write_all(content)?;
        file.sync_all()
    };
    write(&beside).map_err(StoreError::io("write", &beside))?;
    publish(&beside, path)
}

/// Feeds the first `length` bytes of a file to the hasher.
pub fn hash_prefix(path: &Path, length: u64, hasher: &mut Sha256) -> Result<(), StoreError> {
    let mut file = File::open(path)
        .map_err(StoreError::io("read", path))?
        .take(length);
    let mut chunk = vec![0; COPY_CHUNK_BYTES];
    loop {
        match file
            .read(&mut chunk)
            .map_err(StoreError::io("read", path))?
        {
            0 => return Ok(()),
            count => hasher.update(&chunk[..count]),
        }
    }
}

/// sha256 of a whole file, in lower-case hex.
pub fn file_sha256(path: &Path) -> Result<String, StoreError> {
    let mut hasher = Sha256::new();
    hash_prefix(path, u64::MAX, &mut hasher)?;
    Ok(hex(&hasher.finalize()))
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Length of a file, 0 when there is none.
pub fn length_or_zero(path: &Path) -> Result<u64, StoreError> {
    match fs::metadata(path) {
        Ok(metadata) => Ok(metadata.len()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(StoreError::io("look at", path)(error)),
    }
}

/// Removes a file that may already be gone.
pub fn remove_if_there(path: &Path) -> Result<(), StoreError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(StoreError::io("remove", path)(error))
        }
        _ => Ok(()),
    }
}

pub fn create_dir(path: &Path) -> Result<(), StoreError> {
    fs::create_dir_all(path).map_err(StoreError::io("create", path))
}
