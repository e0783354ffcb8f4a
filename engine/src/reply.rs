//! The reply of one sequence: from a row of logits to the next token and the events it causes.
//!
//! Invariant: a token's event is sent once it is certain that none of its bytes belongs to a stop
//! string; events come in the order of the tokens. It depends on this sequence alone.

use crate::error::{Error, Result};
use crate::grammar::{Constraint, Verdict};
use crate::request::{Event, Finish, Logprob};
use crate::sampler::{Allowed, Sampled, Sampler};
use crate::stop::StopMatcher;
use crate::vocab::TokenBytes;
use std::collections::VecDeque;
use std::sync::Arc;

pub struct Reply {
    pub vocab: Arc<dyn TokenBytes>,
    pub sampler: Sampler,
    pub stop: StopMatcher,
    pub constraint: Option<Constraint>,
    pub ignore_end: bool,
    pub no_drafts: bool,
    /// Tokens that may be sampled, clamped to the context.
    pub tokens_max: usize,
    /// Sampled so far.
    pub ids: Vec<u32>,
    held: VecDeque<Held>,
    /// Bytes that are certain not to belong to a stop string, and those of the events sent.
    clear_bytes: usize,
    sent_bytes: usize,
}

/// A token whose bytes may still turn out to be part of a stop string.
struct Held {
    id: u32,
    bytes: Vec<u8>,
    logprob: Option<Logprob>,
}

impl Reply {
    pub fn new(
        vocab: Arc<dyn TokenBytes>,
        sampler: Sampler,
        stop: StopMatcher,
        constraint: Option<Constraint>,
    ) -> Self {
        Reply {
            vocab,
            sampler,
            stop,
            constraint,
            ignore_end: false,
            no_drafts: false,
            tokens_max: usize::MAX,
            ids: Vec::new(),
            held: VecDeque::new(),
            clear_bytes: 0,
            sent_bytes: 0,
        }
    }

    /// Samples from `logits` [vocab] f32. The token and its events; `Some(finish)` when it was the
    /// last.
    pub fn next(&mut self, logits: &[f32], events: &mut Vec<Event>) -> Result<Option<Finish>> {
        let (sampled, verdict) = self.sample(logits)?;
        let id = sampled.id;
        if sampled.nan_logits > 0 {
            tracing::warn!(
                count = sampled.nan_logits,
                "logits that are not a number were left out"
            );
        }
        self.ids.push(id);
        if self.vocab.is_end(id) && !self.ignore_end {
            self.flush(events);
            return Ok(Some(Finish::EndToken));
        }
        let known = (id as usize) < self.vocab.vocab_size();
        let bytes = match known {
            true => self.vocab.bytes(id).to_vec(),
            // A row of the output matrix that no token of the vocabulary belongs to.
            false => Vec::new(),
        };
        self.clear_bytes += self.stop.push(&bytes).len();
        self.held.push_back(Held {
            id,
            bytes,
            logprob: sampled.logprobs.map(|l| Logprob {
                logprob: l.chosen,
                top: l.top,
            }),
        });
        if let Some(index) = self.stop.matched() {
            self.cut(events);
            return Ok(Some(Finish::StopString(index)));
        }
        self.let_through(events);
        let finish = match verdict {
            Verdict::Complete => Some(Finish::Stop),
            Verdict::Taken | Verdict::Refused => {
                (self.ids.len() >= self.tokens_max).then_some(Finish::Length)
            }
        };
        if finish.is_some() {
            self.flush(events);
        }
        Ok(finish)
    }

    /// Sends what is still held: the reply ended, and not with a stop string.
    fn flush(&mut self, events: &mut Vec<Event>) {
        events.extend(self.held.drain(..).map(Held::event));
    }

    /// The reply is over: what is still held, and all ids.
    pub fn end(mut self, events: &mut Vec<Event>) -> Vec<u32> {
        self.flush(events);
        self.ids
    }

    /// Draws until the grammar takes a token. Each refusal forbids one token more, so it ends.
    fn sample(&mut self, logits: &[f32]) -> Result<(Sampled, Verdict)> {
        let mut vetoed = Vec::new();
        loop {
            let mask = match &mut self.constraint {
                Some(constraint) => constraint.mask().map_err(Error::grammar)?,
                None => None,
            };
            let allowed = Allowed {
                mask,
                vetoed: &vetoed,
            };
            let sampled = self.sampler.sample(logits, allowed);
            let sampled = sampled.map_err(Error::sampling)?;
            let verdict = match &mut self.constraint {
                Some(constraint) => constraint.accept(sampled.id).map_err(Error::grammar)?,
                None => Verdict::Taken,
            };
            if verdict != Verdict::Refused {
                self.sampler.accept(sampled.id);
                return Ok((sampled, verdict));
            }
            vetoed.push(sampled.id);
        }
    }

    fn let_through(&mut self, events: &mut Vec<Event>) {
        while let Some(first) = self.held.front() {
            if self.sent_bytes + first.bytes.len() > self.clear_bytes {
                return;
            }
            self.sent_bytes += first.bytes.len();
            events.extend(self.held.pop_front().map(Held::event));
        }
    }

    /// The last token completed a stop string: what comes before it is sent, the rest is not.
    fn cut(&mut self, events: &mut Vec<Event>) {
        self.let_through(events);
        let left = self.clear_bytes - self.sent_bytes;
        if let Some(mut straddling) = self.held.pop_front().filter(|_| left > 0) {
            straddling.bytes.truncate(left);
            events.push(straddling.event());
        }
        self.held.clear();
    }
}

impl Held {
    fn event(self) -> Event {
        Event::Token {
            id: self.id,
            bytes: self.bytes,
            logprob: self.logprob,
        }
    }
}
