//! How the tree grows: a new run, a longer one, a run that is cut where another parts from it.

use super::{Held, Mark, Node, NodeId, Root, Tree};
use crate::keys::BlockKey;
use crate::piece::Layer;
use crate::pool::{BlockId, Pool};
use crate::worth::{Class, Visit};
use kernels::BLOCK_TOKENS;

/// What is made resident: ids, their blocks, the piece ends among them, and by whose call.
#[derive(Debug, Clone, Copy)]
pub struct New<'a> {
    pub ids: &'a [u32],
    /// One per block that `ids` touches, all held by a live lease.
    pub table: &'a [BlockId],
    /// Those of the whole prompt, in order.
    pub marks: &'a [Mark],
    pub visit: Visit,
}

impl New<'_> {
    /// The layer of the piece that holds `position`; `None` behind the prompt.
    fn layer_at(&self, position: usize) -> Option<Layer> {
        let piece = self.marks.partition_point(|m| m.position <= position);
        self.marks.get(piece).map(|m| m.layer)
    }

    pub(super) fn class_at(&self, position: usize) -> Class {
        Class::of(self.layer_at(position), self.visit.fork)
    }

    /// Names the blocks from position `start` on, which follow `before`.
    fn hold(&self, mut before: BlockKey, start: usize) -> Vec<Held> {
        let ids = self.ids[start..].chunks(BLOCK_TOKENS);
        let table = &self.table[start / BLOCK_TOKENS..];
        let named = ids.zip(table).enumerate().map(|(i, (ids, id))| {
            before = before.then(ids);
            Held {
                id: *id,
                key: before,
                class: self.class_at(start + i * BLOCK_TOKENS),
            }
        });
        named.collect()
    }
}

impl Tree {
    /// Makes `new` resident. Returns, for each whole block that was resident already in another block,
    /// `(index, resident block)`: the caller swaps them into its lease, so that a lease always holds the
    /// tree's own path.
    pub fn insert(&mut self, pool: &mut Pool, root: Root, new: New) -> Vec<(usize, BlockId)> {
        debug_assert_eq!(new.table.len(), new.ids.len().div_ceil(BLOCK_TOKENS));
        self.tick += 1;
        let ids = new.ids;
        let mut adopted = Vec::new();
        let mut at = root.0;
        let mut position = 0;
        while position < ids.len() {
            let rest = &ids[position..];
            let Some((child, common)) = self.best_child(at, rest) else {
                at = self.append(pool, at, position, &new);
                break;
            };
            self.adopt(child, common, new.table, &mut adopted);
            let length = self.node(child).ids.len();
            if common == rest.len() {
                at = child;
                self.renew_end(pool, child, &new);
                self.stamp(at, new.visit);
                break;
            }
            if common == length && length.is_multiple_of(BLOCK_TOKENS) {
                at = child;
                self.stamp(at, new.visit);
                position += length;
                continue;
            }
            if common == length {
                self.extend_partial(pool, child, position, &new);
                at = child;
                break;
            }
            let whole = common / BLOCK_TOKENS * BLOCK_TOKENS;
            if whole > 0 {
                at = self.split(child, whole);
                self.stamp(at, new.visit);
                position += whole;
            }
            // Nothing below `at` shares the next block whole: a new sibling.
            at = self.add_child(pool, at, position, &new);
            break;
        }
        let known = new.marks.partition_point(|m| m.position <= ids.len());
        self.mark_path(at, &new.marks[..known]);
        adopted
    }

    /// Notes the whole blocks that `child` has already, of those that `common` tokens cover.
    fn adopt(
        &self,
        child: NodeId,
        common: usize,
        table: &[BlockId],
        adopted: &mut Vec<(usize, BlockId)>,
    ) {
        let node = self.node(child);
        let first = node.start / BLOCK_TOKENS;
        let whole = &node.blocks[..common / BLOCK_TOKENS];
        for (offset, block) in whole.iter().enumerate() {
            if table[first + offset] != block.id {
                adopted.push((first + offset, block.id));
            }
        }
    }

    /// Adds what is new from `start` on below `at`, which no child of `at` begins like: to its run if it is a
    /// leaf.
    fn append(&mut self, pool: &mut Pool, at: NodeId, start: usize, new: &New) -> NodeId {
        if !self.node(at).is_leaf() {
            return self.add_child(pool, at, start, new);
        }
        let table = &new.table[start / BLOCK_TOKENS..];
        table.iter().for_each(|b| pool.cache(*b));
        self.change(at, |node| {
            let held = new.hold(node.key_after(node.blocks.len()), start);
            node.ids.extend_from_slice(&new.ids[start..]);
            node.blocks.extend(held);
        });
        self.stamp(at, new.visit);
        at
    }

    fn add_child(&mut self, pool: &mut Pool, at: NodeId, start: usize, new: &New) -> NodeId {
        let table = &new.table[start / BLOCK_TOKENS..];
        table.iter().for_each(|b| pool.cache(*b));
        let parent = self.node(at);
        debug_assert_eq!(parent.end(), start);
        let (leaf, standing) = (parent.is_leaf(), parent.place());
        if leaf {
            self.leaves.remove(at, standing);
        }
        let parent = self.node(at);
        let before = parent.key_after(parent.blocks.len());
        let ids = &new.ids[start..];
        let children = &parent.children;
        let place = children.partition_point(|c| self.node(*c).ids.as_slice() < ids);
        let id = self.add(Node {
            parent: Some(at),
            before,
            start,
            ids: ids.to_vec(),
            blocks: new.hold(before, start),
            children: Vec::new(),
            marks: Vec::new(),
            rhythm: new.visit.rhythm.still_used(self.tick),
            visit: new.visit.id,
        });
        self.leaves.add(id, self.node(id).place());
        self.node_mut(at).children.insert(place, id);
        id
    }

    /// `child` is a leaf that begins at `start`; its ids, the last block partial, are a prefix of what is new.
    fn extend_partial(&mut self, pool: &mut Pool, child: NodeId, start: usize, new: &New) {
        let from = self.node(child).blocks.len() - 1;
        let table = &new.table[start / BLOCK_TOKENS + from..];
        let old = self.node(child).blocks[from].id;
        self.change(child, |node| {
            node.blocks.truncate(from);
            let held = new.hold(node.key_after(from), start + from * BLOCK_TOKENS);
            node.blocks.extend(held);
            node.ids.clear();
            node.ids.extend_from_slice(&new.ids[start..]);
        });
        if old != table[0] {
            pool.uncache(old);
            pool.cache(table[0]);
        }
        table[1..].iter().for_each(|b| pool.cache(*b));
        self.stamp(child, new.visit);
    }

    /// `child` ends where what is new does. Where its last block is not full it is not adopted, so if it lacks the
    /// part in layers with a window that the new one has, the new one takes its place.
    fn renew_end(&mut self, pool: &mut Pool, child: NodeId, new: &New) {
        let node = self.node(child);
        let same_end = node.end() == new.ids.len() && !node.end().is_multiple_of(BLOCK_TOKENS);
        let (Some(old), Some(last)) = (node.blocks.last(), new.table.last()) else {
            return;
        };
        let (old, last) = (old.id, *last);
        if !same_end || pool.has_part(old) || !pool.has_part(last) {
            return;
        }
        let held = self.node_mut(child).blocks.last_mut();
        held.expect("it was there").id = last;
        pool.uncache(old);
        pool.cache(last);
    }

    /// Cuts `child` after `tokens` (whole blocks). Returns the new upper node.
    fn split(&mut self, child: NodeId, tokens: usize) -> NodeId {
        let node = self.node_mut(child);
        let parent = node.parent.expect("a root has no ids to split");
        let (start, before) = (node.start, node.before);
        let (rhythm, visit) = (node.rhythm, node.visit);
        let upper_end = node.key_after(tokens / BLOCK_TOKENS);
        let lower_ids = node.ids.split_off(tokens);
        let lower_blocks = node.blocks.split_off(tokens / BLOCK_TOKENS);
        let boundary = start + tokens;
        let all = std::mem::take(&mut node.marks);
        let (upper_marks, lower_marks) = all.into_iter().partition(|m| m.position <= boundary);
        let ids = std::mem::replace(&mut node.ids, lower_ids);
        let blocks = std::mem::replace(&mut node.blocks, lower_blocks);
        node.start = boundary;
        node.before = upper_end;
        node.marks = lower_marks;
        let upper = self.add(Node {
            parent: Some(parent),
            before,
            start,
            ids,
            blocks,
            children: vec![child],
            marks: upper_marks,
            rhythm,
            visit,
        });
        self.node_mut(child).parent = Some(upper);
        let siblings = &mut self.node_mut(parent).children;
        let place = siblings.iter().position(|c| *c == child);
        siblings[place.expect("a parent knows its children")] = upper;
        let marks = self.node(upper).marks.clone();
        for mark in marks {
            self.index.insert(mark.key, (upper, mark.position));
        }
        upper
    }

    /// Records the piece ends that lie on the path to `leaf`.
    fn mark_path(&mut self, leaf: NodeId, marks: &[Mark]) {
        let mut at = leaf;
        while let Some(parent) = self.node(at).parent {
            let (start, end) = (self.node(at).start, self.node(at).end());
            let new: Vec<Mark> = marks
                .iter()
                .filter(|m| start < m.position && m.position <= end)
                .filter(|m| !self.index.contains_key(&m.key))
                .copied()
                .collect();
            for mark in new {
                // An empty piece ends where the one before it does, under another key.
                self.index.insert(mark.key, (at, mark.position));
                self.node_mut(at).marks.push(mark);
            }
            at = parent;
        }
    }
}
