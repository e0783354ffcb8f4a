//! AVX2 with FMA: two 256-bit registers for each vector, low half first.

use std::arch::x86_64::*;

use std::mem::MaybeUninit;

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

/// Eight words.
#[derive(Clone, Copy)]
pub(crate) struct Words {
    /// Of numbers of eight bits, their low halves.
    low: [V; 8],
    /// Their high halves; nothing for fewer bits.
    high: MaybeUninit<[V; 8]>,
}

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

/// Products of two bytes that one 16-bit lane may add up: `2 * (2^bits - 1) * 127` each.
const fn words_in_i16(bits: u32) -> usize {
    i16::MAX as usize / (2 * ((1 << bits) - 1) * 127)
}

// Halves of a block are four words, blocks eight; what fits divides both and is even, as
// `pairs_of_four` needs it. Two and three bits take a whole block at once.
const _: () = assert!(words_in_i16(2) >= 8 && words_in_i16(3) >= 8);
const _: () = assert!(words_in_i16(4) == 8 && words_in_i16(5) == 4 && words_in_i16(6) == 2);

/// Word `g` of activation row `r` in every lane.
///
/// # Safety
/// As [`Isa::dots`].
#[inline(always)]
unsafe fn word(x: *const i8, r: usize, g: usize) -> __m256i {
    // SAFETY: four bytes of row `r`.
    unsafe { _mm256_set1_epi32(x.add(32 * r + 4 * g).cast::<i32>().read_unaligned()) }
}

/// `x`, of which the compiler knows nothing any more.
///
/// # Safety
/// The machine has AVX2.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn unknown(mut x: __m256i) -> __m256i {
    // SAFETY: no instruction at all.
    unsafe {
        // Not `pure`: what is pure is computed once for all turns of a loop.
        std::arch::asm!("/* {0} */", inout(ymm_reg) x, options(nomem, nostack, preserves_flags));
    }
    x
}

/// One word (two halves, at these offsets) meets four activation rows (at these).
macro_rules! word_of_four {
    ($w0:literal, $w1:literal, $a:literal, $b:literal, $c:literal, $d:literal) => {
        concat!(
            "vmovdqa {w0}, [{w} + ",
            $w0,
            "]\n",
            "vmovdqa {w1}, [{w} + ",
            $w1,
            "]\n",
            "vpbroadcastd {x0}, [{x} + ",
            $a,
            "]\n",
            "vpbroadcastd {x1}, [{x} + ",
            $b,
            "]\n",
            "vpmaddubsw {p}, {w0}, {x0}\n",
            "vpmaddubsw {x0}, {w1}, {x0}\n",
            "vpaddw {a0}, {a0}, {p}\n",
            "vpaddw {a1}, {a1}, {x0}\n",
            "vpmaddubsw {p}, {w0}, {x1}\n",
            "vpmaddubsw {x1}, {w1}, {x1}\n",
            "vpaddw {b0}, {b0}, {p}\n",
            "vpaddw {b1}, {b1}, {x1}\n",
            "vpbroadcastd {x0}, [{x} + ",
            $c,
            "]\n",
            "vpbroadcastd {x1}, [{x} + ",
            $d,
            "]\n",
            "vpmaddubsw {p}, {w0}, {x0}\n",
            "vpmaddubsw {x0}, {w1}, {x0}\n",
            "vpaddw {c0}, {c0}, {p}\n",
            "vpaddw {c1}, {c1}, {x0}\n",
            "vpmaddubsw {p}, {w0}, {x1}\n",
            "vpmaddubsw {x1}, {w1}, {x1}\n",
            "vpaddw {d0}, {d0}, {p}\n",
            "vpaddw {d1}, {d1}, {x1}\n",
        )
    };
}

/// Sixteen-bit sums of `n` (even) words of weights with four activation rows, as many as fit
/// ([`words_in_i16`]). In assembly because the compiler spills these eight sums.
///
/// # Safety
/// The machine has AVX2; `n` is even and above zero; `w` is good for `n` aligned vectors of 64 bytes; rows
/// are at `x`, 32 bytes apart, each good for `4 n` bytes.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn pairs_of_four(w: *const V, x: *const i8, n: usize) -> [V; 4] {
    let (a0, a1, b0, b1, c0, c1, d0, d1): (
        __m256i,
        __m256i,
        __m256i,
        __m256i,
        __m256i,
        __m256i,
        __m256i,
        __m256i,
    );
    debug_assert!(n > 0 && n.is_multiple_of(2));
    // SAFETY: reads what the caller promises, two words at a time.
    unsafe {
        std::arch::asm!(
            "vpxor {a0}, {a0}, {a0}",
            "vpxor {a1}, {a1}, {a1}",
            "vpxor {b0}, {b0}, {b0}",
            "vpxor {b1}, {b1}, {b1}",
            "vpxor {c0}, {c0}, {c0}",
            "vpxor {c1}, {c1}, {c1}",
            "vpxor {d0}, {d0}, {d0}",
            "vpxor {d1}, {d1}, {d1}",
            "2:",
            word_of_four!("0", "32", "0", "32", "64", "96"),
            word_of_four!("64", "96", "4", "36", "68", "100"),
            "add {w}, 128",
            "add {x}, 8",
            "sub {n}, 2",
            "jnz 2b",
            a0 = out(ymm_reg) a0,
            a1 = out(ymm_reg) a1,
            b0 = out(ymm_reg) b0,
            b1 = out(ymm_reg) b1,
            c0 = out(ymm_reg) c0,
            c1 = out(ymm_reg) c1,
            d0 = out(ymm_reg) d0,
            d1 = out(ymm_reg) d1,
            w0 = out(ymm_reg) _,
            w1 = out(ymm_reg) _,
            x0 = out(ymm_reg) _,
            x1 = out(ymm_reg) _,
            p = out(ymm_reg) _,
            w = inout(reg) w => _,
            x = inout(reg) x => _,
            n = inout(reg) n => _,
            options(readonly, nostack),
        );
    }
    [[a0, a1], [b0, b1], [c0, c1], [d0, d1]]
}

/// Sixteen-bit sums of words `from .. from + n` with `R` activation rows.
///
/// # Safety
/// As [`pairs_of_four`].
#[allow(clippy::needless_range_loop)]
#[inline(always)]
unsafe fn pairs<const R: usize>(w: &[V], from: usize, x: *const i8, n: usize) -> [V; R] {
    // SAFETY: promised by the caller; the words are inside `w`, and an even number of them (see
    // `words_in_i16`).
    unsafe {
        let w = &w[from..from + n];
        let mut out = [[_mm256_setzero_si256(); 2]; R];
        if R == 4 && n > 2 {
            out.copy_from_slice(&pairs_of_four(w.as_ptr(), x, n));
            return out;
        }
        for (g, w) in w.iter().enumerate() {
            for r in 0..R {
                let x = word(x, r, g);
                for h in 0..2 {
                    out[r][h] = _mm256_add_epi16(out[r][h], _mm256_maddubs_epi16(w[h], x));
                }
            }
        }
        out
    }
}

// SAFETY of every block below: the instructions are there by the contract of `Isa`, and
// pointers are good for what is read or written by the same contract.
// Indices name a word, a tile, a row and a half; the arrays are registers.
#[allow(clippy::undocumented_unsafe_blocks, clippy::needless_range_loop)]
impl Isa for Avx2 {
    type F = F;
    type V = V;
    type Words = Words;
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
            if n >= 16 {
                return Self::load(p);
            }
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
            // A masked store costs as much as twenty plain ones on some machines.
            if n >= 16 {
                return Self::store(p, x);
            }
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
    fn prefetch(p: *const u8) {
        // SAFETY: a hint; no address is wrong.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
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
    unsafe fn words<const BITS: u32>(w: [V; 8]) -> Words {
        unsafe {
            let mut out = Words {
                low: w,
                high: MaybeUninit::uninit(),
            };
            if BITS == 8 {
                let mut high = w;
                for g in 0..8 {
                    out.low[g] = Self::mask(w[g], 15);
                    high[g] = Self::mask(Self::shr(w[g], 4), 15);
                }
                out.high.write(high);
            }
            out
        }
    }
    #[inline(always)]
    unsafe fn dots<const BITS: u32, const N: usize, const W: usize, const R: usize>(
        w: &[Words; W],
        from: usize,
        x: *const i8,
        sums: [i32; R],
        offset: i32,
    ) -> [[V; R]; W] {
        unsafe {
            let mut out = [[[_mm256_setzero_si256(); 2]; R]; W];
            let ones = _mm256_set1_epi16(1);
            for i in 0..W {
                // Eight bits are two numbers of four, the high ones sixteen times the low.
                let (parts, bits) = if BITS == 8 { (2, 4) } else { (1, BITS) };
                let step = words_in_i16(bits).min(N);
                for part in (0..parts).rev() {
                    let words = if part == 1 {
                        // Written by `words`, since there are eight bits.
                        w[i].high.assume_init_ref()
                    } else {
                        &w[i].low
                    };
                    for first in (0..N).step_by(step) {
                        let x = x.add(4 * first);
                        let sums = pairs::<R>(words, from + first, x, step.min(N - first));
                        for r in 0..R {
                            for h in 0..2 {
                                let words = _mm256_madd_epi16(sums[r][h], ones);
                                out[i][r][h] = _mm256_add_epi32(out[i][r][h], words);
                            }
                        }
                    }
                    if part == 1 {
                        for r in 0..R {
                            for h in 0..2 {
                                out[i][r][h] = _mm256_slli_epi32::<4>(out[i][r][h]);
                            }
                        }
                    }
                }
                if offset != 0 {
                    for r in 0..R {
                        let start = _mm256_set1_epi32(-offset * sums[r]);
                        for h in 0..2 {
                            out[i][r][h] = _mm256_add_epi32(out[i][r][h], start);
                        }
                    }
                }
            }
            out
        }
    }
    #[inline(always)]
    unsafe fn multiply_add(acc: V, w: V, x: V) -> V {
        unsafe {
            // The same product again and again would be computed once.
            let x = [unknown(x[0]), unknown(x[1])];
            [
                _mm256_add_epi16(acc[0], _mm256_maddubs_epi16(w[0], x[0])),
                _mm256_add_epi16(acc[1], _mm256_maddubs_epi16(w[1], x[1])),
            ]
        }
    }
    #[inline(always)]
    unsafe fn to_f32(x: V) -> F {
        unsafe { x.map(|x| _mm256_cvtepi32_ps(x)) }
    }
}
