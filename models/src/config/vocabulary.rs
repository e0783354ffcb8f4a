//! The vocabulary of a file against its embedding: one row for each token, lists of one length, ids
//! within it. What the tokens mean is the tokenizer's business.

use crate::Result;
use crate::gguf::Metadata;

const TOKENS: &str = "tokenizer.ggml.tokens";
const SCORES: &str = "tokenizer.ggml.scores";
const TYPES: &str = "tokenizer.ggml.token_type";

/// Token types in a file: 0 undefined, 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused,
/// 6 byte.
const TYPE_MAX: i32 = 6;

/// Ids that are used when text is made or read. Others, padding for one, are often wrong in files
/// and do no harm.
const IDS_USED: [&str; 5] = [
    "tokenizer.ggml.bos_token_id",
    "tokenizer.ggml.eos_token_id",
    "tokenizer.ggml.eot_token_id",
    "tokenizer.ggml.eom_token_id",
    "tokenizer.ggml.unknown_token_id",
];

/// `vocab` is the number of rows of the embedding.
pub(super) fn check(metadata: &Metadata, vocab: usize, warnings: &mut Vec<String>) -> Result<()> {
    let tokens = metadata.required::<Vec<&str>>(TOKENS)?.len();
    if tokens != vocab {
        let why = format!(
            "{tokens} tokens, but token_embd.weight has {vocab} rows: they must be equal; convert \
             the model again"
        );
        return Err(metadata.fault(TOKENS, &why));
    }
    let same_length = |key: &str, length: usize| {
        if length == vocab {
            return Ok(());
        }
        let why = format!("need {vocab} elements, one for each token, have {length}");
        Err(metadata.fault(key, &why))
    };
    if let Some(scores) = metadata.optional::<Vec<f32>>(SCORES)? {
        same_length(SCORES, scores.len())?;
    }
    if let Some(types) = metadata.optional::<Vec<i32>>(TYPES)? {
        same_length(TYPES, types.len())?;
        if let Some(i) = types.iter().position(|ty| !(0..=TYPE_MAX).contains(ty)) {
            let why = format!("token {i} has type {}, need 0 to {TYPE_MAX}", types[i]);
            return Err(metadata.fault(TYPES, &why));
        }
    }
    check_ids(metadata, vocab, warnings)
}

fn check_ids(metadata: &Metadata, vocab: usize, warnings: &mut Vec<String>) -> Result<()> {
    for key in IDS_USED {
        match metadata.optional::<u64>(key)? {
            Some(id) if id >= vocab as u64 => {
                let why = format!("token {id} is not in the vocabulary of {vocab}");
                return Err(metadata.fault(key, &why));
            }
            _ => {}
        }
    }
    for (key, value) in metadata.iter() {
        let is_id = key.starts_with("tokenizer.ggml.") && key.ends_with("_token_id");
        let outside = value.as_u64().is_none_or(|id| id >= vocab as u64);
        if is_id && outside && !IDS_USED.contains(&key) {
            warnings.push(format!("{key} is outside the vocabulary and is not used"));
        }
    }
    Ok(())
}
