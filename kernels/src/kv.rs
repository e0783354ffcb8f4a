//! Memory for keys and values, in blocks of 32 positions.
//!
//! Layout: `[block][layer][K: [kv_head][head_dim][32] | V: [kv_head][32][head_dim]]`. K is
//! kept transposed, so that the scores of 16 keys are 16 lanes and each is summed
//! over `head_dim` in order: no horizontal sum, and the same bits for one query
//! row or many. To every other crate a block is opaque bytes.
//!
//! Invariant: blocks are zero until written; a block id is below `blocks()`.

use half::f16;

use crate::aligned::AlignedBytes;
use crate::isa::{Isa, Job, dispatch};
use crate::limits::{BLOCK_TOKENS, HEAD_DIM_MAX, ROWS_BYTES_MIN};
use crate::share::Parts;
use crate::stored::{F16, F32, Stored};
use crate::{Error, ThreadPool};

/// How keys and values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvType {
    F32,
    F16,
}

impl KvType {
    /// Bytes of one number.
    pub const fn bytes(self) -> usize {
        match self {
            KvType::F32 => 4,
            KvType::F16 => 2,
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
    /// Bytes of K (or V) of one head in one block.
    pub(crate) fn head_bytes(&self) -> usize {
        BLOCK_TOKENS * self.head_dim * self.ty.bytes()
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
    /// Asserts that the table covers the rows and stays inside the arena.
    pub(crate) fn check(&self, kv: &KvArena) {
        let blocks = (self.start + self.rows).div_ceil(BLOCK_TOKENS);
        assert!(
            blocks <= self.table.len(),
            "positions to {} need {blocks} blocks, the table has {}",
            self.start + self.rows,
            self.table.len()
        );
        assert!(
            self.table[..blocks]
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
    bytes: AlignedBytes,
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
        let total = [shape.layers, 2, shape.kv_heads, shape.head_dim]
            .iter()
            .try_fold(BLOCK_TOKENS * shape.ty.bytes(), |n, f| n.checked_mul(*f))
            .and_then(|block| block.checked_mul(blocks))
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
        if tokens == BLOCK_TOKENS {
            return;
        }
        let width = shape.ty.bytes();
        let half = shape.kv_heads * shape.head_bytes();
        let layers = self.block_bytes_mut(to).chunks_exact_mut(2 * half);
        for layer in layers {
            let (k, v) = layer.split_at_mut(half);
            for line in k.chunks_exact_mut(BLOCK_TOKENS * width) {
                line[tokens * width..].fill(0);
            }
            for head in v.chunks_exact_mut(shape.head_bytes()) {
                head[tokens * shape.head_dim * width..].fill(0);
            }
        }
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
        self.number(
            table,
            position,
            at,
            d * BLOCK_TOKENS + position % BLOCK_TOKENS,
        )
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
        self.number(table, position, at, i)
    }

    fn number(&self, table: &[u32], position: usize, at: usize, index: usize) -> f32 {
        let block = self.block_bytes_ref(table[position / BLOCK_TOKENS]);
        let at = at + index * self.shape.ty.bytes();
        match self.shape.ty {
            KvType::F32 => f32::from_le_bytes(block[at..at + 4].try_into().unwrap()),
            KvType::F16 => f16::from_le_bytes([block[at], block[at + 1]]).to_f32(),
        }
    }
}

/// Writes the keys and values of new positions.
///
/// `k`, `v` [T, Hkv, D] f32, T the rows of all `seqs` together, in their order.
///
/// # Panics
/// When a table does not cover its rows or names a block outside the arena.
pub fn append_kv(
    pool: &ThreadPool,
    kv: &mut KvArena,
    layer: usize,
    seqs: &[SeqSpan<'_>],
    k: &[f32],
    v: &[f32],
) {
    let shape = kv.shape;
    let rows: usize = seqs.iter().map(|s| s.rows).sum();
    assert!(layer < shape.layers, "layer {layer} of {}", shape.layers);
    assert!(
        k.len() == rows * shape.kv_heads * shape.head_dim && v.len() == k.len(),
        "k and v are [T, Hkv, D]"
    );
    for seq in seqs {
        seq.check(kv);
    }
    let arena = Parts::new(kv.bytes.as_mut_slice());
    let one = |head: usize, _| {
        let append = Append {
            shape,
            arena,
            layer,
            head,
            seqs,
            k,
            v,
        };
        // SAFETY: heads do not overlap in a block, and each is one unit.
        unsafe { dispatch(pool.path(), append) }
    };
    if k.len() * 4 < ROWS_BYTES_MIN {
        (0..shape.kv_heads).for_each(|head| one(head, 0));
    } else {
        pool.for_units(shape.kv_heads, &one);
    }
}

/// One KV head of all new positions.
struct Append<'a> {
    shape: KvShape,
    arena: Parts<'a, u8>,
    layer: usize,
    head: usize,
    seqs: &'a [SeqSpan<'a>],
    k: &'a [f32],
    v: &'a [f32],
}

impl Job for Append<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn on<I: Isa>(self) {
        let (shape, bytes) = (self.shape, self.shape.head_bytes());
        let mut row = 0;
        for seq in self.seqs {
            for position in seq.start..seq.start + seq.rows {
                let block = seq.table[position / BLOCK_TOKENS] as usize * shape.block_bytes();
                let k_at = block + shape.k_offset(self.layer, self.head);
                let v_at = block + shape.v_offset(self.layer, self.head);
                let at = (row * shape.kv_heads + self.head) * shape.head_dim;
                let k = &self.k[at..at + shape.head_dim];
                let v = &self.v[at..at + shape.head_dim];
                let slot = position % BLOCK_TOKENS;
                // SAFETY: this unit alone has this head; K and V of it do not overlap.
                unsafe {
                    let (to_k, to_v) = (self.arena.part(k_at, bytes), self.arena.part(v_at, bytes));
                    match shape.ty {
                        KvType::F32 => put::<I, F32>(k, v, slot, to_k, to_v),
                        KvType::F16 => put::<I, F16>(k, v, slot, to_k, to_v),
                    }
                }
                row += 1;
            }
        }
    }
}

/// One position's `k`, `v` [D] into column `slot` of K [D][32] and row `slot` of V [32][D].
///
/// # Safety
/// The machine has the instructions of `I`; the parts have these sizes.
#[inline(always)]
unsafe fn put<I: Isa, S: Stored>(
    k: &[f32],
    v: &[f32],
    slot: usize,
    to_k: &mut [u8],
    to_v: &mut [u8],
) {
    let n = S::BYTES;
    let to_v = &mut to_v[slot * v.len() * n..][..v.len() * n];
    for (v, to) in v.chunks(16).zip(to_v.chunks_mut(16 * n)) {
        // SAFETY: `v.len()` numbers on both sides.
        unsafe { S::store_part::<I>(to.as_mut_ptr(), I::load_part(v.as_ptr(), v.len()), v.len()) }
    }
    let lines = to_k.chunks_exact_mut(BLOCK_TOKENS * n);
    let mut lines = lines.map(|line| &mut line[slot * n..(slot + 1) * n]);
    for k in k.chunks(16) {
        let mut row = [0u8; 64];
        // SAFETY: 64 bytes hold sixteen numbers.
        unsafe { S::store::<I>(row.as_mut_ptr(), I::load_part(k.as_ptr(), k.len())) }
        for (to, from) in lines.by_ref().zip(row.chunks_exact(n)).take(k.len()) {
            to.copy_from_slice(from);
        }
    }
}
