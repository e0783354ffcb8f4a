//! The engine without its thread: everything that happens, one call after another.
//!
//! The thread of [`crate::Engine`] drives it, and so do the simulations. Its parts:
//! `schedule` (who runs next, and with which blocks), `step` (one forward pass and what follows).
//! Invariant: between two calls the blocks add up (law 6); in debug every step audits it.

use crate::cache::{Ask, Cache, Keyed};
use crate::clock::Clock;
use crate::context::EffectiveContext;
use crate::disk::Disk;
use crate::draft::Drafter;
use crate::error::{Error, Result};
use crate::keys::Salt;
use crate::limits::{DISK_SAVE_EARLY_TOKENS, PLAN_PIN_MS};
use crate::lines::Lines;
use crate::pins::{Pin, Pins};
use crate::plan::Goal;
use crate::pool::Lease;
use crate::prompt::Prompt;
use crate::rates::Rates;
use crate::report::Plan;
use crate::request::{Event, Finish, Priority};
use crate::seen::{End, Seen, When};
use crate::sequence::{Load, Outlet, Sequence, Task};
use crate::stats::{ResidentPiece, Stats};
use crate::tally::Tally;
use crate::worth::{Rhythm, Visit};
use kernels::BLOCK_TOKENS;
use models::forward::Forward;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// A row of logits as the forward pass gave it, for tests of law 1.
#[derive(Debug, Clone, Copy)]
pub struct TraceRow<'a> {
    /// [`crate::Generation::id`] of the request.
    pub request: u64,
    /// The position in the sequence that the row was computed for.
    pub position: usize,
    /// [vocab] f32
    pub logits: &'a [f32],
}

/// Sees every row of logits. Called on the engine's thread.
pub type Trace = Arc<dyn Fn(TraceRow<'_>) + Send + Sync>;

/// The limits that a caller may lower; the defaults are in `limits.rs`.
#[derive(Clone)]
pub struct Limits {
    pub sequences_max: usize,
    pub chunk_tokens: usize,
}

/// A request that was checked and may be queued.
pub struct Submission {
    pub id: u64,
    pub prompt: Prompt,
    pub salt: Salt,
    pub priority: Priority,
    pub task: Task,
    pub load: Load,
}

pub struct Core {
    pub(crate) forward: Box<dyn Forward>,
    pub(crate) cache: Cache,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) context: EffectiveContext,
    pub(crate) limits: Limits,
    pub(crate) trace: Option<Trace>,
    /// In the order they were admitted.
    pub(crate) active: Vec<Sequence>,
    /// In the order they will be admitted.
    pub(crate) waiting: VecDeque<Sequence>,
    pub(crate) pins: Pins,
    pub(crate) seen: Seen,
    pub(crate) rates: Rates,
    pub(crate) stats: Stats,
    pub(crate) lines: Lines,
}

impl Core {
    pub fn new(
        forward: Box<dyn Forward>,
        context: EffectiveContext,
        clock: Arc<dyn Clock>,
        limits: Limits,
        trace: Option<Trace>,
    ) -> Result<Self> {
        let kv = forward
            .new_kv(context.blocks, context.window_parts)
            .map_err(Error::forward)?;
        let window = forward.window().map(|window| window.tokens);
        let identity = *forward.identity_seed().as_bytes();
        Ok(Core {
            cache: Cache::new(kv, window, identity)?,
            forward,
            clock,
            context,
            limits,
            trace,
            active: Vec::new(),
            waiting: VecDeque::new(),
            pins: Pins::default(),
            seen: Seen::default(),
            rates: Rates::default(),
            stats: Stats::default(),
            lines: Lines::default(),
        })
    }

    /// Keeps blocks on disk from now on.
    pub fn use_disk(&mut self, mut disk: Disk) {
        disk.limit_flight(self.context.bytes);
        self.cache.use_disk(disk);
    }

    /// What a call would cost now; holds what it counts on until the call or the expiry.
    pub fn plan(&mut self, prompt: Prompt, salt: &Salt) -> Plan {
        let keyed = self.cache.key(prompt, salt);
        self.plan_and_pin(&keyed, Goal::Reply, None)
    }

    /// Queues a checked request. Its first event is the plan: the one that was made for this prompt
    /// and not called yet, or a new one.
    pub fn submit(&mut self, submission: Submission) {
        let Submission {
            id,
            prompt,
            salt,
            priority,
            task,
            load,
        } = submission;
        let now = self.clock.now();
        let keyed = self.cache.key(prompt, &salt);
        let goal = match task {
            Task::Reply { .. } => Goal::Reply,
            Task::Sync { .. } => Goal::Resident,
        };
        let claimed = match goal {
            Goal::Reply => self.pins.claim(keyed.end_key(), id),
            Goal::Resident => None,
        };
        let claimed = claimed.map(|pin| (pin.plan.clone(), pin.evicted_at_plan));
        let (plan, evicted) = claimed.unwrap_or_else(|| {
            let plan = self.plan_and_pin(&keyed, goal, Some(id));
            (plan, self.cache.given_up())
        });
        if let Task::Reply { outlet, .. } = &task {
            outlet.send(Event::Plan(plan.clone()));
        }
        self.stats.requests += 1;
        let timeline = task.timeline();
        let sequence = Sequence {
            id,
            visit: Visit {
                id,
                rhythm: Rhythm::default(),
                fork: timeline.is_some_and(|timeline| self.lines.is_fork(timeline)),
            },
            ids: keyed.ids.clone(),
            keyed,
            lease: Lease::empty(),
            filled: 0,
            loads: VecDeque::new(),
            window_from: 0,
            inserted: 0,
            reserved_tokens: 0,
            priority,
            task,
            tally: Tally::new(plan, evicted, now),
            drafter: Drafter::default(),
            _load: load,
        };
        let behind = self.waiting.iter().position(|w| w.priority > priority);
        let place = behind.unwrap_or(self.waiting.len());
        self.waiting.insert(place, sequence);
    }

    /// Copies some blocks for the disk, if there are any to copy.
    pub fn write_behind(&mut self) {
        self.cache.write_behind(self.clock.now());
    }

    /// Whether there are blocks to copy for the disk now.
    pub fn is_saving(&self) -> bool {
        self.cache.is_saving()
    }

    /// Whether there are, once the disk has caught up.
    pub fn waits_for_disk(&self) -> bool {
        self.cache.waits_for_disk()
    }

    /// Whether a step would do anything.
    pub fn is_idle(&self) -> bool {
        self.active.is_empty() && self.waiting.is_empty()
    }

    /// How long until something must be done without being asked to.
    pub fn next_deadline(&self) -> Option<Duration> {
        let expiry = self.pins.next_expiry()?;
        Some(expiry.saturating_sub(self.clock.now()))
    }

    pub fn expire(&mut self) {
        let now = self.clock.now();
        self.pins.expire(&mut self.cache, now);
    }

    /// Forgets what is in memory and nobody holds but plans and copies for the disk. Returns the blocks
    /// given up.
    pub fn clear_cache(&mut self) -> usize {
        while self.pins.give_up_oldest(&mut self.cache) || self.cache.give_up_save() {}
        self.cache.clear(false)
    }

    pub fn open_timeline(&mut self, id: u64, salt: &Salt) {
        let root = self.cache.key(Prompt::default(), salt).root;
        self.lines.open(id, root);
    }

    /// A second timeline that holds the same blocks: O(blocks) in counts, no copy.
    pub fn fork_timeline(&mut self, id: u64, new: u64) {
        self.lines.fork(&mut self.cache, id, new);
    }

    pub fn hold_timeline(&mut self, id: u64, held: bool) {
        self.lines.set_held(id, held);
    }

    pub fn close_timeline(&mut self, id: u64) {
        self.lines.close(&mut self.cache, id);
    }

    /// Ends every request with `error` and gives back every lease.
    pub fn shut_down(&mut self, error: &Error) {
        let sequences = self.active.drain(..).chain(self.waiting.drain(..));
        for sequence in sequences.collect::<Vec<_>>() {
            self.finish(sequence, Finish::Error(error.clone()));
        }
        self.pins.clear(&mut self.cache);
        self.lines.clear(&mut self.cache);
    }

    pub fn stats(&self) -> Stats {
        let blocks = self.cache.pool().counts();
        Stats {
            blocks,
            block_bytes: self.cache.pool().kv().all.shape().block_bytes() as u64,
            windows: self.cache.pool().window_counts(),
            context_tokens: self.context.tokens,
            active: self.active.len(),
            waiting: self.waiting.len(),
            timelines: self.lines.len(),
            timelines_given_up: self.lines.given_up(),
            plans_pinned: self.pins.holding(),
            evicted_blocks: self.cache.evicted(),
            disk: self.cache.disk().map(Disk::stats),
            ..self.stats.clone()
        }
    }

    /// What is in memory, piece by piece, as far as it is remembered what it was.
    pub fn resident(&self) -> Vec<ResidentPiece> {
        let now = self.clock.now();
        let block_bytes = self.cache.pool().kv().all.shape().block_bytes();
        let token_bytes = (block_bytes / BLOCK_TOKENS) as u64;
        let ends = self.cache.piece_ends().filter_map(|key| self.seen.end(key));
        let piece = |end: &End| ResidentPiece {
            name: end.name.to_string(),
            layer: end.layer,
            tokens: end.tokens,
            bytes: end.tokens as u64 * token_bytes,
            unused_seconds: now.saturating_sub(end.used).as_secs_f64(),
            hits: end.uses - 1,
        };
        ends.map(piece).collect()
    }

    /// Law 6 and the invariants of pool and tree, over all leases. Returns what does not hold.
    pub fn audit(&self) -> std::result::Result<(), String> {
        let sequences = self.active.iter().chain(&self.waiting);
        let leases = sequences
            .map(|s| &s.lease)
            .chain(self.pins.leases())
            .chain(self.lines.leases());
        self.cache.audit(leases)
    }

    /// Ends a sequence that is in no list any more: what it computed stays in the cache, its blocks
    /// are given back, its reader hears the report.
    pub(crate) fn finish(&mut self, mut sequence: Sequence, reason: Finish) {
        if !matches!(reason, Finish::Error(_)) {
            make_resident(&mut self.cache, &mut sequence);
            let ids = &sequence.ids[..sequence.filled];
            self.cache.save(&sequence.keyed, ids, true);
        }
        self.pins.release(&mut self.cache, sequence.id);
        self.hold_in_timeline(&sequence, &reason);
        self.cache.release(sequence.lease);
        let tokens = sequence.keyed.ids.len();
        let report = sequence
            .tally
            .report(&sequence.keyed, tokens, self.clock.now());
        self.stats.tokens_generated += report.generated as u64;
        match sequence.task {
            Task::Reply { reply, outlet, .. } => {
                let (reply, mut events) = (*reply, Vec::new());
                let ids = reply.end(&mut events);
                events.push(Event::Done {
                    reason,
                    report,
                    ids,
                });
                events.into_iter().for_each(|e| outlet.send(e));
            }
            Task::Sync { done, .. } => {
                let answer = match reason {
                    Finish::Error(error) => Err(error),
                    _ => Ok(report),
                };
                if let Some(done) = done {
                    let _ = done.send(answer);
                }
            }
        }
    }

    /// The whole prompt of an active sequence has its KV.
    pub(crate) fn account_prompt(&mut self, index: usize) {
        let sequence = &self.active[index];
        let reused = sequence.tally.reused();
        let when = When {
            tick: self.cache.tick(),
            now: self.clock.now(),
        };
        if let Some(gap) = self.seen.record(&sequence.keyed, when) {
            self.stats.reuse_gaps.add(gap);
        }
        self.stats.tokens_reused += reused as u64;
        let computed = sequence.prompt_tokens() - reused;
        self.stats.tokens_computed += computed as u64;
        if computed >= DISK_SAVE_EARLY_TOKENS {
            self.cache.save(&sequence.keyed, &sequence.keyed.ids, false);
        }
    }

    /// A timeline holds its newest state: a prompt it was synced to, or a prompt and its reply.
    fn hold_in_timeline(&mut self, sequence: &Sequence, reason: &Finish) {
        let Some(id) = sequence.task.timeline() else {
            return;
        };
        let ended = sequence.filled >= sequence.prompt_tokens().saturating_sub(1);
        if ended && !matches!(reason, Finish::Error(_)) {
            let (ids, marks) = (&sequence.ids[..sequence.filled], &sequence.keyed.marks);
            self.lines.advance(&mut self.cache, id, ids, marks);
        }
    }

    fn plan_and_pin(&mut self, keyed: &Keyed, goal: Goal, request: Option<u64>) -> Plan {
        let ask = Ask {
            goal,
            now: self.clock.now(),
        };
        let prefix = self.cache.prefix(keyed.root, &keyed.ids, &keyed.marks, ask);
        let plan = crate::plan::plan(keyed, &prefix, &self.seen, &self.rates);
        let pin = Pin {
            key: keyed.end_key(),
            plan: plan.clone(),
            evicted_at_plan: self.cache.given_up(),
            request,
            lease: self.cache.pin(&prefix.found),
            expires: self.clock.now() + Duration::from_millis(PLAN_PIN_MS),
        };
        self.pins.add(&mut self.cache, pin);
        plan
    }
}

/// The tree learns what `sequence` has computed since it last did.
pub(crate) fn make_resident(cache: &mut Cache, sequence: &mut Sequence) {
    if sequence.filled > sequence.inserted {
        let ids = &sequence.ids[..sequence.filled];
        let (keyed, visit) = (&sequence.keyed, sequence.visit);
        cache.insert(keyed, ids, visit, &mut sequence.lease);
        sequence.inserted = sequence.filled;
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.shut_down(&Error::Stopped);
        self.cache.finish_saves(self.clock.now());
    }
}

impl Outlet {
    /// A reader that has gone is noticed before the next step.
    pub fn send(&self, event: Event) {
        let _ = self.events.send(event);
    }
}
