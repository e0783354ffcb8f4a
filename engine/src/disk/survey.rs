//! What is in the folder, for people: read from the headers, without a model.

use super::folder::{Entry, Files as _, Folder};
use super::format::AboutPiece;
use super::read_header;
use std::io;
use std::path::Path;

/// A file of the disk tier.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct KeptFile {
    /// `<ModelIdentity>/<file>`
    pub name: String,
    /// What the model was called; `None` when the header cannot be read.
    pub model: Option<String>,
    pub bytes: u64,
    pub tokens: usize,
    pub pieces: Vec<AboutPiece>,
    /// Seconds since 1970.
    pub created: u64,
    pub used: u64,
    pub hits: u64,
    /// Why it is of no use.
    pub unfit: Option<String>,
}

/// Every file in `folder`. None when the folder is not there.
pub fn survey(folder: &Path) -> io::Result<Vec<KeptFile>> {
    let folder = Folder::existing(folder);
    let entries = match folder.list() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    Ok(entries.into_iter().map(|e| kept_file(&folder, e)).collect())
}

/// Bytes of all files in `folder`; 0 when it cannot be listed.
pub fn bytes_in(folder: &Path) -> u64 {
    let entries = Folder::existing(folder).list();
    entries.map_or(0, |all| all.iter().map(|e| e.bytes).sum())
}

/// Removes files that [`survey`] named. Those that have gone already are no error.
pub fn remove<'a>(folder: &Path, names: impl Iterator<Item = &'a str>) -> io::Result<()> {
    let folder = Folder::existing(folder);
    for name in names {
        match folder.remove(name) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Err(_) | Ok(()) => {}
        }
    }
    Ok(())
}

fn kept_file(folder: &Folder, entry: Entry) -> KeptFile {
    let header = read_header(folder, &entry);
    let Entry { name, bytes, used } = entry;
    let name = name.to_string();
    match header {
        Ok(header) => KeptFile {
            name,
            bytes,
            used,
            tokens: header.ids.len(),
            model: Some(header.about.model),
            pieces: header.about.pieces,
            created: header.about.created,
            hits: header.hits,
            unfit: None,
        },
        Err(reason) => KeptFile {
            name,
            bytes,
            used,
            unfit: Some(reason.to_string()),
            tokens: 0,
            model: None,
            pieces: Vec::new(),
            created: 0,
            hits: 0,
        },
    }
}
