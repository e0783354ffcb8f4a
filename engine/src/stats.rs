//! Counters for metrics and for people.

use crate::disk::DiskStats;
use crate::piece::Layer;
use crate::pool::PoolCounts;
use crate::report::Why;
use crate::windows::WindowCounts;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How long before a request what it goes on from was used: how many requests up to each bound.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct ReuseGaps {
    /// One a bound, then the longer ones. Each request is counted once.
    pub counts: [u64; ReuseGaps::BOUNDS_SECONDS.len() + 1],
    /// Of all of them.
    pub seconds: f64,
}

impl ReuseGaps {
    pub const BOUNDS_SECONDS: [f64; 6] = [1.0, 10.0, 60.0, 600.0, 3_600.0, 86_400.0];

    pub(crate) fn add(&mut self, gap: Duration) {
        let seconds = gap.as_secs_f64();
        let slot = Self::BOUNDS_SECONDS.partition_point(|bound| *bound < seconds);
        self.counts[slot] += 1;
        self.seconds += seconds;
    }
}

/// A piece that is in memory, to its end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ResidentPiece {
    pub name: String,
    pub layer: Layer,
    pub tokens: usize,
    /// In the layers that see every position.
    pub bytes: u64,
    /// Since a call went on from its end, or ended there.
    pub unused_seconds: f64,
    /// Calls that did so after the first.
    pub hits: u64,
}

/// A snapshot. Blocks are as they are now, everything else counts from the start of the engine.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Stats {
    pub blocks: PoolCounts,
    /// Bytes of one, of the layers that see every position.
    pub block_bytes: u64,
    /// Memory of the layers with a window, where there are some.
    pub windows: Option<WindowCounts>,
    pub context_tokens: usize,
    pub requests: u64,
    pub active: usize,
    pub waiting: usize,
    pub timelines: usize,
    /// How often one let go of its blocks because others needed them.
    pub timelines_given_up: u64,
    pub plans_pinned: usize,
    /// Requests that reused at least one token.
    pub hits: u64,
    /// Requests that reused none.
    pub misses: u64,
    pub misses_by_why: Vec<(Why, u64)>,
    pub reuse_gaps: ReuseGaps,
    /// Prompt tokens reused and computed.
    pub tokens_reused: u64,
    pub tokens_computed: u64,
    pub tokens_generated: u64,
    pub evicted_blocks: u64,
    pub steps: u64,
    /// Rows that really went through the forward pass, as it counts them.
    pub rows_forwarded: u64,
    /// Tokens that were guessed ahead, and those of them that were right.
    pub drafted: u64,
    pub drafts_taken: u64,
    pub failed_steps: u64,
    pub preemptions: u64,
    /// Most sequences in one step so far.
    pub batch_max: usize,
    /// The disk tier, where there is one.
    pub disk: Option<DiskStats>,
}

impl Stats {
    /// Bytes of keys and values that the engine has room for.
    pub fn bytes_total(&self) -> u64 {
        let parts = self.windows.map_or(0, |w| w.total as u64 * w.bytes);
        self.blocks.total as u64 * self.block_bytes + parts
    }

    /// Bytes of keys and values that are there.
    pub fn bytes_used(&self) -> u64 {
        let parts = self
            .windows
            .map_or(0, |w| (w.total - w.free) as u64 * w.bytes);
        (self.blocks.total - self.blocks.free) as u64 * self.block_bytes + parts
    }

    pub(crate) fn missed(&mut self, why: Why) {
        self.misses += 1;
        match self.misses_by_why.iter_mut().find(|(w, _)| *w == why) {
            Some((_, count)) => *count += 1,
            None => self.misses_by_why.push((why, 1)),
        }
    }
}
