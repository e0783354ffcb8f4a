//! Token ids to rows of the embedding matrix, which is never dequantised whole.

use std::sync::Arc;

use bytes::Bytes;
use kernels::{MatrixShape, Weight, WeightType};

/// Where the rows of the embedding come from.
pub(crate) enum Embedding {
    /// Tied to the output: the matrix that gives the logits, in the form it is multiplied in.
    Output(Arc<Weight>),
    /// In the mapped file: only the pages of tokens that occur are ever read.
    Mapped {
        bytes: Bytes,
        ty: WeightType,
        shape: MatrixShape,
    },
}

impl Embedding {
    /// Rows `tokens` [T], each below `shape.rows` -> `out` [T, d_model] f32.
    pub fn rows(&self, tokens: &[u32], d_model: usize, out: &mut [f32]) {
        for (&token, out) in tokens.iter().zip(out.chunks_exact_mut(d_model)) {
            match self {
                Embedding::Output(weight) => weight.dequantise_row(token as usize, out),
                Embedding::Mapped { bytes, ty, shape } => {
                    let row_bytes = bytes.len() / shape.rows;
                    let start = token as usize * row_bytes;
                    kernels::dequantise(*ty, &bytes[start..start + row_bytes], out);
                }
            }
        }
    }
}
