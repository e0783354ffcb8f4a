//! One pre-norm transformer decoder for all families. They differ in numbers (rotation, window) and in
//! what stands in brackets; there is no file for an architecture and none for a quantisation.
//!
//! ```text
//! x = embedding[tokens] [* scale]
//! each layer:  q, k, v = rotate([norm](norm(x) * Wqkv [+ bias]));  append k, v
//!              x += [norm](attention(q, KV [in its window]) * Wo)
//!              x += [norm]((activation(norm(x) * Wgate) * (norm(x) * Wup)) * Wdown)
//! logits = norm(x[rows asked for]) * Woutput
//! ```
//!
//! [`weights`] names the tensors, [`batch`] checks a pass, [`cpu`] and [`tensor`] are the two
//! executors of the recipe. No layer owns KV.

mod batch;
mod cpu;
mod embedding;
mod kv;
mod load;
mod manifest;
mod rope;
mod tensor;
mod tensor_kv;
#[cfg(test)]
mod tests;
mod weights;

pub(crate) use load::{LoadParts, load};
pub(crate) use tensor::candle_type;
pub use tensor_kv::TensorKv;

use crate::Error;

pub(crate) fn kernel_error(error: kernels::Error) -> Error {
    Error::new(error.blame(), error.to_string()).caused_by(error)
}

/// candle says what went wrong, not whose fault it is. Shapes and types were checked before, so it
/// is the device.
fn tensor_error(error: candle_core::Error) -> Error {
    Error::device(format!("tensor operation failed: {error}")).caused_by(error)
}

fn foreign_kv() -> Error {
    Error::bug("the KV store was made for another model; use the one from this model's new_kv")
}
