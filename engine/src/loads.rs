//! Blocks that come from disk instead of a forward pass.
//!
//! A sequence that was admitted with blocks on disk takes them one after another, a bounded number a
//! step, so that a decoding neighbour waits no longer than for a chunk of prompt. What cannot be read is
//! computed.

use crate::core::{Core, make_resident};
use crate::disk::Disk;
use crate::limits::{DISK_LOAD_BYTES_A_STEP, DISK_LOAD_BYTES_ALONE};

impl Core {
    /// Loads what sequences wait for, as far as one step may. Whether anything was loaded, or given up.
    pub(crate) fn load_from_disk(&mut self) -> bool {
        let alone = self.active.iter().all(|s| s.is_prefilling());
        let budget = match alone {
            true => DISK_LOAD_BYTES_ALONE,
            false => DISK_LOAD_BYTES_A_STEP,
        };
        let block_bytes = self.cache.disk().map_or(1, Disk::block_bytes_max);
        let mut blocks = (budget / block_bytes).max(1);
        let waiting = self.active.iter().filter(|s| !s.loads.is_empty());
        let mut any = false;
        for id in waiting.map(|s| s.id).collect::<Vec<_>>() {
            let before = blocks;
            while blocks > 0 && self.load_next(id) {
                blocks -= 1;
            }
            if blocks == before {
                continue;
            }
            any = true;
            if let Some(sequence) = self.active.iter_mut().find(|s| s.id == id) {
                make_resident(&mut self.cache, sequence);
            }
            self.join_prefixes();
        }
        any
    }

    /// Loads one block of `id`. False when there is none to load, or it has to wait.
    fn load_next(&mut self, id: u64) -> bool {
        let Some(index) = self.active.iter().position(|s| s.id == id) else {
            return false;
        };
        let sequence = &self.active[index];
        let Some(next) = sequence.loads.front().cloned() else {
            return false;
        };
        let end = sequence.filled + next.tokens;
        if self.waits_for_older(index) || !self.make_room(id, end) {
            return false;
        }
        // What is behind it in the list may have gone to make room, but not what is before.
        let Some(sequence) = self.active.iter_mut().find(|s| s.id == id) else {
            return false;
        };
        let started = self.clock.now();
        sequence.tally.scheduled(started);
        if !self.cache.load_last(&sequence.lease, &next) {
            sequence.loads.clear();
            sequence.tally.unreadable(sequence.filled);
            // What was loaded so far may lack the window that it ends in.
            if self.cache.lacks_window(&sequence.lease, sequence.filled) {
                let index = self.active.iter().position(|s| s.id == id);
                let sequence = self.active.remove(index.expect("it was found above"));
                self.send_back(sequence);
            }
            return true;
        }
        let ms = (self.clock.now() - started).as_secs_f64() * 1000.0;
        self.rates.loaded(next.tokens, ms);
        sequence.loads.pop_front();
        sequence.filled = end;
        sequence.tally.loaded(end, sequence.keyed.ids.len());
        true
    }
}
