//! One tile of attention: 128 positions of one KV head, for some query rows.
//!
//! Order, for a query row alone or beside others: each score is summed over `head_dim` in
//! order, in its key's lane; the softmax of the tile is whole; each output element is summed
//! over the tile's keys in order. Scores of keys beyond a row's position are cut off before the
//! softmax and their values are never weighed, so what an unwritten block holds cannot matter.

use std::marker::PhantomData;
use std::ops::Range;

use crate::isa::{self, Isa};
use crate::limits::{BLOCK_TOKENS, ROWS_AT_ONCE, TILE_TOKENS};
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
        // After the last K the first V is read.
        let next = match b + 1 < blocks {
            true => queries.block(position + BLOCK_TOKENS).0,
            false => queries.block(start).1,
        };
        let rows = queries.rows_from(position)..rows.end;
        let scores = &mut scores[b * BLOCK_TOKENS..];
        // SAFETY: K of a block has `head_dim` lines of 32; `q` and `scores` have the rows.
        unsafe {
            if worth_widening::<S>(&rows) {
                widen::<I, S>(k, distance(k, next), wide);
                by_rows::<I>(
                    rows,
                    &Score::<Near>::new(q, d, wide.as_ptr().cast(), 0, scores),
                );
            } else {
                by_rows::<I>(rows, &Score::<S>::new(q, d, k, distance(k, next), scores));
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
            // After the last V the first K of the next tile is read.
            let after = position + BLOCK_TOKENS;
            let next = match after < last {
                true if b + 1 < blocks => queries.block(after).1,
                true => queries.block(after).0,
                false => v,
            };
            if worth_widening::<S>(&(queries.rows_from(position)..rows.end)) {
                widen::<I, S>(v, distance(v, next), wide);
                let v = wide.as_ptr().cast();
                weigh_block::<I, Near>(queries, (v, 0), position, start, scores, out.o);
            } else {
                weigh_block::<I, S>(
                    queries,
                    (v, distance(v, next)),
                    position,
                    start,
                    scores,
                    out.o,
                );
            }
        }
    }
}

/// Bytes from one line of `from` to the same line of `to`, which will be read next. A line is asked for
/// while the one before it in time is computed with: memory takes longer than any computation, and
/// the machine's own prefetching ends where a block does.
fn distance(from: *const u8, to: *const u8) -> isize {
    (to as isize).wrapping_sub(from as isize)
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
unsafe fn widen<I: Isa, S: Stored>(from: *const u8, next: isize, to: &mut [f32]) {
    for (i, to) in to.chunks_exact_mut(16).enumerate() {
        // SAFETY: vector `i` of both.
        unsafe {
            let from = from.add(16 * i * S::BYTES);
            I::prefetch(from.wrapping_offset(next));
            I::store(to.as_mut_ptr(), S::load::<I>(from));
        }
    }
}

/// What happens to some rows at once, their number known to the compiler.
trait Rows {
    /// # Safety
    /// The machine has the instructions of `I`; rows `r .. r + R` are within what the pointers reach.
    unsafe fn on<I: Isa, const R: usize>(&self, r: usize);
}

/// All of `rows`, a few at a time.
///
/// # Safety
/// As [`Rows::on`].
#[inline(always)]
unsafe fn by_rows<I: Isa>(rows: Range<usize>, work: &impl Rows) {
    let mut r = rows.start;
    // SAFETY: rows up to the last.
    unsafe {
        while r < rows.end {
            match rows.end - r {
                1 => work.on::<I, 1>(r),
                2 => work.on::<I, 2>(r),
                3 => work.on::<I, 3>(r),
                _ => work.on::<I, 4>(r),
            }
            r += ROWS_AT_ONCE;
        }
    }
}

/// Whether the sums of `R` rows leave registers for twice as many keys or dimensions. One or two rows
/// alone would wait for each sum before the next is added.
const fn pairs<I: Isa, const R: usize>() -> bool {
    I::TILE_PAIRS || R <= 2
}

/// Scores of 32 keys: row `r` -> `scores[128 r ..][..32]`.
///
/// Safe to run when `k` is [dims][32] of `S`; `q` [.., dims] and `scores` reach the last row.
struct Score<S> {
    q: *const f32,
    dims: usize,
    k: *const u8,
    next: isize,
    scores: *mut f32,
    stored: PhantomData<S>,
}

impl<S: Stored> Rows for Score<S> {
    #[inline(always)]
    unsafe fn on<I: Isa, const R: usize>(&self, r: usize) {
        // SAFETY: both halves of the block, `R` rows.
        unsafe {
            if pairs::<I, R>() {
                self.tile::<I, R, 2>(r, 0);
            } else {
                self.tile::<I, R, 1>(r, 0);
                self.tile::<I, R, 1>(r, BLOCK_TOKENS / 2);
            }
        }
    }
}

impl<S: Stored> Score<S> {
    fn new(q: &[f32], dims: usize, k: *const u8, next: isize, scores: &mut [f32]) -> Score<S> {
        Score {
            q: q.as_ptr(),
            dims,
            k,
            next,
            scores: scores.as_mut_ptr(),
            stored: PhantomData,
        }
    }

    /// `R` rows times `16 C` keys from key `j`, each score summed over `dims` in order.
    ///
    /// # Safety
    /// As [`Rows::on`].
    // The arrays are registers; their indices are what the loops are about.
    #[allow(clippy::needless_range_loop)]
    #[inline(always)]
    unsafe fn tile<I: Isa, const R: usize, const C: usize>(&self, r: usize, j: usize) {
        let dims = self.dims;
        // SAFETY: line `d` < `dims` of K, element `d` of each query, `16 C` scores of each row.
        unsafe {
            let (q, k) = (self.q.add(r * dims), self.k.add(j * S::BYTES));
            let mut sums = [[I::splat(0.0); C]; R];
            for d in 0..dims {
                let line = k.add(d * BLOCK_TOKENS * S::BYTES);
                if !S::NEAR {
                    I::prefetch(line.wrapping_offset(self.next));
                }
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
            let scores = self.scores.add(r * TILE_TOKENS + j);
            for r in 0..R {
                for c in 0..C {
                    I::store(scores.add(r * TILE_TOKENS + 16 * c), sums[r][c]);
                }
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

/// Adds the weighted values `v` [32][D] of `S` of the block of `position`, in the tile from `start`, to the
/// rows of `o` [rows, D] that see them.
///
/// # Safety
/// The machine has the instructions of `I`; `v` is one block; `scores` [rows][128] holds weights, `o`
/// has all rows.
#[inline(always)]
unsafe fn weigh_block<I: Isa, S: Stored>(
    queries: &Queries<'_>,
    (v, next): (*const u8, isize),
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
    debug_assert!(rows.end * d <= o.len() && rows.end * TILE_TOKENS <= scores.len());
    // SAFETY: every key meets only rows that see it; offsets stay inside the block.
    unsafe {
        let all = Weigh::<S> {
            v,
            next,
            keys: shared,
            p: scores.as_ptr().add(base),
            o: o.as_mut_ptr(),
            d,
            stored: PhantomData,
        };
        by_rows::<I>(rows.clone(), &all);
        for j in shared..seen {
            let from = rows.start.max(queries.rows_from(position + j));
            let one = Weigh::<S> {
                v: v.add(j * d * S::BYTES),
                next: 0,
                keys: 1,
                p: all.p.add(j),
                ..all
            };
            by_rows::<I>(from..rows.end, &one);
        }
    }
}

/// Adds `keys` keys' values `v` [keys][D] to rows of `o` [rows, D]; `p` is the first key's weight in row 0.
struct Weigh<S> {
    v: *const u8,
    next: isize,
    keys: usize,
    p: *const f32,
    o: *mut f32,
    d: usize,
    stored: PhantomData<S>,
}

impl<S: Stored> Rows for Weigh<S> {
    #[inline(always)]
    unsafe fn on<I: Isa, const R: usize>(&self, r: usize) {
        let mut c = 0;
        // SAFETY: dimensions `c .. c + width` of every row and key.
        unsafe {
            while pairs::<I, R>() && c + 32 <= self.d {
                self.tile::<I, R, 2>(r, c, 16);
                c += 32;
            }
            while c < self.d {
                let width = (self.d - c).min(16);
                self.tile::<I, R, 1>(r, c, width);
                c += width;
            }
        }
    }
}

impl<S: Stored> Weigh<S> {
    /// Dimensions `c .. c + 16 C`, of the last 16 only `width`; each summed over the keys in order.
    ///
    /// # Safety
    /// As [`Rows::on`].
    // The arrays are registers; their indices are what the loops are about.
    #[allow(clippy::needless_range_loop)]
    #[inline(always)]
    unsafe fn tile<I: Isa, const R: usize, const C: usize>(
        &self,
        r: usize,
        c: usize,
        width: usize,
    ) {
        let d = self.d;
        debug_assert!(c + 16 * (C - 1) + width <= d);
        let whole = width == 16;
        // SAFETY: key `j` < `keys`, dimensions inside `d`, `R` rows of `o` and `p`.
        unsafe {
            let (v, o) = (self.v.add(c * S::BYTES), self.o.add(r * d + c));
            let p = self.p.add(r * TILE_TOKENS);
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
            for j in 0..self.keys {
                let line = v.add(j * d * S::BYTES);
                if !S::NEAR {
                    I::prefetch(line.wrapping_offset(self.next));
                }
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
