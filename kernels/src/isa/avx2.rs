//! AVX2 with FMA: two 256-bit registers for each vector, low half first.

use std::arch::x86_64::*;

use super::{Isa, Job};
use crate::math;

#[derive(Clone, Copy)]
pub(crate) struct Avx2;

/// Whether the machine has every feature that [`enter`] switches on.
pub(super) fn available() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
}

/// Compiles and runs `job` with the features switched on.
///
/// # Safety
/// [`available`] is true, and what the job promises holds.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn enter<J: Job>(job: J) -> J::Out {
    // SAFETY: promised by the caller.
    unsafe { job.on::<Avx2>() }
}

type F = [__m256; 2];
type V = [__m256i; 2];

/// The lanes as an array, for what is rare or short.
///
/// # Safety
/// The machine has AVX.
#[inline(always)]
unsafe fn array(x: F) -> [f32; 16] {
    let mut a = [0.0; 16];
    // SAFETY: sixteen lanes into sixteen places.
    unsafe {
        _mm256_storeu_ps(a.as_mut_ptr(), x[0]);
        _mm256_storeu_ps(a.as_mut_ptr().add(8), x[1]);
    }
    a
}

/// All ones in the lanes below `n`, half by half.
///
/// # Safety
/// The machine has AVX2.
#[inline(always)]
unsafe fn below(n: usize) -> V {
    // SAFETY: no pointers.
    unsafe {
        let n = _mm256_set1_epi32(n.min(16) as i32);
        let low = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        let high = _mm256_add_epi32(low, _mm256_set1_epi32(8));
        [_mm256_cmpgt_epi32(n, low), _mm256_cmpgt_epi32(n, high)]
    }
}

// SAFETY of every block below: the instructions are there by the contract of `Isa`, and
// pointers are good for what is read or written by the same contract.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Isa for Avx2 {
    type F = F;
    type V = V;
    const TILE_PAIRS: bool = false;

    #[inline(always)]
    unsafe fn splat(x: f32) -> F {
        unsafe { [_mm256_set1_ps(x); 2] }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> F {
        unsafe { [_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))] }
    }
    #[inline(always)]
    unsafe fn load_part(p: *const f32, n: usize) -> F {
        unsafe {
            let m = below(n);
            [
                _mm256_maskload_ps(p, m[0]),
                _mm256_maskload_ps(p.wrapping_add(8), m[1]),
            ]
        }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, x: F) {
        unsafe {
            _mm256_storeu_ps(p, x[0]);
            _mm256_storeu_ps(p.add(8), x[1]);
        }
    }
    #[inline(always)]
    unsafe fn store_part(p: *mut f32, x: F, n: usize) {
        unsafe {
            let m = below(n);
            _mm256_maskstore_ps(p, m[0], x[0]);
            _mm256_maskstore_ps(p.wrapping_add(8), m[1], x[1]);
        }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u8) -> F {
        unsafe {
            [
                _mm256_cvtph_ps(_mm_loadu_si128(p.cast())),
                _mm256_cvtph_ps(_mm_loadu_si128(p.add(16).cast())),
            ]
        }
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u8, x: F) {
        unsafe {
            _mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x[0]));
            _mm_storeu_si128(
                p.add(16).cast(),
                _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x[1]),
            );
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u8) -> F {
        unsafe {
            let half = |p: *const u8| {
                let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
            };
            [half(p), half(p.add(16))]
        }
    }
    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> F {
        unsafe {
            [
                _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast()))),
                _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(p.add(8).cast()))),
            ]
        }
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const u8) -> F {
        unsafe {
            [
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast()))),
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p.add(8).cast()))),
            ]
        }
    }

    #[inline(always)]
    unsafe fn add(a: F, b: F) -> F {
        unsafe { [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn sub(a: F, b: F) -> F {
        unsafe { [_mm256_sub_ps(a[0], b[0]), _mm256_sub_ps(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn mul(a: F, b: F) -> F {
        unsafe { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn div(a: F, b: F) -> F {
        unsafe { [_mm256_div_ps(a[0], b[0]), _mm256_div_ps(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn fma(a: F, b: F, c: F) -> F {
        unsafe {
            [
                _mm256_fmadd_ps(a[0], b[0], c[0]),
                _mm256_fmadd_ps(a[1], b[1], c[1]),
            ]
        }
    }
    #[inline(always)]
    unsafe fn max(a: F, b: F) -> F {
        unsafe { [_mm256_max_ps(a[0], b[0]), _mm256_max_ps(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn min(a: F, b: F) -> F {
        unsafe { [_mm256_min_ps(a[0], b[0]), _mm256_min_ps(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn zero_where_less(x: F, test: F, limit: f32) -> F {
        unsafe {
            let limit = _mm256_set1_ps(limit);
            let half = |x, test| _mm256_andnot_ps(_mm256_cmp_ps::<_CMP_LT_OQ>(test, limit), x);
            [half(x[0], test[0]), half(x[1], test[1])]
        }
    }
    #[inline(always)]
    unsafe fn fill_from(x: F, n: usize, fill: f32) -> F {
        unsafe {
            let (m, fill) = (below(n), _mm256_set1_ps(fill));
            let half = |x, m| _mm256_blendv_ps(fill, x, _mm256_castsi256_ps(m));
            [half(x[0], m[0]), half(x[1], m[1])]
        }
    }
    #[inline(always)]
    unsafe fn round(x: F) -> F {
        unsafe {
            x.map(|x| _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x))
        }
    }
    #[inline(always)]
    unsafe fn exp2(n: F) -> F {
        unsafe {
            n.map(|n| {
                let biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased))
            })
        }
    }
    #[inline(always)]
    unsafe fn fold_add(x: F) -> f32 {
        unsafe { math::fold(array(x)) }
    }
    #[inline(always)]
    unsafe fn fold_max(x: F) -> f32 {
        let x = unsafe { array(x) };
        x.iter().fold(x[0], |m, x| if *x > m { *x } else { m })
    }
    #[inline(always)]
    unsafe fn amax_bits(a: F, b: F) -> u32 {
        unsafe {
            let sign = _mm256_set1_epi32(i32::MAX);
            let abs = |x| _mm256_and_si256(_mm256_castps_si256(x), sign);
            let a = _mm256_max_epi32(abs(a[0]), abs(a[1]));
            let m = _mm256_max_epi32(a, _mm256_max_epi32(abs(b[0]), abs(b[1])));
            let mut lanes = [0u32; 8];
            _mm256_storeu_si256(lanes.as_mut_ptr().cast(), m);
            lanes.iter().fold(0, |m, x| m.max(*x))
        }
    }
    #[inline(always)]
    unsafe fn store_i8(p: *mut i8, x: F) -> i32 {
        unsafe {
            let (a, b) = (_mm256_cvtps_epi32(x[0]), _mm256_cvtps_epi32(x[1]));
            let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(a, b));
            let low = _mm256_castsi256_si128(words);
            let bytes = _mm_packs_epi16(low, _mm256_extracti128_si256::<1>(words));
            _mm_storeu_si128(p.cast(), bytes);
            let mut lanes = [0i32; 8];
            _mm256_storeu_si256(lanes.as_mut_ptr().cast(), _mm256_add_epi32(a, b));
            lanes.iter().sum()
        }
    }

    #[inline(always)]
    unsafe fn zero() -> V {
        unsafe { [_mm256_setzero_si256(); 2] }
    }
    #[inline(always)]
    unsafe fn load_bytes(p: *const u8) -> V {
        unsafe {
            [
                _mm256_loadu_si256(p.cast()),
                _mm256_loadu_si256(p.add(32).cast()),
            ]
        }
    }
    #[inline(always)]
    unsafe fn splat_i32(p: *const i32) -> V {
        unsafe { [_mm256_set1_epi32(p.read_unaligned()); 2] }
    }
    #[inline(always)]
    unsafe fn mask(x: V, mask: u8) -> V {
        unsafe { x.map(|x| _mm256_and_si256(x, _mm256_set1_epi8(mask as i8))) }
    }
    #[inline(always)]
    unsafe fn or_mask(a: V, b: V, mask: u8) -> V {
        unsafe {
            let b = Self::mask(b, mask);
            [_mm256_or_si256(a[0], b[0]), _mm256_or_si256(a[1], b[1])]
        }
    }
    #[inline(always)]
    unsafe fn shl(x: V, n: u32) -> V {
        unsafe { x.map(|x| _mm256_sll_epi16(x, _mm_cvtsi32_si128(n as i32))) }
    }
    #[inline(always)]
    unsafe fn shr(x: V, n: u32) -> V {
        unsafe { x.map(|x| _mm256_srl_epi16(x, _mm_cvtsi32_si128(n as i32))) }
    }
    #[inline(always)]
    unsafe fn dot<const WIDE: bool>(acc: V, w: V, x: *const i8) -> V {
        unsafe {
            let x = _mm256_set1_epi32(x.cast::<i32>().read_unaligned());
            let ones = _mm256_set1_epi16(1);
            let half = |acc: __m256i, w: __m256i| {
                // Pairs fit 16 bits: 2 * 127 * 127 without WIDE. With it, w is split into
                // (w - 128), whose sign moves to x (2 * 128 * 127 fits), and 128.
                let pairs = if WIDE {
                    let signed = _mm256_xor_si256(w, _mm256_set1_epi8(-128));
                    _mm256_maddubs_epi16(_mm256_abs_epi8(signed), _mm256_sign_epi8(x, signed))
                } else {
                    _mm256_maddubs_epi16(w, x)
                };
                let acc = _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, ones));
                if WIDE {
                    let all = _mm256_maddubs_epi16(_mm256_set1_epi8(-128), x);
                    _mm256_add_epi32(acc, _mm256_madd_epi16(all, ones))
                } else {
                    acc
                }
            };
            [half(acc[0], w[0]), half(acc[1], w[1])]
        }
    }
    #[inline(always)]
    unsafe fn add_i32(a: V, b: V) -> V {
        unsafe { [_mm256_add_epi32(a[0], b[0]), _mm256_add_epi32(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn to_f32(x: V) -> F {
        unsafe { x.map(|x| _mm256_cvtepi32_ps(x)) }
    }
}
