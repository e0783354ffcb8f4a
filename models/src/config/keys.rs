//! Reads the metadata keys of one architecture, `llama.block_count` as `block_count`, and refuses
//! those that would change what the model computes in a way that is not implemented.

use crate::Result;
use crate::error::quote;
use crate::gguf::{FromValue, Metadata, Value};

pub(super) struct Keys<'a> {
    metadata: &'a Metadata,
    family: &'static str,
    pub warnings: Vec<String>,
}

impl<'a> Keys<'a> {
    pub fn new(metadata: &'a Metadata, family: &'static str) -> Self {
        Self {
            metadata,
            family,
            warnings: Vec::new(),
        }
    }

    /// The key as it stands in the file.
    pub fn full(&self, key: &str) -> String {
        format!("{}.{key}", self.family)
    }

    pub fn optional<T: FromValue<'a>>(&self, key: &str) -> Result<Option<T>> {
        self.metadata.optional(&self.full(key))
    }

    /// A size that must be there and above 0.
    pub fn positive(&self, key: &str) -> Result<usize> {
        let value = self.metadata.required::<usize>(&self.full(key))?;
        self.above_zero(key, value)
    }

    /// A size that must be above 0 where it is given.
    pub fn positive_or(&self, key: &str, default: usize) -> Result<usize> {
        let value = self.optional::<usize>(key)?.unwrap_or(default);
        self.above_zero(key, value)
    }

    fn above_zero(&self, key: &str, value: usize) -> Result<usize> {
        match value {
            0 => Err(self.fault(key, "need at least 1, have 0; convert the model again")),
            value => Ok(value),
        }
    }

    /// A number that must be there, finite and above 0.
    pub fn positive_f32(&self, key: &str) -> Result<f32> {
        let value = self.metadata.required::<f32>(&self.full(key))?;
        self.check_positive(key, value)
    }

    /// A number that must be finite and above 0 where it is given.
    pub fn optional_positive_f32(&self, key: &str) -> Result<Option<f32>> {
        self.optional(key)?
            .map(|value| self.check_positive(key, value))
            .transpose()
    }

    fn check_positive(&self, key: &str, value: f32) -> Result<f32> {
        if value.is_finite() && value > 0.0 {
            return Ok(value);
        }
        let why = format!("need a number above 0, have {value}; convert the model again");
        Err(self.fault(key, &why))
    }

    pub fn fault(&self, key: &str, why: &str) -> crate::Error {
        self.metadata.fault(&self.full(key), why)
    }

    /// Looks at all other keys of the architecture: what is not implemented must have its neutral
    /// value, and what is not known is named in a warning.
    pub fn check_rest(&mut self, head_dim: usize) -> Result<()> {
        let prefix = self.full("");
        for (full, value) in self.metadata.iter() {
            let Some(key) = full.strip_prefix(&prefix) else {
                continue;
            };
            let read = match self.family {
                "gemma3" => READ.contains(&key) || READ_GEMMA3.contains(&key),
                _ => READ.contains(&key),
            };
            if read || WITHOUT_EFFECT.contains(&key) {
                continue;
            }
            match NOT_IMPLEMENTED.iter().find(|(known, _)| *known == key) {
                Some((_, neutral)) if neutral.holds(value, head_dim) => {}
                Some(_) => {
                    let why = format!(
                        "{} is not implemented for this family; the model would compute something \
                         else than it was trained to",
                        show(value)
                    );
                    return Err(self.fault(key, &why));
                }
                None => self
                    .warnings
                    .push(format!("metadata key {} is not known", quote(full))),
            }
        }
        Ok(())
    }
}

/// Keys that other functions of this module's parent read.
const READ: [&str; 17] = [
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.layer_norm_rms_epsilon",
    "attention.sliding_window",
    "attention.value_length",
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.factor",
    "rope.scaling.type",
    "rope.scaling.original_context_length",
    "vocab_size",
];

/// Keys that are read of this family only.
const READ_GEMMA3: [&str; 2] = ["attention.sliding_window_pattern", "rope.freq_base_swa"];

/// Keys that say how a file came about, or that belong to a setting checked elsewhere.
const WITHOUT_EFFECT: [&str; 4] = [
    // Llama's query and key rows are always stored for neighbouring pairs, whatever this says.
    "tensor_data_layout",
    "rope.scaling.finetuned",
    // All families normalise by the root mean square.
    "attention.layer_norm_epsilon",
    // How an embedding is taken from the last layer: not used for generating text.
    "pooling_type",
];

/// Keys of these and related families that are not implemented, with the value that means "off".
const NOT_IMPLEMENTED: [(&str, Neutral); 15] = [
    ("attention.causal", Neutral::Bool(true)),
    ("attention.clamp_kqv", Neutral::Zero),
    ("attention.max_alibi_bias", Neutral::Zero),
    ("attention.scale", Neutral::AttentionScale),
    ("attn_logit_softcapping", Neutral::Zero),
    ("embedding_scale", Neutral::ZeroOrOne),
    ("expert_count", Neutral::Zero),
    ("expert_used_count", Neutral::Zero),
    ("final_logit_softcapping", Neutral::Zero),
    ("logit_scale", Neutral::ZeroOrOne),
    ("residual_scale", Neutral::ZeroOrOne),
    ("rope.scaling.attn_factor", Neutral::ZeroOrOne),
    ("attention.temperature_scale", Neutral::Zero),
    ("interleave_moe_layer_step", Neutral::Zero),
    ("use_parallel_residual", Neutral::Bool(false)),
];

#[derive(Clone, Copy)]
enum Neutral {
    Zero,
    ZeroOrOne,
    Bool(bool),
    /// 0, or the usual 1 / sqrt(head_dim).
    AttentionScale,
}

impl Neutral {
    fn holds(self, value: &Value, head_dim: usize) -> bool {
        let number = match value {
            Value::F32(v) => Some(f64::from(*v)),
            Value::F64(v) => Some(*v),
            other => other.as_u64().map(|v| v as f64),
        };
        match self {
            Neutral::Zero => number == Some(0.0),
            Neutral::ZeroOrOne => number == Some(0.0) || number == Some(1.0),
            Neutral::Bool(off) => matches!(value, Value::Bool(v) if *v == off),
            Neutral::AttentionScale => number.is_some_and(|scale| {
                let usual = 1.0 / (head_dim as f64).sqrt();
                scale == 0.0 || (scale - usual).abs() < 1e-6
            }),
        }
    }
}

/// A value in an error.
fn show(value: &Value) -> String {
    match value {
        Value::F32(v) => v.to_string(),
        Value::F64(v) => v.to_string(),
        Value::Bool(v) => v.to_string(),
        Value::String(bytes) => quote(&String::from_utf8_lossy(bytes)),
        other => other
            .as_u64()
            .map_or_else(|| other.describe(), |number| number.to_string()),
    }
}
