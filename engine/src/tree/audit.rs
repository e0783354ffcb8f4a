//! What must hold of the tree, checked node by node; and all its paths, for tests.

use super::{Mark, Node, NodeId, Tree};
use crate::pool::Pool;
use kernels::BLOCK_TOKENS;

#[cfg(test)]
use crate::{keys::ChainKey, pool::BlockId};

impl Tree {
    /// Every path from a root to a leaf: the namespace's key, the ids, and the blocks.
    #[cfg(test)]
    pub fn paths(&self) -> Vec<(ChainKey, Vec<u32>, Vec<BlockId>)> {
        let mut paths = Vec::new();
        let mut open: Vec<_> = self
            .roots
            .iter()
            .map(|(key, id)| (*key, *id, Vec::new(), Vec::new()))
            .collect();
        while let Some((key, id, ids, blocks)) = open.pop() {
            let node = self.node(id);
            let ids = [ids, node.ids.clone()].concat();
            let blocks = [blocks, node.block_ids().collect()].concat();
            for child in &node.children {
                open.push((key, *child, ids.clone(), blocks.clone()));
            }
            if node.children.is_empty() {
                paths.push((key, ids, blocks));
            }
        }
        paths
    }

    /// Checks every invariant at the head of `tree.rs`. Returns what does not hold.
    pub fn audit(&self, pool: &Pool) -> Result<(), String> {
        let mut marks = 0;
        for (number, node) in self.nodes.iter().enumerate() {
            let Some(node) = node else { continue };
            let id = NodeId(number as u32);
            self.audit_node(id, node, pool)
                .map_err(|what| format!("node {number}: {what}"))?;
            marks += node.marks.len();
            if let Some(mark) = node
                .marks
                .iter()
                .find(|m| self.index.get(&m.key) != Some(&(id, m.position)))
            {
                return Err(format!("node {number}: {mark:?} is not in the index"));
            }
        }
        let leaves = self.nodes.iter().flatten().filter(|n| n.is_leaf());
        if leaves.count() != self.leaves.len() {
            return Err("the list of leaves holds what is no leaf".into());
        }
        if marks != self.index.len() {
            return Err(format!("{marks} marks, {} in the index", self.index.len()));
        }
        Ok(())
    }

    fn audit_node(&self, id: NodeId, node: &Node, pool: &Pool) -> Result<(), String> {
        let leaf = node.is_leaf();
        if self.leaves.contains(id, node.place()) != leaf {
            return Err("the list of leaves is wrong".into());
        }
        if node.blocks.len() != node.ids.len().div_ceil(BLOCK_TOKENS) {
            return Err(format!(
                "{} ids, {} blocks",
                node.ids.len(),
                node.blocks.len()
            ));
        }
        if !leaf && !node.ids.len().is_multiple_of(BLOCK_TOKENS) {
            return Err("an inner node ends in a partial block".into());
        }
        if node.parent.is_some() && node.ids.is_empty() {
            return Err("an empty node".into());
        }
        let mut key = node.before;
        for (held, ids) in node.blocks.iter().zip(node.ids.chunks(BLOCK_TOKENS)) {
            key = key.then(ids);
            if held.key != key {
                return Err("a block has another's key".into());
            }
        }
        let outside = |m: &&Mark| m.position <= node.start || m.position > node.end();
        if let Some(mark) = node.marks.iter().find(outside) {
            return Err(format!("{mark:?} lies outside"));
        }
        for pair in node.children.windows(2) {
            let (a, b) = (self.node(pair[0]), self.node(pair[1]));
            if a.first_block() >= b.first_block() || b.first_block().starts_with(a.first_block()) {
                return Err("children out of order, or one a prefix of the next".into());
            }
        }
        for child in &node.children {
            let child = self.node(*child);
            if child.start != node.end() || child.parent != Some(id) {
                return Err("a child does not begin where its parent ends".into());
            }
            let held = child.block_ids().any(|b| pool.is_leased(b));
            if held && node.block_ids().any(|b| !pool.is_leased(b)) {
                return Err("a child is held and its parent is not".into());
            }
            if child.before != node.key_after(node.blocks.len()) {
                return Err("a child's block keys do not follow its parent's".into());
            }
        }
        Ok(())
    }
}
