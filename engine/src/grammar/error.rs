//! Why a grammar was refused or failed.

use kernels::Blame;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    /// A JSON schema that cannot be enforced. `path` is a JSON pointer from the schema's root.
    #[error("schema at {path}: {keyword}: {why}")]
    Schema {
        path: String,
        keyword: String,
        why: String,
    },
    /// A Lark grammar or a regular expression that does not compile.
    #[error("{what}: {why}")]
    Rule { what: &'static str, why: String },
    /// The named tool is not among the tools.
    #[error("no tool is named {name:?}; have {have}")]
    UnknownTool { name: String, have: String },
    /// The grammar became too complex while the answer was written.
    #[error("the grammar cannot go on: {why}; use a simpler schema or pattern")]
    TooComplex { why: String },
    /// The vocabulary has no token that could end a constrained answer.
    #[error("grammars need a token that ends the answer, this vocabulary has none")]
    NoEndToken,
    /// A broken promise of our own.
    #[error("this is a bug in Ostler: {0}")]
    Bug(String),
}

impl GrammarError {
    pub fn blame(&self) -> Blame {
        match self {
            GrammarError::Schema { .. }
            | GrammarError::Rule { .. }
            | GrammarError::UnknownTool { .. }
            | GrammarError::TooComplex { .. } => Blame::Caller,
            GrammarError::NoEndToken => Blame::Input,
            GrammarError::Bug(_) => Blame::Bug,
        }
    }
}

/// The first line of a library's message, cut to a readable length: it likes to append its state.
pub(super) fn brief(message: &str) -> String {
    let line = message.lines().next().unwrap_or_default();
    let line = line.split("\n<").next().unwrap_or(line);
    match line.char_indices().nth(MESSAGE_CHARS_MAX) {
        Some((cut, _)) => format!("{}...", &line[..cut]),
        None => line.to_owned(),
    }
}

const MESSAGE_CHARS_MAX: usize = 300;
