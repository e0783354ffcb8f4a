//! Activations rounded to int8, in panels of up to 32 rows.
//!
//! A panel of `p` rows is stored block by block: `q [cols / 32][p][32] i8`, and beside it per (block, row)
//! the scale `d`, `d * sum(q)`, and what an offset of the weights adds to the dot. A row's numbers do
//! not depend on the panel it is in.

use crate::isa::Isa;
use crate::limits::{AMAX_MIN, PANEL_ROWS, QUANT_COLS};
use crate::share::Parts;

/// The rounded activations of one call.
#[derive(Default)]
pub(crate) struct Rounded {
    pub rows: usize,
    pub blocks: usize,
    q: Vec<i8>,
    d: Vec<f32>,
    s: Vec<f32>,
    /// Sums of the two halves of each block.
    halves: Vec<[i32; 2]>,
}

/// One panel, as the kernels read it. Pointers are into a [`Rounded`] that outlives it.
#[derive(Clone, Copy)]
pub(crate) struct Panel {
    pub rows: usize,
    pub blocks: usize,
    pub q: *const i8,
    pub d: *const f32,
    pub s: *const f32,
    pub halves: *const i32,
}

/// The buffers of a [`Rounded`], shared among the workers that fill it.
#[derive(Clone, Copy)]
pub(crate) struct RoundedParts<'a> {
    rows: usize,
    blocks: usize,
    q: Parts<'a, i8>,
    d: Parts<'a, f32>,
    s: Parts<'a, f32>,
    halves: Parts<'a, [i32; 2]>,
}

impl Rounded {
    /// Makes room for [rows, cols]; only grows.
    pub fn prepare(&mut self, rows: usize, cols: usize) -> RoundedParts<'_> {
        (self.rows, self.blocks) = (rows, cols / QUANT_COLS);
        let n = rows * self.blocks;
        if self.d.len() < n {
            self.q.resize(n * QUANT_COLS, 0);
            self.d.resize(n, 0.0);
            self.s.resize(n, 0.0);
            self.halves.resize(n, [0; 2]);
        }
        RoundedParts {
            rows,
            blocks: self.blocks,
            q: Parts::new(&mut self.q),
            d: Parts::new(&mut self.d),
            s: Parts::new(&mut self.s),
            halves: Parts::new(&mut self.halves),
        }
    }

    pub fn panel(&self, panel: usize) -> Panel {
        let first = panel * PANEL_ROWS;
        let at = first * self.blocks;
        Panel {
            rows: (self.rows - first).min(PANEL_ROWS),
            blocks: self.blocks,
            q: self.q[at * QUANT_COLS..].as_ptr(),
            d: self.d[at..].as_ptr(),
            s: self.s[at..].as_ptr(),
            halves: self.halves[at..].as_ptr().cast(),
        }
    }
}

/// Rounds panel `panel` of `x` [rows, 32 * blocks].
///
/// # Safety
/// The machine has the instructions of `I`; no other thread fills the same panel.
#[inline(always)]
pub(crate) unsafe fn round_panel<I: Isa>(x: &[f32], out: &RoundedParts<'_>, panel: usize) {
    let first = panel * PANEL_ROWS;
    let p = (out.rows - first).min(PANEL_ROWS);
    let (at, n) = (first * out.blocks, p * out.blocks);
    // SAFETY: panels do not overlap, and this one is ours.
    let (q, d, s, halves) = unsafe {
        (
            out.q.part(at * QUANT_COLS, n * QUANT_COLS),
            out.d.part(at, n),
            out.s.part(at, n),
            out.halves.part(at, n),
        )
    };
    let cols = out.blocks * QUANT_COLS;
    for t in 0..p {
        let row = &x[(first + t) * cols..(first + t + 1) * cols];
        for (b, x) in row.chunks_exact(QUANT_COLS).enumerate() {
            let i = b * p + t;
            let q = &mut q[i * QUANT_COLS..(i + 1) * QUANT_COLS];
            // SAFETY: `x` and `q` have 32 elements.
            (d[i], halves[i]) = unsafe { round_block::<I>(x, q) };
            s[i] = d[i] * (halves[i][0] + halves[i][1]) as f32;
        }
    }
}

/// [`crate::plain::round_block`] in vectors; gives the scale and the sums of the halves.
///
/// # Safety
/// The machine has the instructions of `I`; both slices have 32 elements.
#[inline(always)]
unsafe fn round_block<I: Isa>(x: &[f32], q: &mut [i8]) -> (f32, [i32; 2]) {
    debug_assert!(x.len() == QUANT_COLS && q.len() == QUANT_COLS);
    // SAFETY: two vectors of 16 in each slice.
    unsafe {
        let (a, b) = (I::load(x.as_ptr()), I::load(x.as_ptr().add(16)));
        let amax = f32::from_bits(I::amax_bits(a, b));
        if !(AMAX_MIN..=f32::MAX).contains(&amax) {
            q.fill(0);
            let d = if amax < AMAX_MIN { 0.0 } else { f32::NAN };
            return (d, [0; 2]);
        }
        let inverse = I::splat(127.0 / amax);
        let low = I::store_i8(q.as_mut_ptr(), I::mul(a, inverse));
        let high = I::store_i8(q.as_mut_ptr().add(16), I::mul(b, inverse));
        (amax / 127.0, [low, high])
    }
}
