//! What can go wrong in the engine. Every error says need, have and fix, and assigns blame.
//!
//! Invariant: an `Error` is `Clone`, because one failed forward pass ends several sequences.

pub use kernels::Blame;

use crate::context::Bound;
use crate::grammar::GrammarError;
use crate::sampler::SampleError;

/// One row of the table that accompanies [`Error::PromptTooLong`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PieceTokens {
    pub name: String,
    pub tokens: usize,
}

#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    #[error("the prompt has no tokens; need at least 1")]
    EmptyPrompt,
    #[error(
        "piece {name:?} of layer {layer} comes after a piece of layer {after}; \
         order the fixed pieces Instructions, Tools, Memory"
    )]
    LayerOrder {
        name: String,
        layer: &'static str,
        after: &'static str,
    },
    #[error(
        "the prompt does not fit the context window: need {need} tokens (prompt {prompt} and room \
         for 1 of reply), have {have}; {}\n{}",
        bound.fix(),
        piece_table(pieces)
    )]
    PromptTooLong {
        prompt: usize,
        need: usize,
        have: usize,
        bound: Bound,
        pieces: Vec<PieceTokens>,
    },
    #[error("token id {id} at position {position} is not in the vocabulary of {vocab} tokens")]
    UnknownToken {
        id: u32,
        position: usize,
        vocab: usize,
    },
    #[error("{0}")]
    BadRequest(String),
    #[error(
        "KV pool full: need {need} blocks, have {have} of {total}; raise --kv-memory or lower --context"
    )]
    PoolFull {
        need: usize,
        have: usize,
        total: usize,
    },
    #[error("the queue is full: {have} requests wait, {have} may; try again later")]
    QueueFull { have: usize },
    #[error(
        "not enough memory for the KV cache: need {need_bytes} bytes for a context of {tokens} \
         tokens, have {have_bytes}; lower --context or raise --kv-memory"
    )]
    NoMemory {
        need_bytes: u64,
        have_bytes: u64,
        tokens: usize,
    },
    #[error(
        "--context {need} is more than the {have} tokens the model was trained for; \
         choose at most {have}"
    )]
    ContextTooLong { need: usize, have: usize },
    #[error("--context {need} is too short for a template and a reply; choose at least {least}")]
    ContextTooShort { need: usize, least: usize },
    #[error("the forward pass failed: {message}")]
    Forward { blame: Blame, message: String },
    #[error("{message}")]
    Sampling { blame: Blame, message: String },
    #[error("the engine's thread could not start: {0}")]
    Thread(String),
    #[error("the engine has stopped")]
    Stopped,
    /// A broken promise of our own. `0` says which.
    #[error("this is a bug in Ostler: {0}")]
    Bug(String),
}

impl Error {
    pub(crate) fn forward(error: models::Error) -> Self {
        Error::Forward {
            blame: error.blame(),
            message: error.to_string(),
        }
    }

    pub(crate) fn sampling(error: SampleError) -> Self {
        Error::Sampling {
            blame: error.blame(),
            message: error.to_string(),
        }
    }

    pub(crate) fn grammar(error: GrammarError) -> Self {
        Error::Sampling {
            blame: error.blame(),
            message: error.to_string(),
        }
    }

    pub fn blame(&self) -> Blame {
        match self {
            Error::EmptyPrompt
            | Error::LayerOrder { .. }
            | Error::PromptTooLong { .. }
            | Error::UnknownToken { .. }
            | Error::BadRequest(_)
            | Error::ContextTooLong { .. }
            | Error::ContextTooShort { .. } => Blame::Caller,
            Error::PoolFull { .. }
            | Error::QueueFull { .. }
            | Error::NoMemory { .. }
            | Error::Thread(_) => Blame::Device,
            Error::Forward { blame, .. } | Error::Sampling { blame, .. } => *blame,
            Error::Stopped | Error::Bug(_) => Blame::Bug,
        }
    }
}

fn piece_table(pieces: &[PieceTokens]) -> String {
    let width = pieces.iter().map(|p| p.name.chars().count()).max();
    let width = width.unwrap_or(0).max("piece".len());
    let mut table = format!("{:<width$}  tokens", "piece");
    for piece in pieces {
        table.push_str(&format!("\n{:<width$}  {:>6}", piece.name, piece.tokens));
    }
    table
}

pub type Result<T> = std::result::Result<T, Error>;
