//! Pool, tree and disk together: what is resident, what is kept, and blocks for what is not.
//!
//! Invariant: a block is taken from the tree only when none is free, and only if nobody holds it; the same goes
//! for its part in layers with a window.

use crate::clock::thread_cpu;
use crate::disk::{Disk, Found, Save};
use crate::error::{Error, Result};
use crate::keys::{BlockKey, ChainKey, Salt};
use crate::limits::{
    BLOCKS_MAX, DISK_CATCH_UP_MS, DISK_CLOSE_MS, DISK_LOOK_TOKENS_MIN, DISK_SAVES_MAX,
};
use crate::plan::{Goal, Prefix};
use crate::pool::{BlockId, Lease, Pool};
use crate::prompt::Prompt;
use crate::tree::{Mark, Match, New, Root, Tree};
use crate::windows::{Keep, Windows};
use crate::worth::{Class, Visit};
use kernels::BLOCK_TOKENS;
use models::forward::KvStore;
use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

/// A prompt with its ids laid out and its piece ends keyed: what a lookup needs.
#[derive(Debug, Clone)]
pub struct Keyed {
    pub prompt: Prompt,
    pub ids: Vec<u32>,
    /// One per piece, in order.
    pub marks: Vec<Mark>,
    pub root: Root,
    pub root_key: ChainKey,
    /// What block keys begin with in this namespace.
    pub block_root: BlockKey,
}

impl Keyed {
    /// Names the whole prompt, cut as it is. The root's key when there are no pieces.
    pub fn end_key(&self) -> ChainKey {
        self.marks.last().map_or(self.root_key, |m| m.key)
    }
}

/// What a lookup is for.
#[derive(Debug, Clone, Copy)]
pub struct Ask {
    pub goal: Goal,
    pub now: Duration,
}

pub struct Cache {
    pool: Pool,
    tree: Tree,
    identity: [u8; 32],
    /// Blocks the tree has given up so far.
    evicted: u64,
    disk: Option<Disk>,
    /// Sequences whose blocks are still to be copied for the disk, oldest first.
    saves: VecDeque<Save>,
}

impl Cache {
    /// `window`: the positions that a row sees in the layers with a window, where there are some.
    pub fn new(kv: KvStore, window: Option<NonZeroUsize>, identity: [u8; 32]) -> Result<Self> {
        if kv.all.blocks() > BLOCKS_MAX {
            return Err(Error::BadRequest(format!(
                "the KV pool may have {BLOCKS_MAX} blocks, {} were asked for; lower --kv-memory",
                kv.all.blocks()
            )));
        }
        Ok(Cache {
            pool: Pool::new(kv, window),
            tree: Tree::new(),
            identity,
            evicted: 0,
            disk: None,
            saves: VecDeque::new(),
        })
    }

    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    pub fn pool_mut(&mut self) -> &mut Pool {
        &mut self.pool
    }

    pub fn use_disk(&mut self, disk: Disk) {
        self.disk = Some(disk);
    }

    pub fn disk(&self) -> Option<&Disk> {
        self.disk.as_ref()
    }

    /// The piece ends that are in memory.
    pub fn piece_ends(&self) -> impl Iterator<Item = &ChainKey> {
        self.tree.piece_ends()
    }

    #[cfg(test)]
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Everything that was given up so far: blocks in memory, their parts in layers with a window, and files.
    pub fn given_up(&self) -> u64 {
        let parts = self.pool.windows().map_or(0, Windows::losses);
        self.evicted + parts + self.disk.as_ref().map_or(0, Disk::given_up)
    }

    pub fn key(&mut self, prompt: Prompt, salt: &Salt) -> Keyed {
        let root_key = ChainKey::root(&self.identity, salt);
        let block_root = BlockKey::root(&self.identity, salt);
        let keys = prompt.chain_keys(&self.identity, salt);
        let mut position = 0;
        let mark = |(piece, key): (&crate::Piece, ChainKey)| {
            position += piece.len();
            Mark {
                position,
                key,
                layer: piece.layer,
            }
        };
        Keyed {
            marks: prompt.pieces.iter().zip(keys).map(mark).collect(),
            ids: prompt.ids(),
            prompt,
            root: self.tree.root(root_key, block_root),
            root_key,
            block_root,
        }
    }

    /// The one lookup: a plan and the call it foretells both use it. First memory, then what the disk
    /// has behind that.
    pub fn prefix(&mut self, root: Root, ids: &[u32], marks: &[Mark], ask: Ask) -> Prefix {
        let found = self.tree.lookup(root, ids, marks, ids.len());
        let longest = self.with_disk(found, ids, ask);
        if !longest.is_short() {
            return longest;
        }
        let kept = longest.kept;
        // The disk may have what the layers with a window lack here; or it lacks what they have.
        let found = self.lookup(root, ids, marks);
        let memory = Prefix::new(found.clone(), Vec::new(), ids.len(), ask.goal, &self.pool);
        let candidates = [longest, self.with_disk(found, ids, ask), memory];
        let best = candidates.into_iter().max_by_key(Prefix::reach);
        let best = best.expect("one of three");
        Prefix {
            kept: kept.max(best.kept),
            ..best
        }
    }

    /// `found`, and what the disk has behind it.
    fn with_disk(&mut self, found: Match, ids: &[u32], ask: Ask) -> Prefix {
        let Some(disk) = &mut self.disk else {
            return Prefix::new(found, Vec::new(), ids.len(), ask.goal, &self.pool);
        };
        let whole = found.tokens - found.partial_tokens();
        let mut kept = disk.follow(found.key, &ids[whole..]);
        let reach = whole + kept.iter().map(|f| f.tokens).sum::<usize>();
        if ids.len() - reach.max(found.tokens) >= DISK_LOOK_TOKENS_MIN && disk.look_again(ask.now) {
            kept = disk.follow(found.key, &ids[whole..]);
        }
        Prefix::new(found, kept, ids.len(), ask.goal, &self.pool)
    }

    /// What is in memory and can be gone on from.
    pub fn lookup(&self, root: Root, ids: &[u32], marks: &[Mark]) -> Match {
        let mut found = self.tree.lookup(root, ids, marks, ids.len());
        let Some(windows) = self.pool.windows() else {
            return found;
        };
        loop {
            let has = |block: usize| self.pool.has_part(found.blocks[block]);
            let tokens = windows.usable(found.tokens, has);
            if tokens == found.tokens {
                found.window_from = windows.first_seen(tokens).min(found.blocks.len());
                return found;
            }
            found = self.tree.lookup(root, ids, marks, tokens);
        }
    }

    /// Holds what was found, as it is: nothing may be written behind it.
    pub fn pin(&mut self, found: &Match) -> Lease {
        self.pool.share(&found.blocks, found.window_from)
    }

    /// Leases what was found so that a sequence can write behind it: whole blocks are shared, a
    /// partial last block is copied. `ids` are those that were looked up.
    pub fn lease(
        &mut self,
        keyed: &Keyed,
        ids: &[u32],
        found: &Match,
        visit: Visit,
    ) -> Result<Lease> {
        let (tokens, marks) = (found.tokens, &keyed.marks);
        self.tree.touch(keyed.root, ids, tokens, marks, visit);
        let mut lease = self.pin(found);
        let partial = found.tokens % BLOCK_TOKENS;
        if partial > 0 {
            let copied = match self.make_free(1, 1) {
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

    /// Grows `lease` to hold `tokens` positions, in the layers with a window from block `window_from` on. On
    /// an error it has not grown.
    pub fn grow(&mut self, lease: &mut Lease, tokens: usize, window_from: usize) -> Result<()> {
        let more = lease.len()..tokens.div_ceil(BLOCK_TOKENS).max(lease.len());
        let parts = more.end.saturating_sub(more.start.max(window_from));
        self.make_free(more.len(), parts)?;
        for index in more {
            self.pool.grow(lease, index >= window_from)?;
        }
        Ok(())
    }

    /// `lease` goes on from position `filled`: the layers with a window need nothing that its next row, or the
    /// last one again, does not see.
    pub fn slide(&mut self, lease: &mut Lease, filled: usize, marks: &[Mark]) {
        let Some(windows) = self.pool.windows() else {
            return;
        };
        let from = windows.first_seen(filled.saturating_sub(1));
        let tokens = windows.tokens();
        // Other prompts part from this one where what they share ends.
        let ends = |block: usize, mark: &Mark| {
            let (start, end) = (block * BLOCK_TOKENS, (block + 1) * BLOCK_TOKENS);
            let shared = Class::of(Some(mark.layer), false) >= Class::Memory;
            shared && start < mark.position && mark.position < end + tokens
        };
        self.pool.slide(lease, from, |block| {
            match marks.iter().any(|mark| ends(block, mark)) {
                true => Keep::End,
                false => Keep::Passed,
            }
        });
    }

    /// Whether the layers with a window lack what the row at `position` sees.
    pub fn lacks_window(&self, lease: &Lease, position: usize) -> bool {
        let windows = self.pool.windows();
        windows.is_some_and(|windows| lease.window_from() > windows.first_seen(position))
    }

    /// Makes the first `ids.len()` positions of `lease` resident.
    pub fn insert(&mut self, keyed: &Keyed, ids: &[u32], visit: Visit, lease: &mut Lease) {
        let blocks = ids.len().div_ceil(BLOCK_TOKENS);
        let table: Vec<BlockId> = (0..blocks).map(|i| lease.block(i)).collect();
        let new = New {
            ids,
            table: &table,
            marks: &keyed.marks,
            visit,
        };
        let adopted = self.tree.insert(&mut self.pool, keyed.root, new);
        for (index, block) in adopted {
            self.pool.swap(lease, index, block);
        }
    }

    pub fn release(&mut self, lease: Lease) {
        self.pool.release(lease);
    }

    /// A call counts on what the disk has.
    pub fn used(&mut self, found: &[Found]) {
        if let Some(disk) = &mut self.disk {
            disk.used(found);
        }
    }

    /// Fills the last block of `lease` from disk. False when that cannot be; the block holds nothing of
    /// use then.
    pub fn load_last(&mut self, lease: &Lease, found: &Found) -> bool {
        let (Some(disk), Some(last)) = (&mut self.disk, lease.table().last()) else {
            return false;
        };
        let part = match lease.window_from() < lease.len() {
            true => self.pool.windows().and_then(|w| w.part(BlockId(*last))),
            false => None,
        };
        let kv = self.pool.kv_mut();
        let mut loaded = kv.all.fill_block(*last, |bytes| disk.load(found, bytes));
        if let (Ok(()), Some(part), Some(kv)) = (&loaded, part, &mut kv.window) {
            loaded = kv.fill_block(part, |bytes| disk.load_part(found, bytes));
        }
        if loaded.is_ok() {
            disk.loaded(found);
        }
        loaded.is_ok()
    }

    /// Has what is resident of `ids` written to disk, run by run, as far as it is not there. A last block
    /// that is not full only if `tail`.
    pub fn save(&mut self, keyed: &Keyed, ids: &[u32], tail: bool) {
        if self.disk.as_ref().is_none_or(Disk::is_read_only) {
            return;
        }
        let found = self.tree.lookup(keyed.root, ids, &keyed.marks, ids.len());
        let tokens = match tail {
            true => found.tokens,
            false => found.tokens - found.partial_tokens(),
        };
        if tokens == 0 {
            return;
        }
        // What the layers with a window still have when it is copied is copied with it.
        let blocks = &found.blocks[..tokens.div_ceil(BLOCK_TOKENS)];
        let lease = self.pool.share(blocks, blocks.len());
        let named = keyed.prompt.pieces.iter().zip(&keyed.marks);
        let pieces = named.map(|(piece, mark)| (mark.position, piece.name.clone(), piece.layer));
        let save = Save::new(
            keyed.block_root,
            ids[..tokens].to_vec(),
            pieces.collect(),
            lease,
        );
        self.saves.push_back(save);
        if self.saves.len() > DISK_SAVES_MAX {
            self.give_up_save();
        }
    }

    /// Whether something is still to be copied for the disk and can be.
    pub fn is_saving(&self) -> bool {
        !self.saves.is_empty() && self.disk.as_ref().is_some_and(Disk::takes_more)
    }

    /// Whether something is still to be copied, but not before the disk has caught up.
    pub fn waits_for_disk(&self) -> bool {
        !self.saves.is_empty() && !self.is_saving()
    }

    /// Copies one run of blocks for the disk and takes in what was written meanwhile.
    pub fn write_behind(&mut self, now: Duration) {
        let Some(disk) = &mut self.disk else { return };
        disk.settle(None);
        if disk.is_read_only() {
            while self.give_up_save() {}
            return;
        }
        let Some(save) = self.saves.front_mut().filter(|_| disk.takes_more()) else {
            return;
        };
        let before = thread_cpu();
        let pool = &self.pool;
        let Some(range) = save.next_run(disk, |block| pool.has_part(block)) else {
            self.give_up_save();
            return;
        };
        let copy = |block: usize| pool.read_block(save.lease.block(block), save.tokens(block));
        match range.clone().map(copy).collect::<models::Result<_>>() {
            Ok(blocks) => {
                disk.write(save.run(range, blocks), now);
                disk.took(thread_cpu().saturating_sub(before));
            }
            Err(error) => {
                tracing::warn!(%error, "KV blocks cannot be copied for the disk");
                self.give_up_save();
            }
        }
    }

    /// Writes what is still to be written, for a while.
    pub fn finish_saves(&mut self, now: Duration) {
        let end = Instant::now() + Duration::from_millis(DISK_CLOSE_MS);
        while !self.saves.is_empty() && Instant::now() < end {
            self.write_behind(now);
            if self.waits_for_disk()
                && let Some(disk) = &mut self.disk
            {
                disk.settle(Some(Duration::from_millis(DISK_CATCH_UP_MS)));
            }
        }
        while self.give_up_save() {}
        if let Some(disk) = &mut self.disk {
            disk.note_uses();
        }
    }

    /// Gives up the oldest copy that is still to be made. False when there is none.
    pub fn give_up_save(&mut self) -> bool {
        let Some(save) = self.saves.pop_front() else {
            return false;
        };
        self.pool.release(save.lease);
        true
    }

    /// How much the tree has been used.
    pub fn tick(&self) -> u64 {
        self.tree.tick()
    }

    /// Forgets what nobody holds; with `held`, all of it.
    pub fn clear(&mut self, held: bool) -> usize {
        let blocks = self.tree.clear(&mut self.pool, held);
        self.evicted += blocks as u64;
        blocks
    }

    /// Gives up at most `blocks` of what nobody holds, what is worth least first. 0 when nothing can be given up.
    fn evict(&mut self, blocks: usize) -> usize {
        let disk = self.disk.as_ref();
        let on_disk = |parent: &BlockKey, ids: &[u32]| disk.is_some_and(|d| d.holds(parent, ids));
        let gone = self.tree.evict(&mut self.pool, blocks, on_disk);
        self.evicted += gone as u64;
        gone
    }

    /// Makes sure that so many blocks are free, and so many parts in the layers with a window.
    fn make_free(&mut self, blocks: usize, parts: usize) -> Result<()> {
        self.make_blocks_free(blocks)?;
        while let Some(windows) = self.pool.windows().filter(|w| w.free() < parts) {
            let (have, total) = (windows.free(), windows.total());
            if !self.give_up_part() {
                return Err(Error::PoolFull {
                    need: parts,
                    have,
                    total,
                });
            }
        }
        Ok(())
    }

    /// Gives up parts in the layers with a window: what was passed first, then the end of what is worth least,
    /// then what was let go of first. False when all are held.
    fn give_up_part(&mut self) -> bool {
        let Some(windows) = self.pool.windows() else {
            return false;
        };
        let most = windows.most_held();
        if self.pool.give_up_idle_part(Keep::Passed) {
            return true;
        }
        let disk = self.disk.as_ref();
        let on_disk =
            |parent: &BlockKey, ids: &[u32]| disk.is_some_and(|d| d.holds_part(parent, ids));
        let idle = |block| self.pool.windows().is_some_and(|w| w.is_idle(block));
        let end = self.tree.least_end(most, idle, on_disk);
        let some = !end.is_empty();
        end.into_iter().for_each(|b| self.pool.give_up_part(b));
        some || self.pool.give_up_idle_part(Keep::End)
    }

    /// Whether no part in layers with a window could be given up.
    pub fn parts_are_held(&self) -> bool {
        self.pool.windows().is_some_and(Windows::all_held)
    }

    fn make_blocks_free(&mut self, blocks: usize) -> Result<()> {
        while self.pool.free() < blocks {
            let more = blocks - self.pool.free();
            if self.evict(more) == 0 && !self.give_up_save() {
                return Err(Error::PoolFull {
                    need: blocks,
                    have: self.pool.free(),
                    total: self.pool.total(),
                });
            }
        }
        Ok(())
    }

    /// Law 6 and the tree's invariants. `leases` are all that live.
    pub fn audit<'a>(
        &'a self,
        leases: impl Iterator<Item = &'a Lease>,
    ) -> std::result::Result<(), String> {
        let leases = leases.chain(self.saves.iter().map(|s| &s.lease));
        self.pool.audit(leases, self.tree.blocks())?;
        self.tree.audit(&self.pool)
    }
}
