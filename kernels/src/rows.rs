//! What happens to each row of activations between the matrix products.
//!
//! Every function works row by row in one fixed order; rows are shared out among
//! the threads and do not know of each other. A length that is not a multiple of 16 ends in
//! lanes of zero, which add nothing.

use crate::isa::{self, Isa, Job, dispatch};
use crate::limits::ROWS_BYTES_MIN;
use crate::math::{GELU_CUBE, GELU_LINE};
use crate::share::Parts;
use crate::{KernelPath, ThreadPool};

/// What is done to one row: `x` is its input, if that is another slice than `out`.
trait RowKernel: Copy + Sync {
    /// # Safety
    /// The machine has the instructions of `I`.
    unsafe fn row<I: Isa>(self, x: &[f32], out: &mut [f32]);
}

/// Some rows of one call.
struct Rows<'a, K> {
    kernel: K,
    /// As long as `out`, or empty.
    x: &'a [f32],
    out: &'a mut [f32],
    width: usize,
}

impl<K: RowKernel> Job for Rows<'_, K> {
    type Out = ();

    #[inline(always)]
    unsafe fn on<I: Isa>(self) {
        for (i, out) in self.out.chunks_mut(self.width).enumerate() {
            let x = if self.x.is_empty() {
                self.x
            } else {
                &self.x[i * self.width..][..out.len()]
            };
            // SAFETY: promised by the caller.
            unsafe { self.kernel.row::<I>(x, out) }
        }
    }
}

/// Runs `kernel` over rows of `width`, on several threads when it is worth it.
fn each_row<K: RowKernel>(pool: &ThreadPool, kernel: K, x: &[f32], out: &mut [f32], width: usize) {
    assert!(width > 0 && (x.is_empty() || x.len() == out.len()));
    let run = |path: KernelPath, x, out| {
        let rows = Rows {
            kernel,
            x,
            out,
            width,
        };
        // SAFETY: `Rows` holds slices only.
        unsafe { dispatch(path, rows) }
    };
    if pool.threads() == 1 || size_of_val(out) < ROWS_BYTES_MIN {
        run(pool.path(), x, out);
        return;
    }
    let unit = (ROWS_BYTES_MIN / 4 / width).max(1) * width;
    let len = out.len();
    let parts = Parts::new(out);
    pool.for_units(len.div_ceil(unit), &|i, _| {
        let (at, n) = (i * unit, unit.min(len - i * unit));
        let x = if x.is_empty() { x } else { &x[at..at + n] };
        // SAFETY: units do not overlap.
        run(pool.path(), x, unsafe { parts.part(at, n) });
    });
}

/// Root-mean-square norm: `x` [T, d], `weight` [d] -> `out` [T, d].
///
/// # Panics
/// When `x` and `out` are not the same whole number of rows.
pub fn rms_norm(pool: &ThreadPool, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    assert!(x.len() == out.len() && x.len().is_multiple_of(weight.len()));
    each_row(pool, RmsNorm { weight, eps }, x, out, weight.len());
}

/// [`rms_norm`] in place: `x` [T, d], `weight` [d].
///
/// # Panics
/// When `x` is not whole rows.
pub fn rms_norm_in_place(pool: &ThreadPool, x: &mut [f32], weight: &[f32], eps: f32) {
    assert!(x.len().is_multiple_of(weight.len()));
    if !x.is_empty() {
        each_row(pool, RmsNorm { weight, eps }, &[], x, weight.len());
    }
}

/// Each element times `factor`.
pub fn scale(pool: &ThreadPool, x: &mut [f32], factor: f32) {
    if !x.is_empty() {
        each_row(pool, Scale(factor), &[], x, 1024);
    }
}

#[derive(Clone, Copy)]
struct Scale(f32);

impl RowKernel for Scale {
    #[inline(always)]
    unsafe fn row<I: Isa>(self, _: &[f32], x: &mut [f32]) {
        for x in x.chunks_mut(16) {
            // SAFETY: chunks of at most 16 elements.
            unsafe { put::<I>(x, I::mul(part::<I>(x), I::splat(self.0))) }
        }
    }
}

#[derive(Clone, Copy)]
struct RmsNorm<'a> {
    weight: &'a [f32],
    eps: f32,
}

impl RowKernel for RmsNorm<'_> {
    #[inline(always)]
    unsafe fn row<I: Isa>(self, x: &[f32], out: &mut [f32]) {
        // SAFETY: chunks of at most 16 elements of slices of one length.
        unsafe {
            let mut sum = I::splat(0.0);
            for x in if x.is_empty() { &*out } else { x }.chunks(16) {
                let x = part::<I>(x);
                sum = I::fma(x, x, sum);
            }
            let mean = I::fold_add(sum) / out.len() as f32;
            let scale = I::splat(1.0 / (mean + self.eps).sqrt());
            for (i, (out, w)) in out.chunks_mut(16).zip(self.weight.chunks(16)).enumerate() {
                let x = match x.is_empty() {
                    true => part::<I>(out),
                    false => part::<I>(&x[16 * i..][..out.len()]),
                };
                put::<I>(out, I::mul(I::mul(x, scale), part::<I>(w)));
            }
        }
    }
}

/// Up to sixteen numbers.
///
/// # Safety
/// The machine has the instructions of `I`; `x` has at most 16 elements.
#[inline(always)]
unsafe fn part<I: Isa>(x: &[f32]) -> I::F {
    // SAFETY: promised by the caller.
    unsafe {
        if x.len() == 16 {
            I::load(x.as_ptr())
        } else {
            I::load_part(x.as_ptr(), x.len())
        }
    }
}

/// # Safety
/// As [`part`].
#[inline(always)]
unsafe fn put<I: Isa>(out: &mut [f32], x: I::F) {
    // SAFETY: promised by the caller.
    unsafe {
        if out.len() == 16 {
            I::store(out.as_mut_ptr(), x);
        } else {
            I::store_part(out.as_mut_ptr(), x, out.len());
        }
    }
}

/// What bends the gate of a feed-forward network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `x / (1 + exp(-x))`
    Silu,
    /// GELU as `x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2`.
    Gelu,
}

/// `gate` becomes `activation(gate) * up`, element by element; both [T, ffn].
///
/// # Panics
/// When the lengths differ.
pub fn gated_mul(pool: &ThreadPool, activation: Activation, gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len());
    if !gate.is_empty() {
        each_row(pool, GatedMul(activation), up, gate, 1024);
    }
}

#[derive(Clone, Copy)]
struct GatedMul(Activation);

impl RowKernel for GatedMul {
    #[inline(always)]
    unsafe fn row<I: Isa>(self, up: &[f32], gate: &mut [f32]) {
        for (g, u) in gate.chunks_mut(16).zip(up.chunks(16)) {
            // SAFETY: chunks of at most 16 elements.
            unsafe {
                let x = part::<I>(g);
                let bent = match self.0 {
                    Activation::Silu => x,
                    Activation::Gelu => {
                        let square = I::mul(x, x);
                        let slope = I::fma(square, I::splat(GELU_CUBE), I::splat(GELU_LINE));
                        I::mul(x, slope)
                    }
                };
                let e = isa::exp::<I>(I::sub(I::splat(0.0), bent));
                let gate = I::div(x, I::add(I::splat(1.0), e));
                put::<I>(g, I::mul(gate, part::<I>(u)));
            }
        }
    }
}

/// `x += y`, element by element.
///
/// # Panics
/// When the lengths differ.
pub fn add(pool: &ThreadPool, x: &mut [f32], y: &[f32]) {
    assert_eq!(x.len(), y.len());
    if !x.is_empty() {
        each_row(pool, Add, y, x, 1024);
    }
}

#[derive(Clone, Copy)]
struct Add;

impl RowKernel for Add {
    #[inline(always)]
    unsafe fn row<I: Isa>(self, y: &[f32], x: &mut [f32]) {
        for (x, y) in x.chunks_mut(16).zip(y.chunks(16)) {
            // SAFETY: chunks of at most 16 elements.
            unsafe { put::<I>(x, I::add(part::<I>(x), part::<I>(y))) }
        }
    }
}

/// Adds `bias` [d] to each row of `x` [T, d].
///
/// # Panics
/// When `x` is not whole rows.
pub fn add_bias(pool: &ThreadPool, x: &mut [f32], bias: &[f32]) {
    assert!(x.len().is_multiple_of(bias.len()));
    each_row(pool, AddBias { bias }, &[], x, bias.len());
}

#[derive(Clone, Copy)]
struct AddBias<'a> {
    bias: &'a [f32],
}

impl RowKernel for AddBias<'_> {
    #[inline(always)]
    unsafe fn row<I: Isa>(self, _: &[f32], x: &mut [f32]) {
        // SAFETY: promised by the caller.
        unsafe { Add.row::<I>(self.bias, x) }
    }
}

/// Softmax of each row of `x` [T, d], in place.
///
/// # Panics
/// When `x` is not whole rows.
pub fn softmax(pool: &ThreadPool, x: &mut [f32], d: usize) {
    assert!(x.len().is_multiple_of(d));
    each_row(pool, Softmax, &[], x, d);
}

#[derive(Clone, Copy)]
struct Softmax;

impl RowKernel for Softmax {
    #[inline(always)]
    unsafe fn row<I: Isa>(self, _: &[f32], x: &mut [f32]) {
        // SAFETY: chunks of at most 16 elements.
        unsafe {
            let mut max = I::splat(f32::NEG_INFINITY);
            for x in x.chunks(16) {
                max = I::max(I::fill_from(part::<I>(x), x.len(), f32::NEG_INFINITY), max);
            }
            let max = I::splat(I::fold_max(max));
            let mut sum = I::splat(0.0);
            for x in x.chunks_mut(16) {
                let e = isa::exp::<I>(I::sub(part::<I>(x), max));
                sum = I::add(sum, I::fill_from(e, x.len(), 0.0));
                put::<I>(x, e);
            }
            let sum = I::splat(I::fold_add(sum));
            for x in x.chunks_mut(16) {
                put::<I>(x, I::div(part::<I>(x), sum));
            }
        }
    }
}

/// Index of the largest value of `x`; the first of equals; NaN never wins. `None` when there is none.
pub fn argmax(x: &[f32]) -> Option<usize> {
    let mut best: Option<usize> = None;
    for (i, v) in x.iter().enumerate() {
        if !v.is_nan() && best.is_none_or(|b| *v > x[b]) {
            best = Some(i);
        }
    }
    best
}
