#![forbid(unsafe_code)]
//! Tokens in, tokens out: block pool, prefix tree, scheduler, sampler, grammar masks.
//! The engine never sees text; it knows token ids, piece marks and the bytes of each token.
//!
//! The life of a call: `engine` (check, queue) → `core` (plan, submit) → `schedule` (admit, lease,
//! choose rows) → `loads` (blocks from disk) → `step` (forward, sample) → `tally` (report). What is
//! kept: `cache`, which is `pool` (blocks; `windows`, their parts in layers with a window), `tree` (prefixes)
//! and `disk` (what outlives the process).

mod cache;
mod clock;
mod context;
mod core;
pub mod disk;
mod draft;
mod engine;
mod error;
pub mod grammar;
mod keys;
pub mod limits;
mod lines;
mod loads;
mod piece;
mod pins;
mod plan;
mod pool;
mod prompt;
mod rates;
mod reply;
mod report;
mod request;
pub mod sampler;
mod schedule;
mod seen;
mod sequence;
mod stats;
mod step;
pub mod stop;
mod tally;
mod timeline;
mod tree;
mod vocab;
mod windows;
mod worth;

pub use clock::{Clock, SystemClock};
pub use context::{Bound, ContextModel, ContextOptions, ContextWindow, EffectiveContext};
pub use core::{Trace, TraceRow};
pub use disk::{DiskOptions, DiskStats};
pub use engine::{Engine, EngineConfig};
pub use error::{Blame, Error, PieceTokens, Result};
pub use grammar::GrammarSpec;
pub use keys::{BlockKey, ChainKey, Fingerprint, Salt, text_hash};
pub use piece::{Layer, Piece};
pub use plan::computed_within;
pub use pool::{BlockCount, BlockId, PoolCounts};
pub use prompt::Prompt;
pub use report::{Between, Break, PieceUse, Plan, Report, Source, Why};
pub use request::{Canceller, Event, Finish, Generation, Logprob, Priority, Request};
pub use sampler::SamplingParams;
pub use stats::{ResidentPiece, ReuseGaps, Stats};
pub use timeline::Timeline;
pub use vocab::TokenBytes;
pub use windows::WindowCounts;

#[cfg(test)]
mod tests;
