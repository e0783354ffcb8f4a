//! The block pool: the only owner of KV memory.
//!
//! A block is free (nobody refers to it), cached (the prefix tree alone does) or leased (a live
//! sequence, a timeline or a plan holds it; the tree may refer to it as well).
//! Invariant (law 6): free + cached + leased == total, after every step.
//! A [`Lease`] is linear: it is given back to the pool exactly once; losing one panics in debug.

use crate::error::{Error, Result};
use kernels::BLOCK_TOKENS;
use models::forward::KvStore;

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
}

impl Lease {
    pub fn empty() -> Self {
        Lease { table: Vec::new() }
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
}

impl Pool {
    pub fn new(kv: KvStore) -> Self {
        let total = kv.blocks();
        Pool {
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

    /// A further hold on blocks that are resident.
    pub fn share(&mut self, blocks: &[BlockId]) -> Lease {
        blocks.iter().for_each(|b| self.hold(*b));
        Lease {
            table: blocks.iter().map(|b| b.0).collect(),
        }
    }

    /// Adds one free block to the end of `lease`. The caller has made sure there is one.
    pub fn grow(&mut self, lease: &mut Lease) -> Result<BlockId> {
        let have = self.free.len();
        let block = self.free.pop().ok_or(Error::PoolFull {
            need: 1,
            have,
            total: self.slots.len(),
        })?;
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
        match self.grow(lease) {
            Ok(copy) => {
                let copied = self.kv.copy_block(source.0, copy.0, tokens);
                self.unhold(source);
                copied.map_err(Error::forward)
            }
            Err(error) => {
                lease.table.push(source.0);
                Err(error)
            }
        }
    }

    /// Replaces entry `index` by `block`, which holds the same positions of the same ids.
    pub fn swap(&mut self, lease: &mut Lease, index: usize, block: BlockId) {
        let old = BlockId(std::mem::replace(&mut lease.table[index], block.0));
        self.hold(block);
        self.unhold(old);
    }

    pub fn release(&mut self, mut lease: Lease) {
        for block in std::mem::take(&mut lease.table) {
            self.unhold(BlockId(block));
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
            self.free.push(block);
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
                self.free.push(block);
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
        for lease in leases {
            lease.table.iter().for_each(|b| want[*b as usize].live += 1);
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
