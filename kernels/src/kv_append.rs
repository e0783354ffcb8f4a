//! Keys and values of new positions, written into their blocks.

use half::f16;

use crate::isa::{Isa, Job, dispatch};
use crate::kv::{SCALE_BYTES, SCALES_BYTES};
use crate::limits::{BLOCK_TOKENS, QUANT_COLS, ROWS_BYTES_MIN};
use crate::share::Parts;
use crate::stored::{F16, F32, Stored};
use crate::{KvArena, KvShape, KvType, SeqSpan, ThreadPool};

/// Largest whole number of 8 bits that has a negative.
const I8_MAX: f32 = 127.0;

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
    let shape = kv.shape();
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
                        KvType::Q8_0 => {
                            put_column::<I>(k, slot, to_k);
                            put_row::<I>(v, slot, to_v);
                        }
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
    let mut lines = to_k.chunks_exact_mut(BLOCK_TOKENS * n);
    for k in k.chunks(16) {
        let mut row = [0u8; 64];
        // SAFETY: 64 bytes hold sixteen numbers.
        unsafe { S::store::<I>(row.as_mut_ptr(), I::load_part(k.as_ptr(), k.len())) }
        for (line, from) in lines.by_ref().zip(row.chunks_exact(n)).take(k.len()) {
            line[slot * n..(slot + 1) * n].copy_from_slice(from);
        }
    }
}

/// One position's `k` [D] into column `slot` of K in Q8_0: numbers [D][32], scales [D / 32][32].
///
/// # Safety
/// The machine has the instructions of `I`.
#[inline(always)]
unsafe fn put_column<I: Isa>(k: &[f32], slot: usize, to: &mut [u8]) {
    let (numbers, scales) = to.split_at_mut(k.len() * BLOCK_TOKENS);
    let mut lines = numbers.chunks_exact_mut(BLOCK_TOKENS);
    for (k, scales) in k
        .chunks(QUANT_COLS)
        .zip(scales.chunks_exact_mut(SCALES_BYTES))
    {
        // SAFETY: at most 32 numbers; promised by the caller.
        let (scale, rounded) = unsafe { round_group::<I>(k) };
        put_scale(scales, slot, scale);
        for (line, x) in lines.by_ref().zip(rounded).take(k.len()) {
            line[slot] = x.cast_unsigned();
        }
    }
}

/// One position's `v` [D] into row `slot` of V in Q8_0: numbers [32][D], scales [D / 32][32].
///
/// # Safety
/// The machine has the instructions of `I`.
#[inline(always)]
unsafe fn put_row<I: Isa>(v: &[f32], slot: usize, to: &mut [u8]) {
    let (numbers, scales) = to.split_at_mut(v.len() * BLOCK_TOKENS);
    let numbers = &mut numbers[slot * v.len()..][..v.len()];
    let groups = numbers
        .chunks_mut(QUANT_COLS)
        .zip(scales.chunks_exact_mut(SCALES_BYTES));
    for (v, (numbers, scales)) in v.chunks(QUANT_COLS).zip(groups) {
        // SAFETY: at most 32 numbers; promised by the caller.
        let (scale, rounded) = unsafe { round_group::<I>(v) };
        put_scale(scales, slot, scale);
        for (to, x) in numbers.iter_mut().zip(rounded) {
            *to = x.cast_unsigned();
        }
    }
}

fn put_scale(line: &mut [u8], slot: usize, scale: f16) {
    line[slot * SCALE_BYTES..(slot + 1) * SCALE_BYTES].copy_from_slice(&scale.to_le_bytes());
}

/// At most 32 numbers as a scale and whole numbers; the scale is NaN where a number is not finite, or
/// too large.
///
/// # Safety
/// The machine has the instructions of `I`.
#[inline(always)]
unsafe fn round_group<I: Isa>(x: &[f32]) -> (f16, [i8; QUANT_COLS]) {
    let (low, high) = x.split_at(x.len().min(16));
    let mut rounded = [0i8; QUANT_COLS];
    // SAFETY: at most sixteen numbers each; 32 bytes to store to.
    unsafe {
        let low = I::load_part(low.as_ptr(), low.len());
        let high = I::load_part(high.as_ptr(), high.len());
        let largest = f32::from_bits(I::amax_bits(low, high));
        let scale = f16::from_f32(largest / I8_MAX);
        if !scale.is_finite() {
            return (f16::NAN, rounded);
        }
        // A scale of zero stands for numbers too small to tell from it.
        if scale.to_f32() == 0.0 {
            return (scale, rounded);
        }
        let inverse = I::splat(1.0 / scale.to_f32());
        let whole = |x| {
            let x = I::mul(x, inverse);
            I::max(I::splat(-I8_MAX), I::min(I::splat(I8_MAX), x))
        };
        I::store_i8(rounded.as_mut_ptr(), whole(low));
        I::store_i8(rounded.as_mut_ptr().add(16), whole(high));
        (scale, rounded)
    }
}
