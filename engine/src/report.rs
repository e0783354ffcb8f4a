//! What a call will cost and what it did cost: [`Plan`] before, [`Report`] after.
//!
//! Invariant (law 2): for one prompt the two agree in every token count, piece by piece, or the
//! report's `between` names what happened from one to the other.

use crate::keys::Fingerprint;
use crate::piece::Layer;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// One piece of a prompt: `tokens == reused + computed`, unless the call ended before its prompt did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PieceUse {
    #[serde(serialize_with = "as_text")]
    pub name: Arc<str>,
    pub layer: Layer,
    pub fingerprint: Fingerprint,
    pub tokens: usize,
    pub reused: usize,
    pub computed: usize,
    /// Set on the one piece where the reusable prefix ends.
    pub broken: Option<Break>,
}

/// Where the reusable prefix ends, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Break {
    /// Position in the prompt of the first token that must be computed.
    pub at_token: usize,
    pub why: Why,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// Nothing was ever computed in this namespace.
    FirstCall,
    /// The piece of this name stood here before, with other text.
    Edited,
    /// The same piece was seen before, in another place.
    Reordered,
    /// It was resident and is not any more.
    Evicted,
    /// The layers that see every position still have it, but not the layers with a window: they lack some of
    /// the window before it.
    WindowEvicted,
    /// The same text, turned into other ids: the template renders it differently now.
    Template,
    /// A piece that was never seen: the conversation went on.
    NewPiece,
    /// All of it is resident; logits need the last token computed again.
    LastToken,
}

impl Why {
    pub fn name(self) -> &'static str {
        match self {
            Why::FirstCall => "first call",
            Why::Edited => "edited",
            Why::Reordered => "reordered",
            Why::Evicted => "evicted",
            Why::WindowEvicted => "evicted in the windowed layers",
            Why::Template => "template",
            Why::NewPiece => "new piece",
            Why::LastToken => "last token",
        }
    }
}

/// Where the KV of a stretch of the prompt comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    Computed,
    /// Whole resident blocks, shared.
    Memory,
    /// The first tokens of a resident block, copied.
    Partial,
    /// Computed by another live sequence while this one waited for it.
    InFlight,
    /// Blocks that an earlier call, perhaps of another process, left on disk.
    Disk,
}

/// What a call will reuse and compute.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    pub pieces: Vec<PieceUse>,
    /// `tokens == reused + computed`.
    pub tokens: usize,
    pub reused: usize,
    pub computed: usize,
    /// Tokens by source, in prompt order.
    pub sources: Vec<(Source, usize)>,
    /// Time to first token as the rates measured so far foretell it; `None` before any was measured.
    pub estimate_ms: Option<f64>,
}

impl Plan {
    /// The piece where the reusable prefix ends.
    pub fn broken(&self) -> Option<(&PieceUse, Break)> {
        self.pieces.iter().find_map(|p| Some((p, p.broken?)))
    }
}

/// What happened between a plan and its call that changed the counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "event")]
pub enum Between {
    /// Tokens that the plan counted on were evicted.
    Evicted { tokens: usize },
    /// Tokens that the plan counted on could not be read from disk, and were computed.
    Unreadable { tokens: usize },
    /// Another sequence computed these tokens after the plan was made.
    SharedPrefill { tokens: usize },
    /// The sequence gave up its blocks to an older one; `rows` were computed a second time.
    Preempted { rows: usize },
    /// The call ended before these tokens of the prompt were reused or computed.
    Unfinished { tokens: usize },
}

/// What a call did reuse and compute. The counts are rows that really went through the forward pass.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    pub pieces: Vec<PieceUse>,
    pub tokens: usize,
    pub reused: usize,
    pub computed: usize,
    pub sources: Vec<(Source, usize)>,
    /// Empty when the report agrees with the plan.
    pub between: Vec<Between>,
    /// Tokens sampled.
    pub generated: usize,
    /// Rows of one token each that decoding put through the forward pass, wrong guesses left out.
    pub decode_rows: usize,
    /// Rows that were guesses, and those of them that were right and are in `decode_rows`.
    pub drafted: usize,
    pub drafts_taken: usize,
    /// From submission until the first row was scheduled.
    pub queue_ms: f64,
    /// From the first row until the last row of the prompt.
    pub prefill_ms: f64,
    /// From submission until the first token; `None` if there was none.
    pub ttft_ms: Option<f64>,
    /// From the first token until the end.
    pub decode_ms: f64,
}

impl Report {
    pub fn broken(&self) -> Option<(&PieceUse, Break)> {
        self.pieces.iter().find_map(|p| Some((p, p.broken?)))
    }

    /// Rows of the prompt per second, `None` where nothing was measured.
    pub fn prefill_per_second(&self) -> Option<f64> {
        per_second(self.computed, self.prefill_ms)
    }

    /// Decode steps per second, `None` where nothing was measured.
    pub fn decode_per_second(&self) -> Option<f64> {
        per_second(self.decode_rows, self.decode_ms)
    }
}

fn per_second(count: usize, ms: f64) -> Option<f64> {
    (count > 0 && ms > 0.0).then(|| count as f64 * 1000.0 / ms)
}

fn as_text<S: serde::Serializer>(text: &Arc<str>, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(text)
}
