//! What has really happened to one request, kept while it happens, for its report.
//!
//! Invariant: a position of the prompt is counted once, by the way its KV first came to be; rows
//! that are computed a second time after a preemption are counted apart.

use crate::cache::Keyed;
use crate::plan::{Prefix, Sources, piece_uses};
use crate::report::{Between, Plan, Report, Source, Why};
use crate::seen::Seen;
use std::time::Duration;

#[derive(Debug)]
pub struct Tally {
    plan: Plan,
    /// The cache's eviction counter when the plan was made.
    evicted_at_plan: u64,
    sources: Sources,
    between: Vec<Between>,
    why: Why,
    admitted: bool,
    /// Tokens of the prompt from its start that need not be computed here, as it was thought last.
    expected: usize,
    in_flight: usize,
    rows_again: usize,
    decode_rows: usize,
    drafted: usize,
    drafts_taken: usize,
    generated: usize,
    submitted: Duration,
    started: Option<Duration>,
    prompt_done: Option<Duration>,
    first_token: Option<Duration>,
}

impl Tally {
    pub fn new(plan: Plan, evicted_at_plan: u64, now: Duration) -> Self {
        Tally {
            plan,
            evicted_at_plan,
            sources: Sources::default(),
            between: Vec::new(),
            why: Why::NewPiece,
            admitted: false,
            expected: 0,
            in_flight: 0,
            rows_again: 0,
            decode_rows: 0,
            drafted: 0,
            drafts_taken: 0,
            generated: 0,
            submitted: now,
            started: None,
            prompt_done: None,
            first_token: None,
        }
    }

    /// The request got its blocks, with `prefix` kept. Returns false when fewer tokens are kept than
    /// were planned although nothing was given up, which is a bug.
    pub fn admitted(&mut self, keyed: &Keyed, prefix: &Prefix, seen: &Seen, evicted: u64) -> bool {
        if std::mem::replace(&mut self.admitted, true) {
            self.joined(keyed, prefix, seen);
            return true;
        }
        self.sources = prefix.sources();
        self.explain(keyed, prefix, seen);
        let (found, planned) = (prefix.reach(), self.plan.reused);
        if found < planned {
            let tokens = planned - found;
            self.between.push(Between::Evicted { tokens });
        }
        self.in_flight += found.saturating_sub(planned);
        self.expected = found;
        found >= planned || evicted > self.evicted_at_plan
    }

    /// The first `reach` tokens of the prompt need not be computed here: by others' merit as far as that
    /// is news, and no more of them than that.
    fn expect(&mut self, reach: usize) {
        let known = self.expected.max(self.sources.tokens());
        self.in_flight += reach.saturating_sub(known);
        self.unreadable(reach);
        self.expected = self.expected.max(reach);
    }

    /// The first `tokens` positions have come from disk.
    pub fn loaded(&mut self, tokens: usize, prompt: usize) {
        let tokens = tokens.min(prompt).saturating_sub(self.sources.tokens());
        self.sources.push(Source::Disk, tokens);
    }

    /// Nothing comes from disk behind the first `reach` positions, whatever was expected.
    pub fn unreadable(&mut self, reach: usize) {
        let known = reach.max(self.sources.tokens());
        let tokens = self.expected.saturating_sub(known);
        if tokens > 0 {
            self.between.push(Between::Unreadable { tokens });
            self.why = Why::Evicted;
        }
        self.expected = self.expected.min(known);
    }

    /// `prefix` is kept now: others have computed those tokens of the prompt that this sequence was to
    /// compute next.
    pub fn joined(&mut self, keyed: &Keyed, prefix: &Prefix, seen: &Seen) {
        let prompt = keyed.prompt.len();
        self.expect(prefix.reach().min(prompt));
        let tokens = prefix.found.tokens.min(prompt);
        let more = tokens.saturating_sub(self.sources.tokens());
        if more > 0 && self.sources.computed() == 0 {
            self.explain(keyed, prefix, seen);
        }
        self.sources.push(Source::InFlight, more);
    }

    /// Positions `start .. start + rows` have gone through the forward pass. True when that ended
    /// the prompt for the first time.
    pub fn forwarded(&mut self, start: usize, rows: usize, prompt: usize, now: Duration) -> bool {
        let end = start + rows;
        // Positions below this were computed before.
        let known = match self.sources.tokens() {
            covered if covered < prompt => covered,
            _ => prompt + self.decode_rows,
        };
        let again = end.min(known).saturating_sub(start);
        let first = end.min(prompt).saturating_sub(start.max(known));
        self.sources.push(Source::Computed, first);
        self.rows_again += again;
        self.decode_rows += rows - again - first;
        let done = end >= prompt && self.prompt_done.is_none();
        if done {
            self.prompt_done = Some(now);
        }
        done
    }

    /// A step that includes this request begins.
    pub fn scheduled(&mut self, now: Duration) {
        self.started.get_or_insert(now);
    }

    pub fn sampled(&mut self, now: Duration) {
        self.generated += 1;
        self.first_token.get_or_insert(now);
    }

    /// Of `drafted` rows that were guessed, `taken` stand; [`Self::forwarded`] has counted those.
    pub fn drafted(&mut self, drafted: usize, taken: usize) {
        self.drafted += drafted;
        self.drafts_taken += taken;
    }

    /// Whether it has had blocks before.
    pub fn was_admitted(&self) -> bool {
        self.admitted
    }

    pub fn reused(&self) -> usize {
        self.sources.reused()
    }

    pub fn why(&self) -> Why {
        self.why
    }

    pub fn report(mut self, keyed: &Keyed, tokens: usize, now: Duration) -> Report {
        if self.in_flight > 0 {
            let tokens = self.in_flight;
            self.between.push(Between::SharedPrefill { tokens });
        }
        if self.rows_again > 0 {
            let rows = self.rows_again;
            self.between.push(Between::Preempted { rows });
        }
        if self.sources.tokens() < tokens {
            let tokens = tokens - self.sources.tokens();
            self.between.push(Between::Unfinished { tokens });
        }
        let started = self.started.unwrap_or(now);
        let prompt_done = self.prompt_done.unwrap_or(now);
        let first = self.first_token;
        Report {
            pieces: piece_uses(keyed, &self.sources, |_| self.why),
            tokens,
            reused: self.sources.reused(),
            computed: self.sources.computed(),
            sources: self.sources.list(),
            between: self.between,
            generated: self.generated,
            decode_rows: self.decode_rows,
            drafted: self.drafted,
            drafts_taken: self.drafts_taken,
            queue_ms: ms(started.saturating_sub(self.submitted)),
            prefill_ms: ms(prompt_done.saturating_sub(started)),
            ttft_ms: first.map(|f| ms(f.saturating_sub(self.submitted))),
            decode_ms: first.map_or(0.0, |f| ms(now.saturating_sub(f))),
        }
    }

    fn explain(&mut self, keyed: &Keyed, prefix: &Prefix, seen: &Seen) {
        self.why = prefix.why(|| {
            let at = prefix.reach();
            let index = keyed.marks.iter().position(|m| m.position > at);
            index.map_or(Why::LastToken, |i| seen.why(keyed, i, at))
        });
    }
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}
