//! One tile of attention: 128 positions of one KV head, for some query rows.
//!
//! Order, for a query row alone or beside others: each score is summed over `head_dim` in
//! order, in its key's lane; the softmax of the tile is whole; each output element is summed
//! over the tile's keys in order. Keys beyond a row's position are never multiplied, so
//! what an unwritten block holds cannot matter.

use std::ops::Range;

use crate::isa::{self, Isa};
use crate::limits::{BLOCK_TOKENS, TILE_TOKENS};
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
/// gathered, `scores` [rows][128] is scratch.
///
/// # Safety
/// The machine has the instructions of `I`; the arena stores `S`.
#[inline(always)]
pub(crate) unsafe fn tile<I: Isa, S: Stored>(
    queries: &Queries<'_>,
    q: &[f32],
    tile: usize,
    scores: &mut [f32],
    out: &mut Partial<'_>,
) {
    let start = tile * TILE_TOKENS;
    let last = queries.first + queries.positions();
    let rows = queries.rows_from(start)..queries.rows();
    let d = queries.shape.head_dim;
    assert!(scores.len() >= rows.end * TILE_TOKENS && q.len() >= rows.end * d);
    assert!(out.o.len() >= rows.end * d);
    let blocks = (last - start).min(TILE_TOKENS).div_ceil(BLOCK_TOKENS);
    for b in 0..blocks {
        let position = start + b * BLOCK_TOKENS;
        let (k, _) = queries.block(position);
        let rows = queries.rows_from(position)..rows.end;
        let scores = &mut scores[b * BLOCK_TOKENS..];
        // SAFETY: K of a block has `head_dim` lines of 32; `q` and `scores` have the rows.
        unsafe { score_block::<I, S>(q, d, k, rows, scores) }
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
        unsafe { weigh_block::<I, S>(queries, start + b * BLOCK_TOKENS, start, scores, out.o) }
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
    const STEP: usize = 8;
    debug_assert!(scores.len() >= (rows.end - 1) * TILE_TOKENS + BLOCK_TOKENS);
    let line = BLOCK_TOKENS * S::BYTES;
    let (q, scores) = (q.as_ptr(), scores.as_mut_ptr());
    // SAFETY: line `d` < `dims` of K, element `d` of a query, 32 scores of a row.
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
                let q = q.add(r * dims + d);
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
                let q = I::splat(*q.add(r * dims + d));
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

/// Adds the weighted values of the block of `position`, in the tile from `start`, to the rows of
/// `o` [rows, D] that see them.
///
/// # Safety
/// The machine has the instructions of `I`; the arena stores `S`; `scores` [rows][128] holds
/// weights, `o` has all rows.
#[inline(always)]
unsafe fn weigh_block<I: Isa, S: Stored>(
    queries: &Queries<'_>,
    position: usize,
    start: usize,
    scores: &[f32],
    o: &mut [f32],
) {
    let d = queries.shape.head_dim;
    let rows = queries.rows_from(position)..queries.rows();
    let (_, v) = queries.block(position);
    let base = position - start;
    // Keys of the block that all these rows see go four at a time; the few on the diagonal that
    // only later rows see follow one by one.
    let shared = (queries.keys(rows.start, start) - base).min(BLOCK_TOKENS);
    let seen = (queries.keys(rows.end - 1, start) - base).min(BLOCK_TOKENS);
    // SAFETY: every key meets only rows that see it; offsets stay inside the block.
    unsafe {
        let weights = scores.as_ptr().add(base);
        let fours = shared / 4 * 4;
        for j in (0..fours).step_by(4) {
            let v = v.add(j * d * S::BYTES);
            weigh::<I, S, 4>(v, weights.add(j), rows.clone(), o, d);
        }
        for j in fours..seen {
            let from = rows.start.max(queries.rows_from(position + j));
            let v = v.add(j * d * S::BYTES);
            weigh::<I, S, 1>(v, weights.add(j), from..rows.end, o, d);
        }
    }
}

/// Adds `J` keys' values to some rows: `v` [J][D], `p` their first weight in row 0.
///
/// # Safety
/// As [`weigh_block`].
#[inline(always)]
unsafe fn weigh<I: Isa, S: Stored, const J: usize>(
    v: *const u8,
    p: *const f32,
    rows: Range<usize>,
    o: &mut [f32],
    d: usize,
) {
    // Dimensions 64 at a time, then 16, then what is left.
    let mut c = 0;
    // SAFETY: dimensions `c .. c + width` of every row and key.
    unsafe {
        while c + 64 <= d {
            weigh_dims::<I, S, 4, J>(v, p, rows.clone(), o, d, c, 16);
            c += 64;
        }
        while c < d {
            let width = (d - c).min(16);
            weigh_dims::<I, S, 1, J>(v, p, rows.clone(), o, d, c, width);
            c += width;
        }
    }
}

/// Dimensions `c .. c + 16 C`, of the last 16 only `width`.
///
/// # Safety
/// As [`weigh`].
// The arrays are registers; their indices are what the loops are about.
#[allow(clippy::needless_range_loop)]
#[inline(always)]
unsafe fn weigh_dims<I: Isa, S: Stored, const C: usize, const J: usize>(
    v: *const u8,
    p: *const f32,
    rows: Range<usize>,
    o: &mut [f32],
    d: usize,
    c: usize,
    width: usize,
) {
    debug_assert!(rows.end * d <= o.len() && c + 16 * (C - 1) + width <= d);
    let whole = C > 1 || width == 16;
    // SAFETY: key `i` < `J`, dimensions inside `d`, rows inside `o`.
    unsafe {
        let mut values = [[I::splat(0.0); C]; J];
        for i in 0..J {
            for x in 0..C {
                let at = v.add((i * d + c + 16 * x) * S::BYTES);
                values[i][x] = if whole {
                    S::load::<I>(at)
                } else {
                    S::load_part::<I>(at, width)
                };
            }
        }
        for r in rows {
            let p = p.add(r * TILE_TOKENS);
            let o = o.as_mut_ptr().add(r * d + c);
            let mut a = [I::splat(0.0); C];
            for x in 0..C {
                a[x] = if whole {
                    I::load(o.add(16 * x))
                } else {
                    I::load_part(o, width)
                };
            }
            for i in 0..J {
                let p = I::splat(*p.add(i));
                for x in 0..C {
                    a[x] = I::fma(values[i][x], p, a[x]);
                }
            }
            for x in 0..C {
                if whole {
                    I::store(o.add(16 * x), a[x]);
                } else {
                    I::store_part(o, a[x], width);
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
