//! Products of activations and weights.

use crate::{Scratch, ThreadPool, Weight};

/// `x` [T, cols] f32 times `w` [rows, cols] transposed -> `out` [T, rows] f32.
///
/// Numerics v1: `out[t][r]` has the same bits for any T, thread count and place in the batch.
pub fn matmul(pool: &ThreadPool, x: &[f32], w: &Weight, out: &mut [f32], scratch: &mut Scratch) {
    matmul_each(pool, x, &[w], &mut [out], scratch);
}

/// The same `x` [T, cols] times several weights -> `outs[i]` [T, rows of ws[i]]. `x` is rounded once.
pub fn matmul_each(
    pool: &ThreadPool,
    x: &[f32],
    ws: &[&Weight],
    outs: &mut [&mut [f32]],
    scratch: &mut Scratch,
) {
    let _ = (pool, scratch);
    assert_eq!(ws.len(), outs.len());
    for (w, out) in ws.iter().zip(outs) {
        w.multiply(x, out);
    }
}
