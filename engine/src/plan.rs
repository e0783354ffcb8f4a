//! From a lookup to a table: which tokens of which piece are reused and which are computed.
//!
//! Invariant: plan and report are built by the same function from the same kind of list, stretches
//! of the prompt with their source, so they can be compared field by field.

use crate::cache::Keyed;
use crate::disk::Found;
use crate::pool::Pool;
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
    /// Tokens that are kept and that the goal allows to use. What lies behind [`Self::reach`] cannot be used: the
    /// layers with a window lack some of the window before it.
    pub kept: usize,
}

impl Prefix {
    /// `disk` goes on from the last whole block of `found`, and counts where it reaches further. `pool` tells
    /// which blocks have their part in the layers with a window.
    pub fn new(
        mut found: Match,
        mut disk: Vec<Found>,
        tokens: usize,
        goal: Goal,
        pool: &Pool,
    ) -> Self {
        let whole = found.tokens - found.partial_tokens();
        let of_disk: usize = disk.iter().map(|f| f.tokens).sum();
        match whole + of_disk > found.tokens {
            true => {
                found.tokens = whole;
                found.blocks.truncate(whole / BLOCK_TOKENS);
            }
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
            kept: 0,
        };
        let all = prefix.reach();
        prefix.kept = all.min(limit);
        let mut reach = prefix.kept;
        if let Some(windows) = pool.windows() {
            let blocks = &prefix.found.blocks;
            let has = |block: usize| match blocks.get(block) {
                Some(block) => pool.has_part(*block),
                None => prefix.disk[block - blocks.len()].window,
            };
            reach = windows.usable(prefix.kept, has);
            prefix.found.window_from = windows.first_seen(reach);
        }
        prefix.complete = all == tokens && reach == prefix.kept;
        prefix.cut(reach);
        prefix
    }

    /// Whether more is kept than can be used.
    pub fn is_short(&self) -> bool {
        self.reach() < self.kept
    }

    /// Keeps the first `reach` tokens.
    fn cut(&mut self, reach: usize) {
        let found = &mut self.found;
        found.tokens = found.tokens.min(reach);
        found.blocks.truncate(found.tokens.div_ceil(BLOCK_TOKENS));
        found.window_from = found.window_from.min(found.blocks.len());
        let mut left = reach - found.tokens;
        for block in &mut self.disk {
            block.tokens = block.tokens.min(left);
            left -= block.tokens;
        }
        self.disk.retain(|block| block.tokens > 0);
    }

    /// Why what comes behind it is computed; `otherwise` where that is not told by what was kept.
    pub fn why(&self, otherwise: impl FnOnce() -> Why) -> Why {
        match (self.complete, self.is_short()) {
            (true, _) => Why::LastToken,
            (false, true) => Why::WindowEvicted,
            (false, false) => otherwise(),
        }
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
    let why = |index| prefix.why(|| seen.why(keyed, index, prefix.reach()));
    Plan {
        pieces: piece_uses(keyed, &sources, why),
        tokens,
        reused: sources.reused(),
        computed: sources.computed(),
        estimate_ms: rates.estimate_ms(sources.computed(), prefix.disk_tokens()),
        sources: sources.list(),
    }
}
