//! One tile of attention: 128 positions of one KV head, for some query rows.
//!
//! Order, for a query row alone or beside others: each score is summed over `head_dim` in
//! order, in its key's lane; the softmax of the tile is whole; each output element is summed
//! over the tile's keys in order. Scores of keys beyond a row's position are cut off before the
//! softmax and their values are never weighed, so what an unwritten block holds cannot matter.

use std::ops::Range;

use crate::attention_block::{Keys, Numbers, score_block, weigh_block};
use crate::isa::{self, Isa};
use crate::limits::{BLOCK_TOKENS, QUANT_COLS, ROWS_AT_ONCE, TILE_TOKENS};
use crate::stored::{F32, Near, Stored};
use crate::{AttnShape, KvArena, math};

/// Consecutive query rows of one sequence against one KV head. A *row* here is one
/// (position, query head) pair: row `r` is query head `r % group` at position `first + r / group`.
#[derive(Clone, Copy)]
pub(crate) struct Queries<'a> {
    pub kv: &'a KvArena,
    pub layer: usize,
    pub head: usize,
    pub table: &'a [u32],
    pub shape: AttnShape,
    /// [positions, Hq, D], from position `first`.
    pub q: &'a [f32],
    pub first: usize,
}

/// What is known after some tiles: weighted sums `o` [rows, D], maxima and sums [rows].
pub(crate) struct Partial<'a> {
    pub o: &'a mut [f32],
    pub max: &'a mut [f32],
    pub sum: &'a mut [f32],
}

impl<'a> Partial<'a> {
    /// Floats of a partial of `rows` rows.
    pub fn len(rows: usize, head_dim: usize) -> usize {
        rows * (head_dim + 2)
    }

    pub fn new(buffer: &'a mut [f32], rows: usize, head_dim: usize) -> Partial<'a> {
        let (o, rest) = buffer.split_at_mut(rows * head_dim);
        let (max, rest) = rest.split_at_mut(rows);
        Partial {
            o,
            max,
            sum: &mut rest[..rows],
        }
    }
}

impl Queries<'_> {
    fn group(&self) -> usize {
        self.shape.q_heads / self.shape.kv_heads
    }

    fn positions(&self) -> usize {
        self.q.len() / (self.shape.q_heads * self.shape.head_dim)
    }

    /// Number of (position, query head) rows.
    pub fn rows(&self) -> usize {
        self.positions() * self.group()
    }

    /// Tiles from the first that the first row sees to the last that the last does.
    pub fn tiles(&self) -> Range<usize> {
        let last = self.first + self.positions() - 1;
        self.shape.first_seen(self.first) / TILE_TOKENS..last / TILE_TOKENS + 1
    }

    /// Offset of row `r` in `q`.
    fn row_at(&self, r: usize) -> usize {
        let (position, member) = (r / self.group(), r % self.group());
        (position * self.shape.q_heads + self.head * self.group() + member) * self.shape.head_dim
    }

    /// Copies this head's queries side by side: `to` [rows, D].
    pub fn gather(&self, to: &mut [f32]) {
        let d = self.shape.head_dim;
        for (r, to) in to.chunks_exact_mut(d).take(self.rows()).enumerate() {
            to.copy_from_slice(&self.q[self.row_at(r)..][..d]);
        }
    }

    /// First row at position `position` or behind it.
    fn rows_from(&self, position: usize) -> usize {
        let positions = position.saturating_sub(self.first).min(self.positions());
        positions * self.group()
    }

    /// First row whose window begins at `position` or behind it.
    fn rows_starting(&self, position: usize) -> usize {
        match self.shape.window {
            _ if position == 0 => 0,
            Some(window) => self.rows_from(position + window.get() - 1),
            None => self.rows(),
        }
    }

    /// Rows that see some of the positions.
    pub fn rows_seeing(&self, positions: Range<usize>) -> Range<usize> {
        self.rows_from(positions.start)..self.rows_starting(positions.end)
    }

    /// Keys of the tile starting at `start` that row `r` sees, within the tile.
    pub fn keys(&self, r: usize, start: usize) -> Range<usize> {
        let position = self.first + r / self.group();
        let first = self.shape.first_seen(position).saturating_sub(start);
        first..(position + 1 - start).min(TILE_TOKENS)
    }

    /// Start of K, then of V, of this head in the block of position `position`.
    fn block(&self, position: usize) -> (*const u8, *const u8) {
        let bytes = self.kv.block_bytes_ref(self.table[position / BLOCK_TOKENS]);
        let shape = self.kv.shape();
        let (k, v) = (
            shape.k_offset(self.layer, self.head),
            shape.v_offset(self.layer, self.head),
        );
        let n = shape.head_bytes();
        (bytes[k..k + n].as_ptr(), bytes[v..v + n].as_ptr())
    }
}

/// Tile `tile` of `queries` -> `out`, for the rows that see it. `q` [rows, D] holds the queries
/// gathered, `scores` [rows][128] and `wide` ([`wide_floats`]) are scratch.
///
/// # Safety
/// The machine has the instructions of `I`; the arena stores `S`.
#[inline(always)]
pub(crate) unsafe fn tile<I: Isa, S: Stored>(
    queries: &Queries<'_>,
    q: &[f32],
    tile: usize,
    scores: &mut [f32],
    wide: &mut [f32],
    out: &mut Partial<'_>,
) {
    let start = tile * TILE_TOKENS;
    let last = queries.first + queries.positions();
    let rows = queries.rows_seeing(start..start + TILE_TOKENS);
    let d = queries.shape.head_dim;
    assert!(scores.len() >= rows.end * TILE_TOKENS && q.len() >= rows.end * d);
    assert!(out.o.len() >= rows.end * d && wide.len() == wide_floats(d));
    let blocks = queries.keys(rows.start, start).start / BLOCK_TOKENS
        ..(last - start).min(TILE_TOKENS).div_ceil(BLOCK_TOKENS);
    let (wide, scales) = wide.split_at_mut(BLOCK_TOKENS * d);
    for b in blocks.clone() {
        let position = start + b * BLOCK_TOKENS;
        // After the last K the first V is read.
        let next = match b + 1 < blocks.end {
            true => queries.block(position + BLOCK_TOKENS).0,
            false => queries.block(start + blocks.start * BLOCK_TOKENS).1,
        };
        let rows = queries.rows_seeing(position..position + BLOCK_TOKENS);
        let scores = &mut scores[b * BLOCK_TOKENS..];
        // SAFETY: K of a block has `head_dim` lines of 32; `q` and `scores` have the rows.
        unsafe {
            let k = Numbers::<S>::new::<I>(queries.block(position).0, next, d, scales);
            if worth_widening::<S>(&rows) {
                k.widen_keys::<I>(wide);
                score_block::<I, Near>(Numbers::near(wide, d), q, rows, scores);
            } else {
                score_block::<I, S>(k, q, rows, scores);
            }
        }
    }
    for r in rows.clone() {
        let keys = queries.keys(r, start);
        let scores = &mut scores[r * TILE_TOKENS..(r + 1) * TILE_TOKENS];
        // SAFETY: `scores` is one tile.
        (out.max[r], out.sum[r]) = unsafe { softmax::<I>(scores, keys, queries.shape.scale) };
    }
    out.o[rows.start * d..rows.end * d].fill(0.0);
    for b in blocks.clone() {
        let position = start + b * BLOCK_TOKENS;
        let (_, v) = queries.block(position);
        // After the last V the first K of the next tile is read.
        let after = position + BLOCK_TOKENS;
        let next = match after < last {
            true if b + 1 < blocks.end => queries.block(after).1,
            true => queries.block(after).0,
            false => v,
        };
        let keys = Keys {
            queries,
            start,
            position,
        };
        // SAFETY: the weights of all rows are in `scores`.
        unsafe {
            let v = Numbers::<S>::new::<I>(v, next, d, scales);
            if worth_widening::<S>(&keys.rows()) {
                v.widen_values::<I>(wide);
                weigh_block::<I, Near>(Numbers::near(wide, d), &keys, scores, out.o);
            } else {
                weigh_block::<I, S>(v, &keys, scores, out.o);
            }
        }
    }
}

/// Floats of `wide`: a block's numbers, then their scales.
pub(crate) fn wide_floats(head_dim: usize) -> usize {
    BLOCK_TOKENS * (head_dim + head_dim.div_ceil(QUANT_COLS))
}

/// Whether so many rows read a block that its numbers are better converted once.
fn worth_widening<S: Stored>(rows: &Range<usize>) -> bool {
    S::BYTES < F32::BYTES && rows.len() > ROWS_AT_ONCE
}

/// Scores [128], of which those of `keys` count, become weights; gives their maximum and sum.
///
/// # Safety
/// `scores` has 128 elements.
#[inline(always)]
unsafe fn softmax<I: Isa>(scores: &mut [f32], keys: Range<usize>, scale: f32) -> (f32, f32) {
    let n = keys.end;
    debug_assert!(scores.len() == TILE_TOKENS && !keys.is_empty() && n <= TILE_TOKENS);
    let vectors = keys.start / 16..n.div_ceil(16);
    scores[16 * vectors.start..keys.start].fill(f32::NEG_INFINITY);
    let scores = scores.as_mut_ptr();
    // SAFETY: eight vectors of sixteen.
    unsafe {
        let mut max = I::splat(f32::NEG_INFINITY);
        for v in vectors.clone() {
            let s = I::mul(I::load(scores.add(16 * v)), I::splat(scale));
            let s = I::fill_from(s, (n - 16 * v).min(16), f32::NEG_INFINITY);
            I::store(scores.add(16 * v), s);
            max = I::max(s, max);
        }
        let max = I::fold_max(max);
        let mut sum = I::splat(0.0);
        for v in vectors {
            let p = isa::exp::<I>(I::sub(I::load(scores.add(16 * v)), I::splat(max)));
            let p = I::fill_from(p, (n - 16 * v).min(16), 0.0);
            I::store(scores.add(16 * v), p);
            sum = I::add(sum, p);
        }
        (max, I::fold_add(sum))
    }
}

/// Merges `part`, which is tile `tile`, into `into`, for the rows that see it.
///
/// # Safety
/// The machine has the instructions of `I`.
#[inline(always)]
pub(crate) unsafe fn merge<I: Isa>(
    into: &mut Partial<'_>,
    part: &Partial<'_>,
    queries: &Queries<'_>,
    tile: usize,
) {
    let (start, d) = (tile * TILE_TOKENS, queries.shape.head_dim);
    let rows = queries.rows_seeing(start..start + TILE_TOKENS);
    // Of these rows it is the first tile.
    let fresh = queries.rows_starting(start).clamp(rows.start, rows.end);
    let first = fresh..rows.end;
    into.o[first.start * d..first.end * d].copy_from_slice(&part.o[first.start * d..first.end * d]);
    into.max[first.clone()].copy_from_slice(&part.max[first.clone()]);
    into.sum[first.clone()].copy_from_slice(&part.sum[first]);
    for r in rows.start..fresh {
        let (a, b) = (into.max[r], part.max[r]);
        let max = if b > a { b } else { a };
        let (old, new) = (math::exp(a - max), math::exp(b - max));
        into.sum[r] = into.sum[r].mul_add(old, part.sum[r] * new);
        into.max[r] = max;
        let o = &mut into.o[r * d..(r + 1) * d];
        for (o, p) in o.chunks_mut(16).zip(part.o[r * d..(r + 1) * d].chunks(16)) {
            // SAFETY: `o.len()` <= 16 elements on both sides.
            unsafe {
                let p = I::mul(I::load_part(p.as_ptr(), p.len()), I::splat(new));
                let sum = I::fma(I::load_part(o.as_ptr(), o.len()), I::splat(old), p);
                I::store_part(o.as_mut_ptr(), sum, o.len());
            }
        }
    }
}

/// Divides by the sums and writes the rows of this head -> `out` [positions, Hq, D].
///
/// # Safety
/// The machine has the instructions of `I`; `out` is good for all positions of the
/// queries and no other thread writes this head's part of them.
#[inline(always)]
pub(crate) unsafe fn finish<I: Isa>(queries: &Queries<'_>, from: &Partial<'_>, out: *mut f32) {
    let d = queries.shape.head_dim;
    for r in 0..queries.rows() {
        let inverse = 1.0 / from.sum[r];
        for (c, o) in from.o[r * d..(r + 1) * d].chunks(16).enumerate() {
            // SAFETY: row `r` of this head, dimensions inside `head_dim`.
            unsafe {
                let x = I::mul(I::load_part(o.as_ptr(), o.len()), I::splat(inverse));
                I::store_part(out.add(queries.row_at(r) + 16 * c), x, o.len());
            }
        }
    }
}
