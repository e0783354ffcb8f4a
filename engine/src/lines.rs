//! Timelines, as the engine's thread knows them: what each holds, where it was forked from, and who goes first
//! when blocks run out.
//!
//! Invariant: a line that gave up its blocks is still there; what it held is found again if the cache kept it,
//! and computed again if not.

use crate::cache::Cache;
use crate::pool::Lease;
use crate::tree::{Mark, Root};
use std::cmp::Reverse;
use std::collections::HashMap;

/// A prompt that a timeline holds.
struct Line {
    root: Root,
    lease: Lease,
    /// Forks from the first timeline to this one.
    generation: usize,
    /// Something is under way that will go on from here: a tool, a person's answer.
    held: bool,
    /// Ticks of the tree.
    used: u64,
}

#[derive(Default)]
pub struct Lines {
    lines: HashMap<u64, Line>,
    /// How often a line gave up its blocks.
    given_up: u64,
}

impl Lines {
    pub fn open(&mut self, id: u64, root: Root) {
        let line = Line {
            root,
            lease: Lease::empty(),
            generation: 0,
            held: false,
            used: 0,
        };
        self.lines.insert(id, line);
    }

    /// A second line that holds the same blocks: O(blocks) in counts, no copy.
    pub fn fork(&mut self, cache: &mut Cache, id: u64, new: u64) {
        let Some(line) = self.lines.get(&id) else {
            return;
        };
        let (blocks, window_from) = (line.lease.blocks(), line.lease.window_from());
        let fork = Line {
            root: line.root,
            lease: cache.pool_mut().share(&blocks, window_from),
            generation: line.generation + 1,
            held: false,
            used: line.used,
        };
        self.lines.insert(new, fork);
    }

    pub fn close(&mut self, cache: &mut Cache, id: u64) {
        if let Some(line) = self.lines.remove(&id) {
            cache.release(line.lease);
        }
    }

    pub fn set_held(&mut self, id: u64, held: bool) {
        if let Some(line) = self.lines.get_mut(&id) {
            line.held = held;
        }
    }

    pub fn is_fork(&self, id: u64) -> bool {
        self.lines.get(&id).is_some_and(|line| line.generation > 0)
    }

    /// `id` holds `ids`, as far as they are resident, in place of what it held before.
    pub fn advance(&mut self, cache: &mut Cache, id: u64, ids: &[u32], marks: &[Mark]) {
        let Some(line) = self.lines.get_mut(&id) else {
            return;
        };
        let found = cache.lookup(line.root, ids, marks);
        let lease = cache.pin(&found);
        line.used = cache.tick();
        cache.release(std::mem::replace(&mut line.lease, lease));
    }

    /// Under pressure a line lets go of its blocks, which the cache then keeps or not: forks before what they
    /// were forked from, the one unused for longest first, those that are held last. False when none has any.
    pub fn give_up_one(&mut self, cache: &mut Cache) -> bool {
        let holding = self.lines.values_mut().filter(|l| !l.lease.is_empty());
        let Some(line) = holding.min_by_key(|l| (l.held, Reverse(l.generation), l.used)) else {
            return false;
        };
        self.given_up += 1;
        cache.release(std::mem::replace(&mut line.lease, Lease::empty()));
        true
    }

    pub fn len(&self) -> usize {
        self.lines.len()
    }

    pub fn given_up(&self) -> u64 {
        self.given_up
    }

    pub fn leases(&self) -> impl Iterator<Item = &Lease> {
        self.lines.values().map(|line| &line.lease)
    }

    pub fn clear(&mut self, cache: &mut Cache) {
        let lines = self.lines.drain();
        lines.for_each(|(_, line)| cache.release(line.lease));
    }
}
