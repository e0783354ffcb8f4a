//! Byte-level BPE: words cut by a [`Splitter`], bytes joined pair by pair in the order of the merges.
//!
//! Invariant: the bytes of the ids of a word are the bytes of the word, as long as the vocabulary
//! has a token for each of the 256 bytes (a warning at load says where it has not).
//! After Sennrich et al. 2016 and GPT-2; ties as in llama.cpp: lowest rank first, then leftmost.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use ahash::AHashMap;

use super::byte_level;
use super::split::{PreTokenizer, Splitter};
use super::vocabulary::{Kind, missing_bytes};
use crate::error::quote;

/// Text this long repeats its words; looking one up is cheaper than merging it again.
const MEMO_BYTES_MIN: usize = 2048;

#[derive(Debug)]
pub(super) struct Bpe {
    splitter: Splitter,
    byte_ids: [Option<u32>; 256],
    /// (left id, right id) -> what they make.
    merges: AHashMap<(u32, u32), Merge>,
    /// Words taken whole: filled where the pre-tokeniser says so.
    words: AHashMap<Box<[u8]>, u32>,
    unknown: Option<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Merge {
    rank: u32,
    id: u32,
}

/// The parts of a vocabulary that BPE is built from.
pub(super) struct BpeParts<'a> {
    pub texts: &'a [&'a str],
    pub kinds: &'a [Kind],
    /// `left right`, most important first.
    pub merges: &'a [&'a str],
    pub unknown: Option<u32>,
}

impl Bpe {
    /// The error says which merge is wrong and why.
    pub fn new(parts: &BpeParts<'_>, pre: &PreTokenizer) -> Result<Self, String> {
        let ids = text_ids(parts);
        let mut merges = AHashMap::with_capacity(parts.merges.len());
        for (rank, text) in parts.merges.iter().enumerate() {
            let (pair, id) =
                parse_merge(text, &ids).map_err(|why| format!("element {rank}: {why}"))?;
            // The first of two equal pairs counts.
            merges.entry(pair).or_insert(Merge {
                rank: rank as u32,
                id,
            });
        }
        let byte_ids = std::array::from_fn(|byte| {
            ids.get(byte_level::char_of(byte as u8).encode_utf8(&mut [0; 4]) as &str)
                .copied()
        });
        let words = match pre.whole_words {
            true => ids
                .iter()
                .map(|(text, id)| (byte_level::bytes_of(text).into(), *id))
                .collect(),
            false => AHashMap::new(),
        };
        Ok(Self {
            splitter: Splitter::new(pre),
            byte_ids,
            merges,
            words,
            unknown: parts.unknown,
        })
    }

    /// Bytes of text that no token writes: they give the unknown token, or are lost.
    pub fn missing_bytes(&self) -> usize {
        missing_bytes(&self.byte_ids)
    }

    /// Appends the ids of `text`.
    pub fn encode(&self, text: &str, out: &mut Vec<u32>) {
        let mut work = Work::default();
        if text.len() < MEMO_BYTES_MIN {
            self.splitter.split(text, &mut |word| {
                self.encode_word(word.as_bytes(), &mut work, out)
            });
            return;
        }
        let mut memo: AHashMap<&str, (usize, usize)> = AHashMap::new();
        self.splitter.split(text, &mut |word| {
            let start = out.len();
            if let Some(&(from, to)) = memo.get(word) {
                out.extend_from_within(from..to);
                return;
            }
            self.encode_word(word.as_bytes(), &mut work, out);
            memo.insert(word, (start, out.len()));
        });
    }

    fn encode_word(&self, word: &[u8], work: &mut Work, out: &mut Vec<u32>) {
        if let Some(&id) = self.words.get(word) {
            out.push(id);
            return;
        }
        work.start(word, &self.byte_ids);
        for left in 1..work.symbols.len() {
            work.offer(left - 1, &self.merges);
        }
        while let Some(Reverse(offer)) = work.queue.pop() {
            if work.take(&offer) {
                let left = offer.left as usize;
                work.offer(left, &self.merges);
                if let Some(before) = work.symbols[left].before() {
                    work.offer(before, &self.merges);
                }
            }
        }
        out.extend(
            work.symbols
                .iter()
                .filter(|s| s.alive)
                .filter_map(|s| s.id.or(self.unknown)),
        );
    }
}

/// Text to id of the tokens that text may become. Of two tokens with one text the later counts, as
/// in llama.cpp.
fn text_ids<'a>(parts: &BpeParts<'a>) -> AHashMap<&'a str, u32> {
    let mut ids = AHashMap::with_capacity(parts.texts.len());
    for (id, (&text, kind)) in parts.texts.iter().zip(parts.kinds).enumerate() {
        match kind {
            Kind::Normal | Kind::UserDefined | Kind::Unused if !text.is_empty() => {
                ids.insert(text, id as u32);
            }
            Kind::Normal | Kind::UserDefined | Kind::Unused => {}
            Kind::Control | Kind::Unknown | Kind::Byte => {}
        }
    }
    ids
}

fn parse_merge(text: &str, ids: &AHashMap<&str, u32>) -> Result<((u32, u32), u32), String> {
    let Some((left, right)) = text.split_once(' ') else {
        return Err(format!(
            "need two tokens with a space between them, have {}",
            quote(text)
        ));
    };
    let find = |token: &str| {
        let id = ids.get(token).copied();
        id.ok_or_else(|| {
            format!(
                "{} of the merge {} is not a token",
                quote(token),
                quote(text)
            )
        })
    };
    Ok(((find(left)?, find(right)?), find(&[left, right].concat())?))
}

/// What one word is merged in; kept between words for its memory.
#[derive(Default)]
struct Work {
    symbols: Vec<Symbol>,
    queue: BinaryHeap<Reverse<Offer>>,
}

struct Symbol {
    id: Option<u32>,
    /// Neighbours by index; `NONE` at the edges.
    prev: u32,
    next: u32,
    alive: bool,
}

const NONE: u32 = u32::MAX;

impl Symbol {
    fn before(&self) -> Option<usize> {
        (self.prev != NONE).then_some(self.prev as usize)
    }

    fn after(&self) -> Option<usize> {
        (self.next != NONE).then_some(self.next as usize)
    }
}

/// A pair that may be merged. Ordered by rank, then from left to right.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Offer {
    rank: u32,
    left: u32,
    pair: (u32, u32),
    id: u32,
}

impl Work {
    fn start(&mut self, word: &[u8], byte_ids: &[Option<u32>; 256]) {
        self.symbols.clear();
        self.queue.clear();
        let last = word.len().saturating_sub(1);
        self.symbols
            .extend(word.iter().enumerate().map(|(i, &byte)| Symbol {
                id: byte_ids[byte as usize],
                prev: if i == 0 { NONE } else { i as u32 - 1 },
                next: if i == last { NONE } else { i as u32 + 1 },
                alive: true,
            }));
    }

    /// The ids at `left` and after it, with the index of the second.
    fn pair_at(&self, left: usize) -> Option<((u32, u32), usize)> {
        let symbol = &self.symbols[left];
        let right = symbol.after()?;
        Some(((symbol.id?, self.symbols[right].id?), right))
    }

    fn offer(&mut self, left: usize, merges: &AHashMap<(u32, u32), Merge>) {
        let Some((pair, _)) = self.pair_at(left) else {
            return;
        };
        if let Some(&Merge { rank, id }) = merges.get(&pair) {
            self.queue.push(Reverse(Offer {
                rank,
                left: left as u32,
                pair,
                id,
            }));
        }
    }

    /// Merges the pair, unless one of the two has changed since it was offered.
    fn take(&mut self, offer: &Offer) -> bool {
        let left = offer.left as usize;
        if !self.symbols[left].alive {
            return false;
        }
        let Some((pair, right)) = self.pair_at(left) else {
            return false;
        };
        if pair != offer.pair {
            return false;
        }
        self.symbols[right].alive = false;
        let next = self.symbols[right].next;
        self.symbols[left].id = Some(offer.id);
        self.symbols[left].next = next;
        if next != NONE {
            self.symbols[next as usize].prev = offer.left;
        }
        true
    }
}
