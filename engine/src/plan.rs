//! From a lookup to a table: which tokens of which piece are reused and which are computed.
//!
//! Invariant: plan and report are built by the same function from the same kind of list, stretches
//! of the prompt with their source, so they can be compared field by field.

use crate::cache::Keyed;
use crate::disk::Found;
use crate::rates::Rates;
use crate::report::{Break, PieceUse, Plan, Source, Why};
use crate::seen::Seen;
use crate::tree::Match;
use kernels::BLOCK_TOKENS;

/// Whether a call needs logits, for which at least the last token must be computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Goal {
    Reply,
    /// Only the KV.
    Resident,
}

/// A prefix that may be reused: what was found, cut back to what the goal allows.
#[derive(Debug, Clone)]
pub struct Prefix {
    /// In memory.
    pub found: Match,
    /// On disk, from the end of `found` on, which is then the end of a block.
    pub disk: Vec<Found>,
    /// All of the prompt is kept; only the goal makes the last token be computed.
    pub complete: bool,
}

impl Prefix {
    /// `disk` goes on from the last whole block of `found`, and counts where it reaches further.
    pub fn new(mut found: Match, mut disk: Vec<Found>, tokens: usize, goal: Goal) -> Self {
        let whole = found.tokens - found.partial_tokens();
        let of_disk: usize = disk.iter().map(|f| f.tokens).sum();
        match whole + of_disk > found.tokens {
            true => found.tokens = whole,
            false => disk.clear(),
        }
        let limit = match goal {
            Goal::Reply => tokens.saturating_sub(1),
            Goal::Resident => tokens,
        };
        let mut prefix = Prefix {
            found,
            disk,
            complete: false,
        };
        prefix.complete = prefix.reach() == tokens;
        // Too much is one token at most.
        if prefix.reach() > limit {
            match prefix.disk.last_mut() {
                Some(last) => last.tokens -= 1,
                None => prefix.found.tokens = limit,
            }
            prefix.disk.pop_if(|last| last.tokens == 0);
        }
        let blocks = prefix.found.tokens.div_ceil(BLOCK_TOKENS);
        prefix.found.blocks.truncate(blocks);
        prefix
    }

    /// Tokens on disk.
    pub fn disk_tokens(&self) -> usize {
        self.disk.iter().map(|f| f.tokens).sum()
    }

    /// Tokens in memory and on disk.
    pub fn reach(&self) -> usize {
        self.found.tokens + self.disk_tokens()
    }

    /// The reused tokens of memory by source.
    pub fn sources(&self) -> Sources {
        let partial = self.found.partial_tokens();
        let mut sources = Sources::default();
        sources.push(Source::Memory, self.found.tokens - partial);
        sources.push(Source::Partial, partial);
        sources
    }
}

/// Stretches of a prompt, in order, with where their KV comes from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sources(Vec<(Source, usize)>);

impl Sources {
    pub fn push(&mut self, source: Source, tokens: usize) {
        if tokens == 0 {
            return;
        }
        match self.0.last_mut() {
            Some((last, count)) if *last == source => *count += tokens,
            _ => self.0.push((source, tokens)),
        }
    }

    pub fn tokens(&self) -> usize {
        self.0.iter().map(|(_, n)| n).sum()
    }

    pub fn computed(&self) -> usize {
        let computed = self.0.iter().filter(|(s, _)| *s == Source::Computed);
        computed.map(|(_, n)| n).sum()
    }

    pub fn reused(&self) -> usize {
        self.tokens() - self.computed()
    }

    pub fn list(&self) -> Vec<(Source, usize)> {
        self.0.clone()
    }
}

/// Computed positions of a prompt whose tokens have these sources, in order.
fn computed_ranges(sources: &[(Source, usize)]) -> impl Iterator<Item = (usize, usize)> + '_ {
    let mut end = 0;
    sources.iter().filter_map(move |(source, tokens)| {
        end += tokens;
        (*source == Source::Computed).then_some((end - tokens, end))
    })
}

/// How many of the positions from `start` to `end` were computed, in a prompt whose tokens have these sources, as
/// [`Report::sources`](crate::Report) tells them.
pub fn computed_within(sources: &[(Source, usize)], start: usize, end: usize) -> usize {
    computed_ranges(sources)
        .map(|(a, b)| b.min(end).saturating_sub(a.max(start)))
        .sum()
}

/// The table: one row per piece. The break is at the first computed token; `why` is asked for the
/// piece that holds it.
pub fn piece_uses(keyed: &Keyed, sources: &Sources, why: impl Fn(usize) -> Why) -> Vec<PieceUse> {
    let break_at = computed_ranges(&sources.0).next().map(|(start, _)| start);
    let covered = sources.tokens();
    let mut start = 0;
    let row = |(index, (piece, mark)): (usize, (&crate::Piece, &crate::tree::Mark))| {
        let end = mark.position;
        let computed = computed_within(&sources.0, start, end);
        let reached = covered.min(end).saturating_sub(start.min(covered));
        let broken = break_at.filter(|at| (start..end).contains(at));
        start = end;
        PieceUse {
            name: piece.name.clone(),
            layer: piece.layer,
            fingerprint: piece.fingerprint,
            tokens: piece.len(),
            reused: reached - computed,
            computed,
            broken: broken.map(|at_token| Break {
                at_token,
                why: why(index),
            }),
        }
    };
    let pieces = keyed.prompt.pieces.iter().zip(&keyed.marks);
    pieces.enumerate().map(row).collect()
}

/// What a call would do now.
pub fn plan(keyed: &Keyed, prefix: &Prefix, seen: &Seen, rates: &Rates) -> Plan {
    let tokens = keyed.ids.len();
    let mut sources = prefix.sources();
    sources.push(Source::Disk, prefix.disk_tokens());
    sources.push(Source::Computed, tokens - prefix.reach());
    let why = |index| match prefix.complete {
        true => Why::LastToken,
        false => seen.why(keyed, index, prefix.reach()),
    };
    Plan {
        pieces: piece_uses(keyed, &sources, why),
        tokens,
        reused: sources.reused(),
        computed: sources.computed(),
        estimate_ms: rates.estimate_ms(sources.computed(), prefix.disk_tokens()),
        sources: sources.list(),
    }
}
