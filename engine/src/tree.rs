//! The prefix tree: a radix tree over token ids whose nodes own runs of KV blocks.
//!
//! A node begins at a block boundary. Prompts that part inside a block therefore become siblings
//! whose first blocks begin alike, each with its own copy of the common tokens; a lookup takes the
//! sibling with the longest common prefix, to the exact token. Piece ends are marked with their
//! chain key, so a lookup can start at the deepest resident piece end; the ids are compared before
//! a key is trusted.
//!
//! Invariants: only leaves end in a partial block; no child's first block is a prefix of its
//! sibling's; a block that a lease holds is never evicted, and leases always hold whole paths from
//! the root (but for a last block that a longer one, or one with its window, has replaced since), so everything
//! that is cached and not leased can be evicted, leaves first: which leaf, `worth` says.
//! After SGLang's RadixAttention; the block-aligned nodes are ours.

mod audit;
mod insert;
mod leaves;

use crate::keys::{BlockKey, ChainKey};
use crate::piece::Layer;
use crate::pool::{BlockId, Pool};
use crate::worth::{Class, Rhythm, Visit, worth};
pub use insert::New;
use kernels::BLOCK_TOKENS;
use leaves::{Leaves, Place};
use std::collections::HashMap;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct NodeId(u32);

/// The end of a piece: its position in the prompt, its chain key, and the layer of the piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    pub position: usize,
    pub key: ChainKey,
    pub layer: Layer,
}

/// A block that the tree refers to, under the name it has in every tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Held {
    id: BlockId,
    key: BlockKey,
    class: Class,
}

#[derive(Debug)]
struct Node {
    parent: Option<NodeId>,
    /// Names what comes before the node.
    before: BlockKey,
    /// Position of `ids[0]`; a multiple of the block size.
    start: usize,
    ids: Vec<u32>,
    /// One per block that `ids` touches.
    blocks: Vec<Held>,
    /// Sorted by ids.
    children: Vec<NodeId>,
    marks: Vec<Mark>,
    rhythm: Rhythm,
    /// The call that used it last.
    visit: u64,
}

impl Node {
    fn end(&self) -> usize {
        self.start + self.ids.len()
    }
    fn first_block(&self) -> &[u32] {
        &self.ids[..self.ids.len().min(BLOCK_TOKENS)]
    }
    /// Names the first `blocks` blocks of the node and all that comes before them.
    fn key_after(&self, blocks: usize) -> BlockKey {
        blocks
            .checked_sub(1)
            .map_or(self.before, |last| self.blocks[last].key)
    }
    fn block_ids(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.blocks.iter().map(|held| held.id)
    }
    fn is_leaf(&self) -> bool {
        self.parent.is_some() && self.children.is_empty()
    }
    /// Where it stands among the leaves, as one or if it were one.
    fn place(&self) -> Place {
        let last = self.blocks.last();
        Place {
            class: last.map_or(Class::Fixed, |held| held.class),
            rhythm: self.rhythm,
        }
    }
}

/// What a lookup found: `blocks` hold the first `tokens` positions, the last of them perhaps only
/// in part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Match {
    pub tokens: usize,
    pub blocks: Vec<BlockId>,
    /// Names the blocks that are matched whole: what another tier may go on from.
    pub key: BlockKey,
    /// From this block on the layers with a window are needed too; the tree knows nothing of them.
    pub window_from: usize,
}

impl Match {
    /// Tokens in the last block when it is not matched whole.
    pub fn partial_tokens(&self) -> usize {
        self.tokens % BLOCK_TOKENS
    }
}

/// A namespace: the root of one (model, salt).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Root(NodeId);

#[derive(Debug, Default)]
pub struct Tree {
    nodes: Vec<Option<Node>>,
    unused: Vec<NodeId>,
    roots: HashMap<ChainKey, NodeId>,
    index: HashMap<ChainKey, (NodeId, usize)>,
    /// Never roots.
    leaves: Leaves,
    tick: u64,
}

impl Tree {
    pub fn new() -> Self {
        Tree::default()
    }

    /// The namespace of `key`, made if need be; `blocks` is what its block keys begin with.
    pub fn root(&mut self, key: ChainKey, blocks: BlockKey) -> Root {
        if let Some(id) = self.roots.get(&key) {
            return Root(*id);
        }
        let id = self.add(Node {
            parent: None,
            before: blocks,
            start: 0,
            ids: Vec::new(),
            blocks: Vec::new(),
            children: Vec::new(),
            marks: Vec::new(),
            rhythm: Rhythm::default(),
            visit: 0,
        });
        self.roots.insert(key, id);
        Root(id)
    }

    /// The longest resident prefix of `ids[..limit]`. `marks` are the prompt's piece ends in order.
    /// Changes nothing: a plan and the call it foretells see the same.
    pub fn lookup(&self, root: Root, ids: &[u32], marks: &[Mark], limit: usize) -> Match {
        let ids = &ids[..limit];
        let start = marks.iter().rev().find_map(|mark| {
            let (node, position) = *self.index.get(&mark.key)?;
            let fits = position == mark.position && position <= limit;
            (fits && self.path_matches(root, node, &ids[..position])).then_some(node)
        });
        // The end of a piece may lie in the first block of its node, where siblings begin alike:
        // the parent chooses among them.
        let start = start.and_then(|node| self.node(node).parent);
        self.descend(start.unwrap_or(root.0), ids)
    }

    /// How much the tree has been used.
    pub fn tick(&self) -> u64 {
        self.tick
    }

    /// Marks `ids[..tokens]` as used now, by a call with these piece ends.
    pub fn touch(&mut self, root: Root, ids: &[u32], tokens: usize, marks: &[Mark], visit: Visit) {
        self.tick += 1;
        let new = New {
            ids: &ids[..tokens],
            table: &[],
            marks,
            visit,
        };
        let mut at = root.0;
        let mut position = 0;
        while position < tokens {
            let Some((child, common)) = self.best_child(at, &new.ids[position..]) else {
                return;
            };
            self.stamp(child, visit);
            self.raise(child, common, &new);
            position += common;
            if common < self.node(child).ids.len() {
                return;
            }
            at = child;
        }
    }

    /// Gives up at most `most` blocks from the end of the leaf that is worth least, of those that nobody holds:
    /// blocks of one class. Returns how many; 0 when nothing can be given up.
    pub fn evict(
        &mut self,
        pool: &mut Pool,
        most: usize,
        on_disk: impl Fn(&BlockKey, &[u32]) -> bool,
    ) -> usize {
        let Some(victim) = self.least(|block| !pool.is_leased(block), on_disk) else {
            return 0;
        };
        let node = self.node(victim);
        let class = node.place().class;
        let alike = |held: &&Held| held.class == class && !pool.is_leased(held.id);
        let blocks = node
            .blocks
            .iter()
            .rev()
            .take(most)
            .take_while(alike)
            .count();
        (0..blocks).for_each(|_| self.pop_block(pool, victim));
        blocks
    }

    /// Of the path to the leaf that is worth least, and whose last block `may_go`, the last `most` blocks that may
    /// go, as far as nothing else goes on from them.
    pub fn least_end(
        &self,
        most: usize,
        may_go: impl Fn(BlockId) -> bool,
        on_disk: impl Fn(&BlockKey, &[u32]) -> bool,
    ) -> Vec<BlockId> {
        let mut end = Vec::new();
        let mut at = self.least(&may_go, on_disk);
        while let Some(id) = at
            && self.node(id).children.len() < 2
        {
            let blocks: Vec<BlockId> = self.node(id).block_ids().collect();
            end.extend(blocks.into_iter().rev());
            at = self.node(id).parent.filter(|_| end.len() < most);
        }
        end.truncate(most);
        end.retain(|block| may_go(*block));
        end
    }

    /// The leaf that is worth least, of those whose last block `may_go`.
    fn least(
        &self,
        may_go: impl Fn(BlockId) -> bool,
        on_disk: impl Fn(&BlockKey, &[u32]) -> bool,
    ) -> Option<NodeId> {
        let candidates = self.leaves.candidates(|id| {
            let last = self.node(id).blocks.last();
            last.is_some_and(|held| may_go(held.id))
        });
        let weighed = candidates.into_iter().map(|id| {
            let node = self.node(id);
            let last = node.blocks.len() - 1;
            let start = last * BLOCK_TOKENS;
            let on_disk = on_disk(&node.key_after(last), &node.ids[start..]);
            let Place { class, rhythm } = node.place();
            let worth = worth(class, rhythm, node.start + start, on_disk, self.tick);
            (id, worth)
        });
        let least = weighed.min_by(|(_, a), (_, b)| a.total_cmp(b));
        least.map(|(id, _)| id)
    }

    /// Forgets everything that nobody holds; with `held`, that too (its leases stay valid).
    /// Returns the number of blocks given up.
    pub fn clear(&mut self, pool: &mut Pool, held: bool) -> usize {
        let mut blocks = 0;
        if !held {
            loop {
                match self.evict(pool, usize::MAX, |_, _| false) {
                    0 => return blocks,
                    gone => blocks += gone,
                }
            }
        }
        while let Some(id) = self.leaves.first() {
            self.pop_block(pool, id);
            blocks += 1;
        }
        blocks
    }

    /// The piece ends that are resident, and with them all that comes before.
    pub fn piece_ends(&self) -> impl Iterator<Item = &ChainKey> {
        self.index.keys()
    }

    /// Every block the tree refers to.
    pub fn blocks(&self) -> impl Iterator<Item = BlockId> + '_ {
        let nodes = self.nodes.iter().flatten();
        nodes.flat_map(Node::block_ids)
    }

    fn node(&self, id: NodeId) -> &Node {
        let node = self.nodes[id.0 as usize].as_ref();
        node.expect("a node id refers to a node until it is removed")
    }

    fn node_mut(&mut self, id: NodeId) -> &mut Node {
        let node = self.nodes[id.0 as usize].as_mut();
        node.expect("a node id refers to a node until it is removed")
    }

    fn add(&mut self, node: Node) -> NodeId {
        match self.unused.pop() {
            Some(id) => {
                self.nodes[id.0 as usize] = Some(node);
                id
            }
            None => {
                self.nodes.push(Some(node));
                NodeId(self.nodes.len() as u32 - 1)
            }
        }
    }

    /// Whether the path from `root` to `node` spells `ids` as far as they go.
    fn path_matches(&self, root: Root, node: NodeId, ids: &[u32]) -> bool {
        let mut at = node;
        loop {
            let node = self.node(at);
            if node.start > ids.len() {
                return false;
            }
            let end = node.end().min(ids.len());
            if ids[node.start..end] != node.ids[..end - node.start] {
                return false;
            }
            match node.parent {
                Some(parent) => at = parent,
                None => return at == root.0,
            }
        }
    }

    /// The longest match of `ids` at or below `from`, whose path above is known to match.
    fn descend(&self, from: NodeId, ids: &[u32]) -> Match {
        let mut path = Vec::new();
        let mut at = from;
        let mut position = self.node(from).end();
        while position < ids.len() {
            let Some((child, common)) = self.best_child(at, &ids[position..]) else {
                break;
            };
            position += common;
            path.push(child);
            if common < self.node(child).ids.len() {
                break;
            }
            at = child;
        }
        let last = self.node(path.last().copied().unwrap_or(from));
        let key = last.key_after((position - last.start) / BLOCK_TOKENS);
        let mut blocks = Vec::with_capacity(position.div_ceil(BLOCK_TOKENS));
        self.collect_blocks(from, &mut blocks);
        for id in path {
            blocks.extend(self.node(id).block_ids());
        }
        blocks.truncate(position.div_ceil(BLOCK_TOKENS));
        Match {
            tokens: position,
            window_from: blocks.len(),
            blocks,
            key,
        }
    }

    /// The blocks from the root to the end of `node`.
    fn collect_blocks(&self, node: NodeId, blocks: &mut Vec<BlockId>) {
        let mut path = vec![node];
        while let Some(parent) = self.node(path[path.len() - 1]).parent {
            path.push(parent);
        }
        for id in path.iter().rev() {
            blocks.extend(self.node(*id).block_ids());
        }
    }

    /// The child of `at` with the longest common prefix with `ids`, and its length (> 0).
    fn best_child(&self, at: NodeId, ids: &[u32]) -> Option<(NodeId, usize)> {
        let children = &self.node(at).children;
        // Children are sorted, so the best one is beside the place where `ids` would stand.
        let place = children.partition_point(|c| self.node(*c).ids.as_slice() < ids);
        let candidates = [place.checked_sub(1), Some(place)];
        candidates
            .into_iter()
            .flatten()
            .filter_map(|i| children.get(i).copied())
            .map(|id| (id, common_prefix(&self.node(id).ids, ids)))
            .filter(|(_, common)| *common > 0)
            .max_by_key(|(_, common)| *common)
    }

    /// `id` is used now.
    fn stamp(&mut self, id: NodeId, visit: Visit) {
        let tick = self.tick;
        self.change(id, |node| {
            node.rhythm = match node.visit == visit.id {
                true => node.rhythm.still_used(tick),
                false => node.rhythm.used(tick),
            };
            node.visit = visit.id;
        });
    }

    /// The blocks of `id` that hold its first `tokens` are worth what they are worth to `new` at least.
    fn raise(&mut self, id: NodeId, tokens: usize, new: &New) {
        self.change(id, |node| {
            let starts = (node.start..).step_by(BLOCK_TOKENS);
            let blocks = &mut node.blocks[..tokens.div_ceil(BLOCK_TOKENS)];
            for (held, start) in blocks.iter_mut().zip(starts) {
                held.class = held.class.max(new.class_at(start));
            }
        });
    }

    /// Changes a node, which keeps its neighbours, and where it stands among the leaves.
    fn change(&mut self, id: NodeId, how: impl FnOnce(&mut Node)) {
        let node = self.node_mut(id);
        let (leaf, old) = (node.is_leaf(), node.place());
        how(node);
        let new = node.place();
        if leaf && old != new {
            self.leaves.remove(id, old);
            self.leaves.add(id, new);
        }
    }

    /// Removes the last block of a leaf, and the leaf when that was its only one.
    fn pop_block(&mut self, pool: &mut Pool, id: NodeId) {
        if self.node(id).blocks.len() == 1 {
            self.remove_leaf(pool, id);
            return;
        }
        let mut popped = None;
        let mut gone = Vec::new();
        self.change(id, |node| {
            popped = node.blocks.pop();
            node.ids.truncate(node.blocks.len() * BLOCK_TOKENS);
            let end = node.end();
            gone.extend(node.marks.extract_if(.., |m| m.position > end));
        });
        gone.iter().for_each(|m| _ = self.index.remove(&m.key));
        pool.uncache(popped.expect("a leaf has a block").id);
    }

    fn remove_leaf(&mut self, pool: &mut Pool, id: NodeId) {
        let node = self.nodes[id.0 as usize].take().expect("a leaf is there");
        self.leaves.remove(id, node.place());
        self.unused.push(id);
        node.marks
            .iter()
            .for_each(|m| _ = self.index.remove(&m.key));
        node.block_ids().for_each(|b| pool.uncache(b));
        let parent_id = node.parent.expect("a leaf has a parent");
        self.node_mut(parent_id).children.retain(|c| *c != id);
        let parent = self.node(parent_id);
        if parent.is_leaf() {
            self.leaves.add(parent_id, parent.place());
        }
    }
}

pub(crate) fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    let limit = a.len().min(b.len());
    // Whole blocks first: comparing slices is a memcmp.
    let mut at = 0;
    while at + BLOCK_TOKENS <= limit && a[at..at + BLOCK_TOKENS] == b[at..at + BLOCK_TOKENS] {
        at += BLOCK_TOKENS;
    }
    at + a[at..limit]
        .iter()
        .zip(&b[at..limit])
        .take_while(|(x, y)| x == y)
        .count()
}
