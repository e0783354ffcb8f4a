//! One block of keys, or of values, against some query rows: the innermost loops of attention.
//!
//! Rows go together a few at a time, so that a number is loaded once for all of them. While a line is
//! computed with, the same line of the block that is read next is asked for: memory takes longer
//! than the computation, and the machine's own prefetching ends where a block does.

use std::marker::PhantomData;
use std::ops::Range;

use crate::attention_tile::Queries;
use crate::isa::Isa;
use crate::limits::{BLOCK_TOKENS, QUANT_COLS, ROWS_AT_ONCE, TILE_TOKENS};
use crate::stored::{F16, Near, Stored};

/// The numbers of K, or of V, of one head in one block.
#[derive(Clone, Copy)]
pub(crate) struct Numbers<'a, S> {
    at: *const u8,
    /// Bytes from any line to the same line of what is read next.
    next: isize,
    head_dim: usize,
    /// f32 [D / 32, rounded up][32] where `S` is scaled.
    scales: &'a [f32],
    stored: PhantomData<S>,
}

impl<'a, S: Stored> Numbers<'a, S> {
    /// Converts the scales into `scales`, where there are some; `next` begins what is read next.
    ///
    /// # Safety
    /// The machine has the instructions of `I`; `at` is K or V of a head as the arena lays it out, and
    /// lives as long as `scales`.
    #[inline(always)]
    pub unsafe fn new<I: Isa>(
        at: *const u8,
        next: *const u8,
        head_dim: usize,
        scales: &'a mut [f32],
    ) -> Numbers<'a, S> {
        let next = (next as isize).wrapping_sub(at as isize);
        if S::SCALED {
            let from = at.wrapping_add(BLOCK_TOKENS * head_dim * S::BYTES);
            for (i, scales) in scales.chunks_exact_mut(16).enumerate() {
                let from = from.wrapping_add(16 * i * F16::BYTES);
                I::prefetch(from.wrapping_offset(next));
                // SAFETY: lines of 32 scales follow the numbers.
                unsafe { I::store(scales.as_mut_ptr(), F16::load::<I>(from)) }
            }
        }
        Numbers {
            at,
            next,
            head_dim,
            scales,
            stored: PhantomData,
        }
    }

    /// Line `d` of K: the scales of its positions are at this index.
    #[inline(always)]
    fn scale_line(d: usize) -> usize {
        d / QUANT_COLS * BLOCK_TOKENS
    }

    /// K as f32 -> `to` [D][32].
    ///
    /// # Safety
    /// These are keys; the machine has the instructions of `I`.
    #[inline(always)]
    pub unsafe fn widen_keys<I: Isa>(&self, to: &mut [f32]) {
        for (i, to) in to.chunks_exact_mut(16).enumerate() {
            let (d, half) = (i / 2, i % 2);
            // SAFETY: vector `i` of both, and the scales of its positions.
            unsafe {
                let from = self.at.add(16 * i * S::BYTES);
                I::prefetch(from.wrapping_offset(self.next));
                let mut x = S::load::<I>(from);
                if S::SCALED {
                    let scales = self.scales.as_ptr().add(Self::scale_line(d) + 16 * half);
                    x = I::mul(x, I::load(scales));
                }
                I::store(to.as_mut_ptr(), x);
            }
        }
    }

    /// V as f32 -> `to` [32][D].
    ///
    /// # Safety
    /// These are values; the machine has the instructions of `I`.
    #[inline(always)]
    pub unsafe fn widen_values<I: Isa>(&self, to: &mut [f32]) {
        for (j, to) in to.chunks_exact_mut(self.head_dim).enumerate() {
            for (c, to) in to.chunks_mut(16).enumerate() {
                let c = 16 * c;
                // SAFETY: dimensions `c ..` of key `j`, as many as `to` has.
                unsafe {
                    let from = self.at.add((j * self.head_dim + c) * S::BYTES);
                    I::prefetch(from.wrapping_offset(self.next));
                    if to.len() == 16 {
                        let x = self.scaled::<I>(S::load::<I>(from), c, j);
                        I::store(to.as_mut_ptr(), x);
                    } else {
                        let x = S::load_part::<I>(from, to.len());
                        I::store_part(to.as_mut_ptr(), self.scaled::<I>(x, c, j), to.len());
                    }
                }
            }
        }
    }

    /// Values of key `j` from dimension `c` on, times their scale.
    ///
    /// # Safety
    /// The machine has the instructions of `I`; `c` < D, `j` < 32.
    #[inline(always)]
    unsafe fn scaled<I: Isa>(&self, x: I::F, c: usize, j: usize) -> I::F {
        if !S::SCALED {
            return x;
        }
        // SAFETY: every group of dimensions has 32 scales.
        unsafe {
            let scale = self.scales.as_ptr().add(Self::scale_line(c) + j);
            I::mul(x, I::splat(*scale))
        }
    }
}

impl<'a> Numbers<'a, Near> {
    /// What was widened into a buffer.
    pub fn near(wide: &'a [f32], head_dim: usize) -> Numbers<'a, Near> {
        Numbers {
            at: wide.as_ptr().cast(),
            next: 0,
            head_dim,
            scales: &[],
            stored: PhantomData,
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

/// Scores of the 32 keys `k` [D][32] for some rows of `q` [.., D]: row `r` -> `scores[128 r ..][..32]`.
///
/// # Safety
/// The machine has the instructions of `I`; `k` is one block.
#[inline(always)]
pub(crate) unsafe fn score_block<I: Isa, S: Stored>(
    k: Numbers<'_, S>,
    q: &[f32],
    rows: Range<usize>,
    scores: &mut [f32],
) {
    debug_assert!(scores.len() >= (rows.end - 1) * TILE_TOKENS + BLOCK_TOKENS);
    debug_assert!(q.len() >= rows.end * k.head_dim);
    let score = Score {
        k,
        q: q.as_ptr(),
        scores: scores.as_mut_ptr(),
    };
    // SAFETY: `q` and `scores` have the rows.
    unsafe { by_rows::<I>(rows, &score) }
}

struct Score<'a, S> {
    k: Numbers<'a, S>,
    q: *const f32,
    scores: *mut f32,
}

impl<S: Stored> Rows for Score<'_, S> {
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

impl<S: Stored> Score<'_, S> {
    /// `R` rows times `16 C` keys from key `j`, each score summed over the dimensions in order.
    ///
    /// # Safety
    /// As [`Rows::on`].
    // The arrays are registers; their indices are what the loops are about.
    #[allow(clippy::needless_range_loop)]
    #[inline(always)]
    unsafe fn tile<I: Isa, const R: usize, const C: usize>(&self, r: usize, j: usize) {
        let dims = self.k.head_dim;
        let group = if S::SCALED { QUANT_COLS } else { dims };
        // SAFETY: line `d` < `dims` of K, element `d` of each query, `16 C` scores of each row.
        unsafe {
            let (q, k) = (self.q.add(r * dims), self.k.at.add(j * S::BYTES));
            let mut sums = [[I::splat(0.0); C]; R];
            for from in (0..dims).step_by(group) {
                let mut scales = [I::splat(1.0); C];
                for c in 0..C {
                    if S::SCALED {
                        let line = Numbers::<S>::scale_line(from);
                        scales[c] = I::load(self.k.scales.as_ptr().add(line + j + 16 * c));
                    }
                }
                for d in from..dims.min(from + group) {
                    let line = k.add(d * BLOCK_TOKENS * S::BYTES);
                    if !S::NEAR {
                        I::prefetch(line.wrapping_offset(self.k.next));
                    }
                    let mut keys = [I::splat(0.0); C];
                    for c in 0..C {
                        keys[c] = S::load::<I>(line.add(16 * c * S::BYTES));
                        if S::SCALED {
                            keys[c] = I::mul(keys[c], scales[c]);
                        }
                    }
                    for r in 0..R {
                        let q = I::splat(*q.add(r * dims + d));
                        for c in 0..C {
                            sums[r][c] = I::fma(keys[c], q, sums[r][c]);
                        }
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

/// Which keys a block of values belongs to: those from `position` on, in the tile from `start`.
pub(crate) struct Keys<'a> {
    pub queries: &'a Queries<'a>,
    pub start: usize,
    pub position: usize,
}

impl Keys<'_> {
    /// Rows that see some of the block.
    pub fn rows(&self) -> Range<usize> {
        self.queries
            .rows_seeing(self.position..self.position + BLOCK_TOKENS)
    }
}

/// Adds the weighted values `v` [32][D] to the rows of `o` [rows, D] that see them; `scores` [rows][128]
/// are the weights.
///
/// # Safety
/// The machine has the instructions of `I`; `v` is one block.
#[inline(always)]
pub(crate) unsafe fn weigh_block<I: Isa, S: Stored>(
    v: Numbers<'_, S>,
    keys: &Keys<'_>,
    scores: &[f32],
    o: &mut [f32],
) {
    let &Keys {
        queries,
        start,
        position,
    } = keys;
    let rows = keys.rows();
    let base = position - start;
    let seen = |r: usize| {
        let keys = queries.keys(r, start);
        keys.start.saturating_sub(base)..(keys.end - base).min(BLOCK_TOKENS)
    };
    let (first, last) = (seen(rows.start), seen(rows.end - 1));
    // Keys of the block that all these rows see go together; the few at the edges that only earlier or
    // only later rows see go one by one.
    let shared = last.start.min(first.end)..first.end;
    debug_assert!(rows.end * v.head_dim <= o.len() && rows.end * TILE_TOKENS <= scores.len());
    // SAFETY: every key meets only rows that see it; offsets stay inside the block.
    unsafe {
        let mut weigh = Weigh {
            v,
            keys: shared.clone(),
            p: scores.as_ptr().add(base),
            o: o.as_mut_ptr(),
        };
        let one_by_one = |weigh: &mut Weigh<'_, S>, keys: Range<usize>| {
            for j in keys {
                weigh.keys = j..j + 1;
                by_rows::<I>(queries.rows_seeing(position + j..position + j + 1), weigh);
            }
        };
        one_by_one(&mut weigh, first.start..shared.start);
        weigh.keys = shared.clone();
        by_rows::<I>(rows, &weigh);
        one_by_one(&mut weigh, shared.end..last.end);
    }
}

struct Weigh<'a, S> {
    v: Numbers<'a, S>,
    keys: Range<usize>,
    /// The weight of key 0 in row 0.
    p: *const f32,
    o: *mut f32,
}

impl<S: Stored> Rows for Weigh<'_, S> {
    #[inline(always)]
    unsafe fn on<I: Isa, const R: usize>(&self, r: usize) {
        let (mut c, dims) = (0, self.v.head_dim);
        // SAFETY: dimensions `c .. c + width` of every row and key.
        unsafe {
            while pairs::<I, R>() && c + 32 <= dims {
                self.tile::<I, R, 2>(r, c, 16);
                c += 32;
            }
            while c < dims {
                let width = (dims - c).min(16);
                self.tile::<I, R, 1>(r, c, width);
                c += width;
            }
        }
    }
}

impl<S: Stored> Weigh<'_, S> {
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
        let d = self.v.head_dim;
        debug_assert!(c + 16 * (C - 1) + width <= d);
        let whole = width == 16;
        // SAFETY: keys below 32, dimensions inside `d`, `R` rows of `o` and `p`.
        unsafe {
            let (v, o) = (self.v.at.add(c * S::BYTES), self.o.add(r * d + c));
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
            for j in self.keys.clone() {
                let line = v.add(j * d * S::BYTES);
                if !S::NEAR {
                    I::prefetch(line.wrapping_offset(self.v.next));
                }
                let mut values = [I::splat(0.0); C];
                for x in 0..C {
                    let at = line.add(16 * x * S::BYTES);
                    let value = if whole {
                        S::load::<I>(at)
                    } else {
                        S::load_part::<I>(at, width)
                    };
                    values[x] = self.v.scaled::<I>(value, c, j);
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
