//! What can go wrong while a model is opened or run. The message says need, have and fix; the path
//! of the file, where there is one, opens it; the blame says who can mend it.

use std::fmt;
use std::path::{Path, PathBuf};

pub use kernels::Blame;

use crate::limits::QUOTE_CHARS_MAX;

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of this crate. `Display` gives one line for a person.
#[derive(Debug, thiserror::Error)]
pub struct Error {
    blame: Blame,
    path: Option<PathBuf>,
    message: String,
    source: Option<Box<dyn std::error::Error + Send + Sync + 'static>>,
}

impl Error {
    pub fn new(blame: Blame, message: impl Into<String>) -> Self {
        Self {
            blame,
            path: None,
            message: message.into(),
            source: None,
        }
    }

    /// The caller asked for something that cannot be.
    pub fn caller(message: impl Into<String>) -> Self {
        Self::new(Blame::Caller, message)
    }

    /// What was read is wrong.
    pub fn input(message: impl Into<String>) -> Self {
        Self::new(Blame::Input, message)
    }

    /// The machine lacks something.
    pub fn device(message: impl Into<String>) -> Self {
        Self::new(Blame::Device, message)
    }

    /// A fault of this program.
    pub fn bug(message: impl Into<String>) -> Self {
        Self::new(Blame::Bug, message)
    }

    /// Names the file that the error is about, unless one is named already.
    #[must_use]
    pub fn in_file(mut self, path: &Path) -> Self {
        self.path.get_or_insert_with(|| path.to_owned());
        self
    }

    /// Keeps the error that this one was made from.
    #[must_use]
    pub fn caused_by(
        mut self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Puts what was being read before the message: `metadata key "x": ...`.
    #[must_use]
    pub fn within(mut self, what: &str) -> Self {
        self.message.insert_str(0, ": ");
        self.message.insert_str(0, what);
        self
    }

    pub fn blame(&self) -> Blame {
        self.blame
    }

    /// The file that the error is about.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// The message without the path.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(path) = &self.path {
            write!(f, "{}: ", path.display())?;
        }
        f.write_str(&self.message)
    }
}

/// Foreign text for an error: quoted, control characters escaped, cut to
/// [`QUOTE_CHARS_MAX`] with a mark.
pub fn quote(text: &str) -> String {
    let cut: String = text.chars().take(QUOTE_CHARS_MAX).collect();
    if cut.len() == text.len() {
        format!("{text:?}")
    } else {
        format!("{cut:?}... ({} bytes)", text.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_text_is_short_and_harmless_in_a_terminal() {
        assert_eq!(quote("a\u{1b}[2J"), "\"a\\u{1b}[2J\"");
        let long = "x".repeat(70_000);
        assert!(quote(&long).len() < 120);
        assert!(quote(&long).ends_with("(70000 bytes)"));
    }

    #[test]
    fn the_line_names_the_file_once_and_keeps_the_first() {
        let error = Error::input("no tensors")
            .in_file(Path::new("a.gguf"))
            .in_file(Path::new("b"));
        assert_eq!(error.to_string(), "a.gguf: no tensors");
        assert_eq!(error.blame(), Blame::Input);
    }

    #[test]
    fn the_cause_stays_reachable() {
        let cause = std::io::Error::other("disk on fire");
        let error = Error::device("cannot read").caused_by(cause);
        let source = std::error::Error::source(&error).expect("a source");
        assert_eq!(source.to_string(), "disk on fire");
    }
}
