//! Models split over several files, as llama.cpp's `gguf-split` writes them: the first part has the
//! metadata, each part has its own tensor table, and the names end in `-00001-of-00003.gguf`.

use std::path::{Path, PathBuf};

use super::metadata::Metadata;
use crate::error::quote;
use crate::limits::SPLIT_PARTS_MAX;
use crate::{Error, Result};

const INDEX_KEY: &str = "split.no";
const COUNT_KEY: &str = "split.count";
const TENSORS_KEY: &str = "split.tensors.count";

/// What a part says about the model it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Split {
    /// From 0.
    pub index: u64,
    pub count: u64,
    /// Tensors of all parts together, where the file says.
    pub tensors: Option<u64>,
}

impl Split {
    /// `None` for a model in one file.
    pub(super) fn of(metadata: &Metadata) -> Result<Option<Self>> {
        let Some(count) = metadata.optional::<u64>(COUNT_KEY)? else {
            return Ok(None);
        };
        if count > SPLIT_PARTS_MAX {
            let why = format!("need up to {SPLIT_PARTS_MAX} parts, have {count}");
            return Err(metadata.fault(COUNT_KEY, &why));
        }
        if count <= 1 {
            return Ok(None);
        }
        let index = metadata.required::<u64>(INDEX_KEY)?;
        if index >= count {
            let why = format!("part {} of {count} cannot be", index + 1);
            return Err(metadata.fault(INDEX_KEY, &why));
        }
        Ok(Some(Self {
            index,
            count,
            tensors: metadata.optional(TENSORS_KEY)?,
        }))
    }

    /// The paths of all parts, given that of the first. An error when `opened` is another part, has
    /// another name than a part has, or when a part is not there.
    pub(super) fn paths(self, opened: &Path) -> Result<Vec<PathBuf>> {
        let Self { index, count, .. } = self;
        let fail = |message: String| Error::input(message).in_file(opened);
        let name = opened
            .file_name()
            .and_then(|n| n.to_str())
            .unwrap_or_default();
        let own_end = suffix(index, count);
        let Some(stem) = name.strip_suffix(&own_end) else {
            return Err(fail(format!(
                "this is part {} of a model split in {count}, and the others are found by its name, \
                 which must end in {own_end}: give the parts their names back",
                index + 1
            )));
        };
        let path_of = |i| opened.with_file_name(format!("{stem}{}", suffix(i, count)));
        if index != 0 {
            let message = format!(
                "this is part {} of {count} of a split model: open the first part, {}",
                index + 1,
                quote(&format!("{stem}{}", suffix(0, count)))
            );
            return Err(Error::caller(message).in_file(opened));
        }
        let paths: Vec<PathBuf> = (0..count).map(path_of).collect();
        let absent: Vec<String> = paths
            .iter()
            .filter(|path| !path.exists())
            .map(|path| {
                path.file_name()
                    .unwrap_or_default()
                    .to_string_lossy()
                    .into_owned()
            })
            .collect();
        if absent.is_empty() {
            return Ok(paths);
        }
        Err(fail(format!(
            "the model is split in {count} parts, of which these are missing: {}; put all parts in \
             one folder",
            absent
                .iter()
                .map(|name| quote(name))
                .collect::<Vec<_>>()
                .join(", ")
        )))
    }

    /// Checks that the file found as part `index` is that part.
    pub(super) fn check_part(self, index: u64, metadata: &Metadata) -> Result<()> {
        let Some(found) = Self::of(metadata)? else {
            let why = format!(
                "is missing, though the name says part {} of {}",
                index + 1,
                self.count
            );
            return Err(metadata.fault(COUNT_KEY, &why));
        };
        if found.index == index && found.count == self.count {
            return Ok(());
        }
        let why = format!(
            "the name says part {} of {}, the file says part {} of {}: put back the right part",
            index + 1,
            self.count,
            found.index + 1,
            found.count
        );
        Err(metadata.fault(INDEX_KEY, &why))
    }

    /// Checks the number of tensors over all parts.
    pub(super) fn check_tensors(self, have: u64, metadata: &Metadata) -> Result<()> {
        match self.tensors {
            Some(need) if need != have => {
                let why =
                    format!("need {need} tensors in all parts, have {have}; fetch them again");
                Err(metadata.fault(TENSORS_KEY, &why))
            }
            _ => Ok(()),
        }
    }
}

fn suffix(index: u64, count: u64) -> String {
    format!("-{:05}-of-{count:05}.gguf", index + 1)
}
