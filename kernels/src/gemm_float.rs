//! The product of f32 activations and an F32, F16 or BF16 weight: 16 output rows in 16 lanes.
//!
//! Order of one output element: column `k` is fused into accumulator `k % 4`; at the end
//! `(a0 + a1) + (a2 + a3)`. Four accumulators hide the latency of a single row.

use std::marker::PhantomData;
use std::ops::Range;

use crate::Weight;
use crate::aligned::Aligned;
use crate::isa::{Isa, Job};
use crate::limits::{PANEL_ROWS, TILE_ROWS};
use crate::share::Parts;
use crate::stored::Stored;

/// Columns that are held in registers while the rows of a panel pass.
const CHUNK: usize = 16;

/// Tiles `tiles` of `weight` times rows `rows` of `x` [T, cols] -> `out` [T, weight rows].
pub(crate) struct FloatJob<'a, S> {
    pub weight: &'a Weight,
    pub tiles: Range<usize>,
    pub x: &'a [f32],
    pub rows: Range<usize>,
    /// No other unit of work has the same tiles and rows.
    pub out: Parts<'a, f32>,
    pub stored: PhantomData<S>,
}

/// Four accumulators of sixteen lanes.
type Acc = [[f32; TILE_ROWS]; 4];

impl<S: Stored> Job for FloatJob<'_, S> {
    type Out = ();

    #[inline(always)]
    unsafe fn on<I: Isa>(self) {
        let shape = self.weight.shape();
        let mut acc: Aligned<[Acc; PANEL_ROWS]> = Aligned([[[0.0; TILE_ROWS]; 4]; PANEL_ROWS]);
        let acc = &mut acc.0;
        for tile in self.tiles {
            let w = self.weight.tile(tile);
            let first = tile * TILE_ROWS;
            let n = (shape.rows - first).min(TILE_ROWS);
            for from in self.rows.clone().step_by(PANEL_ROWS) {
                let rows = (self.rows.end - from).min(PANEL_ROWS);
                let x = &self.x[from * shape.cols..(from + rows) * shape.cols];
                // SAFETY: the tile has `cols` columns, `x` `rows` rows of them.
                unsafe { tile_panel::<I, S>(w, x, shape.cols, &mut acc[..rows]) };
                for (t, acc) in acc[..rows].iter().enumerate() {
                    // SAFETY: this unit alone has these rows and columns of `out`.
                    let out = unsafe { self.out.part((from + t) * shape.rows + first, n) };
                    // SAFETY: `n` <= 16 places.
                    unsafe {
                        let a = acc.each_ref().map(|a| I::load(a.as_ptr()));
                        let sum = I::add(I::add(a[0], a[1]), I::add(a[2], a[3]));
                        I::store_part(out.as_mut_ptr(), sum, n);
                    }
                }
            }
        }
    }
}

/// One tile [cols][16] times the rows of `x` [acc.len(), cols].
///
/// # Safety
/// The slices have these sizes.
#[inline(always)]
unsafe fn tile_panel<I: Isa, S: Stored>(w: &[u8], x: &[f32], cols: usize, acc: &mut [Acc]) {
    debug_assert!(w.len() >= cols * TILE_ROWS * S::BYTES && x.len() == acc.len() * cols);
    let whole = cols / CHUNK * CHUNK;
    // SAFETY: column `k` < `cols` of the tile and of every row.
    unsafe {
        for acc in acc.iter_mut() {
            *acc = [[0.0; TILE_ROWS]; 4];
        }
        for k in (0..whole).step_by(CHUNK) {
            let w: [I::F; CHUNK] = std::array::from_fn(|i| {
                S::load::<I>(w.as_ptr().add((k + i) * TILE_ROWS * S::BYTES))
            });
            for (t, acc) in acc.iter_mut().enumerate() {
                let x = x.as_ptr().add(t * cols + k);
                let mut a: [I::F; 4] = std::array::from_fn(|i| I::load(acc[i].as_ptr()));
                for i in 0..CHUNK {
                    a[i % 4] = I::fma(w[i], I::splat(*x.add(i)), a[i % 4]);
                }
                for i in 0..4 {
                    I::store(acc[i].as_mut_ptr(), a[i]);
                }
            }
        }
        for k in whole..cols {
            let w = S::load::<I>(w.as_ptr().add(k * TILE_ROWS * S::BYTES));
            for (t, acc) in acc.iter_mut().enumerate() {
                let a = acc[k % 4].as_mut_ptr();
                I::store(
                    a,
                    I::fma(w, I::splat(*x.as_ptr().add(t * cols + k)), I::load(a)),
                );
            }
        }
    }
}
