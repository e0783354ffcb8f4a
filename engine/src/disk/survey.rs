//! What is in the folder, for people: read from the headers, without a model.

use super::folder::{Entry, Files as _, Folder};
use super::format::{AboutPiece, Header};
use super::read_header;
use std::collections::HashMap;
use std::io;
use std::path::Path;

/// A file of the disk tier.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct KeptFile {
    /// `<ModelIdentity>/<file>`
    pub name: String,
    /// What the model was called; `None` when neither this header nor that of a file beside it can be read.
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

/// Every file in `folder`, those too that a killed process has not finished: what was said to a model is in them
/// as well. None when the folder is not there.
pub fn survey(folder: &Path) -> io::Result<Vec<KeptFile>> {
    let folder = Folder::existing(folder);
    let entries = match folder.list() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let whole = entries.into_iter().map(|entry| {
        let header = read_header(&folder, &entry).map_err(|reason| reason.to_string());
        kept_file(entry, header)
    });
    let unfinished = folder.unfinished()?.into_iter().map(|entry| {
        let reason = "it is being written, or its process was killed while it wrote";
        kept_file(entry, Err(reason.to_owned()))
    });
    let mut files: Vec<KeptFile> = whole.chain(unfinished).collect();
    name_models(&mut files);
    Ok(files)
}

/// A folder has the files of one model: those that are of no use are its files too.
fn name_models(files: &mut [KeptFile]) {
    let folder_of = |file: &KeptFile| file.name.split('/').next().map(str::to_owned);
    let known: HashMap<_, _> = files
        .iter()
        .filter_map(|file| Some((folder_of(file), file.model.clone()?)))
        .collect();
    for file in files.iter_mut().filter(|file| file.model.is_none()) {
        file.model = known.get(&folder_of(file)).cloned();
    }
}

/// Bytes of all files in `folder`; 0 when it cannot be listed.
pub fn bytes_in(folder: &Path) -> u64 {
    let folder = Folder::existing(folder);
    let lists = [folder.list(), folder.unfinished()];
    let entries = lists.iter().flatten().flatten();
    entries.map(|entry| entry.bytes).sum()
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

fn kept_file(entry: Entry, header: Result<Header, String>) -> KeptFile {
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
            unfit: Some(reason),
            tokens: 0,
            model: None,
            pieces: Vec::new(),
            created: 0,
            hits: 0,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn what_a_killed_process_left_is_listed_counted_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("model")).unwrap();
        for name in ["model/1-0.unfinished", "model/a.kv", "not-ours"] {
            fs::write(dir.path().join(name), b"what was said").unwrap();
        }
        let files = survey(dir.path()).unwrap();
        let named: Vec<_> = files.iter().map(|file| &*file.name).collect();
        assert_eq!(named, ["model/a.kv", "model/1-0.unfinished"]);
        assert!(files[1].unfit.as_ref().unwrap().contains("killed"));
        assert_eq!(bytes_in(dir.path()), 26);
        remove(dir.path(), named.into_iter()).unwrap();
        assert_eq!(survey(dir.path()).unwrap(), []);
        assert!(dir.path().join("not-ours").exists());
    }

    #[test]
    fn files_of_no_use_belong_to_the_model_of_their_folder() {
        let file = |name: &str, model: Option<&str>| KeptFile {
            name: name.to_owned(),
            model: model.map(str::to_owned),
            bytes: 1,
            tokens: 0,
            pieces: Vec::new(),
            created: 0,
            used: 0,
            hits: 0,
            unfit: None,
        };
        let mut files = [
            file("a/1.kv", None),
            file("a/2.kv", Some("smollm2")),
            file("b/1.kv", None),
        ];
        name_models(&mut files);
        let models = files.map(|file| file.model);
        let smollm2 = Some("smollm2".to_owned());
        assert_eq!(models, [smollm2.clone(), smollm2, None]);
    }
}
