//! Text to token ids and back, exactly as the model was trained.
//!
//! Invariants: `encode` adds no id that the text does not ask for (no BOS), and with
//! [`Specials::Plain`] no control token whatever the text contains; the bytes of the ids of a text
//! are the bytes of the text (with the prefix space of SentencePiece).
//!
//! Vocabularies come from GGUF metadata ([`Parts`]: byte-level BPE and SentencePiece, both ours) or
//! from a `tokenizer.json` (Hugging Face's `tokenizers` crate; its added tokens are matched by us).

mod bpe;
mod byte_level;
mod gguf;
mod json;
mod literals;
mod split;
mod spm;
mod utf8;
mod vocabulary;

use std::path::Path;

pub use gguf::{Model, Parts};
pub use utf8::Utf8Stream;
pub use vocabulary::Kind;

use crate::gguf::Gguf;
use crate::{Error, Result};
use bpe::Bpe;
use json::Library;
use literals::Literals;
use spm::SentencePiece;
use vocabulary::Vocabulary;

/// What the text may become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Specials {
    /// Text that users, files or tools brought: never a control token, also where it spells one.
    Plain,
    /// Text that a template or a caller who owns the whole prompt wrote: control tokens are matched.
    Parse,
}

/// The tokenizer of one model. Immutable; share it by reference.
#[derive(Debug)]
pub struct Tokenizer {
    vocabulary: Vocabulary,
    literals: Literals,
    encoder: Encoder,
    adds_bos: bool,
    /// Texts begin with a space that encoding put there and decoding takes away.
    space_prefix: bool,
    warnings: Vec<String>,
}

#[derive(Debug)]
enum Encoder {
    Bpe(Bpe),
    SentencePiece(SentencePiece),
    Library(Box<Library>),
}

impl Tokenizer {
    /// The tokenizer that the metadata of a GGUF file describes.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self> {
        let metadata = gguf.metadata();
        gguf::read(metadata)
            .and_then(|parts| Self::from_parts(&parts))
            .map_err(|e| e.in_file(metadata.path()))
    }

    /// The tokenizer of a `tokenizer.json`. A `tokenizer_config.json` beside it names BOS and EOS.
    pub fn from_json_file(path: &Path) -> Result<Self> {
        json::read(path).map_err(|e| e.in_file(path))
    }

    /// The tokenizer that `parts` describe: the same as a GGUF file with these arrays.
    pub fn from_parts(parts: &Parts<'_>) -> Result<Self> {
        gguf::build(parts)
    }

    /// The ids of `text`. No BOS is added. SentencePiece puts its prefix space before the text and
    /// after every token matched whole, as llama.cpp does.
    pub fn encode(&self, text: &str, specials: Specials) -> Vec<u32> {
        let mut ids = Vec::with_capacity(text.len() / 3 + 4);
        let mut done = 0;
        for hit in self.literals.find(text, specials) {
            self.encode_run(&text[done..hit.start], done == 0, &mut ids);
            ids.push(hit.id);
            done = hit.end;
        }
        self.encode_run(&text[done..], done == 0, &mut ids);
        ids
    }

    fn encode_run(&self, text: &str, at_start: bool, ids: &mut Vec<u32>) {
        if text.is_empty() {
            return;
        }
        match &self.encoder {
            Encoder::Bpe(bpe) => bpe.encode(text, ids),
            Encoder::SentencePiece(spm) => spm.encode(text, ids),
            Encoder::Library(library) => library.encode(text, at_start, ids),
        }
    }

    /// The ids of a prompt that the caller wrote whole (`/v1/completions`, `run --raw`).
    ///
    /// Control tokens in the text are parsed. Where the model wants BOS it is put in front, unless
    /// the text begins with it already: there is exactly one BOS at position 0 either way.
    pub fn encode_raw_prompt(&self, text: &str) -> Vec<u32> {
        let mut ids = self.encode(text, Specials::Parse);
        if let Some(bos) = self.bos().filter(|_| self.adds_bos)
            && ids.first() != Some(&bos)
        {
            ids.insert(0, bos);
        }
        ids
    }

    /// The bytes that `id` adds to a text: a part of a character, several words, or nothing.
    /// A control token gives its literal text (see [`Tokenizer::is_control`]); an id outside the
    /// vocabulary gives nothing.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.vocabulary.bytes(id)
    }

    /// What kind of token `id` is; `Unused` outside the vocabulary.
    pub fn kind(&self, id: u32) -> Kind {
        self.vocabulary.kind(id)
    }

    pub fn is_control(&self, id: u32) -> bool {
        self.kind(id) == Kind::Control
    }

    /// The control token with this text.
    pub fn control_id(&self, text: &str) -> Option<u32> {
        self.vocabulary.control_id(text)
    }

    /// All control tokens, by id.
    pub fn controls(&self) -> &[(u32, String)] {
        self.vocabulary.controls()
    }

    pub fn bos(&self) -> Option<u32> {
        self.vocabulary.roles.bos
    }

    pub fn eos(&self) -> Option<u32> {
        self.vocabulary.roles.eos
    }

    /// Whether texts of this model begin with BOS. `encode` never adds it: a chat template writes
    /// its own, and [`Tokenizer::encode_raw_prompt`] has a rule.
    pub fn adds_bos(&self) -> bool {
        self.adds_bos && self.bos().is_some()
    }

    /// Whether `id` ends a generation: EOS, end of turn, end of message and the like.
    pub fn is_end(&self, id: u32) -> bool {
        self.vocabulary.roles.ends.binary_search(&id).is_ok()
    }

    /// All ids that end a generation, sorted.
    pub fn ends(&self) -> &[u32] {
        &self.vocabulary.roles.ends
    }

    pub fn vocab_size(&self) -> usize {
        self.vocabulary.len()
    }

    /// The text of `ids`, broken characters as U+FFFD. The inverse of `encode`: where encoding puts
    /// a space before a text, decoding takes it away, at the start and after a token matched whole.
    pub fn decode(&self, ids: &[u32]) -> String {
        let mut bytes = Vec::with_capacity(ids.len() * 4);
        let mut drop_space = self.space_prefix;
        for &id in ids {
            let token = self.token_bytes(id);
            let whole = matches!(self.kind(id), Kind::Control | Kind::UserDefined);
            match token.strip_prefix(b" ").filter(|_| drop_space && !whole) {
                Some(rest) => bytes.extend_from_slice(rest),
                None => bytes.extend_from_slice(token),
            }
            drop_space = self.space_prefix && whole;
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// A stream for the text of one answer, fed with [`Tokenizer::token_bytes`]. For SentencePiece
    /// it drops the one space that the first word of an answer is written with, as `decode` does.
    pub fn text_stream(&self) -> Utf8Stream {
        match self.space_prefix {
            true => Utf8Stream::without_leading_space(),
            false => Utf8Stream::new(),
        }
    }

    /// What was odd in the file, for a person to read.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

/// An error about a part of the vocabulary, by its metadata key.
fn fault(key: &str, why: &str) -> Error {
    Error::input(format!("metadata key {key}: {why}"))
}

#[cfg(test)]
mod tests;
