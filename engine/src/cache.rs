//! Pool and tree together: what is resident, and blocks for what is not.
//!
//! Invariant: a block is taken from the tree only when none is free, and only if nobody holds it.

use crate::error::{Error, Result};
use crate::keys::{ChainKey, Salt};
use crate::limits::BLOCKS_MAX;
use crate::pool::{BlockId, Lease, Pool};
use crate::prompt::Prompt;
use crate::tree::{Mark, Match, Root, Tree};
use kernels::BLOCK_TOKENS;
use models::forward::KvStore;

/// A prompt with its ids laid out and its piece ends keyed: what a lookup needs.
#[derive(Debug, Clone)]
pub struct Keyed {
    pub prompt: Prompt,
    pub ids: Vec<u32>,
    /// One per piece, in order.
    pub marks: Vec<Mark>,
    pub root: Root,
    pub root_key: ChainKey,
}

impl Keyed {
    /// Names the whole prompt, cut as it is. The root's key when there are no pieces.
    pub fn end_key(&self) -> ChainKey {
        self.marks.last().map_or(self.root_key, |m| m.key)
    }
}

pub struct Cache {
    pool: Pool,
    tree: Tree,
    identity: [u8; 32],
    /// Blocks the tree has given up so far.
    evicted: u64,
}

impl Cache {
    pub fn new(kv: KvStore, identity: [u8; 32]) -> Result<Self> {
        if kv.blocks() > BLOCKS_MAX {
            return Err(Error::BadRequest(format!(
                "the KV pool may have {BLOCKS_MAX} blocks, {} were asked for; lower --kv-memory",
                kv.blocks()
            )));
        }
        Ok(Cache {
            pool: Pool::new(kv),
            tree: Tree::new(),
            identity,
            evicted: 0,
        })
    }

    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    pub fn pool_mut(&mut self) -> &mut Pool {
        &mut self.pool
    }

    #[cfg(test)]
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    pub fn key(&mut self, prompt: Prompt, salt: &Salt) -> Keyed {
        let root_key = ChainKey::root(&self.identity, salt);
        let keys = prompt.chain_keys(&self.identity, salt);
        let mut position = 0;
        let mark = |(piece, key): (&crate::Piece, ChainKey)| {
            position += piece.len();
            Mark { position, key }
        };
        Keyed {
            marks: prompt.pieces.iter().zip(keys).map(mark).collect(),
            ids: prompt.ids(),
            prompt,
            root: self.tree.root(root_key),
            root_key,
        }
    }

    /// The one lookup: a plan and the call it foretells both use it.
    pub fn lookup(&self, root: Root, ids: &[u32], marks: &[Mark]) -> Match {
        self.tree.lookup(root, ids, marks, ids.len())
    }

    /// Holds what was found, as it is: nothing may be written behind it.
    pub fn pin(&mut self, found: &Match) -> Lease {
        self.pool.share(&found.blocks)
    }

    /// Leases what was found so that a sequence can write behind it: whole blocks are shared, a
    /// partial last block is copied. `ids` are those that were looked up.
    pub fn lease(&mut self, root: Root, ids: &[u32], found: &Match) -> Result<Lease> {
        self.tree.touch(root, ids, found.tokens);
        let mut lease = self.pool.share(&found.blocks);
        let partial = found.tokens % BLOCK_TOKENS;
        if partial > 0 {
            let copied = match self.make_free(1) {
                Ok(()) => self.pool.copy_last(&mut lease, partial),
                Err(error) => Err(error),
            };
            if let Err(error) = copied {
                self.pool.release(lease);
                return Err(error);
            }
        }
        Ok(lease)
    }

    /// Grows `lease` to hold `tokens` positions. On an error it has not grown.
    pub fn grow(&mut self, lease: &mut Lease, tokens: usize) -> Result<()> {
        let more = tokens.div_ceil(BLOCK_TOKENS).saturating_sub(lease.len());
        self.make_free(more)?;
        for _ in 0..more {
            self.pool.grow(lease)?;
        }
        Ok(())
    }

    /// Makes the first `ids.len()` positions of `lease` resident.
    pub fn insert(&mut self, root: Root, ids: &[u32], marks: &[Mark], lease: &mut Lease) {
        let blocks = ids.len().div_ceil(BLOCK_TOKENS);
        let table: Vec<BlockId> = (0..blocks).map(|i| lease.block(i)).collect();
        let adopted = self.tree.insert(&mut self.pool, root, ids, &table, marks);
        for (index, block) in adopted {
            self.pool.swap(lease, index, block);
        }
    }

    pub fn release(&mut self, lease: Lease) {
        self.pool.release(lease);
    }

    /// Forgets what nobody holds; with `held`, all of it.
    pub fn clear(&mut self, held: bool) -> usize {
        let blocks = self.tree.clear(&mut self.pool, held);
        self.evicted += blocks as u64;
        blocks
    }

    /// Gives up at least `blocks` of what nobody holds, least recently used first.
    pub fn evict(&mut self, blocks: usize) -> usize {
        let gone = (0..blocks).take_while(|_| self.tree.evict_one(&mut self.pool));
        let gone = gone.count();
        self.evicted += gone as u64;
        gone
    }

    fn make_free(&mut self, blocks: usize) -> Result<()> {
        while self.pool.free() < blocks {
            if self.evict(1) == 0 {
                return Err(Error::PoolFull {
                    need: blocks,
                    have: self.pool.free(),
                    total: self.pool.total(),
                    pinned: 0,
                });
            }
        }
        Ok(())
    }

    /// Law 6 and the tree's invariants. `leases` are all that live.
    pub fn audit<'a>(
        &self,
        leases: impl Iterator<Item = &'a Lease>,
    ) -> std::result::Result<(), String> {
        self.pool.audit(leases, self.tree.blocks())?;
        self.tree.audit(&self.pool)
    }
}
