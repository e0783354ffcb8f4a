//! One process at a time works on one model; the others wait and then find it finished.
//!
//! The lock is the kernel's (`flock`), so it ends with the process that held it. Lock files stay: removing
//! one would let two processes lock two different files of the same name.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::Path;

use super::disk::create_dir;
use super::error::StoreError;
use super::progress::Progress;

/// Held until dropped.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Waits, saying so, while another process holds the lock.
    pub fn acquire(path: &Path, what: &str, progress: &dyn Progress) -> Result<Lock, StoreError> {
        if let Some(folder) = path.parent() {
            create_dir(folder)?;
        }
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(StoreError::io("open", path))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                progress.note(&format!(
                    "another process is fetching {what}; waiting for it"
                ));
                file.lock().map_err(StoreError::io("lock", path))?;
            }
            // Some network file systems have no locks; there the rename at the end still keeps files whole.
            Err(TryLockError::Error(error)) if error.kind() == std::io::ErrorKind::Unsupported => {}
            Err(TryLockError::Error(error)) => return Err(StoreError::io("lock", path)(error)),
        }
        Ok(Lock { _file: file })
    }
}
