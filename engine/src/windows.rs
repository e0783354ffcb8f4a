//! Keys and values of the layers with a window: which blocks have theirs.
//!
//! A block of the pool holds 32 positions of the layers that see all. The layers with a window have memory of
//! their own, in fewer parts: a block has its *part* there, or has not. A sequence holds the parts of what its
//! next row sees. What it has passed stays until the room is needed, so that a prompt can be gone on from at any
//! depth before which a whole window is still there.
//!
//! Invariants: parts that are free and parts that blocks have are all there are; a part that somebody holds is
//! not given up, but to the tree's own block for the same positions; a free block has none.

use crate::pool::BlockId;
use kernels::BLOCK_TOKENS;
use std::collections::BTreeSet;
use std::num::NonZeroUsize;

/// How likely a prompt goes on from a window that ends in a part; the likelier the greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Keep {
    /// In the middle of something.
    #[default]
    Passed,
    /// Before the end of what other prompts begin with too, or of all that was said.
    End,
}

/// Blocks of the layers with a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
pub struct WindowCounts {
    pub free: usize,
    pub total: usize,
    /// Bytes of one.
    pub bytes: u64,
    /// How often one was given up because others needed it.
    pub given_up: u64,
}

#[derive(Debug)]
pub struct Windows {
    /// Positions that a row sees, its own included.
    tokens: NonZeroUsize,
    total: usize,
    free: Vec<u32>,
    /// One a block of the pool.
    parts: Vec<Option<Part>>,
    /// Parts that nobody holds, in the order in which they are given up.
    idle: BTreeSet<(Keep, u64, BlockId)>,
    /// How often one was let go of so far.
    ticks: u64,
    given_up: u64,
    /// Blocks that came without a part.
    bare: u64,
}

#[derive(Debug, Clone, Copy)]
struct Part {
    id: u32,
    /// Leases that hold it.
    live: u32,
    keep: Keep,
    /// When it was let go of last.
    tick: u64,
}

impl Part {
    fn place(&self, block: BlockId) -> (Keep, u64, BlockId) {
        (self.keep, self.tick, block)
    }
}

impl Windows {
    pub fn new(tokens: NonZeroUsize, blocks: usize, total: usize) -> Self {
        Windows {
            tokens,
            total,
            free: (0..total as u32).rev().collect(),
            parts: vec![None; blocks],
            idle: BTreeSet::new(),
            ticks: 0,
            given_up: 0,
            bare: 0,
        }
    }

    pub fn tokens(&self) -> usize {
        self.tokens.get()
    }

    pub fn total(&self) -> usize {
        self.total
    }

    pub fn free(&self) -> usize {
        self.free.len()
    }

    pub fn given_up(&self) -> u64 {
        self.given_up
    }

    /// What may have left a prefix without its window so far: parts given up, and blocks that came without one,
    /// which may take the place of others.
    pub fn losses(&self) -> u64 {
        self.given_up + self.bare
    }

    /// A block was taken without a part.
    pub fn count_bare(&mut self) {
        self.bare += 1;
    }

    /// The first block whose part the row at `position` sees.
    pub fn first_seen(&self, position: usize) -> usize {
        kernels::first_seen(position, self.tokens) / BLOCK_TOKENS
    }

    /// Blocks whose parts one sequence holds between two steps, at most.
    pub fn most_held(&self) -> usize {
        self.tokens.get().div_ceil(BLOCK_TOKENS) + 2
    }

    /// The longest prefix of at most `tokens` positions that can be gone on from: the parts that the next row
    /// sees are there. `has` tells of each block.
    pub fn usable(&self, tokens: usize, has: impl Fn(usize) -> bool) -> usize {
        let mut end = tokens;
        loop {
            let mut seen = self.first_seen(end)..end.div_ceil(BLOCK_TOKENS);
            match seen.rfind(|block| !has(*block)) {
                None => return end,
                // Whatever ends behind the beginning of that block sees it too.
                Some(block) => end = block * BLOCK_TOKENS,
            }
        }
    }

    /// Where the part of a block is.
    pub fn part(&self, block: BlockId) -> Option<u32> {
        self.parts[block.0 as usize].map(|part| part.id)
    }

    /// Gives `block`, which has none, a free part, held once. False when none is free.
    pub fn attach(&mut self, block: BlockId) -> bool {
        let Some(id) = self.free.pop() else {
            return false;
        };
        let part = &mut self.parts[block.0 as usize];
        debug_assert!(part.is_none(), "{block:?} has a part");
        *part = Some(Part {
            id,
            live: 1,
            keep: Keep::default(),
            tick: 0,
        });
        true
    }

    /// A further hold on the part of `block`, unless it was handed over.
    pub fn hold(&mut self, block: BlockId) {
        let Some(part) = &mut self.parts[block.0 as usize] else {
            return;
        };
        if part.live == 0 {
            self.idle.remove(&part.place(block));
        }
        part.live += 1;
    }

    pub fn unhold(&mut self, block: BlockId, keep: Keep) {
        self.ticks += 1;
        let Some(part) = &mut self.parts[block.0 as usize] else {
            return;
        };
        part.live -= 1;
        part.keep = keep;
        part.tick = self.ticks;
        if part.live == 0 {
            self.idle.insert(part.place(block));
        }
    }

    /// `block` is free: so is its part.
    pub fn detach(&mut self, block: BlockId) {
        if let Some(part) = self.parts[block.0 as usize].take() {
            debug_assert!(part.live == 0, "the part of a free {block:?} is held");
            self.idle.remove(&part.place(block));
            self.free.push(part.id);
        }
    }

    /// `to` is the tree's block for the positions that `from` holds, and takes its place in a lease, which holds
    /// the part if `held`. Where `to` has none it gets that of `from`, whoever else holds it there: they find it
    /// again where the tree has it.
    pub fn hand_over(&mut self, from: BlockId, to: BlockId, held: bool) {
        if self.parts[to.0 as usize].is_some() {
            if held {
                self.hold(to);
                self.unhold(from, Keep::Passed);
            }
            return;
        }
        let Some(mut part) = self.parts[from.0 as usize].take() else {
            return;
        };
        self.idle.remove(&part.place(from));
        part.live = u32::from(held);
        if !held {
            self.idle.insert(part.place(to));
        }
        self.parts[to.0 as usize] = Some(part);
    }

    /// Whether every part that a block has is held.
    pub fn all_held(&self) -> bool {
        self.idle.is_empty()
    }

    /// Whether `block` has a part that nobody holds.
    pub fn is_idle(&self, block: BlockId) -> bool {
        self.parts[block.0 as usize].is_some_and(|part| part.live == 0)
    }

    /// Takes its part, which nobody holds, from `block`.
    pub fn give_up(&mut self, block: BlockId) {
        debug_assert!(self.is_idle(block), "{block:?} has no part that may go");
        self.detach(block);
        self.given_up += 1;
    }

    /// Takes the part that was let go of first, of those that are kept for no more than `keep`. False when there is
    /// none.
    pub fn give_up_one(&mut self, keep: Keep) -> bool {
        match self.idle.first().copied() {
            Some((least, _, block)) if least <= keep => {
                self.give_up(block);
                true
            }
            _ => false,
        }
    }

    /// `held` says how many leases hold the part of each block, `is_free` which blocks are free. Returns what
    /// does not add up.
    pub fn audit(&self, held: &[u32], is_free: impl Fn(usize) -> bool) -> Result<(), String> {
        let mut ids: Vec<u32> = self.free.clone();
        let mut idle = 0;
        for (block, (part, held)) in self.parts.iter().zip(held).enumerate() {
            // Those that hold one which was handed over hold nothing.
            let Some(part) = part else { continue };
            ids.push(part.id);
            let listed = self.idle.contains(&part.place(BlockId(block as u32)));
            if part.live != *held || listed != (*held == 0) || is_free(block) {
                return Err(format!("part of block {block}: {part:?}, {held} hold it"));
            }
            idle += usize::from(listed);
        }
        ids.sort_unstable();
        if !ids.into_iter().eq(0..self.total as u32) || idle != self.idle.len() {
            return Err("the parts of the layers with a window do not add up".into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn windows(tokens: usize) -> Windows {
        Windows::new(NonZeroUsize::new(tokens).unwrap(), 20, 4)
    }

    #[test]
    fn a_prefix_is_usable_where_a_whole_window_is_there() {
        // Blocks 2 and 3 have gone: positions 64 to 127.
        let has = |block| !(2..4).contains(&block);
        let usable = |window, tokens| windows(window).usable(tokens, has);
        assert_eq!(usable(50, 64), 64);
        assert_eq!(usable(50, 65), 64);
        assert_eq!(usable(50, 128), 64);
        // The row at 176 sees from 127 on, the one at 177 from 128 on.
        assert_eq!(usable(50, 176), 64);
        assert_eq!(usable(50, 177), 177);
        assert_eq!(usable(1, 128), 128);
        assert_eq!(windows(50).usable(40, |_| false), 0);
        assert_eq!(windows(5000).usable(40, |_| true), 40);
    }

    #[test]
    fn what_was_passed_goes_before_what_ends() {
        let mut windows = windows(40);
        let blocks = [3, 1, 2, 0].map(BlockId);
        for (block, keep) in blocks
            .into_iter()
            .zip([Keep::End, Keep::Passed, Keep::Passed])
        {
            assert!(windows.attach(block));
            windows.unhold(block, keep);
        }
        assert!(windows.attach(blocks[3]) && !windows.attach(BlockId(9)));
        windows.hold(blocks[1]);
        assert!(!windows.is_idle(blocks[1]) && windows.is_idle(blocks[2]));
        windows.unhold(blocks[1], Keep::Passed);
        let order = std::iter::from_fn(|| {
            let (_, _, first) = *windows.idle.first()?;
            windows.give_up_one(Keep::End).then_some(first)
        });
        let order: Vec<_> = order.collect();
        assert_eq!(order, [blocks[2], blocks[1], blocks[0]]);
        assert_eq!((windows.free(), windows.given_up()), (3, 3));
        let mut held = [0; 20];
        held[0] = 1;
        assert_eq!(windows.audit(&held, |block| block > 0), Ok(()));
        assert!(windows.audit(&[0; 20], |_| false).is_err());
    }
}
