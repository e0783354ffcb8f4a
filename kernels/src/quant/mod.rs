//! The GGML weight formats: block layouts, what the numbers in them mean, and their repacked form.

pub(crate) mod blocks;
pub(crate) mod formats;
mod types;

pub use blocks::dequantise;
pub use types::WeightType;
