//! The vectors as plain arrays: any machine, and the reading guide to the other paths.

use half::{bf16, f16};

use super::Isa;
use crate::math;

#[derive(Clone, Copy)]
pub(crate) struct Portable;

type F = [f32; 16];

#[inline(always)]
fn each(f: impl Fn(usize) -> f32) -> F {
    std::array::from_fn(f)
}

/// Sixteen numbers of two bytes.
///
/// # Safety
/// `p` is good for 32 bytes.
#[inline(always)]
unsafe fn halves(p: *const u8) -> [u16; 16] {
    // SAFETY: promised by the caller.
    let bytes = unsafe { p.cast::<[[u8; 2]; 16]>().read_unaligned() };
    bytes.map(u16::from_le_bytes)
}

// Pointers below are good for the whole vector, or for `n` lanes, by the contract of `Isa`.
impl Isa for Portable {
    type F = F;
    type V = [u8; 64];
    type Words = [[u8; 64]; 8];
    const TILE_PAIRS: bool = false;

    #[inline(always)]
    unsafe fn splat(x: f32) -> F {
        [x; 16]
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> F {
        // SAFETY: contract of `Isa`.
        unsafe { p.cast::<F>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn load_part(p: *const f32, n: usize) -> F {
        // SAFETY: contract of `Isa`; lanes from `n` on are not read.
        each(|i| if i < n { unsafe { *p.add(i) } } else { 0.0 })
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, x: F) {
        // SAFETY: contract of `Isa`.
        unsafe { p.cast::<F>().write_unaligned(x) }
    }
    #[inline(always)]
    unsafe fn store_part(p: *mut f32, x: F, n: usize) {
        for (i, x) in x.iter().enumerate().take(n) {
            // SAFETY: contract of `Isa`.
            unsafe { *p.add(i) = *x }
        }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u8) -> F {
        // SAFETY: contract of `Isa`.
        let h = unsafe { halves(p) };
        each(|i| f16::from_bits(h[i]).to_f32())
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u8, x: F) {
        let h = x.map(|x| f16::from_f32(x).to_le_bytes());
        // SAFETY: contract of `Isa`.
        unsafe { p.cast::<[[u8; 2]; 16]>().write_unaligned(h) }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u8) -> F {
        // SAFETY: contract of `Isa`.
        let h = unsafe { halves(p) };
        each(|i| bf16::from_bits(h[i]).to_f32())
    }
    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> F {
        // SAFETY: contract of `Isa`.
        let b = unsafe { p.cast::<[u8; 16]>().read_unaligned() };
        each(|i| f32::from(b[i]))
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const u8) -> F {
        // SAFETY: contract of `Isa`.
        let b = unsafe { p.cast::<[i8; 16]>().read_unaligned() };
        each(|i| f32::from(b[i]))
    }

    #[inline(always)]
    unsafe fn add(a: F, b: F) -> F {
        each(|i| a[i] + b[i])
    }
    #[inline(always)]
    unsafe fn sub(a: F, b: F) -> F {
        each(|i| a[i] - b[i])
    }
    #[inline(always)]
    unsafe fn mul(a: F, b: F) -> F {
        each(|i| a[i] * b[i])
    }
    #[inline(always)]
    unsafe fn div(a: F, b: F) -> F {
        each(|i| a[i] / b[i])
    }
    #[inline(always)]
    unsafe fn fma(a: F, b: F, c: F) -> F {
        each(|i| a[i].mul_add(b[i], c[i]))
    }
    #[inline(always)]
    unsafe fn max(a: F, b: F) -> F {
        each(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    unsafe fn min(a: F, b: F) -> F {
        each(|i| if a[i] < b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    unsafe fn zero_where_less(x: F, test: F, limit: f32) -> F {
        each(|i| if test[i] < limit { 0.0 } else { x[i] })
    }
    #[inline(always)]
    unsafe fn fill_from(x: F, n: usize, fill: f32) -> F {
        each(|i| if i < n { x[i] } else { fill })
    }
    #[inline(always)]
    unsafe fn round(x: F) -> F {
        x.map(f32::round_ties_even)
    }
    #[inline(always)]
    unsafe fn exp2(n: F) -> F {
        n.map(|n| f32::from_bits(((n as i32 + 127) << 23) as u32))
    }
    #[inline(always)]
    unsafe fn fold_add(x: F) -> f32 {
        math::fold(x)
    }
    #[inline(always)]
    unsafe fn fold_max(x: F) -> f32 {
        x.iter().fold(x[0], |m, x| if *x > m { *x } else { m })
    }
    #[inline(always)]
    unsafe fn amax_bits(a: F, b: F) -> u32 {
        a.iter().chain(&b).fold(0, |m, x| m.max(x.abs().to_bits()))
    }
    #[inline(always)]
    unsafe fn store_i8(p: *mut i8, x: F) -> i32 {
        let q = x.map(|x| x.round_ties_even() as i8);
        // SAFETY: contract of `Isa`.
        unsafe { p.cast::<[i8; 16]>().write_unaligned(q) }
        q.iter().map(|q| i32::from(*q)).sum()
    }

    #[inline(always)]
    fn prefetch(_: *const u8) {}
    #[inline(always)]
    unsafe fn zero() -> [u8; 64] {
        [0; 64]
    }
    #[inline(always)]
    unsafe fn load_bytes(p: *const u8) -> [u8; 64] {
        // SAFETY: contract of `Isa`.
        unsafe { p.cast::<[u8; 64]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn mask(x: [u8; 64], mask: u8) -> [u8; 64] {
        x.map(|x| x & mask)
    }
    #[inline(always)]
    unsafe fn or_mask(a: [u8; 64], b: [u8; 64], mask: u8) -> [u8; 64] {
        std::array::from_fn(|i| a[i] | b[i] & mask)
    }
    #[inline(always)]
    unsafe fn shl(x: [u8; 64], n: u32) -> [u8; 64] {
        x.map(|x| x << n)
    }
    #[inline(always)]
    unsafe fn shr(x: [u8; 64], n: u32) -> [u8; 64] {
        x.map(|x| x >> n)
    }
    #[inline(always)]
    unsafe fn words<const BITS: u32>(w: [[u8; 64]; 8]) -> [[u8; 64]; 8] {
        w
    }
    #[inline(always)]
    unsafe fn dots<const BITS: u32, const N: usize, const W: usize, const R: usize>(
        w: &[[[u8; 64]; 8]; W],
        from: usize,
        x: *const i8,
        sums: [i32; R],
        offset: i32,
    ) -> [[[u8; 64]; R]; W] {
        let mut out = [[[0; 64]; R]; W];
        for (w, out) in w.iter().zip(&mut out) {
            for (r, out) in out.iter_mut().enumerate() {
                let mut lanes = [-offset * sums[r]; 16];
                for (g, w) in w[from..from + N].iter().enumerate() {
                    // SAFETY: contract of `Isa`: four bytes a word.
                    let x = unsafe { x.add(32 * r + 4 * g).cast::<[i8; 4]>().read_unaligned() };
                    for (lane, w) in lanes.iter_mut().zip(w.as_chunks::<4>().0) {
                        *lane += i32::from(w[0]) * i32::from(x[0])
                            + i32::from(w[1]) * i32::from(x[1])
                            + i32::from(w[2]) * i32::from(x[2])
                            + i32::from(w[3]) * i32::from(x[3]);
                    }
                }
                for (out, lane) in out.as_chunks_mut::<4>().0.iter_mut().zip(lanes) {
                    *out = lane.to_le_bytes();
                }
            }
        }
        out
    }
    #[inline(always)]
    unsafe fn multiply_add(acc: [u8; 64], w: [u8; 64], x: [u8; 64]) -> [u8; 64] {
        let mut out = acc;
        let (w, x) = (w.as_chunks::<4>().0, x.as_chunks::<4>().0);
        for (out, (w, x)) in out.as_chunks_mut::<4>().0.iter_mut().zip(w.iter().zip(x)) {
            let mut sum = i32::from_le_bytes(*out);
            for (w, x) in w.iter().zip(x) {
                sum = sum.wrapping_add(i32::from(*w) * i32::from(*x as i8));
            }
            *out = sum.to_le_bytes();
        }
        out
    }
    #[inline(always)]
    unsafe fn to_f32(x: [u8; 64]) -> F {
        each(|i| i32::from_le_bytes([x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]]) as f32)
    }
}
