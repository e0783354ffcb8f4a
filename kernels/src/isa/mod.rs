//! One kernel body, compiled once for each family of instructions.
//!
//! A kernel is a [`Job`] written over the vectors of an [`Isa`]: sixteen f32 lanes
//! and 64 bytes. Every operation gives the same bits on every path (integers are
//! exact, floats use the same fused multiply-adds in the same lanes), so the path is a
//! matter of speed only. After tinyBLAS (one body per CPU, dispatch chosen once).

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

use std::sync::OnceLock;

/// A family of instructions. All paths give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum KernelPath {
    Portable,
    Avx2,
    Avx512Vnni,
}

impl KernelPath {
    /// Short name for reports.
    pub const fn name(self) -> &'static str {
        match self {
            KernelPath::Portable => "portable",
            KernelPath::Avx2 => "avx2",
            KernelPath::Avx512Vnni => "avx512-vnni",
        }
    }

    /// Whether this machine has the instructions.
    pub fn available(self) -> bool {
        match self {
            KernelPath::Portable => true,
            #[cfg(target_arch = "x86_64")]
            KernelPath::Avx2 => avx2::available(),
            #[cfg(target_arch = "x86_64")]
            KernelPath::Avx512Vnni => avx512::available(),
            #[cfg(not(target_arch = "x86_64"))]
            KernelPath::Avx2 | KernelPath::Avx512Vnni => false,
        }
    }
}

/// The path of this process: the fastest that the machine has.
pub fn kernel_path() -> KernelPath {
    static PATH: OnceLock<KernelPath> = OnceLock::new();
    *PATH.get_or_init(|| {
        [KernelPath::Avx512Vnni, KernelPath::Avx2]
            .into_iter()
            .find(|path| path.available())
            .unwrap_or(KernelPath::Portable)
    })
}

/// A piece of work over the vectors of any path.
pub(crate) trait Job {
    type Out;
    /// # Safety
    /// The machine has the instructions of `I`, and what the job's own pointers promise holds.
    unsafe fn on<I: Isa>(self) -> Self::Out;
}

/// Runs `job` on `path`.
///
/// # Safety
/// What the job's own pointers promise holds.
pub(crate) unsafe fn dispatch<J: Job>(path: KernelPath, job: J) -> J::Out {
    match path {
        // SAFETY: a pool, the only source of paths, checked that the machine has this one.
        #[cfg(target_arch = "x86_64")]
        KernelPath::Avx512Vnni => unsafe { avx512::enter(job) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        KernelPath::Avx2 => unsafe { avx2::enter(job) },
        // SAFETY: plain code runs anywhere.
        _ => unsafe { job.on::<portable::Portable>() },
    }
}

/// Vector operations: `F` is sixteen f32 lanes, `V` is 64 bytes or sixteen i32 lanes.
///
/// # Safety
/// Of every method: the machine has the instructions, and pointers are good for what is
/// read or written. No alignment is asked for.
pub(crate) trait Isa: Copy + 'static {
    type F: Copy;
    type V: Copy;
    /// The eight words of a block, as [`Isa::dots`] wants them.
    type Words: Copy;
    /// Whether the registers hold the blocks of two weight tiles at once.
    const TILE_PAIRS: bool;

    unsafe fn splat(x: f32) -> Self::F;
    unsafe fn load(p: *const f32) -> Self::F;
    /// The first `n` <= 16 lanes; the others are zero and not read.
    unsafe fn load_part(p: *const f32, n: usize) -> Self::F;
    unsafe fn store(p: *mut f32, x: Self::F);
    unsafe fn store_part(p: *mut f32, x: Self::F, n: usize);
    unsafe fn load_f16(p: *const u8) -> Self::F;
    unsafe fn store_f16(p: *mut u8, x: Self::F);
    unsafe fn load_bf16(p: *const u8) -> Self::F;
    /// Sixteen bytes as numbers.
    unsafe fn load_u8(p: *const u8) -> Self::F;
    unsafe fn load_i8(p: *const u8) -> Self::F;

    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, rounded once.
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `if a > b { a } else { b }`: `b` when either is NaN.
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F;
    /// `if a < b { a } else { b }`: `b` when either is NaN.
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F;
    /// `x` where `x >= limit` or NaN decides, 0 where `test < limit`.
    unsafe fn zero_where_less(x: Self::F, test: Self::F, limit: f32) -> Self::F;
    /// Lanes from `n` on become `fill`.
    unsafe fn fill_from(x: Self::F, n: usize, fill: f32) -> Self::F;
    /// Nearest whole number, ties to even.
    unsafe fn round(x: Self::F) -> Self::F;
    /// 2 to the `n`, for whole `n` in -126..=127.
    unsafe fn exp2(n: Self::F) -> Self::F;
    /// The lanes added in halves of 8, 4, 2, 1.
    unsafe fn fold_add(x: Self::F) -> f32;
    unsafe fn fold_max(x: Self::F) -> f32;
    /// Largest magnitude of 32 lanes as bits: NaN counts above infinity.
    unsafe fn amax_bits(a: Self::F, b: Self::F) -> u32;
    /// Rounds (ties to even) to int8, stores 16 of them, gives their sum.
    unsafe fn store_i8(p: *mut i8, x: Self::F) -> i32;

    /// Asks for the cache line at `p`, which need not be good for anything.
    fn prefetch(p: *const u8);
    unsafe fn zero() -> Self::V;
    unsafe fn load_bytes(p: *const u8) -> Self::V;
    /// `x & mask` in every byte.
    unsafe fn mask(x: Self::V, mask: u8) -> Self::V;
    /// `a | (b & mask)` in every byte.
    unsafe fn or_mask(a: Self::V, b: Self::V, mask: u8) -> Self::V;
    /// Shifts of 16-bit lanes; callers mask what crosses a byte.
    unsafe fn shl(x: Self::V, n: u32) -> Self::V;
    unsafe fn shr(x: Self::V, n: u32) -> Self::V;
    /// Eight words of numbers of `BITS` bits.
    unsafe fn words<const BITS: u32>(w: [Self::V; 8]) -> Self::Words;
    /// Integer dots of `N` words (from word `from`) of `W` weight tiles with `R` activation rows,
    /// in i32 lanes. Weights are unsigned numbers of `BITS` bits that mean `w - offset`; row `r`
    /// of the activations, -127..=127, is at `x + 32 r`, and `sums[r]` is the sum of its `4 N`.
    unsafe fn dots<const BITS: u32, const N: usize, const W: usize, const R: usize>(
        w: &[Self::Words; W],
        from: usize,
        x: *const i8,
        sums: [i32; R],
        offset: i32,
    ) -> [[Self::V; R]; W];
    /// The path's own step of a dot, on registers: 64 bytes meet 64. What the lanes hold is of no
    /// use; it is there to be timed.
    unsafe fn multiply_add(acc: Self::V, w: Self::V, x: Self::V) -> Self::V;
    unsafe fn to_f32(x: Self::V) -> Self::F;
}

/// [`crate::math::exp`] in every lane.
///
/// # Safety
/// As the methods of [`Isa`].
#[inline(always)]
pub(crate) unsafe fn exp<I: Isa>(x: I::F) -> I::F {
    use crate::math::{EXP_MAX, EXP_MIN, EXP_POLY, LN2_HIGH, LN2_LOW, LOG2_E};
    // SAFETY: no pointers; the caller answers for the instructions.
    unsafe {
        let clamped = I::max(I::splat(EXP_MIN), I::min(I::splat(EXP_MAX), x));
        let n = I::round(I::mul(clamped, I::splat(LOG2_E)));
        let r = I::fma(n, I::splat(-LN2_HIGH), clamped);
        let r = I::fma(n, I::splat(-LN2_LOW), r);
        let mut p = I::splat(EXP_POLY[0]);
        for c in &EXP_POLY[1..] {
            p = I::fma(p, r, I::splat(*c));
        }
        let p = I::add(I::fma(p, I::mul(r, r), r), I::splat(1.0));
        I::zero_where_less(I::mul(p, I::exp2(n)), x, EXP_MIN)
    }
}
