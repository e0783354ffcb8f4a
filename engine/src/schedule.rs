//! Who runs next, and with which blocks.
//!
//! Each step runs every decoding sequence and at most one chunk of prompt rows, so a decoding
//! neighbour waits for one chunk at most. A sequence is admitted when its prompt and a reserve for
//! its decode fit beside what others have set aside; until then it waits, first come, first served
//! within a priority.
//!
//! When blocks run out all the same: the cache gives up what nobody holds, then plans give up what
//! they hold, then timelines, then the youngest sequence of the lowest priority goes back to the
//! queue. It keeps what it has sampled, and its KV stays in the cache while there is room; what has to
//! be computed again gives the same bits (law 1), so its reader notices nothing but the wait. The
//! oldest sequence of the highest priority is never sent back for want of blocks, so there is always progress:
//! the pool holds one whole context, so alone it never lacks them.

use crate::cache::Ask;
use crate::core::{Core, make_resident};
use crate::error::Error;
use crate::limits::{DECODE_RESERVE_TOKENS, DRAFT_ROWS_MAX, JOIN_TOKENS_MIN};
use crate::plan::Prefix;
use crate::pool::{BlockCount, Lease};
use crate::request::{Finish, Priority};
use crate::sequence::Sequence;
use kernels::BLOCK_TOKENS;

/// Rows that a sequence contributes to the next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Turn {
    pub id: u64,
    pub rows: usize,
    /// Tokens guessed to follow, a row each.
    pub draft: Vec<u32>,
}

impl Core {
    /// Ends what was cancelled, admits what fits, and lets the young take over what the old have computed.
    pub(crate) fn prepare(&mut self) {
        self.sweep_cancelled();
        self.expire();
        self.admit();
        self.finish_resident();
        self.join_prefixes();
    }

    fn sweep_cancelled(&mut self) {
        let mut gone: Vec<Sequence> = self.active.extract_if(.., |s| s.is_cancelled()).collect();
        let (cancelled, kept) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition::<Vec<_>, _>(Sequence::is_cancelled);
        self.waiting = kept.into();
        gone.extend(cancelled);
        for sequence in gone {
            self.finish(sequence, Finish::Cancelled);
        }
    }

    fn admit(&mut self) {
        while self.active.len() < self.limits.sequences_max {
            let Some(sequence) = self.waiting.pop_front() else {
                return;
            };
            let Some(sequence) = self.try_admit(sequence) else {
                continue;
            };
            if !self.active.is_empty() {
                // Their blocks will come back.
                self.waiting.push_front(sequence);
                return;
            }
            // A copy for the disk holds no part in layers with a window.
            let gave_up = match self.cache.parts_are_held() {
                true => self.give_up_pins() || self.cache.give_up_save(),
                false => self.cache.give_up_save() || self.give_up_pins(),
            };
            if gave_up {
                self.waiting.push_front(sequence);
                continue;
            }
            let error = self.pool_full(BlockCount::for_tokens(sequence.ids.len()));
            self.finish(sequence, Finish::Error(error));
        }
    }

    /// Gives the sequence back when it has to wait.
    fn try_admit(&mut self, mut sequence: Sequence) -> Option<Sequence> {
        let (root, marks) = (sequence.keyed.root, &sequence.keyed.marks);
        let ask = self.ask_for(&sequence);
        let prefix = self.cache.prefix(root, &sequence.ids, marks, ask);
        // Alone, it may try with what there is.
        let reserve = match self.active.is_empty() {
            true => 0,
            false => DECODE_RESERVE_TOKENS,
        };
        let reserved_tokens = (sequence.ids.len() + reserve).min(sequence.tokens_max());
        if !self.has_room(&prefix, reserved_tokens) {
            return Some(sequence);
        }
        let rhythm = self.seen.rhythm(&sequence.keyed);
        sequence.visit.rhythm = rhythm.used(self.cache.tick());
        let (keyed, visit) = (&sequence.keyed, sequence.visit);
        let lease = self.cache.lease(keyed, &sequence.ids, &prefix.found, visit);
        let Ok(lease) = lease else {
            return Some(sequence);
        };
        self.pins.release(&mut self.cache, sequence.id);
        self.cache.used(&prefix.disk);
        sequence.lease = lease;
        sequence.filled = prefix.found.tokens;
        sequence.inserted = prefix.found.tokens;
        sequence.loads = prefix.disk.clone().into();
        sequence.window_from = self.first_seen(prefix.reach());
        sequence.reserved_tokens = reserved_tokens;
        self.account_admission(&mut sequence, &prefix);
        self.active.push(sequence);
        None
    }

    /// The first block that the row at `position` sees in the layers with a window.
    fn first_seen(&self, position: usize) -> usize {
        let windows = self.cache.pool().windows();
        windows.map_or(0, |windows| windows.first_seen(position))
    }

    /// Whether the layers with a window have room for a sequence of `tokens` positions beside the others and for
    /// a chunk.
    fn has_window_room(&self, tokens: usize) -> bool {
        let Some(windows) = self.cache.pool().windows() else {
            return true;
        };
        let most = |tokens: usize| BlockCount::for_tokens(tokens).0.min(windows.most_held());
        let others: usize = self.active.iter().map(|s| most(s.reserved_tokens)).sum();
        let chunk = BlockCount::for_tokens(self.limits.chunk_tokens).0 + 1;
        self.active.is_empty() || others + most(tokens) + chunk <= windows.total()
    }

    /// Whether a sequence that needs `tokens` positions fits beside what is set aside for others.
    fn has_room(&self, prefix: &Prefix, tokens: usize) -> bool {
        if !self.has_window_room(tokens) {
            return false;
        }
        let pool = self.cache.pool();
        let set_aside: usize = self.active.iter().map(still_reserved).sum();
        let blocks = prefix.found.blocks.iter();
        let taken_from_cache = blocks.filter(|b| !pool.is_leased(**b)).count();
        let have = pool
            .available()
            .saturating_sub(taken_from_cache + set_aside);
        let shared = prefix.found.tokens / BLOCK_TOKENS;
        BlockCount::for_tokens(tokens).0.saturating_sub(shared) <= have
    }

    fn account_admission(&mut self, sequence: &mut Sequence, prefix: &Prefix) {
        let first = !sequence.tally.was_admitted();
        let evicted = self.cache.given_up();
        let keyed = &sequence.keyed;
        if !sequence.tally.admitted(keyed, prefix, &self.seen, evicted) {
            debug_assert!(false, "a planned prefix is gone though nothing was evicted");
            tracing::error!(
                request = sequence.id,
                "bug: report and plan differ without a cause"
            );
        }
        if first {
            match prefix.reach() {
                0 => self.stats.missed(sequence.tally.why()),
                _ => self.stats.hits += 1,
            }
        }
    }

    fn ask_for(&self, sequence: &Sequence) -> Ask {
        Ask {
            goal: sequence.goal(),
            now: self.clock.now(),
        }
    }

    /// A sync whose prompt is wholly resident owes no rows.
    fn finish_resident(&mut self) {
        while let Some(index) = self.active.iter().position(|s| s.pending() == 0) {
            self.account_prompt(index);
            let sequence = self.active.remove(index);
            self.finish(sequence, Finish::Stop);
        }
    }

    /// A sequence that an older one has overtaken takes over its blocks.
    pub(crate) fn join_prefixes(&mut self) {
        for index in 0..self.active.len() {
            let sequence = &self.active[index];
            if !sequence.is_prefilling() || self.waits_for_older(index) {
                continue;
            }
            let (root, marks) = (sequence.keyed.root, &sequence.keyed.marks);
            let found = self.cache.lookup(root, &sequence.ids, marks);
            if found.tokens < sequence.filled + JOIN_TOKENS_MIN {
                continue;
            }
            let ask = self.ask_for(sequence);
            let prefix = self.cache.prefix(root, &sequence.ids, marks, ask);
            if prefix.found.tokens <= sequence.filled {
                continue;
            }
            let (keyed, visit) = (&sequence.keyed, sequence.visit);
            let lease = self.cache.lease(keyed, &sequence.ids, &prefix.found, visit);
            let Ok(lease) = lease else {
                continue;
            };
            let window_from = self.first_seen(prefix.reach());
            let sequence = &mut self.active[index];
            sequence.window_from = window_from;
            let old = std::mem::replace(&mut sequence.lease, lease);
            sequence.filled = prefix.found.tokens;
            sequence.inserted = prefix.found.tokens;
            sequence.loads = prefix.disk.clone().into();
            let tally = &mut sequence.tally;
            tally.joined(&sequence.keyed, &prefix, &self.seen);
            self.cache.release(old);
        }
        self.finish_resident();
    }

    /// Whether an older sequence is computing what this one would compute next.
    pub(crate) fn waits_for_older(&self, index: usize) -> bool {
        let sequence = &self.active[index];
        self.active[..index].iter().any(|older| {
            older.is_prefilling() && {
                let common = sequence.common_prefix(older);
                common >= sequence.filled + JOIN_TOKENS_MIN && older.filled < common
            }
        })
    }

    /// Decides on the next step. Prompts of one priority share the chunk: the oldest takes most of it, and each
    /// other gets on by a block, so that a short one does not wait for a long one.
    pub(crate) fn choose_rows(&mut self) -> Vec<Turn> {
        let mut budget = self.limits.chunk_tokens;
        let mut turns = Vec::new();
        let order = self.running_order();
        let mut prompts = self.ready_prompts(&order);
        for id in order {
            prompts.retain(|(prompt, _)| *prompt != id);
            let Some(index) = self.active.iter().position(|s| s.id == id) else {
                continue; // It was sent back to make room for an older one.
            };
            let priority = self.active[index].priority;
            let for_others = prompts.iter().filter(|(_, p)| *p == priority).count();
            let own = budget - (for_others * BLOCK_TOKENS).min(budget / 2);
            let rows = self.active[index].pending().min(own);
            let waits = self.active[index].is_prefilling() && self.waits_for_older(index);
            if rows == 0 || waits || !self.active[index].loads.is_empty() {
                continue;
            }
            if self.make_room(id, self.active[index].filled + rows) {
                budget -= rows;
                turns.push(Turn {
                    id,
                    rows,
                    draft: Vec::new(),
                });
            }
        }
        turns.retain(|turn| self.active.iter().any(|s| s.id == turn.id));
        self.add_drafts(&mut turns);
        turns
    }

    /// Those of `order` that are prompts with rows to compute.
    fn ready_prompts(&self, order: &[u64]) -> Vec<(u64, Priority)> {
        let ready = |id: &u64| {
            let index = self.active.iter().position(|s| s.id == *id)?;
            let sequence = &self.active[index];
            let ready = sequence.is_prefilling()
                && sequence.loads.is_empty()
                && !self.waits_for_older(index);
            ready.then_some((*id, sequence.priority))
        };
        order.iter().filter_map(ready).collect()
    }

    /// Guesses where few rows are computed, each of which then costs little.
    fn add_drafts(&mut self, turns: &mut [Turn]) {
        let rows: usize = turns.iter().map(|turn| turn.rows).sum();
        let mut left = DRAFT_ROWS_MAX.saturating_sub(rows);
        if left == 0 || !self.forward.is_exact() {
            return;
        }
        let fair = left.div_ceil(turns.len().max(1));
        for turn in turns {
            let sequence = self.active.iter_mut().find(|s| s.id == turn.id);
            if let Some(sequence) = sequence {
                turn.draft = sequence.draft(fair.min(left));
                left -= turn.draft.len();
            }
        }
    }

    /// Those that owe one row first, then prompts by priority and age.
    fn running_order(&self) -> Vec<u64> {
        let mut order: Vec<&Sequence> = self.active.iter().collect();
        order.sort_by_key(|s| (s.is_prefilling(), s.priority));
        order.into_iter().map(|s| s.id).collect()
    }

    /// Grows the lease of `id` to `tokens` positions. False when `id` itself had to give way.
    pub(crate) fn make_room(&mut self, id: u64, tokens: usize) -> bool {
        let mut slid = false;
        loop {
            let sequence = self.active.iter_mut().find(|s| s.id == id);
            let Some(sequence) = sequence else {
                return false;
            };
            let (lease, window_from) = (&mut sequence.lease, sequence.window_from);
            self.cache
                .slide(lease, sequence.filled, &sequence.keyed.marks);
            if self.cache.grow(lease, tokens, window_from).is_ok() {
                return true;
            }
            if !std::mem::replace(&mut slid, true) && self.cache.parts_are_held() {
                // Others may hold parts from before their last step.
                for sequence in &mut self.active {
                    let marks = &sequence.keyed.marks;
                    let lease = &mut sequence.lease;
                    self.cache.slide(lease, sequence.filled, marks);
                }
                continue;
            }
            if self.give_up_pins() {
                continue;
            }
            let youngest = (0..self.active.len()).max_by_key(|i| (self.active[*i].priority, *i));
            let victim = self.active.remove(youngest.expect("`id` is active"));
            if self.active.is_empty() {
                let error = self.pool_full(BlockCount::for_tokens(tokens));
                self.finish(victim, Finish::Error(error));
                return false;
            }
            self.send_back(victim);
        }
    }

    /// A plan lets go of what it counts on, or else a timeline of what it holds. False when none holds anything.
    fn give_up_pins(&mut self) -> bool {
        let cache = &mut self.cache;
        self.pins.give_up_oldest(cache) || self.lines.give_up_one(cache)
    }

    /// Back to the head of the queue of its priority, without its blocks.
    pub(crate) fn send_back(&mut self, mut sequence: Sequence) {
        self.stats.preemptions += 1;
        make_resident(&mut self.cache, &mut sequence);
        self.cache
            .release(std::mem::replace(&mut sequence.lease, Lease::empty()));
        sequence.filled = 0;
        sequence.loads.clear();
        sequence.inserted = 0;
        let ahead = self
            .waiting
            .iter()
            .position(|w| w.priority >= sequence.priority);
        let place = ahead.unwrap_or(self.waiting.len());
        self.waiting.insert(place, sequence);
    }

    fn pool_full(&self, need: BlockCount) -> Error {
        let counts = self.cache.pool().counts();
        Error::PoolFull {
            need: need.0,
            have: counts.free + counts.cached,
            total: counts.total,
        }
    }
}

/// Blocks that were set aside for `sequence` and that it has not taken yet.
fn still_reserved(sequence: &Sequence) -> usize {
    let reserved = BlockCount::for_tokens(sequence.reserved_tokens).0;
    reserved.saturating_sub(sequence.lease.len())
}
