//! A weight matrix ready for the kernels.

use bytes::Bytes;

use crate::quant::{WeightType, dequantise};
use crate::{Error, plain};

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
    bytes: Bytes,
    ty: WeightType,
    shape: MatrixShape,
}

impl Weight {
    /// Takes a weight [rows, cols], row-major as in GGUF.
    ///
    /// # Errors
    /// `WeightShape` for an impossible shape, `WeightBytes` when `bytes` is not exactly the weight.
    pub fn new(bytes: Bytes, ty: WeightType, shape: MatrixShape) -> Result<Weight, Error> {
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
        if bytes.len() != need_bytes {
            return Err(Error::WeightBytes {
                rows,
                cols,
                ty: ty.name(),
                need_bytes,
                have_bytes: bytes.len(),
            });
        }
        Ok(Weight { bytes, ty, shape })
    }

    pub fn shape(&self) -> MatrixShape {
        self.shape
    }

    pub fn ty(&self) -> WeightType {
        self.ty
    }

    /// Bytes this weight keeps in memory.
    pub fn resident_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Row `row` as f32: `out` [cols]. The same values as [`dequantise`] of the source.
    pub fn dequantise_row(&self, row: usize, out: &mut [f32]) {
        let n = self.ty.row_bytes(self.shape.cols).expect("checked in new");
        dequantise(self.ty, &self.bytes[row * n..(row + 1) * n], out);
    }

    pub(crate) fn multiply(&self, x: &[f32], out: &mut [f32]) {
        plain::matmul(x, &self.bytes, self.ty, self.shape, out);
    }
}
