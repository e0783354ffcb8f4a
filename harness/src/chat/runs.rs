//! From a marked render to token ids. The text is cut only at control tokens that the template wrote;
//! each run between two of them is encoded whole, so ids are what the model was trained on. A token
//! belongs to the piece that holds its first byte.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use engine::Layer;
use models::tokenizer::{Specials, Tokenizer};
use regex::Regex;

use super::marks::Marked;
use crate::limits;

/// A piece begins at byte `at` of a render.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    pub at: usize,
    pub name: String,
    pub layer: Layer,
}

/// Ids and text of one stretch of a render.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stretch {
    pub name: String,
    pub layer: Layer,
    pub ids: Vec<u32>,
    pub text: String,
}

/// Encodes runs, and remembers those it encoded.
pub struct Runs {
    tokenizer: Arc<Tokenizer>,
    literals: Option<Regex>,
    seen: Mutex<Seen>,
}

impl Runs {
    pub fn new(tokenizer: Arc<Tokenizer>) -> Runs {
        // Longest first: the first alternative that matches wins.
        let mut texts: Vec<&str> = tokenizer
            .controls()
            .iter()
            .map(|(_, text)| text.as_str())
            .filter(|t| !t.is_empty())
            .collect();
        texts.sort_by_key(|text| std::cmp::Reverse(text.len()));
        let pattern: Vec<String> = texts.iter().map(|text| regex::escape(text)).collect();
        let literals = (!pattern.is_empty())
            .then(|| Regex::new(&pattern.join("|")).ok())
            .flatten();
        Runs {
            tokenizer,
            literals,
            seen: Mutex::default(),
        }
    }

    /// Matches the literal of any control token.
    pub fn literals(&self) -> Option<&Regex> {
        self.literals.as_ref()
    }

    /// Bytes that `text` and `other` begin with alike, not counting the front of a control token of
    /// `text` that they do not both have whole.
    pub fn common_prefix(&self, text: &str, other: &str) -> usize {
        let alike = text.chars().zip(other.chars()).take_while(|(a, b)| a == b);
        let length: usize = alike.map(|(c, _)| c.len_utf8()).sum();
        // The longest control token has some dozens of bytes: no need to look at all that went before.
        let mut from = length.saturating_sub(limits::CONTROL_BYTES_MAX);
        while !text.is_char_boundary(from) {
            from -= 1;
        }
        let mut hits = self
            .literals
            .iter()
            .flat_map(|literals| literals.find_iter(&text[from..]));
        let cut = hits.find(|hit| from + hit.start() < length && length < from + hit.end());
        cut.map_or(length, |hit| from + hit.start())
    }

    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// The ids of `marked`, by piece. `starts` are in order and the first is at 0.
    pub fn encode(&self, marked: &Marked, starts: &[Start]) -> Vec<Stretch> {
        let mut stretches: Vec<Stretch> = Vec::with_capacity(starts.len());
        for (i, start) in starts.iter().enumerate() {
            let end = starts.get(i + 1).map_or(marked.text.len(), |next| next.at);
            stretches.push(Stretch {
                name: start.name.clone(),
                layer: start.layer,
                ids: Vec::new(),
                text: marked.text[start.at..end].to_owned(),
            });
        }
        let mut put = |at: usize, id: u32| {
            let piece = starts.partition_point(|s| s.at <= at).saturating_sub(1);
            stretches[piece].ids.push(id);
        };
        let mut run_start = 0;
        for hit in self.literals.iter().flat_map(|l| l.find_iter(&marked.text)) {
            if marked.is_content(&hit.range()) {
                continue;
            }
            let Some(id) = self.tokenizer.control_id(hit.as_str()) else {
                continue;
            };
            self.put_run(&marked.text[run_start..hit.start()], run_start, &mut put);
            put(hit.start(), id);
            run_start = hit.end();
        }
        self.put_run(&marked.text[run_start..], run_start, &mut put);
        stretches
    }

    fn put_run(&self, run: &str, at: usize, put: &mut impl FnMut(usize, u32)) {
        let ids = self.ids_of(run);
        let bytes: usize = ids
            .iter()
            .map(|id| self.tokenizer.token_bytes(*id).len())
            .sum();
        // SentencePiece puts a space before a run; a normaliser may change lengths. The surplus is
        // taken off at the front, and no offset passes the run's end.
        let surplus = bytes.saturating_sub(run.len());
        let mut offset = 0usize;
        for id in ids.iter() {
            put(
                at + offset
                    .saturating_sub(surplus)
                    .min(run.len().saturating_sub(1)),
                *id,
            );
            offset += self.tokenizer.token_bytes(*id).len();
        }
    }

    fn ids_of(&self, run: &str) -> Arc<[u32]> {
        if run.is_empty() {
            return Arc::from([]);
        }
        if let Some(ids) = self
            .seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .ids
            .get(run)
        {
            return ids.clone();
        }
        let ids: Arc<[u32]> = self.tokenizer.encode(run, Specials::Plain).into();
        self.seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .put(run, ids.clone());
        ids
    }
}

/// Runs that were encoded, cleared when they are too many.
#[derive(Default)]
struct Seen {
    ids: HashMap<String, Arc<[u32]>>,
    bytes: usize,
}

impl Seen {
    fn put(&mut self, run: &str, ids: Arc<[u32]>) {
        let bytes = run.len() + ids.len() * size_of::<u32>();
        if self.ids.len() >= limits::ENCODED_RUNS_MAX
            || self.bytes + bytes > limits::ENCODED_BYTES_MAX
        {
            *self = Seen::default();
        }
        if bytes <= limits::ENCODED_BYTES_MAX && self.ids.insert(run.to_owned(), ids).is_none() {
            self.bytes += bytes;
        }
    }
}
