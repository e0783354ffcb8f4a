//! Arithmetic. Knows shapes and bytes; no model, no text, no I/O.
//!
//! Numerics v1: every output element is reduced in one fixed order, whatever is
//! computed beside it. A row has the same bits alone or among 512, on one
//! thread or many, on AVX-512, AVX2 or plain code. [`plain`] defines the order.

mod activations;
mod aligned;
mod attention;
mod attention_block;
mod attention_tile;
mod blame;
mod error;
mod gemm_float;
mod gemm_quant;
mod isa;
mod kv;
mod kv_append;
pub mod limits;
pub mod math;
mod matmul;
pub mod plain;
mod pool;
mod probe;
mod quant;
mod rope;
mod rows;
mod scratch;
mod share;
mod stored;
mod weight;

pub use attention::{AttnShape, attention, first_seen};
pub use blame::Blame;
pub use error::Error;
pub use isa::{KernelPath, kernel_path};
pub use kv::{KvArena, KvShape, KvType, SeqSpan};
pub use kv_append::append_kv;
pub use limits::BLOCK_TOKENS;
pub use matmul::{matmul, matmul_each};
pub use pool::ThreadPool;
pub use probe::{MachineLimits, probe};
pub use quant::{WeightType, dequantise};
pub use rope::{RopeSpec, RopeStyle, RopeTable, rope};
pub use rows::{
    Activation, add, add_bias, argmax, gated_mul, rms_norm, rms_norm_in_place, scale, softmax,
};
pub use scratch::Scratch;
pub use weight::{MatrixShape, Weight};

/// Version of the arithmetic; part of a model's identity.
pub const NUMERICS_VERSION: u32 = 1;
