//! Memory for keys and values, in blocks of 32 positions.
//!
//! Layout: `[block][layer][K: [kv_head][head_dim][32] | V: [kv_head][32][head_dim]]`. K is
//! kept transposed, so that the scores of 16 keys are 16 lanes and each is summed
//! over `head_dim` in order: no horizontal sum, and the same bits for one query
//! row or many. In `Q8_0` each head's numbers are followed by their scales, f16
//! [head_dim / 32, rounded up][32]. To every other crate a block is opaque bytes.
//!
//! Invariant: blocks are zero until written; a block id is below `blocks()`.

use half::f16;

use crate::Error;
use crate::aligned::AlignedBytes;
use crate::limits::{BLOCK_TOKENS, HEAD_DIM_MAX, QUANT_COLS};

/// Bytes of a scale, f16.
pub(crate) const SCALE_BYTES: usize = 2;

/// Bytes of one line of scales: 32 positions.
pub(crate) const SCALES_BYTES: usize = BLOCK_TOKENS * SCALE_BYTES;

/// How keys and values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvType {
    F32,
    F16,
    /// Whole numbers of 8 bits; 32 dimensions of a head at one position share a scale in f16.
    Q8_0,
}

impl KvType {
    /// Bytes of one number, without its share of a scale.
    pub const fn bytes(self) -> usize {
        match self {
            KvType::F32 => 4,
            KvType::F16 => 2,
            KvType::Q8_0 => 1,
        }
    }
}

/// Shape of the keys and values of one model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KvShape {
    pub layers: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub ty: KvType,
}

impl KvShape {
    /// Scales of one head at one position.
    pub(crate) fn scales(&self) -> usize {
        match self.ty {
            KvType::F32 | KvType::F16 => 0,
            KvType::Q8_0 => self.head_dim.div_ceil(QUANT_COLS),
        }
    }

    /// Bytes of the numbers of K (or V) of one head in one block; the scales come after them.
    pub(crate) fn number_bytes(&self) -> usize {
        BLOCK_TOKENS * self.head_dim * self.ty.bytes()
    }

    /// Bytes of K (or V) of one head in one block.
    pub(crate) fn head_bytes(&self) -> usize {
        self.number_bytes() + self.scales() * SCALES_BYTES
    }

    /// Bytes of K and V of one layer in one block.
    pub(crate) fn layer_bytes(&self) -> usize {
        2 * self.kv_heads * self.head_bytes()
    }

    /// Bytes of one block, all layers.
    pub fn block_bytes(&self) -> usize {
        self.layers * self.layer_bytes()
    }

    /// Offset of K of a head inside its block.
    pub(crate) fn k_offset(&self, layer: usize, head: usize) -> usize {
        layer * self.layer_bytes() + head * self.head_bytes()
    }

    /// Offset of V of a head inside its block.
    pub(crate) fn v_offset(&self, layer: usize, head: usize) -> usize {
        self.k_offset(layer, self.kv_heads + head)
    }
}

/// Rows of one sequence in a batch: `rows` consecutive positions from `start`.
/// `table[i]` is the block of positions `32 i .. 32 i + 32`.
#[derive(Clone, Copy, Debug)]
pub struct SeqSpan<'a> {
    pub table: &'a [u32],
    pub start: usize,
    pub rows: usize,
}

impl SeqSpan<'_> {
    /// Asserts that the table covers the rows, and from position `first` on stays inside the arena.
    pub(crate) fn check(&self, kv: &KvArena, first: usize) {
        let blocks = (self.start + self.rows).div_ceil(BLOCK_TOKENS);
        assert!(
            blocks <= self.table.len(),
            "positions to {} need {blocks} blocks, the table has {}",
            self.start + self.rows,
            self.table.len()
        );
        assert!(
            self.table[first / BLOCK_TOKENS..blocks]
                .iter()
                .all(|b| (*b as usize) < kv.blocks),
            "a table names a block outside the arena"
        );
    }
}

/// The keys and values of all sequences.
pub struct KvArena {
    shape: KvShape,
    blocks: usize,
    pub(crate) bytes: AlignedBytes,
}

impl KvArena {
    /// Allocates `blocks` blocks, lazily zeroed: memory is taken as blocks are written.
    pub fn new(shape: KvShape, blocks: usize) -> Result<KvArena, Error> {
        let positive = shape.layers > 0 && shape.kv_heads > 0 && shape.head_dim > 0;
        if !positive || shape.head_dim > HEAD_DIM_MAX {
            return Err(Error::Request {
                what: "KV shape",
                need: format!("layers, heads > 0 and head_dim in 1..={HEAD_DIM_MAX}"),
                have: format!(
                    "{} layers, {} heads, head_dim {}",
                    shape.layers, shape.kv_heads, shape.head_dim
                ),
                fix: "use a model with such heads",
            });
        }
        let total = [shape.layers, 2, shape.kv_heads, blocks]
            .iter()
            .try_fold(shape.head_bytes(), |n, f| n.checked_mul(*f))
            .filter(|_| u32::try_from(blocks).is_ok());
        let Some(total) = total else {
            return Err(Error::Memory {
                what: "KV arena",
                need_bytes: usize::MAX,
                fix: "lower the context or the number of blocks",
            });
        };
        let bytes = AlignedBytes::zeroed(total).ok_or(Error::Memory {
            what: "KV arena",
            need_bytes: total,
            fix: "lower the context or the number of blocks",
        })?;
        Ok(KvArena {
            shape,
            blocks,
            bytes,
        })
    }

    /// Shape of the model's keys and values.
    pub fn shape(&self) -> KvShape {
        self.shape
    }

    /// Number of blocks.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// The bytes of block `b`.
    pub fn block_bytes_ref(&self, b: u32) -> &[u8] {
        let n = self.shape.block_bytes();
        &self.bytes.as_slice()[b as usize * n..(b as usize + 1) * n]
    }

    /// The bytes of block `b`, to be filled from another tier.
    pub fn block_bytes_mut(&mut self, b: u32) -> &mut [u8] {
        let n = self.shape.block_bytes();
        &mut self.bytes.as_mut_slice()[b as usize * n..(b as usize + 1) * n]
    }

    /// Copies the first `tokens` positions of block `from` to block `to`; the other
    /// positions of `to` become zero, so equal tokens give equal bytes.
    pub fn copy_block(&mut self, from: u32, to: u32, tokens: usize) {
        assert!(tokens <= BLOCK_TOKENS && from != to);
        let shape = self.shape;
        let n = shape.block_bytes();
        assert!((from as usize) < self.blocks && (to as usize) < self.blocks);
        let all = self.bytes.as_mut_slice();
        all.copy_within(from as usize * n..(from as usize + 1) * n, to as usize * n);
        clear_behind(&shape, self.block_bytes_mut(to), tokens);
    }

    /// A copy of the first `tokens` positions of block `b`, for another tier; the other positions are
    /// zero.
    pub fn block_prefix(&self, b: u32, tokens: usize) -> Vec<u8> {
        assert!(tokens <= BLOCK_TOKENS);
        let mut bytes = self.block_bytes_ref(b).to_vec();
        clear_behind(&self.shape, &mut bytes, tokens);
        bytes
    }

    pub(crate) fn k_at(
        &self,
        table: &[u32],
        layer: usize,
        head: usize,
        position: usize,
        d: usize,
    ) -> f32 {
        let at = self.shape.k_offset(layer, head);
        let i = d * BLOCK_TOKENS + position % BLOCK_TOKENS;
        self.number(table, position, at, i, d)
    }

    pub(crate) fn v_at(
        &self,
        table: &[u32],
        layer: usize,
        head: usize,
        position: usize,
        d: usize,
    ) -> f32 {
        let at = self.shape.v_offset(layer, head);
        let i = position % BLOCK_TOKENS * self.shape.head_dim + d;
        self.number(table, position, at, i, d)
    }

    /// Number `index`, which belongs to dimension `d`, of the head whose bytes begin at `head`.
    fn number(&self, table: &[u32], position: usize, head: usize, index: usize, d: usize) -> f32 {
        let block = self.block_bytes_ref(table[position / BLOCK_TOKENS]);
        let half = |at: usize| f16::from_le_bytes([block[at], block[at + 1]]).to_f32();
        let at = head + index * self.shape.ty.bytes();
        match self.shape.ty {
            KvType::F32 => f32::from_le_bytes(block[at..at + 4].try_into().unwrap()),
            KvType::F16 => half(at),
            KvType::Q8_0 => {
                let line = head + self.shape.number_bytes() + d / QUANT_COLS * SCALES_BYTES;
                let scale = half(line + position % BLOCK_TOKENS * SCALE_BYTES);
                scale * f32::from(block[at].cast_signed())
            }
        }
    }
}

/// Zeroes what belongs to positions from `tokens` on in a block.
fn clear_behind(shape: &KvShape, block: &mut [u8], tokens: usize) {
    if tokens == BLOCK_TOKENS {
        return;
    }
    let width = shape.ty.bytes();
    let half = shape.kv_heads * shape.head_bytes();
    for layer in block.chunks_exact_mut(2 * half) {
        let (k, v) = layer.split_at_mut(half);
        for head in k.chunks_exact_mut(shape.head_bytes()) {
            let (numbers, scales) = head.split_at_mut(shape.number_bytes());
            clear_lines(numbers, width, tokens);
            clear_lines(scales, SCALE_BYTES, tokens);
        }
        for head in v.chunks_exact_mut(shape.head_bytes()) {
            let (numbers, scales) = head.split_at_mut(shape.number_bytes());
            numbers[tokens * shape.head_dim * width..].fill(0);
            clear_lines(scales, SCALE_BYTES, tokens);
        }
    }
}

/// Zeroes what belongs to positions from `tokens` on in lines of 32 positions.
fn clear_lines(lines: &mut [u8], width: usize, tokens: usize) {
    for line in lines.chunks_exact_mut(BLOCK_TOKENS * width) {
        line[tokens * width..].fill(0);
    }
}
