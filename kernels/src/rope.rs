//! Rotary position embedding, from a table of cosines and sines.
//!
//! The angle of pair `i` at position `p` is `p / (linear_scale * factors[i] * base^(2 i / dims))`,
//! computed in f64 and rounded once. Plain multiplies and adds, so every path
//! gives the same bits. After RoFormer (Su et al.) and llama.cpp's `rope_freqs`.

use crate::limits::ROWS_BYTES_MIN;
use crate::share::Parts;
use crate::{Error, ThreadPool};

/// Which two numbers of a head form a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RopeStyle {
    /// `(2 i, 2 i + 1)`: llama as GGUF stores it.
    Norm,
    /// `(i, i + dims / 2)`: qwen2 and most others.
    Neox,
}

/// What the angles are computed from.
#[derive(Clone, Copy, Debug)]
pub struct RopeSpec<'a> {
    pub style: RopeStyle,
    /// Rotated dimensions at the start of each head; even.
    pub dims: usize,
    pub base: f64,
    /// Positions are divided by this (linear scaling); 1 for none.
    pub linear_scale: f64,
    /// `rope_freqs.weight` [dims / 2]: each angle is divided by its factor.
    pub factors: Option<&'a [f32]>,
}

/// Cosines and sines of positions `0..positions`.
pub struct RopeTable {
    style: RopeStyle,
    dims: usize,
    /// [positions][dims / 2].
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl RopeTable {
    /// Builds the table.
    ///
    /// # Errors
    /// `Request` for odd or zero dims, a factor list of another length, or numbers that are not positive.
    pub fn new(spec: RopeSpec<'_>, positions: usize) -> Result<RopeTable, Error> {
        let half = spec.dims / 2;
        let factors_fit = spec
            .factors
            .is_none_or(|f| f.len() == half && f.iter().all(|f| f.is_finite() && *f > 0.0));
        let sane = spec.dims > 0 && spec.dims.is_multiple_of(2);
        let positive = |x: f64| x.is_finite() && x > 0.0;
        if !sane || !factors_fit || !positive(spec.base) || !positive(spec.linear_scale) {
            return Err(Error::Request {
                what: "RoPE",
                need: "even dims, positive base and scale, dims / 2 positive factors".into(),
                have: format!(
                    "dims {}, base {}, scale {}, {} factors",
                    spec.dims,
                    spec.base,
                    spec.linear_scale,
                    spec.factors.map_or(0, <[f32]>::len)
                ),
                fix: "convert the model again",
            });
        }
        let inverse: Vec<f64> = (0..half)
            .map(|i| {
                let exponent = 2.0 * i as f64 / spec.dims as f64;
                let factor = spec.factors.map_or(1.0, |f| f64::from(f[i]));
                1.0 / (spec.base.powf(exponent) * factor * spec.linear_scale)
            })
            .collect();
        let mut cos = Vec::with_capacity(positions * half);
        let mut sin = Vec::with_capacity(positions * half);
        for p in 0..positions {
            for f in &inverse {
                let (s, c) = (p as f64 * f).sin_cos();
                cos.push(c as f32);
                sin.push(s as f32);
            }
        }
        Ok(RopeTable {
            style: spec.style,
            dims: spec.dims,
            cos,
            sin,
        })
    }

    /// Positions the table covers.
    pub fn positions(&self) -> usize {
        self.cos.len() / (self.dims / 2)
    }
}

/// Rotates every head of every row in place: `x` [T, heads, head_dim] f32, row `t` at `positions[t]`.
///
/// # Panics
/// When a position is outside the table or `x` is not T rows of heads.
pub fn rope(
    pool: &ThreadPool,
    x: &mut [f32],
    head_dim: usize,
    positions: &[u32],
    table: &RopeTable,
) {
    if positions.is_empty() {
        assert!(x.is_empty(), "a row for each position");
        return;
    }
    assert!(table.dims <= head_dim && x.len().is_multiple_of(positions.len() * head_dim));
    let row = x.len() / positions.len();
    let unit = (ROWS_BYTES_MIN / 4).div_ceil(row);
    if pool.threads() == 1 || positions.len() <= unit {
        rotate_rows(x, row, head_dim, positions, table);
        return;
    }
    let parts = Parts::new(x);
    pool.for_units(positions.len().div_ceil(unit), &|i, _| {
        let rows = &positions[i * unit..positions.len().min((i + 1) * unit)];
        // SAFETY: units do not overlap.
        let x = unsafe { parts.part(i * unit * row, rows.len() * row) };
        rotate_rows(x, row, head_dim, rows, table);
    });
}

fn rotate_rows(x: &mut [f32], row: usize, head_dim: usize, positions: &[u32], table: &RopeTable) {
    let half = table.dims / 2;
    for (x, p) in x.chunks_exact_mut(row).zip(positions) {
        let pairs = *p as usize * half..(*p as usize + 1) * half;
        let (cos, sin) = (&table.cos[pairs.clone()], &table.sin[pairs]);
        for head in x.chunks_exact_mut(head_dim) {
            rotate(table.style, &mut head[..table.dims], cos, sin);
        }
    }
}

/// Rotates one head: `x` [dims], `cos`, `sin` [dims / 2].
fn rotate(style: RopeStyle, x: &mut [f32], cos: &[f32], sin: &[f32]) {
    match style {
        RopeStyle::Norm => {
            for ((x, cos), sin) in x.chunks_exact_mut(2).zip(cos).zip(sin) {
                (x[0], x[1]) = (x[0] * cos - x[1] * sin, x[0] * sin + x[1] * cos);
            }
        }
        RopeStyle::Neox => {
            let (a, b) = x.split_at_mut(cos.len());
            for (((a, b), cos), sin) in a.iter_mut().zip(b).zip(cos).zip(sin) {
                (*a, *b) = (*a * cos - *b * sin, *a * sin + *b * cos);
            }
        }
    }
}
