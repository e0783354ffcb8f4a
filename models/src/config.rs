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
mod window;

pub use inventory::{TensorNeed, layer_tensor};
pub use kernels::{Activation, RopeStyle};
pub use rope::Rope;
pub use window::Window;

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
    Gemma3,
}

impl Family {
    pub const ALL: [Family; 3] = [Family::Llama, Family::Qwen2, Family::Gemma3];

    /// As `general.architecture` has it.
    pub fn name(self) -> &'static str {
        match self {
            Family::Llama => "llama",
            Family::Qwen2 => "qwen2",
            Family::Gemma3 => "gemma3",
        }
    }

    /// Each head's queries and keys are normed before they are turned, and what a layer adds is normed
    /// before it is added.
    pub fn norms_inside(self) -> bool {
        match self {
            Family::Llama | Family::Qwen2 => false,
            Family::Gemma3 => true,
        }
    }

    pub fn activation(self) -> Activation {
        match self {
            Family::Llama | Family::Qwen2 => Activation::Silu,
            Family::Gemma3 => Activation::Gelu,
        }
    }

    /// How the family pairs the values of a head that are turned together. GGUF stores llama's
    /// query and key rows re-ordered so that pairs are neighbours.
    fn rope_style(self) -> RopeStyle {
        match self {
            Family::Llama => RopeStyle::Norm,
            Family::Qwen2 | Family::Gemma3 => RopeStyle::Neox,
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
    /// Of layers that see every position.
    pub rope: Rope,
    /// `None` where every layer does.
    pub window: Option<Window>,
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
        let (context_train, window) = match family {
            Family::Llama | Family::Qwen2 => (context_within_window(&mut keys)?, None),
            Family::Gemma3 => {
                let context = context(&keys)?;
                let window = Window::read(&keys, &rope, sizes.layers, context)?;
                (context, window)
            }
        };
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
            window,
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

impl Config {
    /// What attention's scores are multiplied with.
    pub fn attention_scale(&self) -> f32 {
        let width = match self.family {
            Family::Gemma3 if self.layers == GEMMA3_27B_LAYERS => self.d_model / self.q_heads,
            _ => self.head_dim,
        };
        1.0 / (width as f32).sqrt()
    }

    /// What an embedding is multiplied with before the first layer.
    pub fn embedding_scale(&self) -> Option<f32> {
        match self.family {
            Family::Llama | Family::Qwen2 => None,
            Family::Gemma3 => Some((self.d_model as f32).sqrt()),
        }
    }

    /// Where the keys and values of a layer are.
    pub fn kv_place(&self, layer: usize) -> KvPlace {
        let (group, index) = match &self.window {
            Some(window) if window.limits(layer) => {
                (LayerGroup::Window, layer - window.seeing_all(layer))
            }
            Some(window) => (LayerGroup::All, window.seeing_all(layer)),
            None => (LayerGroup::All, layer),
        };
        KvPlace { group, index }
    }
}

/// Layers whose keys and values are kept together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LayerGroup {
    /// Those that see every position.
    All,
    /// Those with a window: what lies before it is not kept.
    Window,
}

/// A layer among those of its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvPlace {
    pub group: LayerGroup,
    pub index: usize,
}

/// The largest gemma3 scales its scores by the embedding's share of a head, not by the head; no key of a
/// file says so, llama.cpp tells it by the number of layers too.
const GEMMA3_27B_LAYERS: usize = 62;

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

/// Positions the model can use.
fn context(keys: &Keys<'_>) -> Result<usize> {
    let trained = keys.positive("context_length")?;
    if trained as u64 > CONTEXT_MAX {
        let why = format!("need up to {CONTEXT_MAX}, have {trained}");
        return Err(keys.fault("context_length", &why));
    }
    Ok(trained)
}

/// Positions the model can use where a sliding window is not implemented for the family: within the
/// window it changes nothing, so the context is limited to it.
fn context_within_window(keys: &mut Keys<'_>) -> Result<usize> {
    let trained = context(keys)?;
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
