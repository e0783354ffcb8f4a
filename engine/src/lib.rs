#![forbid(unsafe_code)]
//! Tokens in, tokens out: block pool, prefix tree, scheduler, sampler, grammar masks.
//! The engine never sees text; it knows token ids, piece marks and the bytes of each token.

mod error;
pub mod grammar;
mod keys;
mod limits;
mod piece;
mod prompt;
mod report;
pub mod sampler;
pub mod stop;
mod vocab;

pub use error::{Blame, Error, PieceTokens, Result};
pub use keys::{BlockKey, ChainKey, Fingerprint, Salt, text_hash};
pub use piece::{Layer, Piece};
pub use prompt::Prompt;
pub use report::{Between, Break, PieceUse, Plan, Report, Source, Why};
pub use vocab::TokenBytes;
