//! The plain twins: each kernel once more, slow and short enough to check by eye.
//!
//! They define numerics v1. The fast kernels are tested to give the same bits.

use std::ops::Range;

use half::f16;

use crate::limits::{AMAX_MIN, QUANT_COLS, TILE_TOKENS};
use crate::quant::blocks::block32;
use crate::quant::{WeightType, dequantise};
use crate::{Activation, AttnShape, KvArena, KvType, MatrixShape, SeqSpan, math};

/// 32 activations rounded to int8.
#[derive(Clone, Copy, Debug)]
pub struct Rounded {
    /// `x = d * q`; NaN when any of the 32 was not finite.
    pub d: f32,
    /// The rounded numbers, -127..=127.
    pub q: [i8; 32],
}

/// Rounds 32 activations: `d = amax / 127`, ties to even. `x` [32] f32.
pub fn round_block(x: &[f32]) -> Rounded {
    let amax = x.iter().fold(0, |m, v| v.abs().to_bits().max(m));
    let amax = f32::from_bits(amax);
    let mut q = [0; 32];
    if !amax.is_finite() {
        return Rounded { d: f32::NAN, q };
    }
    if amax < AMAX_MIN {
        return Rounded { d: 0.0, q };
    }
    let inverse = 127.0 / amax;
    for (q, x) in q.iter_mut().zip(x) {
        *q = (x * inverse).round_ties_even() as i8;
    }
    Rounded { d: amax / 127.0, q }
}

/// `x` [T, cols] f32 times a weight [rows, cols], transposed -> `out` [T, rows] f32.
pub fn matmul(x: &[f32], bytes: &[u8], ty: WeightType, shape: MatrixShape, out: &mut [f32]) {
    let MatrixShape { rows, cols } = shape;
    let row_bytes = ty.row_bytes(cols).expect("checked by Weight::new");
    for (x, out) in x.chunks_exact(cols).zip(out.chunks_exact_mut(rows)) {
        for (r, out) in out.iter_mut().enumerate() {
            let row = &bytes[r * row_bytes..(r + 1) * row_bytes];
            *out = if ty.is_quantised() {
                dot_quantised(x, row, ty)
            } else {
                dot_float(x, row, ty)
            };
        }
    }
}

/// Block by block: an exact integer dot, then one fused multiply-add (two with a minimum).
fn dot_quantised(x: &[f32], row: &[u8], ty: WeightType) -> f32 {
    let mut acc = 0f32;
    for (i, x) in x.chunks_exact(32).enumerate() {
        let w = block32(ty, row, i);
        let (d, m) = (w.d.to_f32(), w.m.to_f32());
        let x = round_block(x);
        let mut dot = [0i32; 2];
        let mut sum = [0i32; 2];
        for c in 0..32 {
            dot[c / 16] += (i32::from(w.q[c]) - ty.offset()) * i32::from(x.q[c]);
            sum[c / 16] += i32::from(x.q[c]);
        }
        if ty.scales_by_16() {
            let dot = w.sc[0] * dot[0] + w.sc[1] * dot[1];
            acc = (dot as f32).mul_add(d * x.d, acc);
            if ty.has_min() {
                let min = w.mn[0] * sum[0] + w.mn[1] * sum[1];
                acc = (min as f32).mul_add(m * x.d, acc);
            }
        } else {
            let scale = (d * w.sc[0] as f32) * x.d;
            acc = ((dot[0] + dot[1]) as f32).mul_add(scale, acc);
            if ty.has_min() {
                let min = m * w.mn[0] as f32;
                acc = min.mul_add(x.d * (sum[0] + sum[1]) as f32, acc);
            }
        }
    }
    acc
}

/// Four accumulators, column `k` into accumulator `k % 4`.
fn dot_float(x: &[f32], row: &[u8], ty: WeightType) -> f32 {
    let mut w = vec![0.0; x.len()];
    dequantise(ty, row, &mut w);
    let mut acc = [0f32; 4];
    for (k, (x, w)) in x.iter().zip(&w).enumerate() {
        acc[k % 4] = w.mul_add(*x, acc[k % 4]);
    }
    (acc[0] + acc[1]) + (acc[2] + acc[3])
}

/// Causal attention; the arguments are those of [`crate::attention`].
///
/// For each query row and head, tiles of 128 positions, of which the row sees those in its window: scores,
/// their maximum, exponentials, weighted sum of V. Tiles are merged in order of position.
pub fn attention(
    kv: &KvArena,
    layer: usize,
    seqs: &[SeqSpan<'_>],
    q: &[f32],
    shape: AttnShape,
    out: &mut [f32],
) {
    let AttnShape {
        q_heads, head_dim, ..
    } = shape;
    let group = q_heads / shape.kv_heads;
    let mut rows = q.chunks_exact(q_heads * head_dim);
    let mut outs = out.chunks_exact_mut(q_heads * head_dim);
    for seq in seqs {
        for position in seq.start..seq.start + seq.rows {
            let (q, out) = (rows.next().unwrap(), outs.next().unwrap());
            let heads = q.chunks_exact(head_dim).zip(out.chunks_exact_mut(head_dim));
            for (h, (q, out)) in heads.enumerate() {
                let at = Head {
                    kv,
                    layer,
                    head: h / group,
                    table: seq.table,
                };
                one_row(
                    &at,
                    q,
                    shape.first_seen(position)..position + 1,
                    shape.scale,
                    out,
                );
            }
        }
    }
}

/// One KV head of one sequence.
struct Head<'a> {
    kv: &'a KvArena,
    layer: usize,
    head: usize,
    table: &'a [u32],
}

impl Head<'_> {
    fn k(&self, position: usize, d: usize) -> f32 {
        self.kv.k_at(self.table, self.layer, self.head, position, d)
    }
    fn v(&self, position: usize, d: usize) -> f32 {
        self.kv.v_at(self.table, self.layer, self.head, position, d)
    }
}

/// `seen` are the positions that the row sees.
fn one_row(at: &Head<'_>, q: &[f32], seen: Range<usize>, scale: f32, out: &mut [f32]) {
    let (mut max, mut sum) = (0.0, 0.0);
    let first_tile = seen.start / TILE_TOKENS;
    for tile in first_tile..seen.end.div_ceil(TILE_TOKENS) {
        let first = tile * TILE_TOKENS;
        let keys = seen.start.saturating_sub(first)..(seen.end - first).min(TILE_TOKENS);
        let mut p = [0f32; TILE_TOKENS];
        for j in keys.clone() {
            let mut dot = 0f32;
            for (d, q) in q.iter().enumerate() {
                dot = at.k(first + j, d).mul_add(*q, dot);
            }
            p[j] = dot * scale;
        }
        let scores = &mut p[keys.clone()];
        let tile_max = scores.iter().fold(f32::NEG_INFINITY, |m, &s| m.max(s));
        for p in scores {
            *p = math::exp(*p - tile_max);
        }
        let tile_sum = math::sum(&p);
        let weighted = |d| move |o: f32, j| at.v(first + j, d).mul_add(p[j], o);
        let part: Vec<f32> = (0..out.len())
            .map(|d| keys.clone().fold(0f32, weighted(d)))
            .collect();
        if tile == first_tile {
            (max, sum) = (tile_max, tile_sum);
            out.copy_from_slice(&part);
            continue;
        }
        let new_max = if tile_max > max { tile_max } else { max };
        let (old, new) = (math::exp(max - new_max), math::exp(tile_max - new_max));
        sum = sum.mul_add(old, tile_sum * new);
        for (o, part) in out.iter_mut().zip(&part) {
            *o = o.mul_add(old, part * new);
        }
        max = new_max;
    }
    let inverse = 1.0 / sum;
    for o in out {
        *o *= inverse;
    }
}

/// K or V of one head at one position, `x` [head_dim], as the KV arena gives it back.
pub fn stored(x: &[f32], ty: KvType) -> Vec<f32> {
    match ty {
        KvType::F32 => x.to_vec(),
        KvType::F16 => x.iter().map(|x| f16::from_f32(*x).to_f32()).collect(),
        KvType::Q8_0 => x.chunks(QUANT_COLS).flat_map(in_eight_bits).collect(),
    }
}

fn in_eight_bits(x: &[f32]) -> Vec<f32> {
    let largest = x.iter().fold(0f32, |m, x| m.max(x.abs()));
    let scale = f16::from_f32(largest / 127.0).to_f32();
    let whole = |x: &f32| (x * (1.0 / scale)).round_ties_even().clamp(-127.0, 127.0);
    x.iter()
        .map(|x| match scale == 0.0 {
            true => 0.0,
            false => whole(x) * scale,
        })
        .collect()
}

/// Root-mean-square norm of one row: `x` [d], `weight` [d] -> `out` [d].
pub fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let mut lanes = [0f32; 16];
    for (i, x) in x.iter().enumerate() {
        lanes[i % 16] = x.mul_add(*x, lanes[i % 16]);
    }
    let scale = 1.0 / (math::fold(lanes) / x.len() as f32 + eps).sqrt();
    for ((o, x), w) in out.iter_mut().zip(x).zip(weight) {
        *o = x * scale * w;
    }
}

/// `activation(gate) * up`.
pub fn gated_mul(activation: Activation, gate: f32, up: f32) -> f32 {
    let bent = match activation {
        Activation::Silu => gate,
        Activation::Gelu => gate * (gate * gate).mul_add(math::GELU_CUBE, math::GELU_LINE),
    };
    gate / (1.0 + math::exp(0.0 - bent)) * up
}

/// Softmax of one row, in place.
pub fn softmax(x: &mut [f32]) {
    let max = x.iter().fold(f32::NEG_INFINITY, |m, v| m.max(*v));
    for x in &mut *x {
        *x = math::exp(*x - max);
    }
    let sum = math::sum(x);
    for x in x {
        *x /= sum;
    }
}
