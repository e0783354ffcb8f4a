//! Taking back the last run: what was said leaves the timeline, and files that `write` and `edit` changed are as they
//! were. What commands did is not known and stays.
//!
//! Invariant: a file that somebody has changed since is left as it is, and named.

use std::io;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::session::Session;
use super::transcript::{Entry, Record};
use crate::error::{Error, Result};
use crate::limits;

/// Where the session `id` keeps files as they were.
pub fn folder(sessions: &Path, id: &str) -> PathBuf {
    sessions.join(id).join("before")
}

/// A file before a call that may change it.
pub struct Before {
    path: PathBuf,
    /// `None`: there was none.
    bytes: Option<Vec<u8>>,
}

impl Before {
    /// `None` where what is there could not be put back: too large, no file, not readable.
    pub fn look(path: &Path) -> Option<Before> {
        let bytes = match std::fs::symlink_metadata(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            Ok(about) if about.is_file() && about.len() <= limits::EDIT_BYTES_MAX => {
                Some(std::fs::read(path).ok()?)
            }
            Ok(_) | Err(_) => return None,
        };
        Some(Before {
            path: path.to_owned(),
            bytes,
        })
    }

    /// Keeps it under the name of the call, if the call has changed the file.
    pub fn keep(self, folder: &Path, call: &str) -> Result<Option<Entry>> {
        let now = std::fs::read(&self.path).ok();
        let Some(after) = now.filter(|now| Some(now) != self.bytes.as_ref()) else {
            return Ok(None);
        };
        let before = match &self.bytes {
            None => None,
            Some(bytes) => {
                let path = folder.join(call);
                let written =
                    std::fs::create_dir_all(folder).and_then(|()| write_private(&path, bytes));
                written.map_err(|e| Error::io("keep a file as it was", &path, &e))?;
                Some(call.to_owned())
            }
        };
        Ok(Some(Entry::FileChanged {
            path: self.path,
            before,
            after: fingerprint(&after),
        }))
    }
}

/// What was taken back.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Undone {
    /// The request that began the run.
    pub request: String,
    pub restored: Vec<PathBuf>,
    /// Files that were left as they are, and why.
    pub left: Vec<(PathBuf, String)>,
}

/// Takes back the last run of `session`; `folder` holds the files as they were.
pub fn undo(session: &mut Session, folder: &Path) -> Result<Undone> {
    let records = session.records();
    let Some(start) = last_run(records) else {
        return Err(Error::caller("there is nothing to undo in this session"));
    };
    let mut undone = Undone::default();
    if let Entry::User { text } = &records[start].entry {
        undone.request = text.clone();
    }
    let entries = records.len() - start;
    for record in records[start..].iter().rev() {
        let Entry::FileChanged {
            path,
            before,
            after,
        } = &record.entry
        else {
            continue;
        };
        if undone.left.iter().any(|(left, _)| left == path) {
            continue;
        }
        match restore(path, before.as_ref().map(|name| folder.join(name)), after) {
            Ok(()) if undone.restored.contains(path) => {}
            Ok(()) => undone.restored.push(path.clone()),
            Err(why) => undone.left.push((path.clone(), why)),
        }
    }
    let before = records[start - 1].id;
    session.rewind(before)?;
    session.append(Entry::Undone { entries })?;
    Ok(undone)
}

/// Where the newest run begins: the first request after the end of the one before.
fn last_run(records: &[Record]) -> Option<usize> {
    let is_end = |r: &Record| matches!(r.entry, Entry::End { .. } | Entry::Undone { .. });
    let is_request = |r: &Record| matches!(r.entry, Entry::User { .. });
    let newest = records.iter().rposition(is_request)?;
    let boundary = records[..newest]
        .iter()
        .rposition(is_end)
        .map_or(0, |at| at + 1);
    let first = records[boundary..].iter().position(is_request)?;
    // A session begins with what it opened with.
    Some(boundary + first).filter(|start| *start > 0)
}

fn restore(path: &Path, before: Option<PathBuf>, after: &str) -> std::result::Result<(), String> {
    let now = std::fs::read(path).map_err(|e| e.to_string())?;
    if fingerprint(&now) != after {
        return Err("it was changed since".into());
    }
    let done = match before {
        None => std::fs::remove_file(path),
        Some(kept) => std::fs::read(kept).and_then(|bytes| std::fs::write(path, bytes)),
    };
    done.map_err(|e| e.to_string())
}

fn fingerprint(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What was in a person's file is the person's own.
fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    use std::io::Write as _;
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)?.write_all(bytes)
}
