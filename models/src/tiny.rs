//! Tiny random models, complete enough to run: for tests and benchmarks, in this workspace and
//! outside it. They speak nonsense, fast, and every part of the program treats them as a model.
//!
//! Weights follow from a formula over integers ([`value`]), so that another program in another
//! language makes the same model without reading the file: `tests/golden/make_tiny.py` does.

mod vocabulary;

use std::path::Path;

use candle_core::quantized::QTensor;
use kernels::WeightType;

use crate::config::{Config, Family};
use crate::decoder::candle_type;
use crate::gguf::Gguf;
use crate::gguf::write::{Meta, Writer};
use crate::{Error, Result};

/// The kind of tokenizer that a tiny model carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TinyTokenizer {
    /// Byte-level BPE, `tokenizer.ggml.model` = `gpt2`. Token ids 0 to 255 are the bytes.
    Bpe,
    /// SentencePiece with byte fallback, `tokenizer.ggml.model` = `llama`. Adds a BOS.
    Spm,
}

/// What a tiny model is like. `..TinySpec::default()` fills what does not matter.
#[derive(Clone, Debug)]
pub struct TinySpec {
    pub family: Family,
    pub layers: usize,
    pub d_model: usize,
    pub q_heads: usize,
    pub kv_heads: usize,
    pub d_ff: usize,
    /// At least [`TinySpec::VOCAB_MIN`]; tokens beyond the tokenizer's own are of type "unused".
    pub vocab: usize,
    pub context: usize,
    /// Without `output.weight`.
    pub tied: bool,
    pub rope_base: f32,
    /// Positions that a row sees in the layers with a window, and of how many layers one has none
    /// (gemma3).
    pub window: Option<(usize, usize)>,
    /// `rope_freqs.weight`, [head_dim / 2].
    pub rope_factors: Option<Vec<f32>>,
    pub seed: u64,
    /// Of the matrices; norms and biases stay F32. K types need sizes in multiples of 256.
    pub weights: WeightType,
    pub tokenizer: TinyTokenizer,
    /// `None` leaves the chat template out.
    pub template: Option<String>,
}

impl Default for TinySpec {
    fn default() -> Self {
        Self {
            family: Family::Llama,
            layers: 2,
            d_model: 64,
            q_heads: 4,
            kv_heads: 2,
            d_ff: 128,
            vocab: Self::VOCAB_MIN,
            context: 1024,
            tied: true,
            rope_base: 10_000.0,
            window: None,
            rope_factors: None,
            seed: 1,
            weights: WeightType::F32,
            tokenizer: TinyTokenizer::Bpe,
            template: Some(TEMPLATE.to_owned()),
        }
    }
}

/// Writes a tiny model.
///
/// # Errors
/// A specification that cannot be, or a file that cannot be written.
pub fn tiny_model(path: &Path, spec: &TinySpec) -> Result<()> {
    spec.writer()?.write(path).map_err(|error| {
        Error::device(format!("cannot write the model: {error}"))
            .in_file(path)
            .caused_by(error)
    })
}

impl TinySpec {
    /// The least vocabulary: room for either tokenizer.
    pub const VOCAB_MIN: usize = 384;

    /// The model as a file being put together, for a test that changes something in it.
    ///
    /// # Errors
    /// A specification that cannot be.
    pub fn writer(&self) -> Result<Writer> {
        if self.vocab < Self::VOCAB_MIN
            || self.q_heads == 0
            || !self.d_model.is_multiple_of(self.q_heads)
        {
            return Err(Error::caller(format!(
                "a tiny model needs a vocabulary of at least {} and heads that divide d_model, \
                 have {self:?}",
                Self::VOCAB_MIN
            )));
        }
        let mut writer = Writer::new();
        self.write_sizes(&mut writer);
        vocabulary::write(&mut writer, self.tokenizer, self.vocab);
        if let Some(template) = &self.template {
            writer.set("tokenizer.chat_template", template.as_str());
        }
        self.write_tensors(&mut writer)?;
        Ok(writer)
    }

    /// The model as an opened file that lies in memory.
    ///
    /// # Errors
    /// A specification that cannot be.
    pub fn gguf(&self) -> Result<Gguf> {
        Gguf::from_bytes(Path::new("tiny.gguf"), self.writer()?.to_bytes().into())
    }

    /// The model's configuration.
    ///
    /// # Panics
    /// On a specification that cannot be.
    pub fn config(&self) -> Config {
        let made = self.gguf().and_then(|model| Config::from_gguf(&model));
        made.unwrap_or_else(|error| panic!("not a model: {error}"))
    }

    fn write_sizes(&self, writer: &mut Writer) {
        let family = self.family.name();
        let mut size = |key: &str, value: usize| {
            writer.set(&format!("{family}.{key}"), Meta::U32(value as u32));
        };
        size("block_count", self.layers);
        size("context_length", self.context);
        size("embedding_length", self.d_model);
        size("feed_forward_length", self.d_ff);
        size("attention.head_count", self.q_heads);
        size("attention.head_count_kv", self.kv_heads);
        size("rope.dimension_count", self.head_dim());
        size("vocab_size", self.vocab);
        if let Some((tokens, period)) = self.window {
            size("attention.sliding_window", tokens);
            size("attention.sliding_window_pattern", period);
        }
        writer
            .set("general.architecture", family)
            .set("general.name", "tiny")
            .set(&format!("{family}.attention.layer_norm_rms_epsilon"), 1e-5)
            .set(&format!("{family}.rope.freq_base"), self.rope_base);
    }

    fn write_tensors(&self, writer: &mut Writer) -> Result<()> {
        let (d, ff, vocab) = (self.d_model as u64, self.d_ff as u64, self.vocab as u64);
        let q = (self.q_heads * self.head_dim()) as u64;
        let kv = (self.kv_heads * self.head_dim()) as u64;
        let mut add = |name: String, dims: &[u64]| self.write_tensor(writer, &name, dims);
        add("token_embd.weight".into(), &[d, vocab])?;
        for layer in 0..self.layers {
            let mut add = |role: &str, dims: &[u64]| add(format!("blk.{layer}.{role}"), dims);
            add("attn_norm.weight", &[d])?;
            add("attn_q.weight", &[d, q])?;
            add("attn_k.weight", &[d, kv])?;
            add("attn_v.weight", &[d, kv])?;
            add("attn_output.weight", &[q, d])?;
            add("ffn_norm.weight", &[d])?;
            add("ffn_gate.weight", &[d, ff])?;
            add("ffn_up.weight", &[d, ff])?;
            add("ffn_down.weight", &[ff, d])?;
            if self.family == Family::Qwen2 {
                add("attn_q.bias", &[q])?;
                add("attn_k.bias", &[kv])?;
                add("attn_v.bias", &[kv])?;
            }
            if self.family.norms_inside() {
                add("attn_q_norm.weight", &[self.head_dim() as u64])?;
                add("attn_k_norm.weight", &[self.head_dim() as u64])?;
                add("post_attention_norm.weight", &[d])?;
                add("post_ffw_norm.weight", &[d])?;
            }
        }
        add("output_norm.weight".into(), &[d])?;
        if !self.tied {
            add("output.weight".into(), &[d, vocab])?;
        }
        if let Some(factors) = &self.rope_factors {
            writer.tensor_f32("rope_freqs.weight", &[factors.len() as u64], factors);
        }
        Ok(())
    }

    fn write_tensor(&self, writer: &mut Writer, name: &str, dims: &[u64]) -> Result<()> {
        let (centre, spread) = range(name, dims[0]);
        let count: u64 = dims.iter().product();
        let values: Vec<f32> = (0..count)
            .map(|i| (centre + spread * value(self.seed, name, i)) as f32)
            .collect();
        if dims.len() == 1 {
            writer.tensor_f32(name, dims, &values);
            return Ok(());
        }
        let bytes = quantise(self.weights, dims, &values)
            .map_err(|error| Error::caller(format!("tensor {name}: {error}")).caused_by(error))?;
        writer.tensor(name, self.weights, dims, bytes);
        Ok(())
    }

    fn head_dim(&self) -> usize {
        self.d_model / self.q_heads
    }
}

/// Values of a tensor are `centre + spread * value(..)`.
fn range(name: &str, cols: u64) -> (f64, f64) {
    if name.ends_with("norm.weight") {
        (1.0, 0.1)
    } else if name.ends_with(".bias") {
        (0.0, 0.1)
    } else if name == "token_embd.weight" {
        (0.0, 1.0)
    } else {
        // Keeps the variance of what it is multiplied with.
        (0.0, (3.0 / cols as f64).sqrt())
    }
}

/// Value `index` of a tensor, from -1 up to but not including 1, in steps of 2^-23.
///
/// `k / 2^23 - 1`, where `k` is the upper 24 bits of
/// `mix((seed ^ fnv1a(name)) + (index + 1) * 0x9E3779B97F4A7C15)`, all modulo 2^64; `fnv1a` is the
/// 64-bit FNV-1a hash of the name's bytes, `mix` the output function of SplitMix64.
pub fn value(seed: u64, name: &str, index: u64) -> f64 {
    let fnv1a = name.bytes().fold(0xCBF2_9CE4_8422_2325_u64, |h, b| {
        (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01B3)
    });
    let step = (index + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut z = (seed ^ fnv1a).wrapping_add(step);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^= z >> 31;
    (z >> 40) as f64 / f64::from(1 << 23) - 1.0
}

/// `values` of a tensor `[cols, rows]` in the blocks of `ty`, by candle's quantiser.
///
/// # Errors
/// candle's, for columns that are not whole blocks.
pub fn quantise(ty: WeightType, dims: &[u64], values: &[f32]) -> candle_core::Result<Vec<u8>> {
    if ty == WeightType::F32 {
        return Ok(values.iter().flat_map(|v| v.to_le_bytes()).collect());
    }
    let shape: Vec<usize> = dims.iter().rev().map(|&d| d as usize).collect();
    let tensor = candle_core::Tensor::from_slice(values, shape, &candle_core::Device::Cpu)?;
    Ok(QTensor::quantize(&tensor, candle_type(ty))?
        .data()?
        .into_owned())
}

/// ChatML with tools in the manner of Qwen 2.5.
pub const TEMPLATE: &str = include_str!("tiny/chatml.jinja");

#[cfg(test)]
mod tests {
    use super::*;

    /// The Python script that makes the golden numbers checks the same three values.
    #[test]
    fn the_formula_gives_the_values_that_other_programs_compute() {
        assert_eq!(value(1, "token_embd.weight", 0), PINNED[0]);
        assert_eq!(value(1, "blk.1.ffn_down.weight", 8191), PINNED[1]);
        assert_eq!(value(u64::MAX, "", 0), PINNED[2]);
    }

    const PINNED: [f64; 3] = [
        0.752_222_180_366_516_1,
        0.558_555_722_236_633_3,
        -0.617_694_139_480_590_8,
    ];

    #[test]
    fn every_kind_of_tiny_model_passes_the_checks_of_a_real_one() {
        use WeightType::*;
        let all = [
            F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2K, Q3K, Q4K, Q5K, Q6K,
        ];
        for (weights, family) in all.into_iter().flat_map(|w| Family::ALL.map(|f| (w, f))) {
            for tokenizer in [TinyTokenizer::Bpe, TinyTokenizer::Spm] {
                let spec = TinySpec {
                    family,
                    weights,
                    tokenizer,
                    layers: 1,
                    d_model: 256,
                    d_ff: 256,
                    tied: family == Family::Llama,
                    ..TinySpec::default()
                };
                let config = spec.config();
                assert_eq!(config.family, family);
                assert_eq!(config.tied_output, spec.tied);
                assert_eq!(config.qkv_bias, family == Family::Qwen2);
                assert_eq!(config.vocab, spec.vocab);
                assert!(config.warnings.is_empty(), "{:?}", config.warnings);
            }
        }
    }

    #[test]
    fn what_cannot_be_is_said() {
        let spec = TinySpec {
            d_model: 65,
            ..TinySpec::default()
        };
        assert!(spec.writer().unwrap_err().to_string().contains("divide"));
        let spec = TinySpec {
            weights: WeightType::Q4K,
            ..TinySpec::default()
        };
        assert!(
            spec.writer()
                .unwrap_err()
                .to_string()
                .contains("token_embd.weight")
        );
    }
}
