//! What a call leaves to be copied for the disk: the blocks of its sequence, held until they are.
//!
//! Invariant: the blocks are those of `ids`, one after another from the root; a run never begins before
//! what it follows is on disk or on its way there, unless that was refused.

use super::format::AboutPiece;
use super::{Disk, NewRun};
use crate::keys::BlockKey;
use crate::limits::DISK_RUN_BLOCKS_MAX;
use crate::piece::Layer;
use crate::pool::{BlockId, Lease};
use kernels::BLOCK_TOKENS;
use std::ops::Range;
use std::sync::Arc;

/// The blocks of a sequence, from its first.
pub struct Save {
    pub lease: Lease,
    root: BlockKey,
    ids: Vec<u32>,
    /// One a block.
    keys: Vec<BlockKey>,
    /// Where each piece of the prompt ends, with its name and layer.
    pieces: Vec<(usize, Arc<str>, Layer)>,
    next: usize,
}

/// What a reply is called among the pieces of its sequence.
const REPLY: &str = "reply";

impl Save {
    /// `root` is what the keys of the sequence begin with; `lease` holds a block for every 32 of `ids`.
    pub fn new(
        root: BlockKey,
        ids: Vec<u32>,
        pieces: Vec<(usize, Arc<str>, Layer)>,
        lease: Lease,
    ) -> Self {
        let mut key = root;
        let next = |ids: &[u32]| {
            key = key.then(ids);
            key
        };
        Save {
            lease,
            root,
            keys: ids.chunks(BLOCK_TOKENS).map(next).collect(),
            ids,
            pieces,
            next: 0,
        }
    }

    /// The next blocks that belong into one file; `None` when all are on disk. All of them have their part in layers
    /// with a window in memory, or none has: `has_part` tells.
    pub fn next_run(
        &mut self,
        disk: &mut Disk,
        has_part: impl Fn(BlockId) -> bool,
    ) -> Option<Range<usize>> {
        let blocks = self.keys.len();
        let has_part = |save: &Save, block: usize| has_part(save.lease.block(block));
        while self.next < blocks && self.is_stored(disk, self.next, has_part(self, self.next)) {
            self.next += 1;
        }
        let start = self.next;
        if start == blocks {
            return None;
        }
        let most = (disk.run_bytes_max() / disk.block_bytes_max().max(1)) as usize;
        let most = most.clamp(1, DISK_RUN_BLOCKS_MAX);
        let part = has_part(self, start);
        let mut end = start + 1;
        // A tail has a file of its own, which goes when a longer block comes.
        while end < blocks
            && end - start < most
            && self.tokens(end) == BLOCK_TOKENS
            && has_part(self, end) == part
            && !self.is_stored(disk, end, part)
        {
            end += 1;
        }
        self.next = end;
        Some(start..end)
    }

    /// Positions of block `block` that are filled.
    pub fn tokens(&self, block: usize) -> usize {
        self.block_ids(block).len()
    }

    /// The run of blocks `range`, whose bytes are `blocks`, with those of their parts in layers with a window, which
    /// all of them have or none.
    pub fn run(&self, range: Range<usize>, blocks: Vec<(Vec<u8>, Option<Vec<u8>>)>) -> NewRun {
        let start = range.start * BLOCK_TOKENS;
        let end = self.ids.len().min(range.end * BLOCK_TOKENS);
        let (blocks, parts): (Vec<_>, Vec<_>) = blocks.into_iter().unzip();
        NewRun {
            parent: self.parent(range.start),
            ids: self.ids[start..end].to_vec(),
            keys: self.keys[range].to_vec(),
            blocks,
            parts: parts.into_iter().flatten().collect(),
            pieces: self.pieces_within(start, end),
        }
    }

    fn is_stored(&self, disk: &mut Disk, block: usize, part: bool) -> bool {
        disk.has(
            &self.parent(block),
            self.block_ids(block),
            &self.keys[block],
            part,
        )
    }

    fn block_ids(&self, block: usize) -> &[u32] {
        let start = block * BLOCK_TOKENS;
        &self.ids[start..self.ids.len().min(start + BLOCK_TOKENS)]
    }

    fn parent(&self, block: usize) -> BlockKey {
        block
            .checked_sub(1)
            .map_or(self.root, |before| self.keys[before])
    }

    fn pieces_within(&self, start: usize, end: usize) -> Vec<AboutPiece> {
        let prompt = self.pieces.last().map_or(0, |p| p.0);
        let reply = (self.ids.len() > prompt).then(|| (self.ids.len(), REPLY.into(), Layer::Turn));
        let mut from = 0;
        let pieces = self.pieces.iter().cloned().chain(reply);
        let within = pieces.filter_map(|(to, name, layer)| {
            let tokens = to.min(end).saturating_sub(from.max(start));
            from = to;
            (tokens > 0).then(|| AboutPiece {
                name: name.to_string(),
                layer,
                tokens,
            })
        });
        within.collect()
    }
}
