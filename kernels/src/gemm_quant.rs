//! The product of rounded activations and a quantised weight: 16 output rows in 16 lanes.
//!
//! Order of one output element: blocks of 32 columns from the first to the last; in each an
//! exact integer dot, then one fused multiply-add (a second for types with a minimum). Lanes
//! and activation rows never meet, so neither tiling nor batch can change a bit.

use std::marker::PhantomData;
use std::ops::Range;

use crate::Weight;
use crate::activations::{Panel, Rounded};
use crate::aligned::{Aligned, LINE};
use crate::isa::{Isa, Job};
use crate::limits::{PANEL_ROWS, PREFETCH_BYTES, ROWS_AT_ONCE, TILE_ROWS};
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

/// Accumulators: two tiles of a panel.
type Acc = [[[f32; TILE_ROWS]; PANEL_ROWS]; 2];

impl<Q: Format> Job for QuantJob<'_, Q> {
    type Out = ();

    #[inline(always)]
    unsafe fn on<I: Isa>(self) {
        let mut acc = Aligned([[[0f32; TILE_ROWS]; PANEL_ROWS]; 2]);
        let mut tile = self.tiles.start;
        while tile < self.tiles.end {
            let pair = I::TILE_PAIRS && tile + 1 < self.tiles.end;
            for p in self.panels.clone() {
                let panel = self.x.panel(p);
                let w = self.weight.tile(tile);
                // SAFETY: the tiles hold `panel.blocks` blocks (matmul checked the columns).
                unsafe {
                    match (pair, panel.rows) {
                        (false, 1) => tiles_panel::<I, Q, 1, true>([w], &panel, &mut acc.0),
                        (false, _) => tiles_panel::<I, Q, 1, false>([w], &panel, &mut acc.0),
                        (true, 1) => {
                            let w = [w, self.weight.tile(tile + 1)];
                            tiles_panel::<I, Q, 2, true>(w, &panel, &mut acc.0);
                        }
                        (true, _) => {
                            let w = [w, self.weight.tile(tile + 1)];
                            tiles_panel::<I, Q, 2, false>(w, &panel, &mut acc.0);
                        }
                    }
                }
                for (i, acc) in acc.0[..1 + usize::from(pair)].iter().enumerate() {
                    self.store::<I>(tile + i, p, &acc[..panel.rows]);
                }
            }
            tile += 1 + usize::from(pair);
        }
    }
}

impl<Q> QuantJob<'_, Q> {
    /// Tile `tile`, panel `p` of the output.
    #[inline(always)]
    fn store<I: Isa>(&self, tile: usize, p: usize, acc: &[[f32; TILE_ROWS]]) {
        let rows = self.weight.shape().rows;
        let first = tile * TILE_ROWS;
        let n = (rows - first).min(TILE_ROWS);
        for (t, acc) in acc.iter().enumerate() {
            let at = (p * PANEL_ROWS + t) * rows + first;
            // SAFETY: this unit alone has these rows and columns of `out`; `n` <= 16 places.
            unsafe {
                let out = self.out.part(at, n);
                I::store_part(out.as_mut_ptr(), I::load(acc.as_ptr()), n);
            }
        }
    }
}

/// One block's scales, ready to meet an activation scale.
#[derive(Clone, Copy)]
struct Scales<F> {
    /// Scale of the block (of its group, when scales go by 16 columns).
    d: F,
    /// Minimum, likewise.
    m: F,
    /// Integer scales and minima of the halves, when they go by 16 columns.
    sc: [F; 2],
    mn: [F; 2],
}

impl<F: Copy> Scales<F> {
    fn of(x: F) -> Scales<F> {
        Scales {
            d: x,
            m: x,
            sc: [x; 2],
            mn: [x; 2],
        }
    }
}

/// `W` tiles times one panel -> `acc` [W][panel.rows][16]. `ONE`: the panel has one row.
///
/// No closures in here: their bodies would be compiled without the instructions of `I`.
///
/// # Safety
/// Every tile holds `panel.blocks` blocks of `Q`; the panel's pointers are good; the machine
/// has the instructions of `I`.
#[inline(always)]
unsafe fn tiles_panel<I: Isa, Q: Format, const W: usize, const ONE: bool>(
    tiles: [&[u8]; W],
    panel: &Panel,
    acc: &mut Acc,
) {
    let (layout, rows) = (Q::LAYOUT, panel.rows);
    let groups = panel.blocks / layout.group_blocks;
    let scales = scales_at(layout, panel.blocks * 32);
    assert!(rows <= PANEL_ROWS && (!ONE || rows == 1));
    for i in 0..W {
        debug_assert!(tiles[i].len() >= scales + groups * layout.group_bytes);
        acc[i][..rows].fill([0.0; TILE_ROWS]);
    }
    let acc: [*mut f32; W] = std::array::from_fn(|i| acc[i].as_mut_ptr().cast());
    // SAFETY: block `b` of group `group` lies inside every tile; row `t` is below `rows`, so
    // inside the panel and the accumulators.
    unsafe {
        let mut one = [[I::splat(0.0); 1]; W];
        for group in 0..groups {
            let mut halves = [(one[0][0], one[0][0]); W];
            for i in 0..W {
                let s = tiles[i].as_ptr().add(scales + group * layout.group_bytes);
                let d = I::load_f16(s);
                let m = if Q::TY.has_min() {
                    I::load_f16(s.add(32))
                } else {
                    d
                };
                halves[i] = (d, m);
            }
            for sub in 0..layout.group_blocks {
                let b = group * layout.group_blocks + sub;
                let mut w = [words::<I, Q>([I::zero(); 8]); W];
                let mut ready = [Scales::<I::F>::of(one[0][0]); W];
                for i in 0..W {
                    let tile = tiles[i].as_ptr();
                    let s = tile.add(scales + group * layout.group_bytes);
                    let ahead = tile.wrapping_add(b * layout.block_bytes + PREFETCH_BYTES);
                    for line in 0..layout.block_bytes / LINE {
                        I::prefetch(ahead.wrapping_add(line * LINE));
                    }
                    w[i] = words::<I, Q>(Q::numbers::<I>(tile.add(b * layout.block_bytes)));
                    ready[i] = block_scales::<I, Q>(s, halves[i].0, halves[i].1, sub);
                }
                if ONE {
                    one = step::<I, Q, W, 1>(&w, &ready, panel, b, one);
                    continue;
                }
                let mut t = 0;
                while t + ROWS_AT_ONCE <= rows {
                    meet::<I, Q, W, ROWS_AT_ONCE>(&w, &ready, panel, b, t, acc);
                    t += ROWS_AT_ONCE;
                }
                while t < rows {
                    meet::<I, Q, W, 1>(&w, &ready, panel, b, t, acc);
                    t += 1;
                }
            }
        }
        if ONE {
            for i in 0..W {
                I::store(acc[i], one[i][0]);
            }
        }
    }
}

/// One block of `W` tiles meets rows `t .. t + R` of the panel; their sums are in `acc`.
///
/// # Safety
/// The panel has block `b` and these rows, and `acc` sixteen lanes for each of its rows.
// Indices name a tile and a row; the arrays are registers.
#[allow(clippy::needless_range_loop)]
#[inline(always)]
unsafe fn meet<I: Isa, Q: Format, const W: usize, const R: usize>(
    w: &[I::Words; W],
    scales: &[Scales<I::F>; W],
    panel: &Panel,
    b: usize,
    t: usize,
    acc: [*mut f32; W],
) {
    debug_assert!(t + R <= panel.rows);
    // SAFETY: rows below `panel.rows`.
    unsafe {
        let mut sum = [[I::splat(0.0); R]; W];
        for i in 0..W {
            for r in 0..R {
                sum[i][r] = I::load(acc[i].add(TILE_ROWS * (t + r)));
            }
        }
        sum = step::<I, Q, W, R>(w, scales, panel, b * panel.rows + t, sum);
        for i in 0..W {
            for r in 0..R {
                I::store(acc[i].add(TILE_ROWS * (t + r)), sum[i][r]);
            }
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

/// One block of `W` tiles meets `R` activation rows: numbers `i .. i + R` of the panel.
///
/// # Safety
/// The panel has these blocks.
// Indices name a tile and a row; the arrays are registers.
#[allow(clippy::needless_range_loop)]
#[inline(always)]
unsafe fn step<I: Isa, Q: Format, const W: usize, const R: usize>(
    w: &[I::Words; W],
    scales: &[Scales<I::F>; W],
    panel: &Panel,
    i: usize,
    mut acc: [[I::F; R]; W],
) -> [[I::F; R]; W] {
    // SAFETY: 32 bytes of `q` and one element of the others belong to each block.
    unsafe {
        let q = panel.q.add(32 * i);
        let mut halves = [[0; R]; 2];
        for r in 0..R {
            halves[0][r] = *panel.halves.add(2 * (i + r));
            halves[1][r] = *panel.halves.add(2 * (i + r) + 1);
        }
        if !Q::TY.scales_by_16() {
            let mut sums = halves[0];
            for r in 0..R {
                sums[r] += halves[1][r];
            }
            let dot = dots::<I, Q, 8, W, R>(w, 0, q, sums);
            for r in 0..R {
                let dx = I::splat(*panel.d.add(i + r));
                for x in 0..W {
                    let Scales { d, m, .. } = scales[x];
                    acc[x][r] = I::fma(I::to_f32(dot[x][r]), I::mul(d, dx), acc[x][r]);
                    if Q::TY.has_min() {
                        acc[x][r] = I::fma(m, I::splat(*panel.s.add(i + r)), acc[x][r]);
                    }
                }
            }
            return acc;
        }
        let low = dots::<I, Q, 4, W, R>(w, 0, q, halves[0]);
        let high = dots::<I, Q, 4, W, R>(w, 4, q.add(16), halves[1]);
        for r in 0..R {
            let dx = I::splat(*panel.d.add(i + r));
            let sums = [I::splat(halves[0][r] as f32), I::splat(halves[1][r] as f32)];
            for x in 0..W {
                let Scales { d, m, sc, mn } = scales[x];
                // Whole numbers below 2^24 (see limits.rs), so this is exact.
                let high = I::mul(I::to_f32(high[x][r]), sc[1]);
                let dot = I::fma(I::to_f32(low[x][r]), sc[0], high);
                acc[x][r] = I::fma(dot, I::mul(d, dx), acc[x][r]);
                if Q::TY.has_min() {
                    let min = I::fma(sums[0], mn[0], I::mul(sums[1], mn[1]));
                    acc[x][r] = I::fma(min, I::mul(m, dx), acc[x][r]);
                }
            }
        }
        acc
    }
}

/// [`Isa::words`] with the number of bits of `Q`.
///
/// # Safety
/// As [`Isa::words`].
#[inline(always)]
unsafe fn words<I: Isa, Q: Format>(w: [I::V; 8]) -> I::Words {
    // SAFETY: promised by the caller. Only eight bits are treated apart.
    unsafe {
        if Q::BITS == 8 {
            I::words::<8>(w)
        } else {
            I::words::<4>(w)
        }
    }
}

/// [`Isa::dots`] with the number of bits of `Q`.
///
/// # Safety
/// As [`Isa::dots`].
#[inline(always)]
unsafe fn dots<I: Isa, Q: Format, const N: usize, const W: usize, const R: usize>(
    w: &[I::Words; W],
    from: usize,
    x: *const i8,
    sums: [i32; R],
) -> [[I::V; R]; W] {
    // SAFETY: promised by the caller. A constant of a trait cannot be a generic argument.
    unsafe {
        match Q::BITS {
            2 => I::dots::<2, N, W, R>(w, from, x, sums, Q::OFFSET),
            3 => I::dots::<3, N, W, R>(w, from, x, sums, Q::OFFSET),
            4 => I::dots::<4, N, W, R>(w, from, x, sums, Q::OFFSET),
            5 => I::dots::<5, N, W, R>(w, from, x, sums, Q::OFFSET),
            6 => I::dots::<6, N, W, R>(w, from, x, sums, Q::OFFSET),
            _ => I::dots::<8, N, W, R>(w, from, x, sums, Q::OFFSET),
        }
    }
}
