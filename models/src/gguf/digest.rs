//! A digest over a model's weights, remembered so that loading stays fast.
//!
//! The digest is over each tensor's name, type, dimensions and data, in the order of the names: the
//! same weights give the same digest however a file lays them out or splits them, and metadata does
//! not count. It is remembered by device, inode, size and times of the files. A cache that cannot be
//! read or written costs time and nothing else.

use std::fmt;
use std::fs::{File, Metadata};
use std::io::{Read as _, Write as _};
use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::Gguf;
use crate::Result;
use crate::limits::{DIGEST_CACHE_BYTES_MAX, DIGESTS_REMEMBERED_MAX};

/// Changes when what is hashed changes; remembered digests of another domain are not used.
const DOMAIN: &str = "ostler weights v1";

/// sha256 over the weights of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WeightsDigest(pub [u8; 32]);

impl WeightsDigest {
    /// The digest of an opened model. With a `cache` file it is looked up there first, and written
    /// there after it was computed.
    pub fn of(model: &Gguf, cache: Option<&Path>) -> Result<Self> {
        let Some(cache) = cache else {
            return Self::compute(model);
        };
        let Some(key) = file_key(model) else {
            return Self::compute(model);
        };
        let mut memory = Memory::read(cache);
        if let Some(known) = memory.find(&key) {
            return Ok(known);
        }
        let digest = Self::compute(model)?;
        memory.add(key, digest);
        if let Err(error) = memory.write(cache) {
            tracing::warn!(
                "cannot remember the digest of the weights in {}: {error}",
                cache.display()
            );
        }
        Ok(digest)
    }

    fn compute(model: &Gguf) -> Result<Self> {
        let mut hash = Sha256::new();
        hash.update(DOMAIN);
        for (name, info) in model.tensors() {
            let mut field = |bytes: &[u8]| {
                hash.update((bytes.len() as u64).to_le_bytes());
                hash.update(bytes);
            };
            field(name.as_bytes());
            field(info.ty.name().as_bytes());
            let dims: Vec<u8> = info
                .dims
                .iter()
                .flat_map(|&d| (d as u64).to_le_bytes())
                .collect();
            field(&dims);
            field(&model.bytes(name)?);
        }
        Ok(Self(hash.finalize().into()))
    }
}

impl fmt::Display for WeightsDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// What the file system says about the files of a model: another file, or the same after a write,
/// has another key.
fn file_key(model: &Gguf) -> Option<String> {
    let parts: Option<Vec<_>> = model
        .parts
        .iter()
        .map(|part| part.stat.as_ref().and_then(part_key))
        .collect();
    parts.map(|parts| parts.join(","))
}

#[cfg(unix)]
fn part_key(stat: &Metadata) -> Option<String> {
    use std::os::unix::fs::MetadataExt as _;
    Some(format!(
        "{}:{}:{}:{}.{:09}:{}.{:09}",
        stat.dev(),
        stat.ino(),
        stat.size(),
        stat.mtime(),
        stat.mtime_nsec(),
        stat.ctime(),
        stat.ctime_nsec()
    ))
}

/// Without inodes a file cannot be told from another of its size and time.
#[cfg(not(unix))]
fn part_key(_: &Metadata) -> Option<String> {
    None
}

/// The cache file: JSON, the oldest entry first.
#[derive(Default, Serialize, Deserialize)]
struct Memory {
    domain: String,
    digests: Vec<Remembered>,
}

#[derive(Serialize, Deserialize)]
struct Remembered {
    files: String,
    sha256: String,
}

impl Memory {
    /// What is remembered; nothing where the file is absent, foreign or damaged.
    fn read(path: &Path) -> Self {
        let mut text = Vec::new();
        let read = File::open(path)
            .and_then(|file| file.take(DIGEST_CACHE_BYTES_MAX).read_to_end(&mut text));
        let parsed = read
            .ok()
            .and_then(|_| serde_json::from_slice::<Self>(&text).ok());
        parsed
            .filter(|memory| memory.domain == DOMAIN)
            .unwrap_or_default()
    }

    fn find(&self, files: &str) -> Option<WeightsDigest> {
        let entry = self.digests.iter().find(|entry| entry.files == files)?;
        parse_hex(&entry.sha256).map(WeightsDigest)
    }

    fn add(&mut self, files: String, digest: WeightsDigest) {
        self.domain = DOMAIN.to_owned();
        self.digests.retain(|entry| entry.files != files);
        self.digests.push(Remembered {
            files,
            sha256: digest.to_string(),
        });
        let excess = self.digests.len().saturating_sub(DIGESTS_REMEMBERED_MAX);
        self.digests.drain(..excess);
    }

    /// Writes a new file and renames it over the old one, so that a reader sees one or the other.
    fn write(&self, path: &Path) -> std::io::Result<()> {
        let text = serde_json::to_vec(self)?;
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}.tmp", std::process::id()));
        let new = path.with_file_name(name);
        let written = File::create(&new)
            .and_then(|mut file| file.write_all(&text))
            .and_then(|()| std::fs::rename(&new, path));
        if written.is_err() {
            // What is left of a failed write helps nobody, and its removal may fail as well.
            let _ = std::fs::remove_file(&new);
        }
        written
    }
}

fn parse_hex(text: &str) -> Option<[u8; 32]> {
    let mut out = [0; 32];
    let (digits, rest) = text.as_bytes().as_chunks::<2>();
    if digits.len() != out.len() || !rest.is_empty() {
        return None;
    }
    for (byte, pair) in out.iter_mut().zip(digits) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(out)
}
