//! A weight matrix ready for the kernels: repacked once, at load, into tiles of 16 rows.
//!
//! Invariant: `dequantise_row` gives bit for bit what [`crate::dequantise`] gives of the source, so
//! repacking loses nothing. The source is dropped; what stays is within 5% of its size
//! (plus at most 15 padding rows).

use bytes::Bytes;

use crate::Error;
use crate::aligned::{AlignedBytes, LINE};
use crate::limits::{PACK_BYTES_MIN, PACK_THREADS_MAX, TILE_ROWS};
use crate::quant::WeightType;
use crate::quant::blocks::block32;
use crate::quant::formats::{
    self, Format, Layout, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0,
};
use crate::share::Parts;

/// Shape of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MatrixShape {
    /// Output features.
    pub rows: usize,
    /// Input features, contiguous in memory.
    pub cols: usize,
}

/// A weight [rows, cols].
pub struct Weight {
    ty: WeightType,
    shape: MatrixShape,
    tile_bytes: usize,
    tiles: AlignedBytes,
}

impl Weight {
    /// Takes a weight [rows, cols], row-major as in GGUF, and repacks it.
    ///
    /// # Errors
    /// `WeightShape` for an impossible shape, `WeightBytes` when `bytes` is not exactly the
    /// weight, `Memory` when the system refuses the copy.
    pub fn new(bytes: Bytes, ty: WeightType, shape: MatrixShape) -> Result<Weight, Error> {
        let row_bytes = check(bytes.len(), ty, shape)?;
        let tile_bytes = tile_bytes(ty, shape.cols);
        let count = shape.rows.div_ceil(TILE_ROWS);
        let refuse = |need_bytes| Error::Memory {
            what: "weight",
            need_bytes,
            fix: "use a smaller model or a smaller quantisation",
        };
        let total = count
            .checked_mul(tile_bytes)
            .ok_or_else(|| refuse(usize::MAX))?;
        let mut tiles = AlignedBytes::zeroed(total).ok_or_else(|| refuse(total))?;
        pack_all(&bytes, row_bytes, ty, shape, tiles.as_mut_slice());
        Ok(Weight {
            ty,
            shape,
            tile_bytes,
            tiles,
        })
    }

    pub fn shape(&self) -> MatrixShape {
        self.shape
    }

    pub fn ty(&self) -> WeightType {
        self.ty
    }

    /// Bytes this weight keeps in memory.
    pub fn resident_bytes(&self) -> usize {
        self.tiles.as_slice().len()
    }

    /// Tiles of 16 rows.
    pub(crate) fn tiles(&self) -> usize {
        self.shape.rows.div_ceil(TILE_ROWS)
    }

    /// The bytes of tile `tile`.
    pub(crate) fn tile(&self, tile: usize) -> &[u8] {
        &self.tiles.as_slice()[tile * self.tile_bytes..(tile + 1) * self.tile_bytes]
    }

    /// Row `row` as f32: `out` [cols]. The same values as [`crate::dequantise`] of the source.
    ///
    /// # Panics
    /// When `row` is outside the weight or `out` is not one row long.
    pub fn dequantise_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.shape.rows && out.len() == self.shape.cols);
        let (tile, r) = (self.tile(row / TILE_ROWS), row % TILE_ROWS);
        if !self.ty.is_quantised() {
            let size = self.ty.block_bytes();
            for (k, out) in out.iter_mut().enumerate() {
                let at = (k * TILE_ROWS + r) * size;
                crate::dequantise(self.ty, &tile[at..at + size], std::slice::from_mut(out));
            }
            return;
        }
        let layout = formats::layout(self.ty);
        let scales = scales_at(layout, self.shape.cols);
        for (b, out) in out.chunks_exact_mut(32).enumerate() {
            let block = &tile[b * layout.block_bytes..(b + 1) * layout.block_bytes];
            let at = scales + b / layout.group_blocks * layout.group_bytes;
            let group = &tile[at..at + layout.group_bytes];
            let sub = b % layout.group_blocks;
            formats::unpack(self.ty, block, group, r, sub).values(self.ty, out);
        }
    }
}

/// Where the scales of a quantised tile begin.
pub(crate) fn scales_at(layout: Layout, cols: usize) -> usize {
    cols / 32 * layout.block_bytes
}

/// Checks a weight before anything is allocated; gives the bytes of a source row.
fn check(have_bytes: usize, ty: WeightType, shape: MatrixShape) -> Result<usize, Error> {
    let MatrixShape { rows, cols } = shape;
    let refuse = |why: String| Error::WeightShape {
        rows,
        cols,
        ty: ty.name(),
        why,
    };
    if rows == 0 || cols == 0 {
        return Err(refuse("need at least one row and column".into()));
    }
    let row = ty
        .row_bytes(cols)
        .ok_or_else(|| refuse(format!("need columns in blocks of {}", ty.block_len())))?;
    let need_bytes = row
        .checked_mul(rows)
        .ok_or_else(|| refuse("its size overflows".into()))?;
    if have_bytes != need_bytes {
        return Err(Error::WeightBytes {
            rows,
            cols,
            ty: ty.name(),
            need_bytes,
            have_bytes,
        });
    }
    Ok(row)
}

/// Bytes of one tile, a whole number of cache lines. `cols` was checked.
fn tile_bytes(ty: WeightType, cols: usize) -> usize {
    let bytes = if ty.is_quantised() {
        let layout = formats::layout(ty);
        scales_at(layout, cols) + cols / ty.block_len() * layout.group_bytes
    } else {
        cols * TILE_ROWS * ty.block_bytes()
    };
    bytes.next_multiple_of(LINE)
}

/// Repacks all tiles, large weights on several threads.
fn pack_all(bytes: &[u8], row_bytes: usize, ty: WeightType, shape: MatrixShape, out: &mut [u8]) {
    let size = tile_bytes(ty, shape.cols);
    let pack_one = |(i, tile): (usize, &mut [u8])| {
        let from = i * TILE_ROWS * row_bytes;
        let to = (from + TILE_ROWS * row_bytes).min(bytes.len());
        pack_tile(&bytes[from..to], row_bytes, ty, tile);
    };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get().min(PACK_THREADS_MAX));
    if out.len() < PACK_BYTES_MIN || threads == 1 {
        out.chunks_exact_mut(size).enumerate().for_each(pack_one);
        return;
    }
    let count = out.len() / size;
    let cursor = std::sync::atomic::AtomicUsize::new(0);
    let parts = Parts::new(out);
    let share = || {
        loop {
            let i = cursor.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            if i >= count {
                return;
            }
            // SAFETY: the cursor gives each tile to one thread.
            pack_one((i, unsafe { parts.part(i * size, size) }));
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(share);
        }
        share();
    });
}

/// Up to 16 source rows of type `ty` -> one tile.
fn pack_tile(rows: &[u8], row_bytes: usize, ty: WeightType, tile: &mut [u8]) {
    match ty {
        WeightType::F32 => pack_floats::<4>(rows, row_bytes, tile),
        WeightType::F16 | WeightType::BF16 => pack_floats::<2>(rows, row_bytes, tile),
        WeightType::Q4_0 => pack_blocks::<Q4_0>(rows, row_bytes, tile),
        WeightType::Q4_1 => pack_blocks::<Q4_1>(rows, row_bytes, tile),
        WeightType::Q5_0 => pack_blocks::<Q5_0>(rows, row_bytes, tile),
        WeightType::Q5_1 => pack_blocks::<Q5_1>(rows, row_bytes, tile),
        WeightType::Q8_0 => pack_blocks::<Q8_0>(rows, row_bytes, tile),
        WeightType::Q2K => pack_blocks::<Q2K>(rows, row_bytes, tile),
        WeightType::Q3K => pack_blocks::<Q3K>(rows, row_bytes, tile),
        WeightType::Q4K => pack_blocks::<Q4K>(rows, row_bytes, tile),
        WeightType::Q5K => pack_blocks::<Q5K>(rows, row_bytes, tile),
        WeightType::Q6K => pack_blocks::<Q6K>(rows, row_bytes, tile),
    }
}

/// Up to 16 quantised rows -> one tile, block after block: the tile is written once, in order.
fn pack_blocks<Q: Format>(rows: &[u8], row_bytes: usize, tile: &mut [u8]) {
    let layout = Q::LAYOUT;
    let cols = row_bytes / Q::TY.block_bytes() * Q::TY.block_len();
    let (numbers, scales) = tile.split_at_mut(scales_at(layout, cols));
    for (b, out) in numbers.chunks_exact_mut(layout.block_bytes).enumerate() {
        let (group, sub) = (b / layout.group_blocks, b % layout.group_blocks);
        let at = group * layout.group_bytes;
        let scales = &mut scales[at..at + layout.group_bytes];
        for (r, row) in rows.chunks_exact(row_bytes).enumerate() {
            let block = block32(Q::TY, row, b);
            formats::pack_numbers(layout, &block.q, r, out);
            formats::pack_scales(Q::TY, &block, r, sub, scales);
        }
    }
}

/// Up to 16 source rows of numbers of `N` bytes -> [cols][16].
fn pack_floats<const N: usize>(rows: &[u8], row_bytes: usize, tile: &mut [u8]) {
    // So many columns at a time that what is written stays in the first cache.
    const COLUMNS: usize = 64;
    let (tile, _) = tile.as_chunks_mut::<N>();
    for (i, tile) in tile.chunks_mut(COLUMNS * TILE_ROWS).enumerate() {
        for (r, row) in rows.chunks_exact(row_bytes).enumerate() {
            let (row, _) = row.as_chunks::<N>();
            let to = tile.iter_mut().skip(r).step_by(TILE_ROWS);
            for (to, x) in to.zip(row.iter().skip(i * COLUMNS)) {
                *to = *x;
            }
        }
    }
}
