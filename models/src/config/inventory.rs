//! Which tensors a model must have, with their shapes. What the decoder loads is what is listed
//! here; a tensor that is not listed would be left out of the computation, so it is refused.

use std::collections::HashSet;

use super::{Config, rope};
use crate::error::quote;
use crate::gguf::Gguf;
use crate::{Error, Result};

pub(super) const OUTPUT: &str = "output.weight";
const EMBEDDING: &str = "token_embd.weight";
const OUTPUT_NORM: &str = "output_norm.weight";

/// A tensor that a model must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorNeed {
    pub name: String,
    /// As in the file: `[d]`, or `[cols, rows]`.
    pub dims: Vec<usize>,
}

/// The name of a layer's tensor: `layer_tensor(3, "attn_q.weight")` is `blk.3.attn_q.weight`.
pub fn layer_tensor(layer: usize, role: &str) -> String {
    format!("blk.{layer}.{role}")
}

impl Config {
    /// Tensors outside the layers. `rope_freqs.weight` is not among them: it is read into
    /// [`super::Rope`].
    pub fn outer_tensors(&self) -> Vec<TensorNeed> {
        let need = |name: &str, dims: &[usize]| TensorNeed {
            name: name.into(),
            dims: dims.into(),
        };
        let mut needs = vec![
            need(EMBEDDING, &[self.d_model, self.vocab]),
            need(OUTPUT_NORM, &[self.d_model]),
        ];
        if !self.tied_output {
            needs.push(need(OUTPUT, &[self.d_model, self.vocab]));
        }
        needs
    }

    /// Tensors of one layer.
    pub fn layer_tensors(&self, layer: usize) -> Vec<TensorNeed> {
        let (d, ff) = (self.d_model, self.d_ff);
        let q = self.q_heads * self.head_dim;
        let kv = self.kv_heads * self.head_dim;
        let need = |role: &str, dims: &[usize]| TensorNeed {
            name: layer_tensor(layer, role),
            dims: dims.into(),
        };
        let mut needs = vec![
            need("attn_norm.weight", &[d]),
            need("attn_q.weight", &[d, q]),
            need("attn_k.weight", &[d, kv]),
            need("attn_v.weight", &[d, kv]),
            need("attn_output.weight", &[q, d]),
            need("ffn_norm.weight", &[d]),
            need("ffn_gate.weight", &[d, ff]),
            need("ffn_up.weight", &[d, ff]),
            need("ffn_down.weight", &[ff, d]),
        ];
        if self.qkv_bias {
            needs.push(need("attn_q.bias", &[q]));
            needs.push(need("attn_k.bias", &[kv]));
            needs.push(need("attn_v.bias", &[kv]));
        }
        if self.family.norms_inside() {
            needs.push(need("attn_q_norm.weight", &[self.head_dim]));
            needs.push(need("attn_k_norm.weight", &[self.head_dim]));
            needs.push(need("post_attention_norm.weight", &[d]));
            needs.push(need("post_ffw_norm.weight", &[d]));
        }
        needs
    }

    /// Every tensor is there with its shape, and there is none that would be left out. Ends at the
    /// first that is missing, so that a false layer count costs nothing.
    pub(super) fn check_tensors(&self, model: &Gguf) -> Result<()> {
        let mut known: HashSet<String> = HashSet::new();
        let outer = self.outer_tensors().into_iter();
        let layers = (0..self.layers).flat_map(|layer| self.layer_tensors(layer));
        for need in outer.chain(layers) {
            check_one(model, &need, self)?;
            known.insert(need.name);
        }
        let left_out = |name: &&str| {
            *name != rope::FACTORS && !known.contains(*name) && !is_precomputed_rope(name)
        };
        match model.tensors().map(|(name, _)| name).find(left_out) {
            None => Ok(()),
            Some(name) => Err(Error::input(format!(
                "tensor {} is not part of a {} model of {} layers as this program knows it, and \
                 leaving it out would change the answers; take another conversion of the model",
                quote(name),
                self.family.name(),
                self.layers
            ))
            .in_file(model.path())),
        }
    }
}

/// Old converters stored the inverse frequencies of each layer, which follow from the metadata.
fn is_precomputed_rope(name: &str) -> bool {
    name.starts_with("blk.") && name.ends_with(".attn_rot_embd.weight")
}

fn check_one(model: &Gguf, need: &TensorNeed, config: &Config) -> Result<()> {
    let fail = |message: String| Err(Error::input(message).in_file(model.path()));
    match model.tensor(&need.name) {
        Some(info) if info.dims == need.dims => Ok(()),
        Some(info) => fail(format!(
            "tensor {}: need dimensions {:?}, have {:?}; metadata and tensors disagree, convert the \
             model again",
            need.name, need.dims, info.dims
        )),
        None => fail(format!(
            "tensor {} is missing: a {} model of {} layers needs it with dimensions {:?}; fetch or \
             convert the model again",
            need.name,
            config.family.name(),
            config.layers,
            need.dims
        )),
    }
}

/// Rows of the embedding.
pub(super) fn vocab(model: &Gguf, d_model: usize) -> Result<usize> {
    let fail = |message: String| Err(Error::input(message).in_file(model.path()));
    match model.tensor(EMBEDDING).map(|info| info.dims.as_slice()) {
        Some(&[cols, rows]) if cols == d_model => match u32::try_from(rows) {
            Ok(_) => Ok(rows),
            Err(_) => fail(format!(
                "tensor {EMBEDDING}: {rows} tokens do not fit token ids"
            )),
        },
        Some(dims) => fail(format!(
            "tensor {EMBEDDING}: need dimensions [{d_model}, tokens], have {dims:?}; metadata and \
             tensors disagree, convert the model again"
        )),
        None => fail(format!(
            "tensor {EMBEDDING} is missing: the file has {} tensors; a file with a vocabulary alone \
             cannot be run",
            model.tensors().len()
        )),
    }
}
