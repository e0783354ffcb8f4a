//! The product of rounded activations and a quantised weight: 16 output rows in 16 lanes.
//!
//! Order of one output element: blocks of 32 columns from the first to the last; in each an
//! exact integer dot, then one fused multiply-add (a second for types with a minimum). Lanes
//! and activation rows never meet, so neither tiling nor batch can change a bit.

use std::marker::PhantomData;
use std::ops::Range;

use crate::Weight;
use crate::activations::{Panel, Rounded};
use crate::isa::{Isa, Job};
use crate::limits::{PANEL_ROWS, TILE_ROWS};
use crate::quant::formats::Format;
use crate::share::Parts;
use crate::weight::scales_at;

/// Tiles `tiles` of `weight` times panels `panels` of `x` -> `out` [T, rows].
pub(crate) struct QuantJob<'a, Q> {
    pub weight: &'a Weight,
    pub tiles: Range<usize>,
    pub x: &'a Rounded,
    pub panels: Range<usize>,
    /// No other unit of work has the same tiles and panels.
    pub out: Parts<'a, f32>,
    pub format: PhantomData<Q>,
}

impl<Q: Format> Job for QuantJob<'_, Q> {
    type Out = ();

    #[inline(always)]
    unsafe fn on<I: Isa>(self) {
        let rows = self.weight.shape().rows;
        let mut acc = [[0f32; TILE_ROWS]; PANEL_ROWS];
        for tile in self.tiles {
            let bytes = self.weight.tile(tile);
            let first = tile * TILE_ROWS;
            let n = (rows - first).min(TILE_ROWS);
            for p in self.panels.clone() {
                let panel = self.x.panel(p);
                // SAFETY: the tile holds `panel.blocks` blocks (matmul checked the columns),
                // `acc` has a row for each of the panel's.
                unsafe {
                    if panel.rows == 1 {
                        tile_panel::<I, Q, true>(bytes, &panel, acc.as_mut_ptr().cast());
                    } else {
                        tile_panel::<I, Q, false>(bytes, &panel, acc.as_mut_ptr().cast());
                    }
                }
                for (t, acc) in acc[..panel.rows].iter().enumerate() {
                    let at = (p * PANEL_ROWS + t) * rows + first;
                    // SAFETY: this unit alone has these rows and columns of `out`.
                    let out = unsafe { self.out.part(at, n) };
                    // SAFETY: `n` <= 16 places.
                    unsafe { I::store_part(out.as_mut_ptr(), I::load(acc.as_ptr()), n) };
                }
            }
        }
    }
}

/// One block's scales, ready to meet an activation scale.
struct Scales<F> {
    /// Scale of the block (of its group, when scales go by 16 columns).
    d: F,
    /// Minimum, likewise.
    m: F,
    /// Integer scales and minima of the halves, when they go by 16 columns.
    sc: [F; 2],
    mn: [F; 2],
}

/// One tile times one panel -> `acc` [panel.rows][16]. `ONE`: the panel has one row.
///
/// # Safety
/// `tile` holds `panel.blocks` blocks of `Q`; `acc` is good for 16 numbers a row; the
/// panel's pointers are good.
#[inline(always)]
unsafe fn tile_panel<I: Isa, Q: Format, const ONE: bool>(
    tile: &[u8],
    panel: &Panel,
    acc: *mut f32,
) {
    let layout = Q::LAYOUT;
    let scales = scales_at(layout, panel.blocks * 32);
    debug_assert!(tile.len() >= scales + panel.blocks / layout.group_blocks * layout.group_bytes);
    // SAFETY: block `b` and its group lie inside the tile, row `t` inside the panel.
    unsafe {
        let mut one = I::splat(0.0);
        if !ONE {
            for t in 0..panel.rows {
                I::store(acc.add(16 * t), I::splat(0.0));
            }
        }
        for group in 0..panel.blocks / layout.group_blocks {
            let s = tile.as_ptr().add(scales + group * layout.group_bytes);
            let d = I::load_f16(s);
            let m = if Q::TY.has_min() {
                I::load_f16(s.add(32))
            } else {
                d
            };
            for sub in 0..layout.group_blocks {
                let b = group * layout.group_blocks + sub;
                let w = Q::numbers::<I>(tile.as_ptr().add(b * layout.block_bytes));
                let scales = block_scales::<I, Q>(s, d, m, sub);
                if ONE {
                    one = step::<I, Q>(&w, &scales, panel, b, one);
                    continue;
                }
                for t in 0..panel.rows {
                    let a = acc.add(16 * t);
                    let sum = step::<I, Q>(&w, &scales, panel, b * panel.rows + t, I::load(a));
                    I::store(a, sum);
                }
            }
        }
        if ONE {
            I::store(acc, one);
        }
    }
}

/// # Safety
/// `s` is good for the scales of a group; `sub` is a block of it.
#[inline(always)]
unsafe fn block_scales<I: Isa, Q: Format>(
    s: *const u8,
    d: I::F,
    m: I::F,
    sub: usize,
) -> Scales<I::F> {
    // SAFETY: the 32 bytes of block `sub` follow the halves of the group.
    unsafe {
        let plain = Scales {
            d,
            m,
            sc: [d; 2],
            mn: [d; 2],
        };
        if Q::LAYOUT.group_blocks == 1 {
            return plain;
        }
        let s = s.add(if Q::TY.has_min() { 64 } else { 32 } + 32 * sub);
        if Q::TY.scales_by_16() && Q::TY.has_min() {
            let first = nibble_scales::<I>(s);
            let second = nibble_scales::<I>(s.add(16));
            return Scales {
                sc: [first.0, second.0],
                mn: [first.1, second.1],
                ..plain
            };
        }
        if Q::TY.scales_by_16() {
            let sc = [I::load_i8(s), I::load_i8(s.add(16))];
            return Scales { sc, ..plain };
        }
        Scales {
            d: I::mul(d, I::load_u8(s)),
            m: I::mul(m, I::load_u8(s.add(16))),
            ..plain
        }
    }
}

/// Low and high halves of 16 bytes.
///
/// # Safety
/// `s` is good for 16 bytes.
#[inline(always)]
unsafe fn nibble_scales<I: Isa>(s: *const u8) -> (I::F, I::F) {
    // SAFETY: sixteen bytes read, sixteen written and read again.
    unsafe {
        let bytes = s.cast::<[u8; 16]>().read_unaligned();
        let (low, high) = (bytes.map(|b| b & 15), bytes.map(|b| b >> 4));
        (I::load_u8(low.as_ptr()), I::load_u8(high.as_ptr()))
    }
}

/// One block of 16 weight rows meets one activation row: number `i` of the panel.
///
/// # Safety
/// The panel has a block `i`.
#[inline(always)]
unsafe fn step<I: Isa, Q: Format>(
    w: &[I::V; 8],
    scales: &Scales<I::F>,
    panel: &Panel,
    i: usize,
    acc: I::F,
) -> I::F {
    // SAFETY: 32 bytes of `q` and one element of the others belong to block `i`.
    unsafe {
        let q = panel.q.add(32 * i);
        let dx = I::splat(*panel.d.add(i));
        let halves = [*panel.halves.add(2 * i), *panel.halves.add(2 * i + 1)];
        if Q::TY.scales_by_16() {
            let low = words::<I, Q>(&w[..4], halves[0], q);
            let high = words::<I, Q>(&w[4..], halves[1], q.add(16));
            // Whole numbers below 2^24 (see limits.rs), so this is exact.
            let dot = I::fma(
                I::to_f32(low),
                scales.sc[0],
                I::mul(I::to_f32(high), scales.sc[1]),
            );
            let acc = I::fma(dot, I::mul(scales.d, dx), acc);
            if !Q::TY.has_min() {
                return acc;
            }
            let sums = halves.map(|h| I::splat(h as f32));
            let min = I::fma(sums[0], scales.mn[0], I::mul(sums[1], scales.mn[1]));
            I::fma(min, I::mul(scales.m, dx), acc)
        } else {
            let dot = words::<I, Q>(w, halves[0] + halves[1], q);
            let acc = I::fma(I::to_f32(dot), I::mul(scales.d, dx), acc);
            if !Q::TY.has_min() {
                return acc;
            }
            I::fma(scales.m, I::splat(*panel.s.add(i)), acc)
        }
    }
}

/// Integer dot of some words with as many at `q`, whose sum is `sum`; the type's offset taken off.
///
/// # Safety
/// `q` is good for four bytes a word.
#[inline(always)]
unsafe fn words<I: Isa, Q: Format>(w: &[I::V], sum: i32, q: *const i8) -> I::V {
    // SAFETY: promised by the caller.
    unsafe {
        let mut dot = if Q::OFFSET == 0 {
            I::zero()
        } else {
            let start = -Q::OFFSET * sum;
            I::splat_i32(&start)
        };
        for (g, w) in w.iter().enumerate() {
            // Only Q8_0 uses all eight bits.
            dot = if Q::OFFSET == 128 {
                I::dot::<true>(dot, *w, q.add(4 * g))
            } else {
                I::dot::<false>(dot, *w, q.add(4 * g))
            };
        }
        dot
    }
}
