//! What a model step's prompt was made of and what became of it, as a session records it.
//!
//! A step names only the pieces that differ from the step before, so a session does not grow with the square of
//! its length.

use engine::{Between, Layer, Plan, Report, Source, Why};
use serde::{Deserialize, Serialize};

use super::transcript::{Entry, Record};

/// Hex digits of a fingerprint that are kept: enough to tell the pieces of a session apart.
const FINGERPRINT_DIGITS: usize = 16;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TracedPiece {
    pub name: String,
    pub layer: Layer,
    /// The first hex digits.
    pub fingerprint: String,
    pub tokens: usize,
}

/// Where the reused prefix ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Broken {
    pub piece: String,
    pub at_token: usize,
    pub why: Why,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trace {
    /// How many pieces at the start are those of the step before.
    same: usize,
    /// Those behind them.
    pieces: Vec<TracedPiece>,
    /// Tokens by where their keys and values came from, in prompt order.
    pub sources: Vec<(Source, usize)>,
    pub broken: Option<Broken>,
    pub planned_reused: usize,
    pub planned_computed: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimate_ms: Option<f64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub between: Vec<Between>,
    pub prefill_ms: f64,
}

impl Trace {
    /// `before` are the pieces of the step before.
    pub fn new(plan: &Plan, report: &Report, before: &[TracedPiece]) -> Trace {
        let traced = |piece: &engine::PieceUse| TracedPiece {
            name: piece.name.to_string(),
            layer: piece.layer,
            fingerprint: piece.fingerprint.hex()[..FINGERPRINT_DIGITS].to_owned(),
            tokens: piece.tokens,
        };
        let mut pieces: Vec<TracedPiece> = report.pieces.iter().map(traced).collect();
        let same = pieces
            .iter()
            .zip(before)
            .take_while(|(a, b)| a == b)
            .count();
        let broken = report.broken().map(|(piece, at)| Broken {
            piece: piece.name.to_string(),
            at_token: at.at_token,
            why: at.why,
        });
        Trace {
            same,
            pieces: pieces.split_off(same),
            sources: report.sources.clone(),
            broken,
            planned_reused: plan.reused,
            planned_computed: plan.computed,
            estimate_ms: plan.estimate_ms,
            between: report.between.clone(),
            prefill_ms: report.prefill_ms,
        }
    }

    /// All pieces of this step.
    pub fn pieces(&self, before: &[TracedPiece]) -> Vec<TracedPiece> {
        let same = &before[..self.same.min(before.len())];
        [same, &self.pieces].concat()
    }

    /// Tokens that were reused or computed: fewer than the prompt has if the call ended before.
    pub fn reached(&self) -> usize {
        self.sources.iter().map(|(_, tokens)| tokens).sum()
    }

    /// Computed tokens among those from `start` to `end`.
    pub fn computed_within(&self, start: usize, end: usize) -> usize {
        engine::computed_within(&self.sources, start, end)
    }
}

/// The pieces of the newest step.
pub fn newest_pieces(records: &[Record]) -> Vec<TracedPiece> {
    let traces = records.iter().filter_map(|record| match &record.entry {
        Entry::Step { trace, .. } => trace.as_deref(),
        _ => None,
    });
    traces.fold(Vec::new(), |before, trace| trace.pieces(&before))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(name: &str, fingerprint: &str) -> TracedPiece {
        TracedPiece {
            name: name.into(),
            layer: Layer::History,
            fingerprint: fingerprint.into(),
            tokens: 10,
        }
    }

    fn trace(same: usize, pieces: Vec<TracedPiece>) -> Trace {
        Trace {
            same,
            pieces,
            sources: vec![
                (Source::Memory, 12),
                (Source::Computed, 5),
                (Source::InFlight, 3),
            ],
            broken: None,
            planned_reused: 12,
            planned_computed: 8,
            estimate_ms: None,
            between: Vec::new(),
            prefill_ms: 1.0,
        }
    }

    #[test]
    fn steps_are_put_together_from_their_differences() {
        let (a, b, c) = (piece("a", "1"), piece("b", "2"), piece("b", "3"));
        let first = trace(0, vec![a.clone(), b]);
        let second = trace(1, vec![c.clone()]);
        let before = first.pieces(&[]);
        assert_eq!(second.pieces(&before), [a, c]);
        // A file that was edited by another hand is no reason to panic.
        assert_eq!(trace(9, Vec::new()).pieces(&before), before);
        assert_eq!(second.computed_within(0, 20), 5);
        assert_eq!(second.computed_within(10, 14), 2);
        let text = serde_json::to_string(&second).expect("plain");
        assert_eq!(
            serde_json::from_str::<Trace>(&text).expect("its own"),
            second
        );
    }
}
