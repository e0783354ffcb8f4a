//! One tile of attention: 128 positions of one KV head, for some query rows.
//!
//! Order, for a query row alone or beside others: each score is summed over `head_dim` in
//! order, in its key's lane; the softmax of the tile is whole; each output element is summed
//! over the tile's keys in order. Scores of keys beyond a row's position are cut off before the
//! softmax and their values are never weighed, so what an unwritten block holds cannot matter.

use std::ops::Range;

use crate::isa::{self, Isa};
use crate::limits::{BLOCK_TOKENS, ROWS_AT_ONCE, TILE_TOKENS};
use crate::stored::{F32, Stored};
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

    /// Copies this head's queries side by side: `to` [rows, D].
    pub fn gather(&self, to: &mut [f32]) {
        let d = self.shape.head_dim;
        for (r, to) in to.chunks_exact_mut(d).take(self.rows()).enumerate() {
            to.copy_from_slice(&self.q[self.row_at(r)..][..d]);
        }
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

/// Tile `tile` of `queries` -> `out`, for the rows that see it. `q` [rows, D] holds the queries
/// gathered, `scores` [rows][128] and `wide` (a block of K or V as f32) are scratch.
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
    let rows = queries.rows_from(start)..queries.rows();
    let d = queries.shape.head_dim;
    assert!(scores.len() >= rows.end * TILE_TOKENS && q.len() >= rows.end * d);
    assert!(out.o.len() >= rows.end * d && wide.len() == BLOCK_TOKENS * d);
    let blocks = (last - start).min(TILE_TOKENS).div_ceil(BLOCK_TOKENS);
    for b in 0..blocks {
        let position = start + b * BLOCK_TOKENS;
        let (k, _) = queries.block(position);
        let rows = queries.rows_from(position)..rows.end;
        let scores = &mut scores[b * BLOCK_TOKENS..];
        // SAFETY: K of a block has `head_dim` lines of 32; `q` and `scores` have the rows.
        unsafe {
            if worth_widening::<S>(&rows) {
                widen::<I, S>(k, wide);
                score_block::<I, F32>(q, d, wide.as_ptr().cast(), rows, scores);
            } else {
                score_block::<I, S>(q, d, k, rows, scores);
            }
        }
    }
    for r in rows.clone() {
        let n = queries.keys(r, start);
        let scores = &mut scores[r * TILE_TOKENS..(r + 1) * TILE_TOKENS];
        // SAFETY: `scores` is one tile.
        (out.max[r], out.sum[r]) = unsafe { softmax::<I>(scores, n, queries.shape.scale) };
    }
    out.o[rows.start * d..rows.end * d].fill(0.0);
    for b in 0..blocks {
        // SAFETY: the weights of all rows are in `scores`.
        unsafe {
            let position = start + b * BLOCK_TOKENS;
            let (_, v) = queries.block(position);
            if worth_widening::<S>(&(queries.rows_from(position)..rows.end)) {
                widen::<I, S>(v, wide);
                let v = wide.as_ptr().cast();
                weigh_block::<I, F32>(queries, v, position, start, scores, out.o);
            } else {
                weigh_block::<I, S>(queries, v, position, start, scores, out.o);
            }
        }
    }
}

/// Whether so many rows read a block that its numbers are better converted once.
fn worth_widening<S: Stored>(rows: &Range<usize>) -> bool {
    S::BYTES < F32::BYTES && rows.len() > ROWS_AT_ONCE
}

/// Numbers as the arena stores them -> `to` f32.
///
/// # Safety
/// The machine has the instructions of `I`; `from` is as long as `to`, whole vectors of 16.
#[inline(always)]
unsafe fn widen<I: Isa, S: Stored>(from: *const u8, to: &mut [f32]) {
    for (i, to) in to.chunks_exact_mut(16).enumerate() {
        // SAFETY: vector `i` of both.
        unsafe { I::store(to.as_mut_ptr(), S::load::<I>(from.add(16 * i * S::BYTES))) }
    }
}

/// Scores of 32 keys for some rows: row `r` -> `scores[128 r ..][..32]`.
///
/// # Safety
/// `k` is [dims][32] of `S`; `q` [.., dims] and `scores` reach the last row.
#[inline(always)]
unsafe fn score_block<I: Isa, S: Stored>(
    q: &[f32],
    dims: usize,
    k: *const u8,
    rows: Range<usize>,
    scores: &mut [f32],
) {
    debug_assert!(scores.len() >= (rows.end - 1) * TILE_TOKENS + BLOCK_TOKENS);
    debug_assert!(q.len() >= rows.end * dims);
    // SAFETY: both halves of the block, all rows.
    unsafe {
        if I::TILE_PAIRS {
            score_keys::<I, S, 2>(q, dims, k, rows, scores);
        } else {
            score_keys::<I, S, 1>(q, dims, k, rows.clone(), scores);
            let high = k.add(BLOCK_TOKENS / 2 * S::BYTES);
            score_keys::<I, S, 1>(q, dims, high, rows, &mut scores[BLOCK_TOKENS / 2..]);
        }
    }
}

/// As [`score_block`], for `16 C` keys.
///
/// # Safety
/// As [`score_block`].
#[inline(always)]
unsafe fn score_keys<I: Isa, S: Stored, const C: usize>(
    q: &[f32],
    dims: usize,
    k: *const u8,
    rows: Range<usize>,
    scores: &mut [f32],
) {
    let (q, scores) = (q.as_ptr(), scores.as_mut_ptr());
    let mut r = rows.start;
    // SAFETY: rows up to the last.
    unsafe {
        while r < rows.end {
            let (q, s) = (q.add(r * dims), scores.add(r * TILE_TOKENS));
            match rows.end - r {
                1 => score_tile::<I, S, 1, C>(q, dims, k, s),
                2 => score_tile::<I, S, 2, C>(q, dims, k, s),
                3 => score_tile::<I, S, 3, C>(q, dims, k, s),
                _ => score_tile::<I, S, 4, C>(q, dims, k, s),
            }
            r += ROWS_AT_ONCE;
        }
    }
}

/// `R` rows of `q` times `16 C` keys, each score summed over `dims` in order.
///
/// # Safety
/// As [`score_block`].
// The arrays are registers; their indices are what the loops are about.
#[allow(clippy::needless_range_loop)]
#[inline(always)]
unsafe fn score_tile<I: Isa, S: Stored, const R: usize, const C: usize>(
    q: *const f32,
    dims: usize,
    k: *const u8,
    scores: *mut f32,
) {
    // SAFETY: line `d` < `dims` of K, element `d` of each query, `16 C` scores of each row.
    unsafe {
        let mut sums = [[I::splat(0.0); C]; R];
        for d in 0..dims {
            let line = k.add(d * BLOCK_TOKENS * S::BYTES);
            let mut keys = [I::splat(0.0); C];
            for c in 0..C {
                keys[c] = S::load::<I>(line.add(16 * c * S::BYTES));
            }
            for r in 0..R {
                let q = I::splat(*q.add(r * dims + d));
                for c in 0..C {
                    sums[r][c] = I::fma(keys[c], q, sums[r][c]);
                }
            }
        }
        for r in 0..R {
            for c in 0..C {
                I::store(scores.add(r * TILE_TOKENS + 16 * c), sums[r][c]);
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

/// Adds the weighted values `v` [32][D] of `S` of the block of `position`, in the tile from `start`, to the rows of
/// `o` [rows, D] that see them.
///
/// # Safety
/// The machine has the instructions of `I`; `v` is one block; `scores` [rows][128] holds weights, `o`
/// has all rows.
#[inline(always)]
unsafe fn weigh_block<I: Isa, S: Stored>(
    queries: &Queries<'_>,
    v: *const u8,
    position: usize,
    start: usize,
    scores: &[f32],
    o: &mut [f32],
) {
    let d = queries.shape.head_dim;
    let rows = queries.rows_from(position)..queries.rows();
    let base = position - start;
    // Keys of the block that all these rows see go together; the few on the diagonal that only later
    // rows see follow one by one.
    let shared = (queries.keys(rows.start, start) - base).min(BLOCK_TOKENS);
    let seen = (queries.keys(rows.end - 1, start) - base).min(BLOCK_TOKENS);
    // SAFETY: every key meets only rows that see it; offsets stay inside the block.
    unsafe {
        let weights = scores.as_ptr().add(base);
        weigh::<I, S>(v, shared, weights, rows.clone(), o, d);
        for j in shared..seen {
            let from = rows.start.max(queries.rows_from(position + j));
            let v = v.add(j * d * S::BYTES);
            weigh::<I, S>(v, 1, weights.add(j), from..rows.end, o, d);
        }
    }
}

/// Adds `keys` keys' values to some rows: `v` [keys][D], `p` their first weight in row 0.
///
/// # Safety
/// As [`weigh_block`].
#[inline(always)]
unsafe fn weigh<I: Isa, S: Stored>(
    v: *const u8,
    keys: usize,
    p: *const f32,
    rows: Range<usize>,
    o: &mut [f32],
    d: usize,
) {
    debug_assert!(rows.end * d <= o.len());
    let o = o.as_mut_ptr();
    let mut r = rows.start;
    // SAFETY: rows up to the last.
    unsafe {
        while r < rows.end {
            let (p, o) = (p.add(r * TILE_TOKENS), o.add(r * d));
            match rows.end - r {
                1 => weigh_rows::<I, S, 1>(v, keys, p, o, d),
                2 => weigh_rows::<I, S, 2>(v, keys, p, o, d),
                3 => weigh_rows::<I, S, 3>(v, keys, p, o, d),
                _ => weigh_rows::<I, S, 4>(v, keys, p, o, d),
            }
            r += ROWS_AT_ONCE;
        }
    }
}

/// `R` rows of [`weigh`].
///
/// # Safety
/// As [`weigh_block`].
#[inline(always)]
unsafe fn weigh_rows<I: Isa, S: Stored, const R: usize>(
    v: *const u8,
    keys: usize,
    p: *const f32,
    o: *mut f32,
    d: usize,
) {
    let mut c = 0;
    // SAFETY: dimensions `c .. c + width` of every row and key.
    unsafe {
        while I::TILE_PAIRS && c + 32 <= d {
            weigh_tile::<I, S, R, 2>(v, keys, p, o, d, c, 16);
            c += 32;
        }
        while c < d {
            let width = (d - c).min(16);
            weigh_tile::<I, S, R, 1>(v, keys, p, o, d, c, width);
            c += width;
        }
    }
}

/// Dimensions `c .. c + 16 C`, of the last 16 only `width`; each summed over the keys in order.
///
/// # Safety
/// As [`weigh_block`].
// The arrays are registers; their indices are what the loops are about.
#[allow(clippy::needless_range_loop)]
#[inline(always)]
unsafe fn weigh_tile<I: Isa, S: Stored, const R: usize, const C: usize>(
    v: *const u8,
    keys: usize,
    p: *const f32,
    o: *mut f32,
    d: usize,
    c: usize,
    width: usize,
) {
    debug_assert!(c + 16 * (C - 1) + width <= d);
    let whole = width == 16;
    // SAFETY: key `j` < `keys`, dimensions inside `d`, `R` rows of `o` and `p`.
    unsafe {
        let (v, o) = (v.add(c * S::BYTES), o.add(c));
        let mut sums = [[I::splat(0.0); C]; R];
        for r in 0..R {
            for x in 0..C {
                let o = o.add(r * d + 16 * x);
                sums[r][x] = if whole {
                    I::load(o)
                } else {
                    I::load_part(o, width)
                };
            }
        }
        for j in 0..keys {
            let line = v.add(j * d * S::BYTES);
            let mut values = [I::splat(0.0); C];
            for x in 0..C {
                let at = line.add(16 * x * S::BYTES);
                values[x] = if whole {
                    S::load::<I>(at)
                } else {
                    S::load_part::<I>(at, width)
                };
            }
            for r in 0..R {
                let p = I::splat(*p.add(r * TILE_TOKENS + j));
                for x in 0..C {
                    sums[r][x] = I::fma(values[x], p, sums[r][x]);
                }
            }
        }
        for r in 0..R {
            for x in 0..C {
                let o = o.add(r * d + 16 * x);
                if whole {
                    I::store(o, sums[r][x]);
                } else {
                    I::store_part(o, sums[r][x], width);
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
