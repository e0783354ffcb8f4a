//! Opening and replacing files without surprises: only regular files are read (a FIFO or
//! `/dev/zero` would never end), and a file is replaced whole or not at all.

use std::fs::{self, File, Metadata};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::bound::grouped;

/// Why a path is not a file that can be read.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("`{0}` does not exist{1}")]
    Missing(String, String),
    #[error("`{0}` is a directory")]
    Directory(String),
    #[error("`{0}` is {1}, not a regular file")]
    Special(String, &'static str),
    #[error("`{0}` has {bytes} bytes, at most {most} are taken{2}", bytes = grouped(*.1 as usize), most = grouped(*.3 as usize))]
    TooLarge(String, u64, &'static str, u64),
    #[error("`{0}`: {1}")]
    Io(String, io::Error),
}

/// Opens a regular file for reading. It never blocks.
pub fn open(path: &Path, shown: &str) -> Result<(File, Metadata), FileError> {
    let io = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => FileError::Missing(shown.to_owned(), similar(path)),
        _ => FileError::Io(shown.to_owned(), error),
    };
    // Looked at before it is opened, as opening a device can act on it; and again once open.
    check_kind(&fs::metadata(path).map_err(io)?, shown)?;
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)
        .map_err(io)?;
    let meta = file.metadata().map_err(io)?;
    check_kind(&meta, shown)?;
    check_place(&file, path).map_err(io)?;
    Ok((file, meta))
}

/// A path is judged, then opened: in between, a link may have been put in its way.
fn check_place(file: &File, path: &Path) -> io::Result<()> {
    let Ok(real) = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())) else {
        // No such directory on this system.
        return Ok(());
    };
    // Where a file system ignores case, the name on disk may be written otherwise.
    if real.as_os_str().eq_ignore_ascii_case(path.as_os_str()) {
        return Ok(());
    }
    Err(io::Error::other("its path was changed while it was opened"))
}

fn check_kind(meta: &Metadata, shown: &str) -> Result<(), FileError> {
    let kind = meta.file_type();
    let special = if kind.is_file() {
        return Ok(());
    } else if kind.is_dir() {
        return Err(FileError::Directory(shown.to_owned()));
    } else if kind.is_fifo() {
        "a named pipe"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    };
    Err(FileError::Special(shown.to_owned(), special))
}

/// All bytes of a regular file of at most `most` bytes.
pub fn read_all(path: &Path, shown: &str, most: u64) -> Result<(Vec<u8>, Metadata), FileError> {
    let (file, meta) = open(path, shown)?;
    let too_large = |bytes| {
        FileError::TooLarge(
            shown.to_owned(),
            bytes,
            "; use bash for it, e.g. sed or a script",
            most,
        )
    };
    if meta.len() > most {
        return Err(too_large(meta.len()));
    }
    let mut bytes = Vec::with_capacity(meta.len() as usize);
    let read = file.take(most + 1).read_to_end(&mut bytes);
    read.map_err(|error| FileError::Io(shown.to_owned(), error))?;
    if bytes.len() as u64 > most {
        return Err(too_large(bytes.len() as u64));
    }
    Ok((bytes, meta))
}

/// Replaces or makes `path`: written beside it, then renamed over it. An existing file keeps its
/// permissions, and its owner where that is allowed.
pub fn replace(path: &Path, bytes: &[u8], before: Option<&Metadata>) -> io::Result<()> {
    let (temporary, mut file) = beside(path)?;
    let result = write_then_rename(&mut file, &temporary, path, bytes, before);
    if result.is_err() {
        // Best effort: the error that matters is already at hand.
        let _ = fs::remove_file(&temporary);
    }
    result
}

fn write_then_rename(
    file: &mut File,
    temporary: &Path,
    path: &Path,
    bytes: &[u8],
    before: Option<&Metadata>,
) -> io::Result<()> {
    file.write_all(bytes)?;
    if let Some(before) = before {
        let own = file.metadata()?;
        if (own.uid(), own.gid()) != (before.uid(), before.gid()) {
            // Allowed to root only; another owner's writable file becomes ours, as with any editor.
            let _ = std::os::unix::fs::fchown(&*file, Some(before.uid()), Some(before.gid()));
        }
        file.set_permissions(before.permissions())?;
    }
    file.sync_data()?;
    fs::rename(temporary, path)
}

fn beside(path: &Path) -> io::Result<(PathBuf, File)> {
    let name = path
        .file_name()
        .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    let stem: String = name.to_string_lossy().chars().take(60).collect();
    for n in 0..100u32 {
        let temporary = path.with_file_name(format!(".{stem}.{}-{n}.tmp", std::process::id()));
        match File::options()
            .write(true)
            .create_new(true)
            .mode(0o666)
            .open(&temporary)
        {
            Ok(file) => match check_place(&file, &temporary) {
                Ok(()) => return Ok((temporary, file)),
                Err(error) => {
                    // Best effort: it is empty, and where it is not known.
                    let _ = fs::remove_file(&temporary);
                    return Err(error);
                }
            },
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::from(io::ErrorKind::AlreadyExists))
}

/// `; did you mean ...?` from the names beside a missing path.
fn similar(path: &Path) -> String {
    let Some(name) = path.file_name().and_then(|n| n.to_str()) else {
        return String::new();
    };
    let Some(entries) = path.parent().and_then(|p| fs::read_dir(p).ok()) else {
        return String::new();
    };
    let mut names: Vec<String> = entries
        .flatten()
        .take(1_000)
        .filter_map(|e| e.file_name().into_string().ok())
        .collect();
    names.sort();
    match crate::store::nearest(name, names.iter().map(String::as_str)).first() {
        Some(near) => format!(
            "; did you mean `{}`?",
            super::clean::for_terminal_line(near)
        ),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn devices_and_directories_are_named() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("main.rs"), "x").unwrap();
        let error = |path: &Path| open(path, "p").unwrap_err().to_string();
        assert_eq!(
            error(Path::new("/dev/zero")),
            "`p` is a device, not a regular file"
        );
        assert_eq!(error(dir.path()), "`p` is a directory");
        assert_eq!(
            error(&dir.path().join("mian.rs")),
            "`p` does not exist; did you mean `main.rs`?"
        );
        let error = read_all(&dir.path().join("main.rs"), "p", 0)
            .unwrap_err()
            .to_string();
        assert_eq!(
            error,
            "`p` has 1 bytes, at most 0 are taken; use bash for it, e.g. sed or a script"
        );
    }

    #[test]
    fn a_replaced_file_keeps_its_mode_and_leaves_nothing_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("script.sh");
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o751)).unwrap();
        let before = fs::metadata(&path).unwrap();
        replace(&path, b"new", Some(&before)).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o751
        );
        assert!(replace(&dir.path().join("no/such/dir"), b"", None).is_err());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
