//! What can go wrong when weights, KV memory or threads are set up.
//!
//! Every message says need, have and fix. Shape mismatches inside a running
//! kernel are bugs of the calling crate and panic instead: they cannot depend on
//! what a user typed or a file holds, because models validate before they load.

use crate::Blame;

/// An error of this crate, with the party that can mend it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The bytes of a weight do not fit its shape and type.
    #[error(
        "weight {rows}x{cols} {ty}: need {need_bytes} bytes, have {have_bytes}; the file is cut short or its header is wrong"
    )]
    WeightBytes {
        rows: usize,
        cols: usize,
        ty: &'static str,
        need_bytes: usize,
        have_bytes: usize,
    },
    /// The shape itself cannot be: zero, overflowing, or not a whole number of blocks.
    #[error("weight {rows}x{cols} {ty}: {why}; convert the model again")]
    WeightShape {
        rows: usize,
        cols: usize,
        ty: &'static str,
        why: String,
    },
    /// A KV arena, thread pool or table was asked for with impossible numbers.
    #[error("{what}: need {need}, have {have}; {fix}")]
    Request {
        what: &'static str,
        need: String,
        have: String,
        fix: &'static str,
    },
    /// The system refused memory.
    #[error("{what}: need {need_bytes} bytes of memory, the system refused them; {fix}")]
    Memory {
        what: &'static str,
        need_bytes: usize,
        fix: &'static str,
    },
    /// The system refused a thread.
    #[error(
        "thread pool: need {need} threads, the system refused one ({cause}); ask for fewer threads"
    )]
    Threads { need: usize, cause: std::io::Error },
}

impl Error {
    /// Who has to act.
    pub fn blame(&self) -> Blame {
        match self {
            Error::WeightBytes { .. } | Error::WeightShape { .. } => Blame::Input,
            Error::Request { .. } => Blame::Caller,
            Error::Memory { .. } | Error::Threads { .. } => Blame::Device,
        }
    }
}
