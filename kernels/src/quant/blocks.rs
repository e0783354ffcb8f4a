//! One decoder for every quantised format: 32 columns of one row become small
//! unsigned numbers and their scales.
//!
//! Invariant: the value of column `c` is
//! `(d * sc[c / 16]) * (q[c] - offset) + m * mn[c / 16]`, with plain multiplies and
//! one add, in that order. Both the source blocks and the repacked tiles decode
//! to this, so there is one meaning. After `ggml-quants.c` (dequantize_row_*).

use half::{bf16, f16};

use super::WeightType;

/// 32 columns of one row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Block32 {
    /// Stored numbers, still with the type's offset.
    pub q: [u8; 32],
    /// Scale of the block.
    pub d: f16,
    /// Minimum of the block; zero for types without.
    pub m: f16,
    /// Integer scales of the two halves.
    pub sc: [i32; 2],
    /// Integer minima of the two halves.
    pub mn: [i32; 2],
}

impl Block32 {
    /// The 32 values: `out` [32] f32.
    pub fn values(&self, ty: WeightType, out: &mut [f32]) {
        for (half, out) in out.chunks_exact_mut(16).enumerate() {
            let scale = self.d.to_f32() * self.sc[half] as f32;
            let min = self.m.to_f32() * self.mn[half] as f32;
            for (o, &q) in out.iter_mut().zip(&self.q[16 * half..16 * half + 16]) {
                let x = scale * (i32::from(q) - ty.offset()) as f32;
                *o = if ty.has_min() { x + min } else { x };
            }
        }
    }
}

/// Dequantises whole blocks: `bytes` of `ty`, `out` f32 values. The plain reference.
///
/// # Panics
/// When `bytes` does not hold exactly `out.len()` values.
pub fn dequantise(ty: WeightType, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(
        ty.row_bytes(out.len()),
        Some(bytes.len()),
        "{ty}: {} values need as many blocks",
        out.len()
    );
    match ty {
        WeightType::F32 => {
            for (o, b) in out.iter_mut().zip(bytes.chunks_exact(4)) {
                *o = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
            }
        }
        WeightType::F16 => {
            for (o, b) in out.iter_mut().zip(bytes.chunks_exact(2)) {
                *o = f16::from_le_bytes([b[0], b[1]]).to_f32();
            }
        }
        WeightType::BF16 => {
            for (o, b) in out.iter_mut().zip(bytes.chunks_exact(2)) {
                *o = bf16::from_le_bytes([b[0], b[1]]).to_f32();
            }
        }
        _ => {
            for (i, o) in out.chunks_exact_mut(32).enumerate() {
                block32(ty, bytes, i).values(ty, o);
            }
        }
    }
}

/// Reads a half-precision number at byte `at`.
#[inline(always)]
fn half_at(bytes: &[u8], at: usize) -> f16 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// Decodes block `index` (32 columns each) of a row's source bytes.
///
/// # Panics
/// For float types, which have no blocks, and when the row is too short.
#[inline(always)]
pub(crate) fn block32(ty: WeightType, row: &[u8], index: usize) -> Block32 {
    let per_source = ty.block_len() / 32;
    let size = ty.block_bytes();
    let source = index / per_source;
    let bytes = &row[source * size..(source + 1) * size];
    let sub = index % per_source;
    match ty {
        WeightType::Q4_0 => simple(half_at(bytes, 0), f16::ZERO, nibbles(&bytes[2..18])),
        WeightType::Q4_1 => simple(half_at(bytes, 0), half_at(bytes, 2), nibbles(&bytes[4..20])),
        WeightType::Q5_0 => simple(half_at(bytes, 0), f16::ZERO, fives(&bytes[2..22])),
        WeightType::Q5_1 => simple(half_at(bytes, 0), half_at(bytes, 2), fives(&bytes[4..24])),
        WeightType::Q8_0 => {
            let mut q = [0; 32];
            for (q, &b) in q.iter_mut().zip(&bytes[2..34]) {
                *q = b ^ 0x80;
            }
            simple(half_at(bytes, 0), f16::ZERO, q)
        }
        WeightType::Q2K => q2k(bytes, sub),
        WeightType::Q3K => q3k(bytes, sub),
        WeightType::Q4K => q4k(bytes, sub),
        WeightType::Q5K => q5k(bytes, sub),
        WeightType::Q6K => q6k(bytes, sub),
        WeightType::F32 | WeightType::F16 | WeightType::BF16 => {
            unreachable!("float types have no blocks")
        }
    }
}

#[inline(always)]
fn simple(d: f16, m: f16, q: [u8; 32]) -> Block32 {
    Block32 {
        q,
        d,
        m,
        sc: [1, 1],
        mn: [1, 1],
    }
}

/// 16 bytes: column j in the low half of byte j, column j + 16 in the high half.
#[inline(always)]
fn nibbles(bytes: &[u8]) -> [u8; 32] {
    let mut q = [0; 32];
    for (j, &b) in bytes.iter().enumerate() {
        q[j] = b & 15;
        q[j + 16] = b >> 4;
    }
    q
}

/// 4 bytes of fifth bits, then nibbles.
#[inline(always)]
fn fives(bytes: &[u8]) -> [u8; 32] {
    let high = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    let mut q = nibbles(&bytes[4..20]);
    for (j, q) in q.iter_mut().enumerate() {
        *q |= ((high >> j & 1) << 4) as u8;
    }
    q
}

/// Two bits of each of 32 columns of sub-block `sub`, from 64 bytes.
#[inline(always)]
fn pairs(qs: &[u8], sub: usize) -> [u8; 32] {
    let mut q = [0; 32];
    for (q, &b) in q.iter_mut().zip(&qs[sub / 4 * 32..]) {
        *q = b >> (2 * (sub % 4)) & 3;
    }
    q
}

/// scales [16] (4-bit scale, 4-bit minimum), qs [64], d, dmin.
#[inline(always)]
fn q2k(bytes: &[u8], sub: usize) -> Block32 {
    let s = [bytes[2 * sub], bytes[2 * sub + 1]];
    Block32 {
        q: pairs(&bytes[16..80], sub),
        d: half_at(bytes, 80),
        m: -half_at(bytes, 82),
        sc: s.map(|s| i32::from(s & 15)),
        mn: s.map(|s| i32::from(s >> 4)),
    }
}

/// hmask [32], qs [64], scales [12] (sixteen of 6 bits), d.
#[inline(always)]
fn q3k(bytes: &[u8], sub: usize) -> Block32 {
    let mut q = pairs(&bytes[32..96], sub);
    for (q, &h) in q.iter_mut().zip(&bytes[..32]) {
        *q |= (h >> sub & 1) << 2;
    }
    let scales = &bytes[96..108];
    let scale = |i: usize| {
        let low = scales[i % 8] >> (4 * (i / 8)) & 15;
        let high = scales[8 + i % 4] >> (2 * (i / 4)) & 3;
        i32::from(low | high << 4) - 32
    };
    Block32 {
        q,
        d: half_at(bytes, 108),
        m: f16::ZERO,
        sc: [scale(2 * sub), scale(2 * sub + 1)],
        mn: [1, 1],
    }
}

/// The 6-bit scale and minimum of sub-block `sub` in 12 bytes.
#[inline(always)]
fn scale_min(s: &[u8], sub: usize) -> (i32, i32) {
    let (sc, mn) = if sub < 4 {
        (s[sub] & 63, s[sub + 4] & 63)
    } else {
        (
            s[sub + 4] & 15 | s[sub - 4] >> 6 << 4,
            s[sub + 4] >> 4 | s[sub] >> 6 << 4,
        )
    };
    (i32::from(sc), i32::from(mn))
}

/// Nibbles of sub-block `sub` in 128 bytes: each 32 bytes hold two sub-blocks.
#[inline(always)]
fn wide_nibbles(qs: &[u8], sub: usize) -> [u8; 32] {
    let mut q = [0; 32];
    for (q, &b) in q.iter_mut().zip(&qs[sub / 2 * 32..]) {
        *q = b >> (4 * (sub % 2)) & 15;
    }
    q
}

/// d, dmin, scales [12], qs [128].
#[inline(always)]
fn q4k(bytes: &[u8], sub: usize) -> Block32 {
    let (sc, mn) = scale_min(&bytes[4..16], sub);
    Block32 {
        q: wide_nibbles(&bytes[16..144], sub),
        d: half_at(bytes, 0),
        m: -half_at(bytes, 2),
        sc: [sc, sc],
        mn: [mn, mn],
    }
}

/// d, dmin, scales [12], qh [32], qs [128].
#[inline(always)]
fn q5k(bytes: &[u8], sub: usize) -> Block32 {
    let (sc, mn) = scale_min(&bytes[4..16], sub);
    let mut q = wide_nibbles(&bytes[48..176], sub);
    for (q, &h) in q.iter_mut().zip(&bytes[16..48]) {
        *q |= (h >> sub & 1) << 4;
    }
    Block32 {
        q,
        d: half_at(bytes, 0),
        m: -half_at(bytes, 2),
        sc: [sc, sc],
        mn: [mn, mn],
    }
}

/// ql [128], qh [64], scales [16] i8, d.
#[inline(always)]
fn q6k(bytes: &[u8], sub: usize) -> Block32 {
    let (n, j) = (sub / 4, sub % 4);
    let low = &bytes[n * 64 + j % 2 * 32..];
    let high = &bytes[128 + n * 32..];
    let mut q = [0; 32];
    for (l, q) in q.iter_mut().enumerate() {
        *q = low[l] >> (4 * (j / 2)) & 15 | (high[l] >> (2 * j) & 3) << 4;
    }
    let scale = |i: usize| i32::from(bytes[192 + i] as i8);
    Block32 {
        q,
        d: half_at(bytes, 208),
        m: f16::ZERO,
        sc: [scale(2 * sub), scale(2 * sub + 1)],
        mn: [1, 1],
    }
}
