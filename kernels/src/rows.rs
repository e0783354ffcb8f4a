//! What happens to each row of activations between the matrix products.
//!
//! Every function works row by row in one fixed order; rows are shared out among
//! the threads and do not know of each other.

use crate::{ThreadPool, math};

/// Root-mean-square norm: `x` [T, d], `weight` [d] -> `out` [T, d].
pub fn rms_norm(pool: &ThreadPool, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let _ = pool;
    let d = weight.len();
    assert_eq!(x.len(), out.len());
    for (x, out) in x.chunks_exact(d).zip(out.chunks_exact_mut(d)) {
        let mut lanes = [0f32; 16];
        for (i, x) in x.iter().enumerate() {
            lanes[i % 16] = x.mul_add(*x, lanes[i % 16]);
        }
        let scale = 1.0 / (math::fold(lanes) / d as f32 + eps).sqrt();
        for ((o, x), w) in out.iter_mut().zip(x).zip(weight) {
            *o = x * scale * w;
        }
    }
}

/// SwiGLU: `gate` becomes `silu(gate) * up`, element by element; both [T, ffn].
pub fn silu_mul(pool: &ThreadPool, gate: &mut [f32], up: &[f32]) {
    let _ = pool;
    assert_eq!(gate.len(), up.len());
    for (g, u) in gate.iter_mut().zip(up) {
        *g = *g / (1.0 + math::exp(-*g)) * u;
    }
}

/// `x += y`, element by element.
pub fn add(pool: &ThreadPool, x: &mut [f32], y: &[f32]) {
    let _ = pool;
    assert_eq!(x.len(), y.len());
    for (x, y) in x.iter_mut().zip(y) {
        *x += y;
    }
}

/// Adds `bias` [d] to each row of `x` [T, d].
pub fn add_bias(pool: &ThreadPool, x: &mut [f32], bias: &[f32]) {
    let _ = pool;
    assert!(x.len().is_multiple_of(bias.len()));
    for x in x.chunks_exact_mut(bias.len()) {
        for (x, b) in x.iter_mut().zip(bias) {
            *x += b;
        }
    }
}

/// Softmax of each row of `x` [T, d], in place.
pub fn softmax(pool: &ThreadPool, x: &mut [f32], d: usize) {
    let _ = pool;
    assert!(x.len().is_multiple_of(d));
    for x in x.chunks_exact_mut(d) {
        let max = x.iter().fold(f32::NEG_INFINITY, |m, v| m.max(*v));
        for x in &mut *x {
            *x = math::exp(*x - max);
        }
        let sum = math::sum(x);
        for x in x {
            *x /= sum;
        }
    }
}

/// Index of the largest value of `x`; the first of equals; NaN never wins. `None` when there is none.
pub fn argmax(x: &[f32]) -> Option<usize> {
    let mut best: Option<usize> = None;
    for (i, v) in x.iter().enumerate() {
        if !v.is_nan() && best.is_none_or(|b| *v > x[b]) {
            best = Some(i);
        }
    }
    best
}
