//! Full outputs on disk, so that nothing that was cut is lost (law 7).
//!
//! `DIR/aN` holds the raw bytes; `DIR/index.jsonl` has one line for each: handle, bytes, sha256,
//! origin. A file is written under a temporary name and renamed when it is complete, so a handle
//! that exists is whole. Handles are short because a model types them.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::atomic::{AtomicU32, Ordering};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// `a1`, `a2`, ... within one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ArtifactId(pub u32);

impl fmt::Display for ArtifactId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a{}", self.0)
    }
}

impl FromStr for ArtifactId {
    type Err = String;

    fn from_str(text: &str) -> Result<ArtifactId, String> {
        let digits = text
            .strip_prefix('a')
            .filter(|d| !d.is_empty() && !d.starts_with(['0', '+']));
        digits
            .and_then(|d| d.parse().ok())
            .map(ArtifactId)
            .ok_or_else(|| {
                format!("`{text}` is not an artifact handle, as a1; files are read with `read`")
            })
    }
}

/// One line of `index.jsonl`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    pub id: String,
    pub bytes: u64,
    pub sha256: String,
    /// What made it: `bash: cargo test`.
    pub origin: String,
}

/// The artifacts of one session.
pub struct Artifacts {
    dir: PathBuf,
    next: AtomicU32,
}

impl Artifacts {
    /// Opens or creates `dir`; handles go on after those that are there.
    pub fn open(dir: &Path) -> io::Result<Artifacts> {
        fs::create_dir_all(dir)?;
        let mut last = 0;
        for entry in fs::read_dir(dir)? {
            let name = entry?.file_name();
            let handle = name
                .to_string_lossy()
                .trim_end_matches(".part")
                .parse::<ArtifactId>();
            last = last.max(handle.map_or(0, |id| id.0));
        }
        Ok(Artifacts {
            dir: dir.to_owned(),
            next: AtomicU32::new(last + 1),
        })
    }

    /// Begins an artifact. It exists once `finish` has returned.
    pub fn create(&self) -> io::Result<ArtifactWriter> {
        let id = ArtifactId(self.next.fetch_add(1, Ordering::Relaxed));
        let part = self.dir.join(format!("{id}.part"));
        let file = File::options().write(true).create_new(true).open(&part)?;
        Ok(ArtifactWriter {
            id,
            part,
            dir: self.dir.clone(),
            file: BufWriter::new(file),
            hash: Sha256::new(),
            bytes: 0,
            finished: false,
        })
    }

    /// Where the bytes of `id` are.
    pub fn path(&self, id: ArtifactId) -> PathBuf {
        self.dir.join(id.to_string())
    }

    /// The handles that exist, in order.
    pub fn list(&self) -> io::Result<Vec<ArtifactId>> {
        let mut ids = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            ids.extend(
                entry?
                    .file_name()
                    .to_string_lossy()
                    .parse::<ArtifactId>()
                    .ok(),
            );
        }
        ids.sort();
        Ok(ids)
    }
}

/// An artifact that is being written. Dropped unfinished, it leaves nothing.
pub struct ArtifactWriter {
    id: ArtifactId,
    part: PathBuf,
    dir: PathBuf,
    file: BufWriter<File>,
    hash: Sha256,
    bytes: u64,
    finished: bool,
}

impl ArtifactWriter {
    pub fn id(&self) -> ArtifactId {
        self.id
    }

    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.hash.update(bytes);
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    pub fn finish(mut self, origin: &str) -> io::Result<ArtifactId> {
        self.file.flush()?;
        let hash = std::mem::take(&mut self.hash).finalize();
        let entry = Entry {
            id: self.id.to_string(),
            bytes: self.bytes,
            sha256: hash.iter().map(|b| format!("{b:02x}")).collect(),
            origin: origin.chars().take(200).collect(),
        };
        fs::rename(&self.part, self.dir.join(self.id.to_string()))?;
        self.finished = true;
        let mut line = serde_json::to_string(&entry)?;
        line.push('\n');
        let index = self.dir.join("index.jsonl");
        File::options()
            .append(true)
            .create(true)
            .open(index)?
            .write_all(line.as_bytes())?;
        Ok(self.id)
    }
}

impl Drop for ArtifactWriter {
    fn drop(&mut self) {
        if !self.finished {
            // Best effort: what stays is named `.part` and is never offered.
            let _ = fs::remove_file(&self.part);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles() {
        assert_eq!("a12".parse(), Ok(ArtifactId(12)));
        for bad in [
            "",
            "a",
            "12",
            "a0",
            "a01",
            "a+1",
            "a1 ",
            "../a1",
            "a99999999999",
        ] {
            assert!(bad.parse::<ArtifactId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_finished_is_whole_and_numbers_go_on_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let artifacts = Artifacts::open(dir.path()).unwrap();
        let mut first = artifacts.create().unwrap();
        first.write(b"hello ").unwrap();
        first.write(b"world").unwrap();
        assert!(artifacts.list().unwrap().is_empty(), "not yet complete");
        assert_eq!(first.finish("bash: echo").unwrap(), ArtifactId(1));
        drop(artifacts.create().unwrap());
        assert_eq!(artifacts.list().unwrap(), [ArtifactId(1)]);

        let again = Artifacts::open(dir.path()).unwrap();
        let second = again.create().unwrap().finish("x").unwrap();
        assert_eq!(second, ArtifactId(2));
        assert_eq!(fs::read(again.path(ArtifactId(1))).unwrap(), b"hello world");
        let index = fs::read_to_string(dir.path().join("index.jsonl")).unwrap();
        let entry: Entry = serde_json::from_str(index.lines().next().unwrap()).unwrap();
        assert_eq!(entry.bytes, 11);
        assert_eq!(
            entry.sha256,
            "b94d27b9934d3e08a52e52d7da7dabfac484efe37a5380ee9088f7ace2efcde9"
        );
    }
}
