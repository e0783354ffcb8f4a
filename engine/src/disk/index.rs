//! What is on disk, by what it follows: from a key and the ids behind it to the blocks that hold them.
//!
//! Invariant: a file that others follow is not given up before them, so what is on disk can be reached
//! from a root as long as nobody else removes files.

use super::folder::Name;
use super::format::Header;
use crate::keys::BlockKey;
use crate::tree::common_prefix;
use kernels::BLOCK_TOKENS;
use std::collections::HashMap;

/// A block in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    pub file: Name,
    pub block: usize,
}

/// A block on disk whose first `tokens` positions are the ones asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    pub slot: Slot,
    pub tokens: usize,
    /// Its part in layers with a window is there too.
    pub window: bool,
}

#[derive(Debug)]
pub struct Stored {
    pub header: Header,
    /// One a block.
    pub keys: Vec<BlockKey>,
    /// Seconds since 1970.
    pub used: u64,
    /// When its use was last told to the file.
    pub noted: u64,
}

impl Stored {
    fn block_ids(&self, block: usize) -> &[u32] {
        let start = block * BLOCK_TOKENS;
        &self.header.ids[start..self.header.ids.len().min(start + BLOCK_TOKENS)]
    }

    fn is_tail(&self) -> bool {
        self.header.ids.len() < BLOCK_TOKENS
    }
}

#[derive(Debug, Default)]
pub struct Index {
    files: HashMap<Name, Stored>,
    /// The blocks that follow a key. Several where sequences part, or two processes wrote the same.
    after: HashMap<BlockKey, Vec<Slot>>,
    bytes: u64,
}

impl Index {
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn get(&self, name: &str) -> Option<&Stored> {
        self.files.get(name)
    }

    pub fn get_mut(&mut self, name: &str) -> Option<&mut Stored> {
        self.files.get_mut(name)
    }

    /// The files that were used since that was last told to them, with their hits; it is told now.
    pub fn note_all(&mut self) -> Vec<(Name, u64)> {
        let unknown = self.files.iter_mut().filter(|(_, s)| s.noted < s.used);
        unknown
            .map(|(name, stored)| {
                stored.noted = stored.used;
                (name.clone(), stored.header.hits)
            })
            .collect()
    }

    pub fn names(&self) -> impl Iterator<Item = &Name> {
        self.files.keys()
    }

    /// Adds a file. Returns the tails that it makes useless: what they hold is the beginning of one of
    /// its blocks.
    pub fn insert(&mut self, name: Name, header: Header, used: u64) -> Vec<Name> {
        self.remove(&name);
        let stored = Stored {
            keys: header.keys(),
            header,
            used,
            noted: used,
        };
        let mut useless = Vec::new();
        let mut parent = stored.header.parent;
        for (block, key) in stored.keys.iter().enumerate() {
            let ids = stored.block_ids(block);
            for other in self.after.get(&parent).into_iter().flatten() {
                let old = &self.files[&other.file];
                let shorter = old.is_tail() && old.header.ids.len() < ids.len();
                let as_good = stored.header.has_part(block) || !old.header.has_part(0);
                if shorter && as_good && ids.starts_with(&old.header.ids) {
                    useless.push(other.file.clone());
                }
            }
            self.after.entry(parent).or_default().push(Slot {
                file: name.clone(),
                block,
            });
            parent = *key;
        }
        self.bytes += stored.header.file_bytes();
        self.files.insert(name, stored);
        useless
    }

    /// Forgets a file. False when it was not known.
    pub fn remove(&mut self, name: &str) -> bool {
        let Some(stored) = self.files.remove(name) else {
            return false;
        };
        self.bytes -= stored.header.file_bytes();
        let parents = [stored.header.parent].into_iter().chain(stored.keys);
        for parent in parents.take(stored.header.sums.len()) {
            if let Some(slots) = self.after.get_mut(&parent) {
                slots.retain(|slot| &*slot.file != name);
                if slots.is_empty() {
                    self.after.remove(&parent);
                }
            }
        }
        true
    }

    /// The blocks that go on from `key` with `ids`, as far as they go; the last perhaps in part.
    pub fn follow(&self, mut key: BlockKey, mut ids: &[u32]) -> Vec<Found> {
        let mut found = Vec::new();
        while let Some(next) = self.after(&key, ids) {
            let whole = next.tokens == BLOCK_TOKENS;
            key = self.files[&next.slot.file].keys[next.slot.block];
            ids = &ids[next.tokens..];
            found.push(next);
            if !whole {
                break;
            }
        }
        found
    }

    /// The least recently used file that nothing follows and that holds no block that is `kept`.
    pub fn victim(&self, kept: impl Fn(&BlockKey) -> bool) -> Option<(&Name, u64)> {
        let free = self.files.iter().filter(|(name, stored)| {
            stored.keys.iter().all(|key| {
                let followers = self.after.get(key).into_iter().flatten();
                !kept(key) && followers.into_iter().all(|slot| slot.file == **name)
            })
        });
        free.map(|(name, stored)| (name, stored.used))
            .min_by_key(|(name, used)| (*used, *name))
    }

    /// The block that follows `key` and begins most like `ids`.
    pub fn after(&self, key: &BlockKey, ids: &[u32]) -> Option<Found> {
        let slots = self.after.get(key)?;
        let found = slots.iter().map(|slot| {
            let stored = &self.files[&slot.file];
            Found {
                tokens: common_prefix(stored.block_ids(slot.block), ids),
                window: stored.header.has_part(slot.block),
                slot: slot.clone(),
            }
        });
        found
            .filter(|f| f.tokens > 0)
            .max_by_key(|f| (f.tokens, f.window))
    }
}

#[cfg(test)]
mod tests {
    use super::super::format::{About, BlockBytes};
    use super::*;

    fn root() -> BlockKey {
        BlockKey::from_bytes([9; 32])
    }

    fn run(parent: BlockKey, ids: &[u32]) -> Header {
        let bytes = BlockBytes { all: 4096, part: 0 };
        Header::new([0; 32], parent, ids.to_vec(), bytes, About::default())
    }

    fn ids(from: u32, tokens: usize) -> Vec<u32> {
        (from..).take(tokens).collect()
    }

    fn tokens(index: &Index, ids: &[u32]) -> usize {
        index.follow(root(), ids).iter().map(|f| f.tokens).sum()
    }

    #[test]
    fn runs_are_followed_to_the_exact_token_over_files() {
        let mut index = Index::default();
        let all = ids(0, 100);
        let first = run(root(), &all[..64]);
        let end = *first.keys().last().unwrap();
        assert!(index.insert("m/1".into(), first, 1).is_empty());
        assert!(
            index
                .insert("m/2".into(), run(end, &all[64..96]), 2)
                .is_empty()
        );
        let end = *run(end, &all[64..96]).keys().last().unwrap();
        assert!(
            index
                .insert("m/3".into(), run(end, &all[96..]), 3)
                .is_empty()
        );
        assert_eq!(tokens(&index, &all), 100);
        for cut in [1, 31, 32, 33, 64, 95, 99] {
            assert_eq!(tokens(&index, &all[..cut]), cut);
            let mut edited = all.clone();
            edited[cut] += 1000;
            assert_eq!(tokens(&index, &edited), cut);
        }
        assert_eq!(tokens(&index, &ids(5, 40)), 0);
        // Without the file in between, what follows cannot be reached.
        assert!(index.remove("m/2") && !index.remove("m/2"));
        assert_eq!(tokens(&index, &all), 64);
    }

    #[test]
    fn a_longer_block_makes_a_tail_useless() {
        let mut index = Index::default();
        index.insert("m/tail".into(), run(root(), &ids(0, 10)), 1);
        index.insert("m/other".into(), run(root(), &ids(7, 10)), 1);
        assert_eq!(index.after(&root(), &ids(0, 11)).unwrap().tokens, 10);
        let useless = index.insert("m/longer".into(), run(root(), &ids(0, 12)), 2);
        assert_eq!(useless, ["m/tail".into()]);
        index.remove("m/tail");
        let useless = index.insert("m/run".into(), run(root(), &ids(0, 64)), 2);
        assert_eq!(useless, ["m/longer".into()]);
    }

    #[test]
    fn victims_are_the_oldest_that_nothing_follows() {
        let mut index = Index::default();
        let first = run(root(), &ids(0, 64));
        let (middle, end) = (first.keys()[0], first.keys()[1]);
        index.insert("m/first".into(), first, 1);
        index.insert("m/a".into(), run(end, &ids(64, 32)), 5);
        index.insert("m/b".into(), run(middle, &ids(1000, 32)), 3);
        let mut order = Vec::new();
        while let Some((name, _)) = index.victim(|_| false) {
            let name = name.clone();
            index.remove(&name);
            order.push(name.to_string());
        }
        assert_eq!(order, ["m/b", "m/a", "m/first"]);
        assert_eq!((index.bytes(), index.after.len()), (0, 0));
        index.insert("m/first".into(), run(root(), &ids(0, 64)), 1);
        assert_eq!(index.victim(|key| *key == end), None);
    }
}
