//! The weights of a pre-norm decoder: their names in a file, their shapes, their grouping.
//!
//! One recipe serves every executor: `read` asks a [`MakeWeights`] for each tensor by name and
//! shape. The first one asked is always [`super::manifest::Manifest`], which only takes notes, so that
//! the memory needed is known before any is taken.
//! Names follow llama.cpp's `gguf-py/gguf/constants.py`.

use kernels::MatrixShape;

use crate::{Config, Result};

/// All weights but the embedding, as matrices `M` and vectors `V` of one executor.
pub(crate) struct DecoderWeights<M, V> {
    pub layers: Vec<LayerWeights<M, V>>,
    /// [d_model]
    pub norm: V,
    /// [vocab, d_model]; the embedding itself when the two are tied.
    pub output: M,
}

/// One layer. Matrices are [rows, cols] = [outputs, inputs].
pub(crate) struct LayerWeights<M, V> {
    /// [d_model]
    pub attention_norm: V,
    /// [q_heads * head_dim, d_model]
    pub q: M,
    /// [kv_heads * head_dim, d_model]
    pub k: M,
    /// [kv_heads * head_dim, d_model]
    pub v: M,
    pub bias: Option<QkvBias<V>>,
    pub inside: Option<NormsInside<V>>,
    /// [d_model, q_heads * head_dim]
    pub attention_output: M,
    /// [d_model]
    pub ffn_norm: V,
    /// [d_ff, d_model]
    pub gate: M,
    /// [d_ff, d_model]
    pub up: M,
    /// [d_model, d_ff]
    pub down: M,
}

impl<M, V> LayerWeights<M, V> {
    /// The matrices, each of which every pass reads once.
    pub fn matrices(&self) -> [&M; 7] {
        [
            &self.q,
            &self.k,
            &self.v,
            &self.attention_output,
            &self.gate,
            &self.up,
            &self.down,
        ]
    }
}

/// Added to the projections before the rotation (qwen2).
pub(crate) struct QkvBias<V> {
    /// [q_heads * head_dim]
    pub q: V,
    /// [kv_heads * head_dim]
    pub k: V,
    /// [kv_heads * head_dim]
    pub v: V,
}

/// Norms besides the two that open the halves of a layer (gemma3).
pub(crate) struct NormsInside<V> {
    /// [head_dim], of each head's queries before the rotation.
    pub q: V,
    /// [head_dim], of each head's keys before the rotation.
    pub k: V,
    /// [d_model], of what attention adds.
    pub attended: V,
    /// [d_model], of what the feed-forward network adds.
    pub fed: V,
}

/// Turns named tensors of a file into what one executor multiplies with.
pub(crate) trait MakeWeights {
    type Matrix;
    type Vector;
    fn matrix(&mut self, name: &str, shape: MatrixShape) -> Result<Self::Matrix>;
    fn vector(&mut self, name: &str, length: usize) -> Result<Self::Vector>;
}

pub(crate) const EMBEDDING: &str = "token_embd.weight";
pub(crate) const OUTPUT: &str = "output.weight";

/// Name of the matrix that gives the logits.
pub(crate) fn output_name(config: &Config) -> &'static str {
    if config.tied_output {
        EMBEDDING
    } else {
        OUTPUT
    }
}

/// Shape of the embedding and of the output matrix.
pub(crate) fn embedding_shape(config: &Config) -> MatrixShape {
    MatrixShape {
        rows: config.vocab,
        cols: config.d_model,
    }
}

/// Reads all weights that `config` calls for.
pub(crate) fn read<B: MakeWeights>(
    config: &Config,
    make: &mut B,
) -> Result<DecoderWeights<B::Matrix, B::Vector>> {
    let layers = (0..config.layers).map(|layer| read_layer(config, layer, make));
    Ok(DecoderWeights {
        layers: layers.collect::<Result<_>>()?,
        norm: make.vector("output_norm.weight", config.d_model)?,
        output: make.matrix(output_name(config), embedding_shape(config))?,
    })
}

fn read_layer<B: MakeWeights>(
    config: &Config,
    layer: usize,
    make: &mut B,
) -> Result<LayerWeights<B::Matrix, B::Vector>> {
    let name = |part: &str| format!("blk.{layer}.{part}");
    let d = config.d_model;
    let q_rows = config.q_heads * config.head_dim;
    let kv_rows = config.kv_heads * config.head_dim;
    let shape = |rows, cols| MatrixShape { rows, cols };
    Ok(LayerWeights {
        attention_norm: make.vector(&name("attn_norm.weight"), d)?,
        q: make.matrix(&name("attn_q.weight"), shape(q_rows, d))?,
        k: make.matrix(&name("attn_k.weight"), shape(kv_rows, d))?,
        v: make.matrix(&name("attn_v.weight"), shape(kv_rows, d))?,
        bias: if config.qkv_bias {
            Some(QkvBias {
                q: make.vector(&name("attn_q.bias"), q_rows)?,
                k: make.vector(&name("attn_k.bias"), kv_rows)?,
                v: make.vector(&name("attn_v.bias"), kv_rows)?,
            })
        } else {
            None
        },
        inside: if config.family.norms_inside() {
            Some(NormsInside {
                q: make.vector(&name("attn_q_norm.weight"), config.head_dim)?,
                k: make.vector(&name("attn_k_norm.weight"), config.head_dim)?,
                attended: make.vector(&name("post_attention_norm.weight"), d)?,
                fed: make.vector(&name("post_ffw_norm.weight"), d)?,
            })
        } else {
            None
        },
        attention_output: make.matrix(&name("attn_output.weight"), shape(d, q_rows))?,
        ffn_norm: make.vector(&name("ffn_norm.weight"), d)?,
        gate: make.matrix(&name("ffn_gate.weight"), shape(config.d_ff, d))?,
        up: make.matrix(&name("ffn_up.weight"), shape(config.d_ff, d))?,
        down: make.matrix(&name("ffn_down.weight"), shape(d, config.d_ff))?,
    })
}
