//! Who a model is, as far as its KV and its answers go: two models with one identity may share
//! cached KV, and two that could differ in a single bit have different identities.
//!
//! sha256 over a domain and length-prefixed fields, so that no two lists of fields hash alike.
//! The tokenizer and the template do not count: token ids decide the KV.

use std::fmt;

use kernels::{KernelPath, KvType, NUMERICS_VERSION, RopeStyle};
use sha2::{Digest as _, Sha256};

use crate::config::{Config, Rope};
use crate::device::Device;
use crate::gguf::WeightsDigest;

const DOMAIN: &str = "ostler model identity v1";

/// The digest that every chain of cache keys begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModelIdentity([u8; 32]);

/// All that the KV of a model depends on.
pub(crate) struct IdentityParts<'a> {
    pub weights: WeightsDigest,
    pub config: &'a Config,
    pub kv_type: KvType,
    pub executor: Executor,
}

/// What computes: results of two of them may differ in bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Executor {
    /// Our kernels, on the given path.
    Kernels(KernelPath),
    /// candle's tensors, on a device of this kind.
    Tensor(Device),
}

impl ModelIdentity {
    pub(crate) fn new(parts: &IdentityParts<'_>) -> Self {
        let mut fields = Fields(Sha256::new());
        fields.text(DOMAIN);
        fields.bytes(&parts.weights.0);
        fields.config(parts.config);
        let config = parts.config;
        fields.numbers(&[config.layers, config.kv_heads, config.head_dim]);
        fields.text(match parts.kv_type {
            KvType::F32 => "f32",
            KvType::F16 => "f16",
            KvType::Q8_0 => "q8_0",
        });
        fields.text("no adapter");
        fields.bytes(&NUMERICS_VERSION.to_le_bytes());
        fields.text(&match parts.executor {
            Executor::Kernels(path) => format!("kernels {path:?}"),
            Executor::Tensor(Device::Cpu { .. }) => "tensor cpu".to_owned(),
            Executor::Tensor(Device::Cuda { .. }) => "tensor cuda".to_owned(),
            Executor::Tensor(Device::Metal { .. }) => "tensor metal".to_owned(),
        });
        Self(fields.0.finalize().into())
    }

    /// An identity from a digest made elsewhere: for engines tested without a model.
    pub const fn from_bytes(digest: [u8; 32]) -> Self {
        Self(digest)
    }

    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// Hex, whole.
impl fmt::Display for ModelIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A hash that is fed whole fields.
struct Fields(Sha256);

impl Fields {
    fn bytes(&mut self, field: &[u8]) {
        self.0.update((field.len() as u64).to_le_bytes());
        self.0.update(field);
    }

    fn text(&mut self, field: &str) {
        self.bytes(field.as_bytes());
    }

    /// Hyper-parameters and rotation; what else a family computes follows from its name and these. The types of
    /// the matrices are in the weights' digest.
    fn config(&mut self, config: &Config) {
        self.text(config.family.name());
        let Config {
            layers,
            d_model,
            d_ff,
            q_heads,
            kv_heads,
            head_dim,
            vocab,
            ..
        } = *config;
        self.numbers(&[layers, d_model, d_ff, q_heads, kv_heads, head_dim, vocab]);
        self.bytes(&config.norm_eps.to_le_bytes());
        self.numbers(&[
            usize::from(config.qkv_bias),
            usize::from(config.tied_output),
        ]);
        self.rope(&config.rope);
        if let Some(window) = &config.window {
            self.numbers(&[window.tokens.get(), window.period]);
            self.rope(&window.rope);
        }
    }

    fn rope(&mut self, rope: &Rope) {
        self.text(match rope.style {
            RopeStyle::Norm => "norm",
            RopeStyle::Neox => "neox",
        });
        self.numbers(&[rope.dims]);
        self.bytes(&rope.base.to_le_bytes());
        self.bytes(&rope.linear_scale.to_le_bytes());
        let factors = rope.factors.iter().flatten();
        self.bytes(&factors.flat_map(|f| f.to_le_bytes()).collect::<Vec<u8>>());
    }

    fn numbers(&mut self, fields: &[usize]) {
        fields
            .iter()
            .for_each(|&n| self.bytes(&(n as u64).to_le_bytes()));
    }
}
