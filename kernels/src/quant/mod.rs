//! The GGML weight formats: block layouts, and what the numbers in them mean.

pub(crate) mod blocks;
mod types;

pub use blocks::dequantise;
pub use types::WeightType;
