//! AVX-512 with VNNI: one 512-bit register for each vector.

use std::arch::x86_64::*;

use super::{Isa, Job};

#[derive(Clone, Copy)]
pub(crate) struct Avx512;

/// Whether the machine has every feature that [`enter`] switches on.
pub(super) fn available() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vnni")
        && is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
}

/// Compiles and runs `job` with the features switched on.
///
/// # Safety
/// [`available`] is true, and what the job promises holds.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn enter<J: Job>(job: J) -> J::Out {
    // SAFETY: promised by the caller.
    unsafe { job.on::<Avx512>() }
}

/// The first `n` lanes.
#[inline(always)]
fn lanes(n: usize) -> __mmask16 {
    if n >= 16 { !0 } else { (1u16 << n) - 1 }
}

// SAFETY of every block below: the instructions are there by the contract of `Isa`, and
// pointers are good for what is read or written by the same contract.
// Indices name a word, a tile and a row; the arrays are registers.
#[allow(clippy::undocumented_unsafe_blocks, clippy::needless_range_loop)]
impl Isa for Avx512 {
    type F = __m512;
    type V = __m512i;
    type Words = [__m512i; 8];
    const TILE_PAIRS: bool = true;

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m512 {
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m512 {
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn load_part(p: *const f32, n: usize) -> __m512 {
        unsafe { _mm512_maskz_loadu_ps(lanes(n), p) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, x: __m512) {
        unsafe { _mm512_storeu_ps(p, x) }
    }
    #[inline(always)]
    unsafe fn store_part(p: *mut f32, x: __m512, n: usize) {
        unsafe { _mm512_mask_storeu_ps(p, lanes(n), x) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u8) -> __m512 {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u8, x: __m512) {
        unsafe {
            let h = _mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x);
            _mm256_storeu_si256(p.cast(), h)
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u8) -> __m512 {
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast()))) }
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const u8) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast()))) }
    }

    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn sub(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn div(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn max(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn min(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_min_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn zero_where_less(x: __m512, test: __m512, limit: f32) -> __m512 {
        unsafe {
            let less = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(test, _mm512_set1_ps(limit));
            _mm512_maskz_mov_ps(!less, x)
        }
    }
    #[inline(always)]
    unsafe fn fill_from(x: __m512, n: usize, fill: f32) -> __m512 {
        unsafe { _mm512_mask_mov_ps(_mm512_set1_ps(fill), lanes(n), x) }
    }
    #[inline(always)]
    unsafe fn round(x: __m512) -> __m512 {
        unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x) }
    }
    #[inline(always)]
    unsafe fn exp2(n: __m512) -> __m512 {
        unsafe {
            let biased = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(biased))
        }
    }
    #[inline(always)]
    unsafe fn fold_add(x: __m512) -> f32 {
        unsafe {
            let x = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps::<1>(x));
            let x = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
            let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
            _mm_cvtss_f32(_mm_add_ss(x, _mm_shuffle_ps::<1>(x, x)))
        }
    }
    #[inline(always)]
    unsafe fn fold_max(x: __m512) -> f32 {
        unsafe { _mm512_reduce_max_ps(x) }
    }
    #[inline(always)]
    unsafe fn amax_bits(a: __m512, b: __m512) -> u32 {
        unsafe {
            let (a, b) = (_mm512_castps_si512(a), _mm512_castps_si512(b));
            let sign = _mm512_set1_epi32(i32::MAX);
            let m = _mm512_max_epi32(_mm512_and_si512(a, sign), _mm512_and_si512(b, sign));
            _mm512_reduce_max_epi32(m) as u32
        }
    }
    #[inline(always)]
    unsafe fn store_i8(p: *mut i8, x: __m512) -> i32 {
        unsafe {
            let q = _mm512_cvtps_epi32(x);
            _mm_storeu_si128(p.cast(), _mm512_cvtepi32_epi8(q));
            _mm512_reduce_add_epi32(q)
        }
    }

    #[inline(always)]
    fn prefetch(p: *const u8) {
        // SAFETY: a hint; no address is wrong.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
    #[inline(always)]
    unsafe fn zero() -> __m512i {
        unsafe { _mm512_setzero_si512() }
    }
    #[inline(always)]
    unsafe fn load_bytes(p: *const u8) -> __m512i {
        unsafe { _mm512_loadu_si512(p.cast()) }
    }
    #[inline(always)]
    unsafe fn mask(x: __m512i, mask: u8) -> __m512i {
        unsafe { _mm512_and_si512(x, _mm512_set1_epi8(mask as i8)) }
    }
    #[inline(always)]
    unsafe fn or_mask(a: __m512i, b: __m512i, mask: u8) -> __m512i {
        // 0xF8 is the truth table of `a | (b & c)`.
        unsafe { _mm512_ternarylogic_epi32::<0xF8>(a, b, _mm512_set1_epi8(mask as i8)) }
    }
    #[inline(always)]
    unsafe fn shl(x: __m512i, n: u32) -> __m512i {
        unsafe { _mm512_sll_epi16(x, _mm_cvtsi32_si128(n as i32)) }
    }
    #[inline(always)]
    unsafe fn shr(x: __m512i, n: u32) -> __m512i {
        unsafe { _mm512_srl_epi16(x, _mm_cvtsi32_si128(n as i32)) }
    }
    #[inline(always)]
    unsafe fn words<const BITS: u32>(w: [__m512i; 8]) -> [__m512i; 8] {
        w
    }
    #[inline(always)]
    unsafe fn dots<const BITS: u32, const N: usize, const W: usize, const R: usize>(
        w: &[[__m512i; 8]; W],
        from: usize,
        x: *const i8,
        sums: [i32; R],
        offset: i32,
    ) -> [[__m512i; R]; W] {
        unsafe {
            let mut out = [[_mm512_setzero_si512(); R]; W];
            for r in 0..R {
                let start = _mm512_set1_epi32(-offset * sums[r]);
                for i in 0..W {
                    out[i][r] = start;
                }
            }
            // Few chains wait for the multiplier; two of each then halve the wait.
            let mut odd = [[_mm512_setzero_si512(); R]; W];
            let split = W * R < 4;
            for g in 0..N {
                for r in 0..R {
                    let x = _mm512_set1_epi32(x.add(32 * r + 4 * g).cast::<i32>().read_unaligned());
                    for i in 0..W {
                        let out = if split && g % 2 == 1 {
                            &mut odd[i][r]
                        } else {
                            &mut out[i][r]
                        };
                        *out = _mm512_dpbusd_epi32(*out, w[i][from + g], x);
                    }
                }
            }
            if split {
                for i in 0..W {
                    for r in 0..R {
                        out[i][r] = _mm512_add_epi32(out[i][r], odd[i][r]);
                    }
                }
            }
            out
        }
    }
    #[inline(always)]
    unsafe fn multiply_add(acc: __m512i, w: __m512i, x: __m512i) -> __m512i {
        unsafe { _mm512_dpbusd_epi32(acc, w, x) }
    }
    #[inline(always)]
    unsafe fn to_f32(x: __m512i) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(x) }
    }
}
