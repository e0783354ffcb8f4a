//! What a model is: its family and sizes, read from a file and checked whole before anything is
//! allocated for it.
//!
//! Invariant: a [`Config`] from [`Config::from_gguf`] describes tensors that are all there, with the
//! right shapes, and every key of the file that changes what the model computes is honoured or was
//! refused with an error that names it. Keys as in the GGUF specification (ggml, `docs/gguf.md`) and
//! llama.cpp's `llama-arch.cpp`.

mod inventory;
mod keys;
mod rope;
mod vocabulary;

pub use inventory::{TensorNeed, layer_tensor};
pub use kernels::RopeStyle;
pub use rope::Rope;

use crate::error::quote;
use crate::gguf::Gguf;
use crate::limits::{CONTEXT_MAX, HEAD_DIM_MAX};
use crate::{Error, Result};
use keys::Keys;

/// Architectures that can be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    Llama,
    Qwen2,
}

impl Family {
    pub const ALL: [Family; 2] = [Family::Llama, Family::Qwen2];

    /// As `general.architecture` has it.
    pub fn name(self) -> &'static str {
        match self {
            Family::Llama => "llama",
            Family::Qwen2 => "qwen2",
        }
    }

    /// How the family pairs the values of a head that are turned together. GGUF stores llama's
    /// query and key rows re-ordered so that pairs are neighbours.
    fn rope_style(self) -> RopeStyle {
        match self {
            Family::Llama => RopeStyle::Norm,
            Family::Qwen2 => RopeStyle::Neox,
        }
    }
}

/// A model's shape and numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub family: Family,
    pub layers: usize,
    /// Values of one position between the layers.
    pub d_model: usize,
    /// Values in the middle of the feed-forward block.
    pub d_ff: usize,
    pub q_heads: usize,
    /// Divides `q_heads`.
    pub kv_heads: usize,
    /// Even. `q_heads * head_dim` need not be `d_model`.
    pub head_dim: usize,
    /// Rows of the embedding and of the logits; as many as the tokenizer has tokens.
    pub vocab: usize,
    /// Positions the model can use.
    pub context_train: usize,
    pub norm_eps: f32,
    pub rope: Rope,
    /// Query, key and value projections add a bias.
    pub qkv_bias: bool,
    /// The output matrix is the embedding; the file has no `output.weight`.
    pub tied_output: bool,
    pub name: String,
    /// `Q4_K_M`, for people.
    pub quantisation: String,
    /// Weights in the file.
    pub parameters: u64,
    /// What is odd about the file and does no harm, for people.
    pub warnings: Vec<String>,
}

impl Config {
    /// Reads and checks the configuration of a model.
    ///
    /// # Errors
    /// Blames the input; names the key or the tensor, and the file.
    pub fn from_gguf(model: &Gguf) -> Result<Self> {
        let family = family(model)?;
        let mut keys = Keys::new(model.metadata(), family.name());
        let sizes = Sizes::read(&keys)?;
        let rope = Rope::read(&keys, model, family.rope_style(), sizes.head_dim)?;
        let context_train = context(&mut keys)?;
        keys.check_rest(sizes.head_dim)?;
        let norm_eps = keys.positive_f32("attention.layer_norm_rms_epsilon")?;
        let vocab = inventory::vocab(model, sizes.d_model)?;
        let summary = model.summary()?;
        let mut config = Self {
            family,
            layers: sizes.layers,
            d_model: sizes.d_model,
            d_ff: sizes.d_ff,
            q_heads: sizes.q_heads,
            kv_heads: sizes.kv_heads,
            head_dim: sizes.head_dim,
            vocab,
            context_train,
            norm_eps,
            rope,
            qkv_bias: model.tensor(&layer_tensor(0, "attn_q.bias")).is_some(),
            tied_output: model.tensor(inventory::OUTPUT).is_none(),
            name: summary.name,
            quantisation: summary.quantisation,
            parameters: summary.parameters,
            warnings: Vec::new(),
        };
        config.check_tensors(model)?;
        vocabulary::check(model.metadata(), vocab, &mut keys.warnings)?;
        config.warnings = keys.warnings;
        Ok(config)
    }
}

fn family(model: &Gguf) -> Result<Family> {
    let found = model.metadata().required::<&str>("general.architecture")?;
    Family::ALL
        .into_iter()
        .find(|family| family.name() == found)
        .ok_or_else(|| {
            let known: Vec<_> = Family::ALL.iter().map(|family| family.name()).collect();
            let message = format!(
                "architecture {} is not supported; take a model of one of these: {}",
                quote(found),
                known.join(", ")
            );
            Error::input(message).in_file(model.path())
        })
}

/// The sizes that the metadata gives, checked against each other.
struct Sizes {
    layers: usize,
    d_model: usize,
    d_ff: usize,
    q_heads: usize,
    kv_heads: usize,
    head_dim: usize,
}

impl Sizes {
    fn read(keys: &Keys<'_>) -> Result<Self> {
        let layers = keys.positive("block_count")?;
        let d_model = keys.positive("embedding_length")?;
        let d_ff = keys.positive("feed_forward_length")?;
        let q_heads = keys.positive("attention.head_count")?;
        let kv_heads = keys.positive_or("attention.head_count_kv", q_heads)?;
        if q_heads % kv_heads != 0 {
            let why = format!("{kv_heads} does not divide the {q_heads} query heads");
            return Err(keys.fault("attention.head_count_kv", &why));
        }
        let head_dim = head_dim(keys, d_model, q_heads)?;
        Ok(Self {
            layers,
            d_model,
            d_ff,
            q_heads,
            kv_heads,
            head_dim,
        })
    }
}

fn head_dim(keys: &Keys<'_>, d_model: usize, q_heads: usize) -> Result<usize> {
    const KEY: &str = "attention.key_length";
    let given = keys.optional::<usize>(KEY)?;
    let head_dim = match given {
        Some(length) => length,
        None if d_model.is_multiple_of(q_heads) => d_model / q_heads,
        None => {
            let why = format!(
                "{q_heads} heads do not divide the embedding length, {d_model}, and there is no {}",
                keys.full(KEY)
            );
            return Err(keys.fault("attention.head_count", &why));
        }
    };
    let named = if given.is_some() {
        KEY
    } else {
        "attention.head_count"
    };
    if head_dim == 0 || head_dim % 2 != 0 || head_dim as u64 > HEAD_DIM_MAX {
        let why = format!("heads of {head_dim} values: need an even number up to {HEAD_DIM_MAX}");
        return Err(keys.fault(named, &why));
    }
    if q_heads.checked_mul(head_dim).is_none() {
        let why = format!("{q_heads} heads of {head_dim} values do not fit this machine");
        return Err(keys.fault(named, &why));
    }
    match keys.optional::<usize>("attention.value_length")? {
        Some(length) if length != head_dim => {
            let why = format!("{length}, where keys have {head_dim}: they must be equal");
            Err(keys.fault("attention.value_length", &why))
        }
        _ => Ok(head_dim),
    }
}

/// Positions the model can use. A sliding window is not implemented for these families: within the
/// window it changes nothing, so the context is limited to it.
fn context(keys: &mut Keys<'_>) -> Result<usize> {
    let trained = keys.positive("context_length")?;
    if trained as u64 > CONTEXT_MAX {
        let why = format!("need up to {CONTEXT_MAX}, have {trained}");
        return Err(keys.fault("context_length", &why));
    }
    match keys.optional::<usize>("attention.sliding_window")? {
        Some(window) if window > 0 && window < trained => {
            keys.warnings.push(format!(
                "the context is limited to the attention window, {window} of {trained} positions"
            ));
            Ok(window)
        }
        _ => Ok(trained),
    }
}

#[cfg(test)]
mod tests;
