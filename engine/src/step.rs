//! One step: one forward pass over a batch of sequences, and what follows from it.
//!
//! Invariant: the counts in a report are the rows that the forward pass says it computed. A pass
//! that fails, or panics, ends the sequences that were in it, with an error; the others go on.

use crate::core::{Core, TraceRow, make_resident};
use crate::error::{Error, Result};
use crate::request::Finish;
use crate::schedule::Turn;
use crate::sequence::{Sequence, Task};
use kernels::BLOCK_TOKENS;
use models::forward::{LogitRows, Logits, SeqStep};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

impl Core {
    /// Runs one step. False when there was nothing to run.
    pub fn step(&mut self) -> bool {
        self.prepare();
        let loaded = self.load_from_disk();
        let turns = self.choose_rows();
        self.write_behind();
        if turns.is_empty() {
            self.audit_in_debug();
            return loaded;
        }
        let started = self.clock.now();
        for turn in &turns {
            let sequence = self.active.iter_mut().find(|s| s.id == turn.id);
            if let Some(sequence) = sequence {
                sequence.tally.scheduled(started);
            }
        }
        let outcome = self.run_forward(&turns);
        self.stats.steps += 1;
        self.stats.batch_max = self.stats.batch_max.max(turns.len());
        match outcome {
            Ok(logits) => {
                let ms = (self.clock.now() - started).as_secs_f64() * 1000.0;
                if let [Turn { rows, draft, .. }] = &turns[..]
                    && draft.is_empty()
                {
                    self.rates.measured(*rows, ms);
                }
                self.stats.rows_forwarded += logits.rows_computed as u64;
                self.advance(&turns, &logits);
            }
            Err(error) => self.fail(&turns, &error),
        }
        self.audit_in_debug();
        true
    }

    fn run_forward(&mut self, turns: &[Turn]) -> Result<Logits> {
        let drafted = self.with_drafts(turns);
        let windows = self.window_tables(turns);
        let mut steps = Vec::with_capacity(turns.len());
        let mut rows_owed = 0;
        for ((turn, drafted), window_table) in turns.iter().zip(&drafted).zip(&windows) {
            let sequence = self.active.iter().find(|s| s.id == turn.id);
            let sequence = sequence.expect("turns are of active sequences");
            let end = sequence.filled + turn.rows;
            let logits = wants_logits(sequence, end);
            rows_owed += usize::from(logits == LogitRows::Last);
            let mut step = SeqStep {
                tokens: &sequence.ids[sequence.filled..end],
                start: sequence.filled,
                table: &sequence.lease.table()[..end.div_ceil(BLOCK_TOKENS)],
                window_table,
                logits,
            };
            if !turn.draft.is_empty() {
                step.tokens = drafted;
                step.logits = LogitRows::All;
                let end = end + turn.draft.len();
                step.table = &sequence.lease.table()[..end.div_ceil(BLOCK_TOKENS)];
                rows_owed += turn.draft.len();
            }
            steps.push(step);
        }
        let kv = self.cache.pool_mut().kv_mut();
        let forward = &mut self.forward;
        // The pass may leave garbage behind the filled positions, which nobody reads.
        let outcome = catch_unwind(AssertUnwindSafe(|| forward.forward(&steps, kv)));
        let logits = match outcome {
            Ok(outcome) => outcome.map_err(Error::forward)?,
            Err(panic) => return Err(Error::Bug(panic_message(&*panic))),
        };
        let rows: usize = turns.iter().map(|t| t.rows + t.draft.len()).sum();
        if logits.rows_computed != rows || logits.data.len() != rows_owed * logits.vocab {
            return Err(Error::Bug(format!(
                "the forward pass computed {} rows and {} logits; {rows} rows and {rows_owed} × {} \
                 logits were asked for",
                logits.rows_computed,
                logits.data.len(),
                logits.vocab
            )));
        }
        Ok(logits)
    }

    /// For each turn that guesses, the token that is owed and the guesses; nothing for the others.
    fn with_drafts(&self, turns: &[Turn]) -> Vec<Vec<u32>> {
        let tokens = |turn: &Turn| {
            let sequence = self.active.iter().find(|s| s.id == turn.id);
            let owed = sequence.and_then(|s| s.ids.last()).copied();
            match turn.draft.is_empty() {
                true => Vec::new(),
                false => owed.into_iter().chain(turn.draft.clone()).collect(),
            }
        };
        turns.iter().map(tokens).collect()
    }

    /// For each turn, where its sequence is in the layers with a window.
    fn window_tables(&self, turns: &[Turn]) -> Vec<Vec<u32>> {
        let pool = self.cache.pool();
        let table = |turn: &Turn| {
            let sequence = self.active.iter().find(|s| s.id == turn.id);
            sequence.map_or_else(Vec::new, |s| pool.window_table(&s.lease))
        };
        turns.iter().map(table).collect()
    }

    fn advance(&mut self, turns: &[Turn], logits: &Logits) {
        let now = self.clock.now();
        let mut logit_rows = logits.data.chunks_exact(logits.vocab);
        let mut done = Vec::new();
        for turn in turns {
            let index = self.active.iter().position(|s| s.id == turn.id);
            let index = index.expect("turns are of active sequences");
            let sequence = &self.active[index];
            let wanted = wants_logits(sequence, sequence.filled + turn.rows) == LogitRows::Last;
            let rows = logit_rows
                .by_ref()
                .take(usize::from(wanted) + turn.draft.len());
            let rows: Vec<&[f32]> = rows.collect();
            let finish = self.filled(index, turn.rows, rows.first().copied(), now);
            let finish = match turn.draft.is_empty() {
                true => finish,
                false => self.verify(index, &turn.draft, &rows[1..], finish),
            };
            if let Some(finish) = finish {
                done.push((turn.id, finish));
            }
        }
        for (id, finish) in done {
            if let Some(index) = self.active.iter().position(|s| s.id == id) {
                let sequence = self.active.remove(index);
                self.finish(sequence, finish);
            }
        }
    }

    /// The next `rows` positions of a sequence have their KV, and the last of them has these logits.
    fn filled(
        &mut self,
        index: usize,
        rows: usize,
        logits: Option<&[f32]>,
        now: Duration,
    ) -> Option<Finish> {
        let sequence = &mut self.active[index];
        let start = sequence.filled;
        let prompt = sequence.prompt_tokens();
        let prompt_done = sequence.tally.forwarded(start, rows, prompt, now);
        sequence.filled = start + rows;
        self.keep(index, start);
        if prompt_done {
            self.account_prompt(index);
        }
        self.take_row(index, logits)
    }

    /// Goes on through the rows of a draft as long as what is sampled is what was guessed. The KV of
    /// the other rows lies behind the filled positions, where nobody reads it.
    fn verify(
        &mut self,
        index: usize,
        draft: &[u32],
        rows: &[&[f32]],
        mut finish: Option<Finish>,
    ) -> Option<Finish> {
        let now = self.clock.now();
        let mut taken = 0;
        for (guess, row) in draft.iter().zip(rows) {
            if finish.is_some() || self.active[index].ids.last() != Some(guess) {
                break;
            }
            taken += 1;
            finish = self.filled(index, 1, Some(row), now);
        }
        let sequence = &mut self.active[index];
        sequence.drafter.verified(draft.len(), taken);
        sequence.tally.drafted(draft.len(), taken);
        self.stats.drafted += draft.len() as u64;
        self.stats.drafts_taken += taken as u64;
        finish
    }

    /// Prompt chunks enter the tree at once, decoded tokens a block at a time.
    fn keep(&mut self, index: usize, start: usize) {
        let sequence = &mut self.active[index];
        let in_prompt = start < sequence.prompt_tokens();
        if in_prompt || sequence.filled.is_multiple_of(BLOCK_TOKENS) {
            make_resident(&mut self.cache, sequence);
        }
    }

    /// What the last row of a sequence leads to: a token, or the end.
    fn take_row(&mut self, index: usize, row: Option<&[f32]>) -> Option<Finish> {
        let now = self.clock.now();
        let sequence = &mut self.active[index];
        if sequence.pending() > 0 {
            return None;
        }
        let position = sequence.filled - 1;
        let Task::Reply { reply, outlet, .. } = &mut sequence.task else {
            return Some(Finish::Stop);
        };
        let logits = row.expect("the last row of a reply has logits");
        if let Some(trace) = &self.trace {
            trace(TraceRow {
                request: sequence.id,
                position,
                logits,
            });
        }
        if reply.tokens_max == 0 {
            return Some(Finish::Length);
        }
        let mut events = Vec::new();
        // A fault in one reply's sampling or grammar ends that reply; the others go on.
        let outcome = catch_unwind(AssertUnwindSafe(|| reply.next(logits, &mut events)))
            .unwrap_or_else(|panic| Err(Error::Bug(panic_message(&*panic))));
        events.into_iter().for_each(|e| outlet.send(e));
        if let (Ok(_), Some(id)) = (&outcome, reply.ids.last()) {
            sequence.ids.push(*id);
            sequence.tally.sampled(now);
        }
        match outcome {
            Ok(finish) => finish,
            Err(error) => Some(Finish::Error(error)),
        }
    }

    fn fail(&mut self, turns: &[Turn], error: &Error) {
        tracing::error!(%error, sequences = turns.len(), "a step failed");
        self.stats.failed_steps += 1;
        let hit = |s: &mut Sequence| turns.iter().any(|t| t.id == s.id);
        let failed: Vec<Sequence> = self.active.extract_if(.., hit).collect();
        for sequence in failed {
            self.finish(sequence, Finish::Error(error.clone()));
        }
    }

    fn audit_in_debug(&self) {
        if cfg!(debug_assertions)
            && let Err(what) = self.audit()
        {
            panic!("the blocks do not add up: {what}");
        }
    }
}

/// Logits are wanted for the last row that a reply owes.
fn wants_logits(sequence: &Sequence, end: usize) -> LogitRows {
    match &sequence.task {
        Task::Reply { .. } if end == sequence.ids.len() => LogitRows::Last,
        Task::Reply { .. } | Task::Sync { .. } => LogitRows::None,
    }
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .map(|s| s.to_string())
        .or_else(|| panic.downcast_ref::<String>().cloned());
    format!(
        "the forward pass panicked: {}",
        text.as_deref().unwrap_or("no message")
    )
}
