//! From a `tokenizer.json` to a [`Tokenizer`].
//!
//! The `tokenizers` crate normalises, cuts and merges. Added tokens are taken out of the file before
//! it sees it and are matched by [`Literals`], because its own switch between parsing control tokens
//! and not is a state of the tokenizer, not of the call.

use std::path::Path;

use serde_json::Value;

use super::literals::{Literal, Literals};
use super::spm;
use super::vocabulary::{Kind, Roles, Spelling, Vocabulary, byte_token, find_ends};
use super::{Encoder, Tokenizer};
use crate::error::quote;
use crate::limits::{TOKENIZER_JSON_BYTES_MAX, VOCAB_TOKENS_MAX};
use crate::{Error, Result};

#[derive(Debug)]
pub(super) struct Library {
    first: tokenizers::Tokenizer,
    /// For text after a token matched whole, where the pre-tokeniser treats it differently.
    later: Option<tokenizers::Tokenizer>,
}

impl Library {
    pub fn encode(&self, text: &str, at_start: bool, ids: &mut Vec<u32>) {
        let tokenizer = if at_start {
            &self.first
        } else {
            self.later.as_ref().unwrap_or(&self.first)
        };
        match tokenizer.encode_fast(text, false) {
            Ok(encoding) => ids.extend_from_slice(encoding.get_ids()),
            // The one error there is, an unknown token outside the vocabulary, is refused at load.
            Err(error) => tracing::error!(%error, "a text could not be tokenised"),
        }
    }
}

pub(super) fn read(path: &Path) -> Result<Tokenizer> {
    let mut root = read_json(path)?;
    let config = match read_json(&path.with_file_name("tokenizer_config.json")) {
        Ok(config) => config,
        // Most files stand alone.
        Err(_) => Value::Null,
    };
    let added = take_added(&mut root)?;
    let spelling = spelling_of(&root)?;
    let bos_by_template = bos_of_template(&root);
    root["post_processor"] = Value::Null;
    let first = library(&root)?;
    let later = without_first_prefix(&mut root)
        .then(|| library(&root))
        .transpose()?;
    let space_prefix = spelling == Spelling::SentencePiece && adds_space(&first);

    let texts = texts_of(&first, &added)?;
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let mut kinds = kinds_of(&texts, &added, &root, spelling);
    let find = |text: Option<&str>| -> Option<u32> {
        let text = text?;
        texts.iter().rposition(|t| *t == text).map(|id| id as u32)
    };
    let bos = find(named(&config, "bos_token").or(bos_by_template.as_deref()));
    let eos = find(named(&config, "eos_token"));
    let mut warnings = Vec::new();
    let ends = find_ends(&texts, &mut kinds, &Vec::from_iter(eos), &mut warnings);
    let adds_bos = config.get("add_bos_token").and_then(Value::as_bool);
    let literals = Literals::new(added).map_err(|why| part("added_tokens", &why))?;
    Ok(Tokenizer {
        vocabulary: Vocabulary::new(&texts, kinds, spelling, Roles { bos, eos, ends }),
        literals,
        encoder: Encoder::Library(Box::new(Library { first, later })),
        adds_bos: adds_bos.unwrap_or(bos_by_template.is_some()),
        space_prefix,
        warnings,
    })
}

fn part(name: &str, why: &str) -> Error {
    Error::input(format!("{name}: {why}"))
}

fn read_json(path: &Path) -> Result<Value> {
    let size = std::fs::metadata(path)
        .map_err(|e| Error::device(e.to_string()))?
        .len();
    if size > TOKENIZER_JSON_BYTES_MAX {
        return Err(Error::input(format!(
            "{size} bytes, more than {TOKENIZER_JSON_BYTES_MAX}: not a tokenizer"
        )));
    }
    let bytes = std::fs::read(path).map_err(|e| Error::device(e.to_string()))?;
    let value: Value =
        serde_json::from_slice(&bytes).map_err(|e| Error::input(format!("not JSON: {e}")))?;
    match value.is_object() {
        true => Ok(value),
        false => Err(Error::input("need a JSON object")),
    }
}

/// Takes the added tokens out of the file. They keep their ids.
fn take_added(root: &mut Value) -> Result<Vec<Literal>> {
    let rows = std::mem::replace(&mut root["added_tokens"], Value::Array(Vec::new()));
    let Value::Array(rows) = rows else {
        return Ok(Vec::new());
    };
    rows.iter()
        .enumerate()
        .map(|(i, row)| {
            let id = row["id"]
                .as_u64()
                .filter(|&id| id < VOCAB_TOKENS_MAX as u64);
            let (Some(id), Some(text)) = (id, row["content"].as_str()) else {
                return Err(part(
                    "added_tokens",
                    &format!("element {i} needs an id below {VOCAB_TOKENS_MAX} and a content"),
                ));
            };
            let flag = |name: &str| row[name].as_bool().unwrap_or(false);
            let kind = if flag("special") {
                Kind::Control
            } else {
                Kind::UserDefined
            };
            Ok(Literal {
                strips_left: flag("lstrip"),
                strips_right: flag("rstrip"),
                single_word: flag("single_word"),
                ..Literal::new(id as u32, text, kind)
            })
        })
        .collect()
}

/// How tokens spell bytes: what the decoder would do with them.
fn spelling_of(root: &Value) -> Result<Spelling> {
    let decoder = &root["decoder"];
    let steps = match decoder["decoders"].as_array() {
        Some(steps) => steps.as_slice(),
        None => std::slice::from_ref(decoder),
    };
    let has = |name: &str| steps.iter().any(|step| step["type"] == name);
    if has("ByteLevel") {
        Ok(Spelling::ByteLevel)
    } else if has("Metaspace") || steps.iter().any(|s| s["pattern"]["String"] == spm::SPACE) {
        Ok(Spelling::SentencePiece)
    } else {
        let have = quote(decoder["type"].as_str().unwrap_or("none"));
        Err(part(
            "decoder",
            &format!("need ByteLevel, Metaspace or a replacement of U+2581, have {have}"),
        ))
    }
}

/// The first special token that the post-processor puts before a text.
fn bos_of_template(root: &Value) -> Option<String> {
    let post = &root["post_processor"];
    let steps = match post["processors"].as_array() {
        Some(steps) => steps.as_slice(),
        None => std::slice::from_ref(post),
    };
    let template = steps
        .iter()
        .find(|step| step["type"] == "TemplateProcessing")?;
    Some(
        template["single"][0]["SpecialToken"]["id"]
            .as_str()?
            .to_owned(),
    )
}

fn library(root: &Value) -> Result<tokenizers::Tokenizer> {
    if let Some(unknown) = root["model"]["unk_token"].as_str()
        && root["model"]["vocab"]
            .as_object()
            .is_some_and(|v| !v.contains_key(unknown))
    {
        return Err(part(
            "model.unk_token",
            &format!("{} is not in the vocabulary", quote(unknown)),
        ));
    }
    let text = serde_json::to_string(root).map_err(|e| Error::bug(e.to_string()))?;
    text.parse()
        .map_err(|e: tokenizers::Error| part("tokenizer", &e.to_string()))
}

/// `Metaspace` with `prepend_scheme: first` puts its space before the first text only. Turns it into
/// one that puts none; false where there is nothing to turn.
fn without_first_prefix(root: &mut Value) -> bool {
    let Some(pre) = root.get_mut("pre_tokenizer") else {
        return false;
    };
    let steps = match pre["pretokenizers"].is_array() {
        true => pre["pretokenizers"].as_array_mut().map(Vec::as_mut_slice),
        false => Some(std::slice::from_mut(pre)),
    };
    let mut turned = false;
    for step in steps.into_iter().flatten() {
        if step["type"] == "Metaspace" && step["prepend_scheme"] == "first" {
            step["prepend_scheme"] = "never".into();
            turned = true;
        }
    }
    turned
}

/// Whether encoding puts a space before a text: asked of the tokenizer itself.
fn adds_space(tokenizer: &tokenizers::Tokenizer) -> bool {
    let Ok(encoding) = tokenizer.encode_fast("a", false) else {
        return false;
    };
    // The fast encoding has ids only.
    let first = encoding
        .get_ids()
        .first()
        .and_then(|&id| tokenizer.id_to_token(id));
    first.is_some_and(|t| t.starts_with(spm::SPACE))
}

/// The text of every id; an id that nothing has is empty.
fn texts_of(library: &tokenizers::Tokenizer, added: &[Literal]) -> Result<Vec<String>> {
    let vocab = library.get_vocab(false);
    let ids = vocab.values().copied().chain(added.iter().map(|l| l.id));
    let count = ids.max().map_or(0, |id| id as usize + 1);
    if count == 0 || count > VOCAB_TOKENS_MAX {
        return Err(part(
            "model.vocab",
            &format!("need ids from 0 to {VOCAB_TOKENS_MAX}, have {count} tokens"),
        ));
    }
    let mut texts = vec![String::new(); count];
    for (text, id) in vocab {
        texts[id as usize] = text;
    }
    for literal in added {
        texts[literal.id as usize].clone_from(&literal.text);
    }
    Ok(texts)
}

fn kinds_of(texts: &[&str], added: &[Literal], root: &Value, spelling: Spelling) -> Vec<Kind> {
    let unknown = root["model"]["unk_token"].as_str();
    let falls_back = root["model"]["byte_fallback"] == true && spelling == Spelling::SentencePiece;
    let kind_of = |text: &&str| match *text {
        "" => Kind::Unused,
        t if Some(t) == unknown => Kind::Unknown,
        t if falls_back && byte_token(t).is_some() => Kind::Byte,
        _ => Kind::Normal,
    };
    let mut kinds: Vec<Kind> = texts.iter().map(kind_of).collect();
    for literal in added {
        kinds[literal.id as usize] = literal.kind;
    }
    kinds
}

/// A token that `tokenizer_config.json` names, as text or as an object.
fn named<'a>(config: &'a Value, key: &str) -> Option<&'a str> {
    let value = config.get(key)?;
    value.as_str().or_else(|| value["content"].as_str())
}
