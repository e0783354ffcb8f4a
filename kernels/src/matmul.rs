//! Products of activations and weights: the work of one call cut into units.
//!
//! A unit is some tiles of one weight times some rows of activations. How it is cut depends on
//! the number of threads and rows; the result does not (see `gemm_quant.rs`, `gemm_float.rs`).

use std::marker::PhantomData;
use std::ops::Range;

use crate::activations::{Rounded, RoundedParts, round_panel};
use crate::gemm_float::FloatJob;
use crate::gemm_quant::QuantJob;
use crate::isa::{Isa, Job, dispatch};
use crate::limits::{PANEL_GROUP_BYTES, PANEL_ROWS, UNITS_PER_THREAD, WEIGHTS_MAX};
use crate::quant::formats::{Format, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};
use crate::share::Parts;
use crate::stored::{BF16, F16, F32, Stored};
use crate::{KernelPath, Scratch, ThreadPool, Weight, WeightType};

/// `x` [T, cols] f32 times `w` [rows, cols] transposed -> `out` [T, rows] f32.
///
/// Numerics v1: `out[t][r]` has the same bits for any T, thread count and place in the batch.
///
/// # Panics
/// When the slices do not have these shapes.
pub fn matmul(pool: &ThreadPool, x: &[f32], w: &Weight, out: &mut [f32], scratch: &mut Scratch) {
    matmul_each(pool, x, &[w], &mut [out], scratch);
}

/// The same `x` [T, cols] times several weights -> `outs[i]` [T, rows of ws[i]]. `x` is
/// rounded once and the threads meet once.
///
/// # Panics
/// When the slices do not have these shapes.
pub fn matmul_each(
    pool: &ThreadPool,
    x: &[f32],
    ws: &[&Weight],
    outs: &mut [&mut [f32]],
    scratch: &mut Scratch,
) {
    assert_eq!(ws.len(), outs.len(), "one output for each weight");
    assert!(ws.len() <= WEIGHTS_MAX, "at most {WEIGHTS_MAX} weights");
    let Some(first) = ws.first() else { return };
    let cols = first.shape().cols;
    assert!(x.len().is_multiple_of(cols), "x is whole rows of {cols}");
    let rows = x.len() / cols;
    for (w, out) in ws.iter().zip(&*outs) {
        assert_eq!(
            w.shape().cols,
            cols,
            "weights of one call share their columns"
        );
        assert_eq!(out.len(), rows * w.shape().rows, "out is [T, rows]");
    }
    if rows == 0 {
        return;
    }
    if ws.iter().any(|w| w.ty().is_quantised()) {
        round_rows(pool, x, rows, cols, &mut scratch.rounded);
    }
    let rounded = &scratch.rounded;
    let plan = Plan::new(ws, rows, cols, pool.threads());
    let mut parts = [const { None }; WEIGHTS_MAX];
    for (parts, out) in parts.iter_mut().zip(outs) {
        *parts = Some(Parts::new(out));
    }
    pool.for_units(plan.units, &|unit, _| {
        let (i, tiles, panels) = plan.unit(ws, unit);
        let out = parts[i].expect("one output for each weight");
        multiply(pool.path(), ws[i], tiles, x, rounded, panels, out);
    });
}

/// How the work of one call is cut.
struct Plan {
    units: usize,
    /// Tiles in one unit.
    tiles: usize,
    /// Panels in one unit, and groups of so many.
    panels: usize,
    groups: usize,
    panels_all: usize,
}

impl Plan {
    fn new(ws: &[&Weight], rows: usize, cols: usize, threads: usize) -> Plan {
        let panels_all = rows.div_ceil(PANEL_ROWS);
        let panels = (PANEL_GROUP_BYTES / (cols * PANEL_ROWS)).clamp(1, panels_all);
        let groups = panels_all.div_ceil(panels);
        let all: usize = ws.iter().map(|w| w.tiles()).sum();
        let tiles = if threads == 1 {
            all
        } else {
            (all * groups / (threads * UNITS_PER_THREAD)).clamp(1, all)
        };
        let units = ws.iter().map(|w| w.tiles().div_ceil(tiles)).sum::<usize>() * groups;
        Plan {
            units,
            tiles,
            panels,
            groups,
            panels_all,
        }
    }

    /// The weight, tiles and panels of unit `unit`.
    fn unit(&self, ws: &[&Weight], mut unit: usize) -> (usize, Range<usize>, Range<usize>) {
        for (i, w) in ws.iter().enumerate() {
            let chunks = w.tiles().div_ceil(self.tiles);
            if unit >= chunks * self.groups {
                unit -= chunks * self.groups;
                continue;
            }
            let (group, chunk) = (unit / chunks, unit % chunks);
            let (tile, panel) = (chunk * self.tiles, group * self.panels);
            return (
                i,
                tile..(tile + self.tiles).min(w.tiles()),
                panel..(panel + self.panels).min(self.panels_all),
            );
        }
        unreachable!("a unit beyond the plan")
    }
}

/// Rounds `x` [rows, cols] into `out`.
fn round_rows(pool: &ThreadPool, x: &[f32], rows: usize, cols: usize, out: &mut Rounded) {
    struct Round<'a> {
        x: &'a [f32],
        out: RoundedParts<'a>,
        panel: usize,
    }
    impl Job for Round<'_> {
        type Out = ();
        #[inline(always)]
        unsafe fn on<I: Isa>(self) {
            // SAFETY: each panel is one unit.
            unsafe { round_panel::<I>(self.x, &self.out, self.panel) }
        }
    }
    let out = out.prepare(rows, cols);
    pool.for_units(rows.div_ceil(PANEL_ROWS), &|panel, _| {
        // SAFETY: as in `on`.
        unsafe { dispatch(pool.path(), Round { x, out, panel }) }
    });
}

/// One unit of work.
fn multiply(
    path: KernelPath,
    weight: &Weight,
    tiles: Range<usize>,
    x: &[f32],
    rounded: &Rounded,
    panels: Range<usize>,
    out: Parts<'_, f32>,
) {
    let unit = Unit {
        path,
        weight,
        tiles,
        x,
        rounded,
        panels,
        out,
    };
    match weight.ty() {
        WeightType::F32 => unit.float::<F32>(),
        WeightType::F16 => unit.float::<F16>(),
        WeightType::BF16 => unit.float::<BF16>(),
        WeightType::Q4_0 => unit.quantised::<Q4_0>(),
        WeightType::Q4_1 => unit.quantised::<Q4_1>(),
        WeightType::Q5_0 => unit.quantised::<Q5_0>(),
        WeightType::Q5_1 => unit.quantised::<Q5_1>(),
        WeightType::Q8_0 => unit.quantised::<Q8_0>(),
        WeightType::Q2K => unit.quantised::<Q2K>(),
        WeightType::Q3K => unit.quantised::<Q3K>(),
        WeightType::Q4K => unit.quantised::<Q4K>(),
        WeightType::Q5K => unit.quantised::<Q5K>(),
        WeightType::Q6K => unit.quantised::<Q6K>(),
    }
}

/// A unit of work before its type is known.
struct Unit<'a> {
    path: KernelPath,
    weight: &'a Weight,
    tiles: Range<usize>,
    x: &'a [f32],
    rounded: &'a Rounded,
    panels: Range<usize>,
    out: Parts<'a, f32>,
}

impl Unit<'_> {
    fn float<S: Stored>(self) {
        let rows = self.x.len() / self.weight.shape().cols;
        let job = FloatJob::<S> {
            weight: self.weight,
            tiles: self.tiles,
            x: self.x,
            rows: self.panels.start * PANEL_ROWS..(self.panels.end * PANEL_ROWS).min(rows),
            out: self.out,
            stored: PhantomData,
        };
        // SAFETY: `Plan` gives every pair of tiles and panels to one unit.
        unsafe { dispatch(self.path, job) }
    }

    fn quantised<Q: Format>(self) {
        let job = QuantJob::<Q> {
            weight: self.weight,
            tiles: self.tiles,
            x: self.rounded,
            panels: self.panels,
            out: self.out,
            format: PhantomData,
        };
        // SAFETY: as above.
        unsafe { dispatch(self.path, job) }
    }
}
