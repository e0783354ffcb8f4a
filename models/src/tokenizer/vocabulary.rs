//! The vocabulary: for every id its exact bytes and its kind.
//!
//! Invariant: every id below `len()` has bytes and a kind, and every special id is below `len()`.

use std::collections::HashMap;

use super::byte_level;

/// What a token is, as `tokenizer.ggml.token_type` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Part of text.
    Normal,
    /// Stands for what the vocabulary cannot write.
    Unknown,
    /// A marker of the template or of the model: never made from text that users bring.
    Control,
    /// Added text, matched whole before anything else.
    UserDefined,
    /// Padding of the vocabulary; means nothing.
    Unused,
    /// One byte, for what no other token covers.
    Byte,
}

/// How the vocabulary writes bytes as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spelling {
    /// The byte alphabet of GPT-2.
    ByteLevel,
    /// U+2581 for a space, `<0xNN>` for a byte.
    SentencePiece,
}

/// Ids with a role of their own.
#[derive(Clone, Debug, Default)]
pub(super) struct Roles {
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    /// All ids that end a generation; sorted.
    pub ends: Vec<u32>,
}

#[derive(Debug)]
pub(super) struct Vocabulary {
    bytes: Vec<u8>,
    /// Where the bytes of each id end.
    ends_at: Vec<u32>,
    kinds: Vec<Kind>,
    controls: Vec<(u32, String)>,
    control_ids: HashMap<String, u32>,
    pub roles: Roles,
}

impl Vocabulary {
    /// `texts` and `kinds` are of one length; together the texts are far below 4 GiB (the header
    /// limit, or the size limit of a tokenizer.json).
    pub fn new(texts: &[&str], kinds: Vec<Kind>, spelling: Spelling, roles: Roles) -> Self {
        let mut bytes = Vec::with_capacity(texts.iter().map(|t| t.len()).sum());
        let mut ends_at = Vec::with_capacity(texts.len());
        let mut controls = Vec::new();
        for (id, (&text, &kind)) in texts.iter().zip(&kinds).enumerate() {
            bytes.extend_from_slice(&bytes_of(text, kind, spelling));
            ends_at.push(bytes.len() as u32);
            if kind == Kind::Control {
                controls.push((id as u32, text.to_owned()));
            }
        }
        // Of two controls with one text, the later one is meant, as in llama.cpp.
        let control_ids = controls
            .iter()
            .map(|(id, text)| (text.clone(), *id))
            .collect();
        Self {
            bytes,
            ends_at,
            kinds,
            controls,
            control_ids,
            roles,
        }
    }

    pub fn len(&self) -> usize {
        self.kinds.len()
    }

    /// Empty for an id outside the vocabulary.
    pub fn bytes(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let Some(&end) = self.ends_at.get(id) else {
            return &[];
        };
        let start = if id == 0 { 0 } else { self.ends_at[id - 1] };
        &self.bytes[start as usize..end as usize]
    }

    pub fn kind(&self, id: u32) -> Kind {
        self.kinds.get(id as usize).copied().unwrap_or(Kind::Unused)
    }

    pub fn controls(&self) -> &[(u32, String)] {
        &self.controls
    }

    pub fn control_id(&self, text: &str) -> Option<u32> {
        self.control_ids.get(text).copied()
    }
}

fn bytes_of(text: &str, kind: Kind, spelling: Spelling) -> Vec<u8> {
    match (kind, spelling) {
        (Kind::Control | Kind::UserDefined | Kind::Unknown, _) => text.as_bytes().to_vec(),
        (Kind::Byte, _) => byte_token(text).map_or_else(|| text.into(), |b| vec![b]),
        (Kind::Normal | Kind::Unused, Spelling::ByteLevel) => byte_level::bytes_of(text),
        (Kind::Normal | Kind::Unused, Spelling::SentencePiece) => {
            text.replace(super::spm::SPACE, " ").into_bytes()
        }
    }
}

/// The byte that `<0xNN>` stands for.
pub(super) fn byte_token(text: &str) -> Option<u8> {
    let hex = text.strip_prefix("<0x")?.strip_suffix('>')?;
    let is_hex = hex.len() == 2 && hex.bytes().all(|b| b.is_ascii_hexdigit());
    if is_hex {
        u8::from_str_radix(hex, 16).ok()
    } else {
        None
    }
}

/// How many of the bytes that UTF-8 text is made of have no token.
pub(super) fn missing_bytes(byte_ids: &[Option<u32>; 256]) -> usize {
    let occurs = |byte: u8| !matches!(byte, 0xc0 | 0xc1 | 0xf5..=0xff);
    (0..=255)
        .filter(|&byte| occurs(byte) && byte_ids[usize::from(byte)].is_none())
        .count()
}

/// Tokens that end a turn or an answer, by their text, whatever the metadata says: many files name
/// only one of the several that their model uses. After llama.cpp's list of end-of-generation tokens.
const END_TEXTS: &[&str] = &[
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<end_of_utterance>",
    "<turn|>",
    "<｜end▁of▁sentence｜>",
    "</s>",
    "<eos>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "[e~[",
    // Code models write these when a file ends.
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
];

/// The ids that end a generation: `named` by the metadata, and by their text. A token that looks
/// like a marker but is typed as text is made a control token, with a warning.
pub(super) fn find_ends(
    texts: &[&str],
    kinds: &mut [Kind],
    named: &[u32],
    warnings: &mut Vec<String>,
) -> Vec<u32> {
    let mut ends = named.to_vec();
    for (id, text) in texts.iter().enumerate() {
        if !END_TEXTS.contains(text) {
            continue;
        }
        match kinds[id] {
            Kind::Normal if text.starts_with("<|") || text.starts_with("<end_of_") => {
                warnings.push(format!(
                    "token {id} {text:?} is typed as ordinary text but ends a turn: taken as a control token"
                ));
                kinds[id] = Kind::Control;
            }
            // Plain words of the vocabulary, such as `</s>` in one learned from web pages.
            Kind::Normal | Kind::Unknown | Kind::Unused | Kind::Byte => continue,
            Kind::Control | Kind::UserDefined => {}
        }
        ends.push(id as u32);
    }
    ends.sort_unstable();
    ends.dedup();
    drop_harmony_end(texts, named, &mut ends);
    ends
}

/// Where `<|return|>` or `<|flush|>` ends the answer and `<|call|>` a call, `<|end|>` only ends one
/// message of several.
fn drop_harmony_end(texts: &[&str], named: &[u32], ends: &mut Vec<u32>) {
    let has = |text: &str| ends.iter().any(|&id| texts[id as usize] == text);
    let calls = has("<|call|>") || has("<|calls|>");
    if calls && (has("<|return|>") || has("<|flush|>")) {
        ends.retain(|id| texts[*id as usize] != "<|end|>" || named.contains(id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_follow_kind_and_spelling() {
        use Kind::*;
        let rows: &[(&str, Kind, Spelling, &[u8])] = &[
            ("Ġa", Normal, Spelling::ByteLevel, b" a"),
            ("Ġa", UserDefined, Spelling::ByteLevel, "Ġa".as_bytes()),
            ("▁a", Normal, Spelling::SentencePiece, b" a"),
            ("<0x0A>", Byte, Spelling::SentencePiece, b"\n"),
            ("<0x0A>", Normal, Spelling::SentencePiece, b"<0x0A>"),
            ("<s>", Control, Spelling::SentencePiece, b"<s>"),
        ];
        for (text, kind, spelling, want) in rows {
            assert_eq!(bytes_of(text, *kind, *spelling), *want, "{text} {kind:?}");
        }
        for bad in ["<0x0>", "<0x+A>", "<0xGG>", "0x0A", "<0x0A> "] {
            assert_eq!(byte_token(bad), None, "{bad}");
        }
    }

    #[test]
    fn ids_outside_are_unused_and_empty() {
        let v = Vocabulary::new(
            &["a", ""],
            vec![Kind::Normal; 2],
            Spelling::ByteLevel,
            Roles::default(),
        );
        assert_eq!(
            (v.bytes(0), v.bytes(1), v.bytes(2), v.bytes(u32::MAX)),
            (&b"a"[..], &b""[..], &b""[..], &b""[..])
        );
        assert_eq!(v.kind(2), Kind::Unused);
    }

    #[test]
    fn ends_are_found_by_text_and_by_metadata() {
        use Kind::*;
        let texts = [
            "<|im_end|>",
            "x",
            "<|eot_id|>",
            "</s>",
            "<|end|>",
            "<|return|>",
            "<|call|>",
        ];
        let mut kinds = [
            Normal,
            Normal,
            Control,
            Normal,
            Control,
            Control,
            UserDefined,
        ];
        let mut warnings = Vec::new();
        let ends = find_ends(&texts, &mut kinds, &[1], &mut warnings);
        assert_eq!(ends, [0, 1, 2, 5, 6]);
        assert_eq!(kinds[0], Control);
        assert_eq!(kinds[3], Normal, "a plain </s> stays text");
        assert_eq!(warnings.len(), 1);
    }
}
