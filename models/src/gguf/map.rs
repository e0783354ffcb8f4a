//! Maps a weights file into memory, read only. The one module of this crate with `unsafe` in it.
//!
//! Invariant: the returned bytes are as long as the file was when it was opened.
//!
//! A mapped file must not change while it is in use: what is read after another process writes to
//! it is undefined, and reading behind a new, nearer end kills this process with SIGBUS. We open it
//! read-only, map what its length says at that moment and never write; nothing more can be done
//! from here. Replace a model by renaming a new file over it, never by writing into it: the mapping
//! keeps the old file. What other processes truncate as a matter of course, a cache, is read with
//! positioned reads instead.

#![allow(unsafe_code)]

use std::fs::{File, Metadata};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use memmap2::Mmap;

use crate::{Blame, Error, Result};

/// A file in memory, and what the file system said about it when it was opened.
pub struct MappedFile {
    /// The whole file. Slices of it keep the mapping alive.
    pub bytes: Bytes,
    pub metadata: Metadata,
    pub pages: Pages,
}

/// The pages of a mapped file.
pub struct Pages(Option<Arc<Mmap>>);

/// Lets [`Bytes`] and [`Pages`] hold one mapping.
struct Shared(Arc<Mmap>);

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Pages {
    /// Gives back the memory of what was read so far. What is read again comes from the file again.
    /// A system that refuses keeps the pages, which does no harm.
    pub fn release(&self) {
        #[cfg(unix)]
        if let Some(map) = &self.0 {
            // SAFETY: dropping pages loses what was written to them, and this mapping was made
            // read-only in `map_file`; the bytes behind it stay the file's.
            let released = unsafe { map.unchecked_advise(memmap2::UncheckedAdvice::DontNeed) };
            if let Err(error) = released {
                tracing::debug!("the pages of the model file stay in memory: {error}");
            }
        }
    }
}

/// Opens and maps a regular file. A directory, a pipe or a device is refused before it is opened,
/// since opening a pipe waits for a writer.
pub fn map_file(path: &Path) -> Result<MappedFile> {
    let fail = |doing: &str, error: std::io::Error| {
        let message = format!("cannot {doing}: {error}");
        Error::new(blame_of(&error), message)
            .in_file(path)
            .caused_by(error)
    };
    let found = std::fs::metadata(path).map_err(|e| fail("open the model file", e))?;
    if !found.is_file() {
        let kind = if found.is_dir() {
            "a directory"
        } else {
            "not a regular file"
        };
        let fix = "give the path of a .gguf file";
        return Err(Error::caller(format!("this is {kind}; {fix}")).in_file(path));
    }
    let file = File::open(path).map_err(|e| fail("open the model file", e))?;
    let metadata = file
        .metadata()
        .map_err(|e| fail("read the size of the model file", e))?;
    let length = usize::try_from(metadata.len()).map_err(|_| {
        let message = format!(
            "{} bytes do not fit this machine's address space",
            metadata.len()
        );
        Error::device(message).in_file(path)
    })?;
    if length == 0 {
        return Ok(MappedFile {
            bytes: Bytes::new(),
            metadata,
            pages: Pages(None),
        });
    }
    // SAFETY: the file is a regular file opened read-only above, and the mapping is private to this
    // process and never written through. That no other process changes it is the documented
    // condition at the top of this module, which no caller can check.
    let map = unsafe { Mmap::map(&file) }.map_err(|e| fail("map the model file", e))?;
    if map.len() != length {
        let message = format!(
            "the file changed while it was opened: {length} bytes, then {}; try again when nothing \
             writes to it",
            map.len()
        );
        return Err(Error::input(message).in_file(path));
    }
    let map = Arc::new(map);
    Ok(MappedFile {
        bytes: Bytes::from_owner(Shared(Arc::clone(&map))),
        metadata,
        pages: Pages(Some(map)),
    })
}

fn blame_of(error: &std::io::Error) -> Blame {
    use std::io::ErrorKind::{InvalidInput, NotADirectory, NotFound};
    match error.kind() {
        NotFound | NotADirectory | InvalidInput => Blame::Caller,
        _ => Blame::Device,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_mapped_whole_and_outlives_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("w.gguf");
        std::fs::write(&path, [7_u8; 5000]).unwrap();
        let mapped = map_file(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(mapped.bytes.len(), 5000);
        assert!(mapped.bytes.iter().all(|&b| b == 7));
        mapped.pages.release();
        assert!(mapped.bytes.iter().all(|&b| b == 7), "read again");
    }

    #[test]
    fn what_is_no_regular_file_is_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let cases = [
            (dir.path().to_owned(), "a directory"),
            ("/dev/null".into(), "regular file"),
        ];
        for (path, fragment) in cases {
            let error = map_file(&path).err().expect("refused");
            assert!(error.to_string().contains(fragment), "{error}");
            assert_eq!(error.blame(), Blame::Caller);
        }
        let error = map_file(&dir.path().join("absent")).err().expect("refused");
        assert_eq!(error.blame(), Blame::Caller);
        assert!(error.to_string().contains("absent"), "{error}");
    }
}
