//! What can go wrong in the harness, and the one place where blame becomes an exit code and an HTTP status.
//!
//! A message says what was needed, what was there and what to change. Whoever has to act is the [`Blame`].

use std::io;

pub use engine::Blame;

use crate::store::StoreError;

pub type Result<T> = std::result::Result<T, Error>;

/// Exit code when Ctrl-C ended the work: 128 + SIGINT, as a shell gives it.
pub const EXIT_INTERRUPTED: u8 = 130;

/// Exit code when the agent stopped at a guard or a failed compaction.
pub const EXIT_UNFINISHED: u8 = 5;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Said by the harness itself.
    #[error("{text}")]
    Said { blame: Blame, text: String },
    /// Finding, fetching or removing a model.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Reading or running a model.
    #[error(transparent)]
    Models(#[from] models::Error),
    /// A chat template.
    #[error(transparent)]
    Template(#[from] models::template::TemplateError),
    /// A call to the engine.
    #[error(transparent)]
    Engine(#[from] engine::Error),
    /// The reader of our output went away (`ostler … | head`). Not an error to a person: quiet, exit code 0.
    #[error("the reader of the output went away")]
    OutputClosed,
}

impl Error {
    pub fn caller(text: impl Into<String>) -> Error {
        Error::Said {
            blame: Blame::Caller,
            text: text.into(),
        }
    }

    pub fn input(text: impl Into<String>) -> Error {
        Error::Said {
            blame: Blame::Input,
            text: text.into(),
        }
    }

    pub fn device(text: impl Into<String>) -> Error {
        Error::Said {
            blame: Blame::Device,
            text: text.into(),
        }
    }

    pub fn bug(text: impl Into<String>) -> Error {
        Error::Said {
            blame: Blame::Bug,
            text: text.into(),
        }
    }

    /// An error of writing our own output.
    pub fn output(error: io::Error) -> Error {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Error::OutputClosed,
            _ => Error::device(format!("cannot write the output: {error}")),
        }
    }

    /// An error of reading or writing `path` while doing what `doing` says.
    pub fn io(doing: &str, path: &std::path::Path, error: &io::Error) -> Error {
        Error::device(format!("cannot {doing} {}: {error}", path.display()))
    }

    pub fn blame(&self) -> Blame {
        match self {
            Error::Said { blame, .. } => *blame,
            Error::Store(error) => error.blame(),
            Error::Models(error) => error.blame(),
            Error::Template(error) => error.blame(),
            Error::Engine(error) => error.blame(),
            Error::OutputClosed => Blame::Caller,
        }
    }

    /// The process's exit code. Told in `ostler --help`.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::OutputClosed => 0,
            _ => exit_code(self.blame()),
        }
    }

    pub fn http_status(&self) -> u16 {
        http_status(self.blame())
    }
}

/// sysexits' EX_SOFTWARE for our own faults; small numbers for the rest.
pub fn exit_code(blame: Blame) -> u8 {
    match blame {
        Blame::Caller => 2,
        Blame::Input => 3,
        Blame::Device => 4,
        Blame::Bug => 70,
    }
}

pub fn http_status(blame: Blame) -> u16 {
    match blame {
        Blame::Caller => 400,
        Blame::Input => 422,
        Blame::Device => 503,
        Blame::Bug => 500,
    }
}
