//! From the `tokenizer.ggml.*` metadata of GGUF to a [`Tokenizer`]. Everything is checked before it
//! is built; an error names the key.

use super::bpe::{Bpe, BpeParts};
use super::literals::{Literal, Literals};
use super::split::{self, PreTokenizer};
use super::spm::{SentencePiece, SpmParts};
use super::vocabulary::{Kind, Roles, Spelling, Vocabulary, byte_token, find_ends};
use super::{Encoder, Tokenizer, fault};
use crate::error::quote;
use crate::gguf::Metadata;
use crate::limits::{TOKEN_BYTES_MAX, VOCAB_TOKENS_MAX};
use crate::{Error, Result};

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const TOKENS: &str = "tokenizer.ggml.tokens";
const SCORES: &str = "tokenizer.ggml.scores";
const TYPES: &str = "tokenizer.ggml.token_type";
const MERGES: &str = "tokenizer.ggml.merges";
const BOS: &str = "tokenizer.ggml.bos_token_id";
const EOS: &str = "tokenizer.ggml.eos_token_id";
const UNKNOWN: &str = "tokenizer.ggml.unknown_token_id";
/// Further tokens that end a turn or a message.
const ENDS: [&str; 2] = ["tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"];
const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";
const SPACE_PREFIX: &str = "tokenizer.ggml.add_space_prefix";

/// How text is cut into tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Model {
    /// `gpt2`: byte-level BPE with merges.
    Bpe,
    /// `llama`: SentencePiece BPE with scores.
    SentencePiece,
}

/// The raw parts of a vocabulary, as the metadata gives them.
#[derive(Clone, Debug)]
pub struct Parts<'a> {
    pub model: Model,
    /// The name of the pre-tokeniser; only BPE has one.
    pub pre: Option<&'a str>,
    pub tokens: Vec<&'a str>,
    pub scores: Option<Vec<f32>>,
    pub types: Option<Vec<i32>>,
    pub merges: Vec<&'a str>,
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    pub unknown: Option<u32>,
    /// Ids that end a turn or a message, beside `eos`.
    pub ends: Vec<u32>,
    /// `None`: as the model and the pre-tokeniser usually have it.
    pub add_bos: Option<bool>,
    pub space_prefix: Option<bool>,
}

impl<'a> Parts<'a> {
    /// Parts with nothing but tokens.
    pub fn new(model: Model, tokens: Vec<&'a str>) -> Self {
        Self {
            model,
            pre: None,
            tokens,
            scores: None,
            types: None,
            merges: Vec::new(),
            bos: None,
            eos: None,
            unknown: None,
            ends: Vec::new(),
            add_bos: None,
            space_prefix: None,
        }
    }
}

pub(super) fn read(metadata: &Metadata) -> Result<Parts<'_>> {
    let model = match metadata.required::<&str>(MODEL)? {
        "gpt2" => Model::Bpe,
        "llama" => Model::SentencePiece,
        other => {
            return Err(metadata.fault(
                MODEL,
                &format!(
                    "need \"gpt2\" (byte-level BPE) or \"llama\" (SentencePiece), have {}",
                    quote(other)
                ),
            ));
        }
    };
    let merges = match model {
        Model::Bpe => metadata.required(MERGES)?,
        Model::SentencePiece => Vec::new(),
    };
    let scores = match model {
        Model::Bpe => None,
        Model::SentencePiece => Some(metadata.required(SCORES)?),
    };
    let ends = ENDS
        .iter()
        .filter_map(|key| metadata.optional(key).transpose());
    let mut parts = Parts {
        model,
        pre: metadata.optional(PRE)?,
        tokens: metadata.required(TOKENS)?,
        scores,
        types: metadata.optional(TYPES)?,
        merges,
        bos: metadata.optional(BOS)?,
        eos: metadata.optional(EOS)?,
        unknown: metadata.optional(UNKNOWN)?,
        ends: ends.collect::<Result<_>>()?,
        add_bos: metadata.optional(ADD_BOS)?,
        space_prefix: metadata.optional(SPACE_PREFIX)?,
    };
    if model == Model::SentencePiece {
        // Old files leave them out; the format's own defaults, as in llama.cpp.
        parts.unknown = parts.unknown.or(Some(0));
        parts.bos = parts.bos.or(Some(1));
        parts.eos = parts.eos.or(Some(2));
    }
    Ok(parts)
}

pub(super) fn build(parts: &Parts<'_>) -> Result<Tokenizer> {
    check(parts)?;
    let mut warnings = Vec::new();
    let mut kinds = kinds_of(parts, &mut warnings)?;
    for (id, role) in [(parts.bos, "BOS"), (parts.eos, "EOS")] {
        make_control(id, role, parts, &mut kinds, &mut warnings);
    }
    let named: Vec<u32> = parts.eos.iter().chain(&parts.ends).copied().collect();
    let ends = find_ends(&parts.tokens, &mut kinds, &named, &mut warnings);
    if ends.is_empty() {
        warnings.push(format!(
            "no token ends an answer ({EOS} is missing): answers run to their token limit"
        ));
    }
    let literals = literals_of(&parts.tokens, &kinds).map_err(|why| fault(TOKENS, &why))?;
    let pre = pre_tokenizer(parts, &mut warnings);
    let encoder = encoder_of(parts, &kinds, &pre, &mut warnings)?;
    let is_spm = parts.model == Model::SentencePiece;
    let spelling = if is_spm {
        Spelling::SentencePiece
    } else {
        Spelling::ByteLevel
    };
    let roles = Roles {
        bos: parts.bos,
        eos: parts.eos,
        ends,
    };
    Ok(Tokenizer {
        vocabulary: Vocabulary::new(&parts.tokens, kinds, spelling, roles),
        literals,
        encoder,
        adds_bos: parts.add_bos.unwrap_or(is_spm || pre.adds_bos),
        space_prefix: is_spm && parts.space_prefix.unwrap_or(true),
        warnings,
    })
}

/// Lengths and ids, before anything is built.
fn check(parts: &Parts<'_>) -> Result<()> {
    let count = parts.tokens.len();
    if count == 0 || count > VOCAB_TOKENS_MAX {
        return Err(fault(
            TOKENS,
            &format!("need 1 to {VOCAB_TOKENS_MAX} tokens, have {count}"),
        ));
    }
    if let Some(id) = parts.tokens.iter().position(|t| t.len() > TOKEN_BYTES_MAX) {
        let have = parts.tokens[id].len();
        return Err(fault(
            TOKENS,
            &format!("token {id} has {have} bytes, more than {TOKEN_BYTES_MAX}"),
        ));
    }
    let lengths = [
        (SCORES, parts.scores.as_ref().map(Vec::len)),
        (TYPES, parts.types.as_ref().map(Vec::len)),
    ];
    for (key, length) in lengths {
        if let Some(have) = length.filter(|&n| n != count) {
            return Err(fault(
                key,
                &format!("need one element for each of the {count} tokens, have {have}"),
            ));
        }
    }
    let ids = [(BOS, parts.bos), (EOS, parts.eos), (UNKNOWN, parts.unknown)];
    let ends = parts.ends.iter().map(|id| (ENDS[0], Some(*id)));
    for (key, id) in ids.into_iter().chain(ends) {
        if let Some(id) = id.filter(|&id| id as usize >= count) {
            return Err(fault(
                key,
                &format!("id {id} is outside the vocabulary of {count} tokens"),
            ));
        }
    }
    if parts.model == Model::SentencePiece && parts.scores.is_none() {
        return Err(fault(SCORES, "a \"llama\" vocabulary needs scores"));
    }
    Ok(())
}

fn kinds_of(parts: &Parts<'_>, warnings: &mut Vec<String>) -> Result<Vec<Kind>> {
    let Some(types) = &parts.types else {
        warnings.push(format!(
            "{TYPES} is missing: kinds of tokens are guessed from their text"
        ));
        return Ok(parts
            .tokens
            .iter()
            .enumerate()
            .map(|(id, t)| guess_kind(parts, id, t))
            .collect());
    };
    let mut kinds = Vec::with_capacity(types.len());
    let mut undefined = 0usize;
    for (id, ty) in types.iter().enumerate() {
        kinds.push(match ty {
            1 => Kind::Normal,
            2 => Kind::Unknown,
            3 => Kind::Control,
            4 => Kind::UserDefined,
            5 => Kind::Unused,
            6 if byte_token(parts.tokens[id]).is_some() => Kind::Byte,
            6 => {
                let text = quote(parts.tokens[id]);
                return Err(fault(
                    TYPES,
                    &format!("token {id} is typed as a byte but is {text}; need <0xNN>"),
                ));
            }
            _ => {
                undefined += 1;
                Kind::Normal
            }
        });
    }
    if undefined > 0 {
        warnings.push(format!(
            "{TYPES}: {undefined} tokens have an undefined type, taken as text"
        ));
    }
    Ok(kinds)
}

fn guess_kind(parts: &Parts<'_>, id: usize, text: &str) -> Kind {
    let is_spm = parts.model == Model::SentencePiece;
    let id = Some(id as u32);
    if id == parts.bos || id == parts.eos || text.starts_with("<|") && text.ends_with("|>") {
        Kind::Control
    } else if is_spm && id == parts.unknown {
        Kind::Unknown
    } else if is_spm && byte_token(text).is_some() {
        Kind::Byte
    } else {
        Kind::Normal
    }
}

/// BOS and EOS are never text, whatever their type says.
fn make_control(
    id: Option<u32>,
    role: &str,
    parts: &Parts<'_>,
    kinds: &mut [Kind],
    warnings: &mut Vec<String>,
) {
    let Some(id) = id else { return };
    let kind = &mut kinds[id as usize];
    match kind {
        Kind::Control | Kind::Unknown => {}
        Kind::Normal | Kind::UserDefined | Kind::Unused | Kind::Byte => {
            let text = quote(parts.tokens[id as usize]);
            warnings.push(format!(
                "{role} is token {id} {text}, typed as text: taken as a control token"
            ));
            *kind = Kind::Control;
        }
    }
}

fn literals_of(texts: &[&str], kinds: &[Kind]) -> Result<Literals, String> {
    let whole = |kind: &Kind| matches!(kind, Kind::Control | Kind::UserDefined | Kind::Unknown);
    let pairs = texts
        .iter()
        .zip(kinds)
        .enumerate()
        .filter(|(_, (_, kind))| whole(kind));
    Literals::new(
        pairs
            .map(|(id, (text, kind))| Literal::new(id as u32, text, *kind))
            .collect(),
    )
}

fn pre_tokenizer(parts: &Parts<'_>, warnings: &mut Vec<String>) -> PreTokenizer {
    match (parts.model, parts.pre) {
        (Model::SentencePiece, _) => split::FALLBACK,
        (Model::Bpe, None) => {
            warnings.push(format!(
                "{PRE} is missing: words are cut as for gpt-2; if answers look poor, convert the model again"
            ));
            split::FALLBACK
        }
        (Model::Bpe, Some(name)) => split::by_name(name).unwrap_or_else(|| {
            warnings.push(format!(
                "UNKNOWN PRE-TOKENIZER {}: words are cut as for gpt-2, which this model may not have been trained on; expect worse answers",
                quote(name)
            ));
            split::FALLBACK
        }),
    }
}

fn encoder_of(
    parts: &Parts<'_>,
    kinds: &[Kind],
    pre: &PreTokenizer,
    warnings: &mut Vec<String>,
) -> Result<Encoder> {
    let (texts, unknown) = (&parts.tokens[..], parts.unknown);
    let (encoder, missing) = match (parts.model, &parts.scores) {
        (Model::Bpe, _) => {
            let parts = BpeParts {
                texts,
                kinds,
                merges: &parts.merges,
                unknown,
            };
            let bpe = Bpe::new(&parts, pre).map_err(|why| fault(MERGES, &why))?;
            let missing = bpe.missing_bytes();
            (Encoder::Bpe(bpe), missing)
        }
        (Model::SentencePiece, Some(scores)) => {
            let space_prefix = parts.space_prefix.unwrap_or(true);
            let spm = SentencePiece::new(&SpmParts {
                texts,
                kinds,
                scores,
                unknown,
                space_prefix,
            });
            let missing = spm.missing_bytes();
            (Encoder::SentencePiece(spm), missing)
        }
        (Model::SentencePiece, None) => return Err(Error::bug("scores were checked")),
    };
    if missing > 0 {
        let fate = if unknown.is_some() {
            "becomes the unknown token"
        } else {
            "is lost"
        };
        warnings.push(format!(
            "{TOKENS}: {missing} bytes of text have no token; text with them {fate}"
        ));
    }
    Ok(encoder)
}
