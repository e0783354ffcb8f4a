//! GGUF model files: opened, checked whole, mapped. No byte of a weight is read here.
//!
//! Invariant: what a [`Gguf`] hands out lies within its files; every length, count and offset of the
//! header was compared with what is really there, and nothing was allocated that the file could not
//! fill. Hostile files give an error that names the key or the tensor.
//!
//! After the GGUF specification (ggml, `docs/gguf.md`), versions 2 and 3, little-endian, split or
//! whole.

mod cursor;
mod digest;
mod header;
mod map;
mod metadata;
mod split;
mod summary;
mod tensor;
mod value;
pub mod write;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bytes::Bytes;

pub use digest::WeightsDigest;
pub use metadata::{FromValue, Metadata};
pub use summary::{Summary, TypeShare};
pub use tensor::TensorInfo;
pub use value::{Array, Value, ValueType};

use self::header::Header;
use self::split::Split;
use self::tensor::{DataPlace, Placed};
use crate::error::quote;
use crate::limits::TENSORS_MAX;
use crate::{Error, Result};

/// An opened model: metadata, and tensors that lie in mapped files.
pub struct Gguf {
    path: PathBuf,
    version: u32,
    metadata: Metadata,
    tensors: BTreeMap<String, TensorInfo>,
    parts: Vec<Part>,
    warnings: Vec<String>,
}

/// One file of a model.
struct Part {
    bytes: Bytes,
    /// As the file system gave it when the file was opened; `None` for a model in memory.
    stat: Option<std::fs::Metadata>,
    /// `None` for a model in memory.
    pages: Option<map::Pages>,
}

impl Gguf {
    /// Opens a model. Of a split model give the first part; the others are found by its name.
    ///
    /// # Errors
    /// Blames the caller for a path that is no file or a later part, the input for anything wrong
    /// inside; each error names the path.
    pub fn open(path: &Path) -> Result<Self> {
        Self::with_first(path, OpenedPart::open(path, 0)?)
    }

    /// Opens a model that lies in memory. `path` is where it is said to be: errors name it, and the
    /// other parts of a split model are looked for beside it.
    ///
    /// # Errors
    /// As [`Gguf::open`].
    pub fn from_bytes(path: &Path, bytes: Bytes) -> Result<Self> {
        Self::with_first(
            path,
            OpenedPart::read(
                path,
                0,
                Part {
                    bytes,
                    stat: None,
                    pages: None,
                },
            )?,
        )
    }

    fn with_first(path: &Path, first: OpenedPart) -> Result<Self> {
        let split = Split::of(&first.metadata)?;
        let mut model = Self {
            path: path.to_owned(),
            version: first.version,
            metadata: first.metadata,
            tensors: BTreeMap::new(),
            parts: Vec::new(),
            warnings: first.warnings,
        };
        let others = match split {
            None => Vec::new(),
            Some(split) => split.paths(path)?.split_off(1),
        };
        model.add_tensors(path, first.tensors)?;
        model.parts.push(first.part);
        for (index, path) in (1..).zip(&others) {
            let part = OpenedPart::open(path, index)?;
            if let Some(split) = split {
                split.check_part(index as u64, &part.metadata)?;
            }
            model.add_tensors(path, part.tensors)?;
            model.parts.push(part.part);
            model.warnings.extend(part.warnings);
        }
        if let Some(split) = split {
            split.check_tensors(model.tensors.len() as u64, &model.metadata)?;
        }
        Ok(model)
    }

    fn add_tensors(&mut self, path: &Path, tensors: Vec<(String, TensorInfo)>) -> Result<()> {
        for (name, info) in tensors {
            if self.tensors.len() as u64 >= TENSORS_MAX {
                let message = format!("more than {TENSORS_MAX} tensors in all parts");
                return Err(Error::input(message).in_file(path));
            }
            if self.tensors.contains_key(&name) {
                let message = format!(
                    "tensor {} occurs twice: which data holds cannot be known; convert the model \
                     again",
                    quote(&name)
                );
                return Err(Error::input(message).in_file(path));
            }
            self.tensors.insert(name, info);
        }
        Ok(())
    }

    /// The path that was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The version of the format: 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.get(name)
    }

    /// All tensors, in the order of their names.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = (&str, &TensorInfo)> {
        self.tensors
            .iter()
            .map(|(name, info)| (name.as_str(), info))
    }

    /// The data of a tensor, in the mapped file.
    pub fn bytes(&self, name: &str) -> Result<Bytes> {
        let info = self.tensor(name).ok_or_else(|| {
            Error::input(format!("tensor {} is missing", quote(name))).in_file(&self.path)
        })?;
        Ok(self.parts[info.part]
            .bytes
            .slice(info.start..info.start + info.bytes))
    }

    /// Gives back the memory of what was read so far; what is read again comes from the files again.
    pub fn release_pages(&self) {
        self.parts
            .iter()
            .filter_map(|part| part.pages.as_ref())
            .for_each(map::Pages::release);
    }

    /// Bytes of all files together.
    pub fn file_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes.len() as u64).sum()
    }

    /// What is odd about the file and does no harm.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

/// A part whose header has been read and whose tensors have been placed.
struct OpenedPart {
    part: Part,
    version: u32,
    metadata: Metadata,
    tensors: Vec<(String, TensorInfo)>,
    warnings: Vec<String>,
}

impl OpenedPart {
    fn open(path: &Path, index: usize) -> Result<Self> {
        let mapped = map::map_file(path)?;
        Self::read(
            path,
            index,
            Part {
                bytes: mapped.bytes,
                stat: Some(mapped.metadata),
                pages: Some(mapped.pages),
            },
        )
    }

    fn read(path: &Path, index: usize, part: Part) -> Result<Self> {
        let in_file = |error: Error| error.in_file(path);
        let header = Header::read(&part.bytes).map_err(in_file)?;
        let place = DataPlace {
            part: index,
            start: header.data_start,
            alignment: header.alignment,
            file_bytes: part.bytes.len() as u64,
        };
        let placed = tensor::place(header.rows, place).map_err(in_file)?;
        let warnings = check_trailing(path, &part.bytes, &placed).map_err(in_file)?;
        Ok(Self {
            part,
            version: header.version,
            metadata: Metadata::new(path, header.pairs),
            tensors: placed.tensors,
            warnings,
        })
    }
}

/// What comes after the last tensor: nothing, as a rule. Parts of a split model that were glued
/// together with `cat` show a second header there, and their later tensors would be lost.
fn check_trailing(path: &Path, file: &Bytes, placed: &Placed) -> Result<Vec<String>> {
    let rest = usize::try_from(placed.end)
        .ok()
        .and_then(|end| file.get(end..))
        .unwrap_or_default();
    if rest.starts_with(b"GGUF") {
        return Err(Error::input(format!(
            "a second GGUF header begins at byte {}: these are parts of a split model glued \
             together; open the first of the separate parts, or merge them with llama.cpp's \
             `llama-gguf-split --merge`",
            placed.end
        )));
    }
    if rest.is_empty() {
        return Ok(Vec::new());
    }
    Ok(vec![format!(
        "{}: {} bytes after the last tensor are ignored",
        path.display(),
        rest.len()
    )])
}

#[cfg(test)]
mod tests;
