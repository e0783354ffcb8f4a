//! Keys and values of new positions, written into their blocks.

use half::f16;

use crate::isa::{Isa, Job, dispatch};
use crate::kv::{SCALE_BYTES, SCALES_BYTES};
use crate::limits::{BLOCK_TOKENS, QUANT_COLS, ROWS_BYTES_MIN};
use crate::share::Parts;
use crate::stored::{F16, F32, I8, Stored};
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
        seq.check(kv, seq.start);
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
                        KvType::Q8_0 => put::<I, I8>(k, v, slot, to_k, to_v),
                    }
                }
                row += 1;
            }
        }
    }
}

/// One position's `k`, `v` [D] into column `slot` of K [D][32] and row `slot` of V [32][D]; where `S` is
/// scaled, the scales into column `slot` of the lines behind the numbers.
///
/// # Safety
/// The machine has the instructions of `I`; the parts are K and V of a head as the arena lays them out.
#[inline(always)]
unsafe fn put<I: Isa, S: Stored>(
    k: &[f32],
    v: &[f32],
    slot: usize,
    to_k: &mut [u8],
    to_v: &mut [u8],
) {
    let (n, d) = (S::BYTES, k.len());
    let (to_k, k_scales) = to_k.split_at_mut(BLOCK_TOKENS * d * n);
    let (to_v, v_scales) = to_v.split_at_mut(BLOCK_TOKENS * d * n);
    let mut columns = to_k.chunks_exact_mut(BLOCK_TOKENS * n);
    let row = to_v[slot * d * n..][..d * n].chunks_mut(QUANT_COLS * n);
    let groups = k.chunks(QUANT_COLS).zip(v.chunks(QUANT_COLS)).zip(row);
    for (g, ((k, v), row)) in groups.enumerate() {
        // SAFETY: at most 32 numbers each; promised by the caller.
        let (k_group, v_group) = unsafe { (Group::new::<I, S>(k), Group::new::<I, S>(v)) };
        row.copy_from_slice(&v_group.numbers[..row.len()]);
        let numbers = k_group.numbers.chunks_exact(n);
        for (column, number) in columns.by_ref().zip(numbers).take(k.len()) {
            column[slot * n..(slot + 1) * n].copy_from_slice(number);
        }
        if S::SCALED {
            let at = g * SCALES_BYTES + slot * SCALE_BYTES;
            k_scales[at..at + SCALE_BYTES].copy_from_slice(&k_group.scale.to_le_bytes());
            v_scales[at..at + SCALE_BYTES].copy_from_slice(&v_group.scale.to_le_bytes());
        }
    }
}

/// At most 32 numbers as they are stored.
struct Group {
    /// As many as there are, then zeroes.
    numbers: [u8; QUANT_COLS * F32::BYTES],
    /// One where numbers are not scaled; NaN where one of them is not finite, or too large.
    scale: f16,
}

impl Group {
    /// # Safety
    /// The machine has the instructions of `I`; `x` has at most 32 elements.
    #[inline(always)]
    unsafe fn new<I: Isa, S: Stored>(x: &[f32]) -> Group {
        let (low, high) = x.split_at(x.len().min(16));
        let (mut numbers, mut scale) = ([0; QUANT_COLS * F32::BYTES], f16::ONE);
        // SAFETY: at most sixteen numbers each; room for 32 of the widest.
        unsafe {
            let mut halves = [low, high].map(|x| I::load_part(x.as_ptr(), x.len()));
            if S::SCALED {
                let largest = f32::from_bits(I::amax_bits(halves[0], halves[1]));
                scale = f16::from_f32(largest / I8_MAX);
                if !scale.is_finite() {
                    scale = f16::NAN;
                }
                // Numbers too small for any scale but zero, and those of no scale, become zero.
                halves = match scale > f16::ZERO {
                    true => halves.map(|x| whole::<I>(x, 1.0 / scale.to_f32())),
                    false => [I::splat(0.0); 2],
                };
            }
            S::store::<I>(numbers.as_mut_ptr(), halves[0]);
            S::store::<I>(numbers.as_mut_ptr().add(16 * S::BYTES), halves[1]);
        }
        Group { numbers, scale }
    }
}

/// `x * inverse` in what eight bits hold. A scale in f16 may be too small by a half of its last bit, or by more
/// near zero.
///
/// # Safety
/// The machine has the instructions of `I`.
#[inline(always)]
unsafe fn whole<I: Isa>(x: I::F, inverse: f32) -> I::F {
    // SAFETY: no pointers.
    unsafe {
        let x = I::mul(x, I::splat(inverse));
        I::max(I::splat(-I8_MAX), I::min(I::splat(I8_MAX), x))
    }
}
