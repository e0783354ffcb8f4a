//! One tile of attention: 128 positions of one KV head, for some query rows.
//!
//! Order, for a query row alone or beside others: each score is summed over `head_dim` in
//! order, in its key's lane; the softmax of the tile is whole; each output element is summed
//! over the tile's keys in order. Keys beyond a row's position are never multiplied, so
//! what an unwritten block holds cannot matter.

use std::ops::Range;

use crate::isa::{self, Isa};
use crate::limits::{BLOCK_TOKENS, TILE_BLOCKS, TILE_TOKENS};
use crate::stored::Stored;
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

    /// Tiles the last row sees.
    pub fn tiles(&self) -> usize {
        (self.first + self.positions() - 1) / TILE_TOKENS + 1
    }

    /// Offset of row `r` in `q`.
    fn row_at(&self, r: usize) -> usize {
        let (position, member) = (r / self.group(), r % self.group());
        (position * self.shape.q_heads + self.head * self.group() + member) * self.shape.head_dim
    }

    fn query(&self, r: usize) -> &[f32] {
        &self.q[self.row_at(r)..][..self.shape.head_dim]
    }

    /// First row that sees position `position`.
    pub fn rows_from(&self, position: usize) -> usize {
        position.saturating_sub(self.first) * self.group()
    }

    /// Keys of the tile starting at `start` that row `r` sees, at most a whole tile.
    fn keys(&self, r: usize, start: usize) -> usize {
        (self.first + r / self.group() + 1 - start).min(TILE_TOKENS)
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

/// Tile `tile` of `queries` -> `out`, for the rows that see it. `scores` [rows][128] is scratch.
///
/// # Safety
/// The machine has the instructions of `I`; the arena stores `S`.
#[inline(always)]
pub(crate) unsafe fn tile<I: Isa, S: Stored>(
    queries: &Queries<'_>,
    tile: usize,
    scores: &mut [f32],
    out: &mut Partial<'_>,
) {
    let start = tile * TILE_TOKENS;
    let last = queries.first + queries.positions();
    let rows = queries.rows_from(start)..queries.rows();
    assert!(scores.len() >= rows.end * TILE_TOKENS);
    for b in 0..TILE_BLOCKS {
        let position = start + b * BLOCK_TOKENS;
        if position >= last {
            break;
        }
        let (k, _) = queries.block(position);
        let rows = queries.rows_from(position)..rows.end;
        // SAFETY: K of a block has `head_dim` lines of 32; `scores` has the rows.
        unsafe {
            score_block::<I, S>(queries, k, rows, &mut scores[b * BLOCK_TOKENS..]);
        }
    }
    for r in rows.clone() {
        let n = queries.keys(r, start);
        let scores = &mut scores[r * TILE_TOKENS..(r + 1) * TILE_TOKENS];
        // SAFETY: `scores` is one tile.
        (out.max[r], out.sum[r]) = unsafe { softmax::<I>(scores, n, queries.shape.scale) };
    }
    let d = queries.shape.head_dim;
    out.o[rows.start * d..rows.end * d].fill(0.0);
    // Dimensions 64 at a time, then 16, then what is left.
    let mut c = 0;
    while c < d {
        let width = if d - c >= 64 { 64 } else { (d - c).min(16) };
        // SAFETY: dimensions `c .. c + width` of every row and key.
        unsafe {
            match width {
                64 => weigh::<I, S, 4>(queries, start, rows.clone(), scores, c, 16, out.o),
                _ => weigh::<I, S, 1>(queries, start, rows.clone(), scores, c, width, out.o),
            }
        }
        c += width;
    }
}

/// Scores of 32 keys for some rows: row `r` -> `scores[128 r ..][..32]`.
///
/// # Safety
/// `k` is [head_dim][32] of `S`; `scores` reaches the last row.
#[inline(always)]
unsafe fn score_block<I: Isa, S: Stored>(
    queries: &Queries<'_>,
    k: *const u8,
    rows: Range<usize>,
    scores: &mut [f32],
) {
    const STEP: usize = 8;
    let dims = queries.shape.head_dim;
    debug_assert!(scores.len() >= (rows.end - 1) * TILE_TOKENS + BLOCK_TOKENS);
    let line = BLOCK_TOKENS * S::BYTES;
    let scores = scores.as_mut_ptr();
    // SAFETY: line `d` < `head_dim` of K, element `d` of a query, 32 scores of a row.
    unsafe {
        for r in rows.clone() {
            I::store(scores.add(r * TILE_TOKENS), I::splat(0.0));
            I::store(scores.add(r * TILE_TOKENS + 16), I::splat(0.0));
        }
        let mut d = 0;
        while d + STEP <= dims {
            let low: [I::F; STEP] = std::array::from_fn(|i| S::load::<I>(k.add((d + i) * line)));
            let high: [I::F; STEP] =
                std::array::from_fn(|i| S::load::<I>(k.add((d + i) * line + line / 2)));
            for r in rows.clone() {
                let q = queries.query(r).as_ptr().add(d);
                let s = scores.add(r * TILE_TOKENS);
                let (mut a, mut b) = (I::load(s), I::load(s.add(16)));
                for i in 0..STEP {
                    let q = I::splat(*q.add(i));
                    a = I::fma(low[i], q, a);
                    b = I::fma(high[i], q, b);
                }
                I::store(s, a);
                I::store(s.add(16), b);
            }
            d += STEP;
        }
        for d in d..dims {
            let low = S::load::<I>(k.add(d * line));
            let high = S::load::<I>(k.add(d * line + line / 2));
            for r in rows.clone() {
                let q = I::splat(*queries.query(r).as_ptr().add(d));
                let s = scores.add(r * TILE_TOKENS);
                I::store(s, I::fma(low, q, I::load(s)));
                I::store(s.add(16), I::fma(high, q, I::load(s.add(16))));
            }
        }
    }
}

/// Scores [128], of which the first `n` count, become weights; gives their maximum and sum.
///
/// # Safety
/// `scores` has 128 elements.
#[inline(always)]
unsafe fn softmax<I: Isa>(scores: &mut [f32], n: usize, scale: f32) -> (f32, f32) {
    debug_assert!(scores.len() == TILE_TOKENS && (1..=TILE_TOKENS).contains(&n));
    let vectors = n.div_ceil(16);
    let scores = scores.as_mut_ptr();
    // SAFETY: eight vectors of sixteen.
    unsafe {
        let mut max = I::splat(f32::NEG_INFINITY);
        for v in 0..vectors {
            let s = I::mul(I::load(scores.add(16 * v)), I::splat(scale));
            let s = I::fill_from(s, (n - 16 * v).min(16), f32::NEG_INFINITY);
            I::store(scores.add(16 * v), s);
            max = I::max(s, max);
        }
        let max = I::fold_max(max);
        let mut sum = I::splat(0.0);
        for v in 0..vectors {
            let p = isa::exp::<I>(I::sub(I::load(scores.add(16 * v)), I::splat(max)));
            let p = I::fill_from(p, (n - 16 * v).min(16), 0.0);
            I::store(scores.add(16 * v), p);
            sum = I::add(sum, p);
        }
        (max, I::fold_add(sum))
    }
}

/// Adds the tile's weighted values in dimensions `c .. c + 16 C` (`width` of the last
/// vector's 16 lanes) to rows of `o` [rows, D].
///
/// # Safety
/// Those dimensions exist; `scores` [rows][128] holds weights.
#[inline(always)]
unsafe fn weigh<I: Isa, S: Stored, const C: usize>(
    queries: &Queries<'_>,
    start: usize,
    rows: Range<usize>,
    scores: &[f32],
    c: usize,
    width: usize,
    o: &mut [f32],
) {
    // Keys that every row sees go row by row under loaded values; the few on the
    // diagonal that only later rows see follow, row for row.
    let shared = queries.keys(rows.start, start);
    let mut j = 0;
    // SAFETY: keys below `shared`, respectively `keys(r)`, are seen by the rows they meet.
    unsafe {
        while j + 4 <= shared {
            weigh_keys::<I, S, C, 4>(queries, start, j, rows.clone(), scores, c, width, o);
            j += 4;
        }
        for j in j..queries.keys(rows.end - 1, start) {
            // Row `r` sees position `start + j` from here on.
            let rows = rows.start.max(queries.rows_from(start + j))..rows.end;
            weigh_keys::<I, S, C, 1>(queries, start, j, rows, scores, c, width, o);
        }
    }
}

/// Keys `j .. j + J` of the tile for some rows.
///
/// # Safety
/// As [`weigh`]; `J` keys from `j` lie in one block and are seen by all the rows.
#[inline(always)]
#[expect(clippy::too_many_arguments)]
unsafe fn weigh_keys<I: Isa, S: Stored, const C: usize, const J: usize>(
    queries: &Queries<'_>,
    start: usize,
    j: usize,
    rows: Range<usize>,
    scores: &[f32],
    c: usize,
    width: usize,
    o: &mut [f32],
) {
    let d = queries.shape.head_dim;
    let (_, v) = queries.block(start + j);
    debug_assert!(rows.end * d <= o.len() && c + 16 * (C - 1) + width <= d);
    // SAFETY: key `j + i` of the block, dimensions inside `head_dim`, rows inside `o`.
    unsafe {
        let v = v.add((j % BLOCK_TOKENS * d + c) * S::BYTES);
        let v: [[I::F; C]; J] = std::array::from_fn(|i| {
            std::array::from_fn(|x| {
                let p = v.add((i * d + 16 * x) * S::BYTES);
                if C > 1 || width == 16 {
                    S::load::<I>(p)
                } else {
                    S::load_part::<I>(p, width)
                }
            })
        });
        for r in rows {
            let p = scores.as_ptr().add(r * TILE_TOKENS + j);
            let o = o.as_mut_ptr().add(r * d + c);
            let mut a: [I::F; C] = std::array::from_fn(|x| {
                if C > 1 || width == 16 {
                    I::load(o.add(16 * x))
                } else {
                    I::load_part(o, width)
                }
            });
            for (i, v) in v.iter().enumerate() {
                let p = I::splat(*p.add(i));
                for x in 0..C {
                    a[x] = I::fma(v[x], p, a[x]);
                }
            }
            for (x, a) in a.iter().enumerate() {
                if C > 1 || width == 16 {
                    I::store(o.add(16 * x), *a);
                } else {
                    I::store_part(o, *a, width);
                }
            }
        }
    }
}

/// Merges `part`, the next tile, into `into`, for rows from `rows.start`. `first`: nothing came before.
///
/// # Safety
/// The machine has the instructions of `I`.
#[inline(always)]
pub(crate) unsafe fn merge<I: Isa>(
    into: &mut Partial<'_>,
    part: &Partial<'_>,
    rows: Range<usize>,
    d: usize,
    first: bool,
) {
    if first {
        into.o[rows.start * d..rows.end * d].copy_from_slice(&part.o[rows.start * d..rows.end * d]);
        into.max[rows.clone()].copy_from_slice(&part.max[rows.clone()]);
        into.sum[rows.clone()].copy_from_slice(&part.sum[rows]);
        return;
    }
    for r in rows {
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
