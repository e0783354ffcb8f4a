//! What the store remembers of a model it fetched: one small JSON file in the model's own folder.
//!
//! Invariant: only what a receipt names as ours is ever removed.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::disk::write_whole;
use super::error::StoreError;

pub const RECEIPT_FILE: &str = "receipt.json";

#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Receipt {
    /// What `ostler run --model` takes: a catalogue name, or `org/repo/file.gguf`.
    pub name: String,
    /// Where it came from, for people.
    pub source: String,
    /// The file to load, then the other parts of a split model.
    pub files: Vec<Kept>,
}

#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Kept {
    /// Relative to the receipt's folder, or absolute (the hub's cache).
    pub path: PathBuf,
    pub size_bytes: u64,
    /// None where the source gave no checksum.
    pub sha256: Option<String>,
    /// The file a symbolic link at `path` points to, when that is ours to remove as well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blob: Option<PathBuf>,
    /// False for what lay in the hub's cache before we came.
    pub ours: bool,
}

impl Receipt {
    /// `folder` is the model's folder in the store.
    pub fn write(&self, folder: &Path) -> Result<(), StoreError> {
        let mut text = serde_json::to_string_pretty(self).expect("a receipt is plain data");
        text.push('\n');
        write_whole(&folder.join(RECEIPT_FILE), text.as_bytes())
    }

    /// None when there is none, or when it cannot be read: the model is then fetched again.
    pub fn read(folder: &Path) -> Option<Receipt> {
        let text = fs::read_to_string(folder.join(RECEIPT_FILE)).ok()?;
        serde_json::from_str(&text)
            .ok()
            .filter(|receipt: &Receipt| !receipt.files.is_empty())
    }

    /// The file to load, when every file is there at its full size.
    pub fn whole(&self, folder: &Path) -> Option<PathBuf> {
        let there = |kept: &Kept| {
            fs::metadata(folder.join(&kept.path)).is_ok_and(|meta| meta.len() == kept.size_bytes)
        };
        self.files
            .iter()
            .all(there)
            .then(|| folder.join(&self.files[0].path))
    }

    /// Whether the files are no newer than the receipt: then its checksums are still theirs.
    pub fn untouched(&self, folder: &Path) -> bool {
        let written = |path: PathBuf| fs::metadata(path).and_then(|meta| meta.modified());
        let Ok(receipt) = written(folder.join(RECEIPT_FILE)) else {
            return false;
        };
        self.files
            .iter()
            .all(|kept| written(folder.join(&kept.path)).is_ok_and(|file| file <= receipt))
    }

    pub fn size_bytes(&self) -> u64 {
        self.files.iter().map(|kept| kept.size_bytes).sum()
    }
}

/// A model's name as one folder name. Distinct names give distinct folders.
pub fn folder_name(name: &str) -> String {
    name.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'-' => (byte as char).to_string(),
            b'/' => "__".to_owned(),
            b':' => "_".to_owned(),
            _ => format!("_{byte:02x}_"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_names_are_plain_and_distinct() {
        let names = [
            "a:b",
            "a/b",
            "a_b",
            "a__b",
            "org/repo/file.gguf",
            "org_/repo/file.gguf",
        ];
        let folders: std::collections::HashSet<String> =
            names.iter().map(|name| folder_name(name)).collect();
        assert_eq!(folders.len(), names.len());
        assert!(folders.iter().all(|folder| !folder.contains('/')));
    }

    #[test]
    fn a_receipt_that_cannot_be_read_is_no_receipt() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Receipt::read(folder.path()), None);
        fs::write(folder.path().join(RECEIPT_FILE), "{\"name\":").unwrap();
        assert_eq!(Receipt::read(folder.path()), None);
        let kept = Kept {
            path: "m.gguf".into(),
            size_bytes: 3,
            sha256: None,
            blob: None,
            ours: true,
        };
        let receipt = Receipt {
            name: "m".into(),
            source: "test".into(),
            files: vec![kept],
        };
        receipt.write(folder.path()).unwrap();
        assert_eq!(Receipt::read(folder.path()).as_ref(), Some(&receipt));
        assert_eq!(receipt.whole(folder.path()), None, "the file is missing");
        fs::write(folder.path().join("m.gguf"), "abc").unwrap();
        assert_eq!(
            receipt.whole(folder.path()),
            Some(folder.path().join("m.gguf"))
        );
        let written = fs::metadata(folder.path().join(RECEIPT_FILE)).unwrap();
        let file = fs::File::options()
            .write(true)
            .open(folder.path().join("m.gguf"))
            .unwrap();
        let at = |seconds: i64| {
            let second = std::time::Duration::from_secs(1);
            let written = written.modified().unwrap();
            let time = if seconds < 0 {
                written - second
            } else {
                written + second
            };
            file.set_modified(time).unwrap();
            receipt.untouched(folder.path())
        };
        assert!(at(-1));
        assert!(!at(1), "it was written to since");
    }
}
