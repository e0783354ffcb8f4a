//! SentencePiece BPE as GGUF carries it: no merges, but a score for every token. The pair whose
//! joined text has the best score is joined first; what stays unknown is written byte by byte.
//!
//! Invariant: the bytes of the ids are the bytes of the text with the prefix, as long as the
//! vocabulary has the 256 byte tokens. After `llm_tokenizer_spm` of llama.cpp and Kudo &
//! Richardson 2018. Only tokens of text take part: a control or byte token is never made by joining,
//! as in SentencePiece itself (llama.cpp would join `<`, `s`, `>` to the token `<s>`).

use std::collections::BinaryHeap;

use ahash::AHashMap;

use super::vocabulary::{Kind, byte_token, missing_bytes};

/// U+2581, which stands for a space.
pub(super) const SPACE: &str = "\u{2581}";

#[derive(Debug)]
pub(super) struct SentencePiece {
    pieces: AHashMap<Box<str>, Piece>,
    byte_ids: [Option<u32>; 256],
    unknown: Option<u32>,
    /// A space is put before the text (`tokenizer.ggml.add_space_prefix`).
    pub space_prefix: bool,
    piece_bytes_max: usize,
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    id: u32,
    score: f32,
}

pub(super) struct SpmParts<'a> {
    pub texts: &'a [&'a str],
    pub kinds: &'a [Kind],
    pub scores: &'a [f32],
    pub unknown: Option<u32>,
    pub space_prefix: bool,
}

impl SentencePiece {
    pub fn new(parts: &SpmParts<'_>) -> Self {
        let mut pieces = AHashMap::with_capacity(parts.texts.len());
        let mut byte_ids = [None; 256];
        let mut piece_bytes_max = 0;
        for (id, (&text, kind)) in parts.texts.iter().zip(parts.kinds).enumerate() {
            match kind {
                Kind::Normal | Kind::UserDefined | Kind::Unused if !text.is_empty() => {
                    // A score that is no number comes last.
                    let score = Some(parts.scores[id])
                        .filter(|s| !s.is_nan())
                        .unwrap_or(f32::NEG_INFINITY);
                    pieces.insert(
                        text.into(),
                        Piece {
                            id: id as u32,
                            score,
                        },
                    );
                    piece_bytes_max = piece_bytes_max.max(text.len());
                }
                Kind::Byte => {
                    if let Some(byte) = byte_token(text) {
                        byte_ids[byte as usize] = Some(id as u32);
                    }
                }
                Kind::Normal | Kind::UserDefined | Kind::Unused => {}
                Kind::Control | Kind::Unknown => {}
            }
        }
        let (unknown, space_prefix) = (parts.unknown, parts.space_prefix);
        Self {
            pieces,
            byte_ids,
            unknown,
            space_prefix,
            piece_bytes_max,
        }
    }

    /// Bytes of text that no token writes: they give the unknown token, or are lost.
    pub fn missing_bytes(&self) -> usize {
        missing_bytes(&self.byte_ids)
    }

    /// Appends the ids of `text`, which follows the start or a marker. No ids for no text.
    pub fn encode(&self, text: &str, out: &mut Vec<u32>) {
        if text.is_empty() {
            return;
        }
        let mut escaped = String::with_capacity(text.len() + text.len() / 4 + SPACE.len());
        if self.space_prefix {
            escaped.push_str(SPACE);
        }
        for (i, part) in text.split(' ').enumerate() {
            if i > 0 {
                escaped.push_str(SPACE);
            }
            escaped.push_str(part);
        }
        Work::new(self, &escaped).run(out);
    }

    fn emit(&self, text: &str, out: &mut Vec<u32>) {
        if let Some(piece) = self.pieces.get(text) {
            out.push(piece.id);
            return;
        }
        let bytes = text.bytes().map(|b| self.byte_ids[b as usize]);
        match bytes.clone().all(|id| id.is_some()) {
            true => out.extend(bytes.flatten()),
            // Half the bytes of a character would be worse than the unknown token.
            false => out.extend(self.unknown),
        }
    }
}

struct Work<'a> {
    model: &'a SentencePiece,
    text: &'a str,
    symbols: Vec<Symbol>,
    queue: BinaryHeap<Offer>,
}

/// A part of the text: `start..end`, empty when it was joined to the one before.
struct Symbol {
    start: u32,
    end: u32,
    prev: u32,
    next: u32,
}

const NONE: u32 = u32::MAX;

struct Offer {
    score: f32,
    left: u32,
    /// The joined text; an offer is stale when its two halves no longer span it.
    start: u32,
    end: u32,
    right: u32,
}

impl Ord for Offer {
    /// Best score first, then from left to right.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        // `+ 0.0` makes -0.0 equal to 0.0, as numbers are.
        (self.score + 0.0)
            .total_cmp(&(other.score + 0.0))
            .then(other.left.cmp(&self.left))
    }
}

impl PartialOrd for Offer {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Offer {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Offer {}

impl<'a> Work<'a> {
    fn new(model: &'a SentencePiece, text: &'a str) -> Self {
        let mut symbols = Vec::with_capacity(text.len());
        for (index, (start, c)) in text.char_indices().enumerate() {
            let prev = if index == 0 { NONE } else { index as u32 - 1 };
            let end = (start + c.len_utf8()) as u32;
            let next = if end as usize == text.len() {
                NONE
            } else {
                index as u32 + 1
            };
            symbols.push(Symbol {
                start: start as u32,
                end,
                prev,
                next,
            });
        }
        Self {
            model,
            text,
            symbols,
            queue: BinaryHeap::new(),
        }
    }

    fn run(mut self, out: &mut Vec<u32>) {
        for left in 0..self.symbols.len().saturating_sub(1) {
            self.offer(left as u32, left as u32 + 1);
        }
        while let Some(offer) = self.queue.pop() {
            if self.take(&offer) {
                let Symbol { prev, next, .. } = self.symbols[offer.left as usize];
                self.offer(prev, offer.left);
                self.offer(offer.left, next);
            }
        }
        for symbol in self.symbols.iter().filter(|s| s.start < s.end) {
            self.model
                .emit(&self.text[symbol.start as usize..symbol.end as usize], out);
        }
    }

    fn offer(&mut self, left: u32, right: u32) {
        if left == NONE || right == NONE {
            return;
        }
        let start = self.symbols[left as usize].start;
        let end = self.symbols[right as usize].end;
        if (end - start) as usize > self.model.piece_bytes_max {
            return;
        }
        if let Some(piece) = self
            .model
            .pieces
            .get(&self.text[start as usize..end as usize])
        {
            self.queue.push(Offer {
                score: piece.score,
                left,
                start,
                end,
                right,
            });
        }
    }

    fn take(&mut self, offer: &Offer) -> bool {
        let (left, right) = (offer.left as usize, offer.right as usize);
        let joins = self.symbols[left].start == offer.start
            && self.symbols[right].end == offer.end
            && self.symbols[left].end == self.symbols[right].start
            && self.symbols[left].start < self.symbols[left].end
            && self.symbols[right].start < self.symbols[right].end;
        if !joins {
            return false;
        }
        let next = self.symbols[right].next;
        self.symbols[left].end = offer.end;
        self.symbols[left].next = next;
        self.symbols[right].start = offer.end;
        if next != NONE {
            self.symbols[next as usize].prev = offer.left;
        }
        true
    }
}
