//! Keys and values as candle tensors, for GPUs.
//!
//! K and V of each layer are one tensor [blocks, kv_heads, 32, head_dim]. Rows are written in place
//! by `slice_set`, and a sequence's blocks are gathered by `index_select` over its table.
//! Invariant: no tensor here is ever handed out without a copy, since candle's in-place writes show
//! through every clone.

use candle_core::{DType, Device, Tensor};
use half::f16;
use kernels::{BLOCK_TOKENS, KvShape, KvType, SeqSpan};

use super::tensor_error;
use crate::Result;

/// Keys and values of all sequences, on one device.
pub struct TensorKv {
    shape: KvShape,
    blocks: usize,
    /// One (K, V) for each layer.
    layers: Vec<[Tensor; 2]>,
}

impl TensorKv {
    pub(crate) fn new(shape: KvShape, blocks: usize, device: &Device) -> Result<Self> {
        let dims = (blocks, shape.kv_heads, BLOCK_TOKENS, shape.head_dim);
        let zeros = || Tensor::zeros(dims, dtype(shape.ty), device);
        let layer = |_| Ok([zeros()?, zeros()?]);
        let layers: candle_core::Result<_> = (0..shape.layers).map(layer).collect();
        let need = shape.block_bytes().saturating_mul(blocks);
        let layers = layers.map_err(|error| {
            crate::Error::device(format!(
                "KV store: need {need} bytes on the device; lower the context or --kv-memory"
            ))
            .caused_by(error)
        })?;
        Ok(Self {
            shape,
            blocks,
            layers,
        })
    }

    pub fn shape(&self) -> KvShape {
        self.shape
    }

    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Writes the new rows of all sequences: `k`, `v` [Hkv, T, D] f32, rows in the order of `spans`.
    pub(crate) fn append(
        &mut self,
        layer: usize,
        spans: &[SeqSpan<'_>],
        k: &Tensor,
        v: &Tensor,
    ) -> candle_core::Result<()> {
        let stored = dtype(self.shape.ty);
        for (store, new) in self.layers[layer].iter().zip([k, v]) {
            let new = new.to_dtype(stored)?.unsqueeze(0)?;
            let mut row = 0;
            for span in spans {
                for run in runs(span) {
                    let rows = new.narrow(2, row, run.rows)?.contiguous()?;
                    store
                        .narrow(0, run.block as usize, 1)?
                        .slice_set(&rows, 2, run.slot)?;
                    row += run.rows;
                }
            }
        }
        Ok(())
    }

    /// K and V of the first `positions` positions of a sequence, as f32 [Hkv, positions, D].
    /// `table` [blocks] u32 on the device covers exactly those.
    pub(crate) fn gather(
        &self,
        layer: usize,
        table: &Tensor,
        positions: usize,
    ) -> candle_core::Result<[Tensor; 2]> {
        let gather = |store: &Tensor| {
            let heads = store
                .index_select(table, 0)?
                .transpose(0, 1)?
                .contiguous()?;
            let (kv_heads, blocks, tokens, head_dim) = heads.dims4()?;
            let flat = heads.reshape((kv_heads, blocks * tokens, head_dim))?;
            flat.narrow(1, 0, positions)?.to_dtype(DType::F32)
        };
        let [k, v] = &self.layers[layer];
        Ok([gather(k)?, gather(v)?])
    }

    pub(crate) fn copy_block(&mut self, from: u32, to: u32) -> Result<()> {
        let copy = |store: &Tensor| {
            let block = store.narrow(0, from as usize, 1)?.copy()?;
            store.narrow(0, to as usize, 1)?.slice_set(&block, 0, 0)
        };
        self.layers
            .iter()
            .flatten()
            .try_for_each(copy)
            .map_err(tensor_error)
    }

    /// A block as [layer][K | V][kv_head][32][head_dim], little-endian.
    pub(crate) fn read_block(&self, block: u32) -> Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(self.shape.block_bytes());
        let mut read = |store: &Tensor| {
            let values = store.narrow(0, block as usize, 1)?.flatten_all()?;
            match store.dtype() {
                DType::F32 => values
                    .to_vec1::<f32>()?
                    .iter()
                    .for_each(|v| bytes.extend_from_slice(&v.to_le_bytes())),
                _ => values
                    .to_vec1::<f16>()?
                    .iter()
                    .for_each(|v| bytes.extend_from_slice(&v.to_le_bytes())),
            }
            Ok(())
        };
        self.layers
            .iter()
            .flatten()
            .try_for_each(&mut read)
            .map_err(tensor_error)?;
        Ok(bytes)
    }

    /// Takes what `read_block` gave; the length was checked.
    pub(crate) fn write_block(&mut self, block: u32, bytes: &[u8]) -> Result<()> {
        let dims = (1, self.shape.kv_heads, BLOCK_TOKENS, self.shape.head_dim);
        let part = self.shape.block_bytes() / (2 * self.shape.layers);
        let write = |(store, bytes): (&Tensor, &[u8])| {
            let device = store.device();
            let values = match store.dtype() {
                DType::F32 => {
                    let (numbers, _) = bytes.as_chunks::<4>();
                    let values = numbers.iter().map(|b| f32::from_le_bytes(*b)).collect();
                    Tensor::from_vec::<_, f32>(values, dims, device)?
                }
                _ => {
                    let (numbers, _) = bytes.as_chunks::<2>();
                    let values = numbers.iter().map(|b| f16::from_le_bytes(*b)).collect();
                    Tensor::from_vec::<_, f16>(values, dims, device)?
                }
            };
            store.narrow(0, block as usize, 1)?.slice_set(&values, 0, 0)
        };
        let stores = self.layers.iter().flatten();
        stores
            .zip(bytes.chunks_exact(part))
            .try_for_each(write)
            .map_err(tensor_error)
    }
}

fn dtype(ty: KvType) -> DType {
    match ty {
        KvType::F32 => DType::F32,
        KvType::F16 => DType::F16,
        KvType::Q8_0 => unreachable!("refused when the model was loaded"),
    }
}

/// Consecutive rows that go to one block.
struct Run {
    block: u32,
    /// Where in the block the first of them goes.
    slot: usize,
    rows: usize,
}

/// Cuts a span at the edges of its blocks.
fn runs(span: &SeqSpan<'_>) -> impl Iterator<Item = Run> {
    let (mut position, end, table) = (span.start, span.start + span.rows, span.table);
    std::iter::from_fn(move || {
        if position >= end {
            return None;
        }
        let slot = position % BLOCK_TOKENS;
        let rows = (BLOCK_TOKENS - slot).min(end - position);
        let block = table[position / BLOCK_TOKENS];
        position += rows;
        Some(Run { block, slot, rows })
    })
}
