//! The block pool: the only owner of KV memory.
//!
//! A block is free (nobody refers to it), cached (the prefix tree alone does) or leased (a live
//! sequence, a timeline or a plan holds it; the tree may refer to it as well).
//! Invariant (law 6): free + cached + leased == total, after every step.
//! A [`Lease`] is linear: it is given back to the pool exactly once; losing one panics in debug.

use crate::error::{Error, Result};
use crate::windows::{Keep, WindowCounts, Windows};
use kernels::BLOCK_TOKENS;
use models::forward::KvStore;
use std::num::NonZeroUsize;

/// One block of the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct BlockId(pub u32);

/// A number of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, serde::Serialize)]
pub struct BlockCount(pub usize);

impl BlockCount {
    /// Blocks that hold `tokens` positions.
    pub fn for_tokens(tokens: usize) -> Self {
        BlockCount(tokens.div_ceil(BLOCK_TOKENS))
    }
}

/// A hold on blocks, in table order: entry `i` holds positions `32 i .. 32 i + 32`.
#[derive(Debug)]
pub struct Lease {
    /// Raw ids, because the forward pass takes the table as it is.
    table: Vec<u32>,
    /// From this entry on, the part in the layers with a window is held too.
    window_from: usize,
}

impl Lease {
    pub fn empty() -> Self {
        Lease {
            table: Vec::new(),
            window_from: 0,
        }
    }

    /// table [blocks] u32, as the forward pass takes it.
    pub fn table(&self) -> &[u32] {
        &self.table
    }

    pub fn len(&self) -> usize {
        self.table.len()
    }

    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    pub fn block(&self, index: usize) -> BlockId {
        BlockId(self.table[index])
    }

    pub fn blocks(&self) -> Vec<BlockId> {
        self.table.iter().copied().map(BlockId).collect()
    }

    pub fn window_from(&self) -> usize {
        self.window_from
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if !self.table.is_empty() && !std::thread::panicking() {
            debug_assert!(false, "a lease of {} blocks was lost", self.table.len());
            tracing::error!(
                blocks = self.table.len(),
                "bug: a lease of KV blocks was lost"
            );
        }
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    /// Leases that hold this block.
    live: u32,
    /// The prefix tree refers to it (once).
    cached: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
pub struct PoolCounts {
    pub free: usize,
    pub cached: usize,
    pub leased: usize,
    pub total: usize,
}

pub struct Pool {
    kv: KvStore,
    slots: Vec<Slot>,
    free: Vec<BlockId>,
    cached: usize,
    leased: usize,
    /// Where the model has layers with a window.
    windows: Option<Windows>,
}

impl Pool {
    /// `window`: the positions that a row sees in the layers with a window.
    pub fn new(kv: KvStore, window: Option<NonZeroUsize>) -> Self {
        let total = kv.all.blocks();
        let parts = kv.window.as_ref().map(|kv| kv.blocks());
        let windows = window.zip(parts);
        Pool {
            windows: windows.map(|(tokens, parts)| Windows::new(tokens, total, parts)),
            kv,
            slots: vec![Slot::default(); total],
            // Popped from the end, so block 0 is used first and memory is touched in order.
            free: (0..total as u32).rev().map(BlockId).collect(),
            cached: 0,
            leased: 0,
        }
    }

    pub fn counts(&self) -> PoolCounts {
        PoolCounts {
            free: self.free.len(),
            cached: self.cached,
            leased: self.leased,
            total: self.slots.len(),
        }
    }

    pub fn total(&self) -> usize {
        self.slots.len()
    }

    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Blocks that are free or that the tree can give up.
    pub fn available(&self) -> usize {
        self.free.len() + self.cached
    }

    /// Where a forward pass reads and writes KV.
    pub fn kv_mut(&mut self) -> &mut KvStore {
        &mut self.kv
    }

    pub fn kv(&self) -> &KvStore {
        &self.kv
    }

    pub fn is_leased(&self, block: BlockId) -> bool {
        self.slots[block.0 as usize].live > 0
    }

    pub fn windows(&self) -> Option<&Windows> {
        self.windows.as_ref()
    }

    /// Whether `block` has its part in the layers with a window.
    pub fn has_part(&self, block: BlockId) -> bool {
        let windows = self.windows.as_ref();
        windows.is_some_and(|windows| windows.part(block).is_some())
    }

    pub fn window_counts(&self) -> Option<WindowCounts> {
        let (windows, kv) = (self.windows.as_ref()?, self.kv.window.as_ref()?);
        Some(WindowCounts {
            free: windows.free(),
            total: windows.total(),
            bytes: kv.shape().block_bytes() as u64,
            given_up: windows.given_up(),
        })
    }

    /// Gives up the part in the layers with a window that was let go of first, of those kept for no more than
    /// `keep`. False when there is none.
    pub fn give_up_idle_part(&mut self, keep: Keep) -> bool {
        let windows = self.windows.as_mut();
        windows.is_some_and(|windows| windows.give_up_one(keep))
    }

    /// Gives up the part of `block`, which nobody holds.
    pub fn give_up_part(&mut self, block: BlockId) {
        if let Some(windows) = &mut self.windows {
            windows.give_up(block);
        }
    }

    /// table [blocks] u32 of the parts in the layers with a window, from the first that `lease` holds on; entries
    /// before it stand for nothing. Empty where there are no such layers.
    pub fn window_table(&self, lease: &Lease) -> Vec<u32> {
        let Some(windows) = &self.windows else {
            return Vec::new();
        };
        let part = |(index, block): (usize, &u32)| match index < lease.window_from {
            true => u32::MAX,
            false => windows.part(BlockId(*block)).unwrap_or(u32::MAX),
        };
        lease.table.iter().enumerate().map(part).collect()
    }

    /// A further hold on blocks that are resident, and from block `window_from` on on their parts in the layers
    /// with a window.
    pub fn share(&mut self, blocks: &[BlockId], window_from: usize) -> Lease {
        blocks.iter().for_each(|b| self.hold(*b));
        let window_from = window_from.min(blocks.len());
        if let Some(windows) = &mut self.windows {
            blocks[window_from..].iter().for_each(|b| windows.hold(*b));
        }
        Lease {
            table: blocks.iter().map(|b| b.0).collect(),
            window_from,
        }
    }

    /// Adds one free block to the end of `lease`, with its part in the layers with a window if `window`. The
    /// caller has made sure there is one.
    pub fn grow(&mut self, lease: &mut Lease, window: bool) -> Result<BlockId> {
        let full = |have, total| Error::PoolFull {
            need: 1,
            have,
            total,
        };
        let total = self.slots.len();
        let have = self.free.len();
        let block = *self.free.last().ok_or(full(have, total))?;
        match &mut self.windows {
            Some(windows) if window => windows
                .attach(block)
                .then_some(())
                .ok_or_else(|| full(0, windows.total()))?,
            Some(windows) => {
                debug_assert!(
                    lease.window_from >= lease.len(),
                    "parts are held to the end"
                );
                windows.count_bare();
                lease.window_from = lease.len() + 1;
            }
            None => {}
        }
        self.free.pop();
        let slot = &mut self.slots[block.0 as usize];
        debug_assert!(slot.live == 0 && !slot.cached, "{block:?} was not free");
        slot.live = 1;
        self.leased += 1;
        lease.table.push(block.0);
        Ok(block)
    }

    /// Makes the last block of `lease` its own: a copy of the first `tokens` positions.
    pub fn copy_last(&mut self, lease: &mut Lease, tokens: usize) -> Result<()> {
        debug_assert!(0 < tokens && tokens < BLOCK_TOKENS);
        let source = BlockId(lease.table.pop().expect("a partial hit names its block"));
        let (index, window_from) = (lease.len(), lease.window_from);
        let window = index >= window_from;
        match self.grow(lease, window) {
            Ok(copy) => {
                let copied = self.copy_block(source, copy, tokens, window);
                self.unhold_part(source, index, window_from, Keep::End);
                self.unhold(source);
                copied.map_err(Error::forward)
            }
            Err(error) => {
                lease.table.push(source.0);
                lease.window_from = window_from;
                Err(error)
            }
        }
    }

    /// The bytes of the first `tokens` positions of `block`, and of its part in the layers with a window if it has
    /// one, for another tier.
    pub fn read_block(
        &self,
        block: BlockId,
        tokens: usize,
    ) -> models::Result<(Vec<u8>, Option<Vec<u8>>)> {
        let part = self.windows.as_ref().and_then(|w| w.part(block));
        let part = part.zip(self.kv.window.as_ref());
        let part = part.map(|(part, kv)| kv.read_block(part, tokens));
        Ok((self.kv.all.read_block(block.0, tokens)?, part.transpose()?))
    }

    fn copy_block(
        &mut self,
        from: BlockId,
        to: BlockId,
        tokens: usize,
        window: bool,
    ) -> models::Result<()> {
        self.kv.all.copy_block(from.0, to.0, tokens)?;
        if let (true, Some(windows), Some(kv)) = (window, &self.windows, &mut self.kv.window)
            && let (Some(from), Some(to)) = (windows.part(from), windows.part(to))
        {
            kv.copy_block(from, to, tokens)?;
        }
        Ok(())
    }

    /// Replaces entry `index` by `block`, which holds the same positions of the same ids.
    pub fn swap(&mut self, lease: &mut Lease, index: usize, block: BlockId) {
        let old = BlockId(std::mem::replace(&mut lease.table[index], block.0));
        self.hold(block);
        if let Some(windows) = &mut self.windows {
            windows.hand_over(old, block, index >= lease.window_from);
        }
        self.unhold(old);
    }

    /// The next row of `lease` sees the parts in the layers with a window from block `from` on; `keep` says of
    /// those before it why they might be needed again.
    pub fn slide(&mut self, lease: &mut Lease, from: usize, keep: impl Fn(usize) -> Keep) {
        let passed = lease.window_from..from.min(lease.len());
        let Some(windows) = &mut self.windows else {
            return;
        };
        for index in passed.clone() {
            windows.unhold(lease.block(index), keep(index));
        }
        lease.window_from = passed.end.max(lease.window_from);
    }

    pub fn release(&mut self, mut lease: Lease) {
        let window_from = lease.window_from;
        for (index, block) in std::mem::take(&mut lease.table).into_iter().enumerate() {
            self.unhold_part(BlockId(block), index, window_from, Keep::End);
            self.unhold(BlockId(block));
        }
    }

    fn unhold_part(&mut self, block: BlockId, index: usize, window_from: usize, keep: Keep) {
        if let Some(windows) = &mut self.windows
            && index >= window_from
        {
            windows.unhold(block, keep);
        }
    }

    /// The tree refers to `block` from now on.
    pub fn cache(&mut self, block: BlockId) {
        let slot = &mut self.slots[block.0 as usize];
        debug_assert!(!slot.cached, "{block:?} is in the tree twice");
        debug_assert!(slot.live > 0, "{block:?} enters the tree from a live lease");
        slot.cached = true;
    }

    /// The tree no longer refers to `block`; it is free unless someone holds it.
    pub fn uncache(&mut self, block: BlockId) {
        let slot = &mut self.slots[block.0 as usize];
        debug_assert!(slot.cached, "{block:?} is not in the tree");
        slot.cached = false;
        if slot.live == 0 {
            self.cached -= 1;
            self.set_free(block);
        }
    }

    fn set_free(&mut self, block: BlockId) {
        self.free.push(block);
        if let Some(windows) = &mut self.windows {
            windows.detach(block);
        }
    }

    fn hold(&mut self, block: BlockId) {
        let slot = &mut self.slots[block.0 as usize];
        if slot.live == 0 {
            debug_assert!(slot.cached, "{block:?} is free and cannot be shared");
            self.cached -= 1;
            self.leased += 1;
        }
        slot.live += 1;
    }

    fn unhold(&mut self, block: BlockId) {
        let slot = &mut self.slots[block.0 as usize];
        debug_assert!(slot.live > 0, "{block:?} is not leased");
        slot.live -= 1;
        if slot.live == 0 {
            self.leased -= 1;
            if slot.cached {
                self.cached += 1;
            } else {
                self.set_free(block);
            }
        }
    }

    /// Law 6, recounted from the slots. `leases` are all that live; `cached` is every block the
    /// tree refers to. Returns what does not add up.
    pub fn audit<'a>(
        &self,
        leases: impl Iterator<Item = &'a Lease>,
        cached: impl Iterator<Item = BlockId>,
    ) -> std::result::Result<(), String> {
        let mut want = vec![Slot::default(); self.slots.len()];
        let mut parts_held = vec![0; self.slots.len()];
        for lease in leases {
            lease.table.iter().for_each(|b| want[*b as usize].live += 1);
            let with_part = lease.table.iter().skip(lease.window_from);
            with_part.for_each(|b| parts_held[*b as usize] += 1);
        }
        if let Some(windows) = &self.windows {
            let is_free = |block: usize| self.slots[block].live == 0 && !self.slots[block].cached;
            windows.audit(&parts_held, is_free)?;
        }
        for block in cached {
            let slot = &mut want[block.0 as usize];
            if std::mem::replace(&mut slot.cached, true) {
                return Err(format!("{block:?} is in the tree twice"));
            }
        }
        let mut counts = PoolCounts {
            total: self.slots.len(),
            ..PoolCounts::default()
        };
        for (id, (want, have)) in want.iter().zip(&self.slots).enumerate() {
            if (want.live, want.cached) != (have.live, have.cached) {
                return Err(format!("block {id}: recounted {want:?}, kept {have:?}"));
            }
            match (have.live, have.cached) {
                (0, false) => counts.free += 1,
                (0, true) => counts.cached += 1,
                (_, _) => counts.leased += 1,
            }
        }
        let kept = self.counts();
        if counts != kept || kept.free + kept.cached + kept.leased != kept.total {
            return Err(format!("recounted {counts:?}, kept {kept:?}"));
        }
        Ok(())
    }
}
