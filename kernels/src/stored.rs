//! Numbers as weights and KV blocks store them, read sixteen at a time.

use crate::isa::Isa;

/// A stored float type.
///
/// # Safety
/// Of every method: pointers are good for what is read or written, the machine has the
/// instructions of `I`.
pub(crate) trait Stored: 'static {
    /// Bytes of one number.
    const BYTES: usize;
    /// Whether it is read from where it was written just now, so that no cache has to be asked first.
    const NEAR: bool = false;
    /// Whether numbers are counted in a scale that stands elsewhere.
    const SCALED: bool = false;
    unsafe fn load<I: Isa>(p: *const u8) -> I::F;
    unsafe fn store<I: Isa>(p: *mut u8, x: I::F);

    /// The first `n` <= 16 numbers; the other lanes are zero.
    #[inline(always)]
    unsafe fn load_part<I: Isa>(p: *const u8, n: usize) -> I::F {
        let mut whole = [0u8; 64];
        // SAFETY: `n` numbers from `p`, by the caller; at most 64 bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(p, whole.as_mut_ptr(), n * Self::BYTES);
            Self::load::<I>(whole.as_ptr())
        }
    }
}

pub(crate) struct F32;
/// [`F32`] in a worker's own buffer.
pub(crate) struct Near;
pub(crate) struct F16;
pub(crate) struct BF16;
/// Whole numbers -127..=127.
pub(crate) struct I8;

impl Stored for F32 {
    const BYTES: usize = 4;
    #[inline(always)]
    unsafe fn load<I: Isa>(p: *const u8) -> I::F {
        // SAFETY: promised by the caller; unaligned is allowed.
        unsafe { I::load(p.cast()) }
    }
    #[inline(always)]
    unsafe fn store<I: Isa>(p: *mut u8, x: I::F) {
        // SAFETY: as above.
        unsafe { I::store(p.cast(), x) }
    }
}

impl Stored for Near {
    const BYTES: usize = F32::BYTES;
    const NEAR: bool = true;
    #[inline(always)]
    unsafe fn load<I: Isa>(p: *const u8) -> I::F {
        // SAFETY: promised by the caller.
        unsafe { F32::load::<I>(p) }
    }
    #[inline(always)]
    unsafe fn store<I: Isa>(p: *mut u8, x: I::F) {
        // SAFETY: promised by the caller.
        unsafe { F32::store::<I>(p, x) }
    }
}

impl Stored for F16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load<I: Isa>(p: *const u8) -> I::F {
        // SAFETY: promised by the caller.
        unsafe { I::load_f16(p) }
    }
    #[inline(always)]
    unsafe fn store<I: Isa>(p: *mut u8, x: I::F) {
        // SAFETY: as above.
        unsafe { I::store_f16(p, x) }
    }
}

impl Stored for BF16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load<I: Isa>(p: *const u8) -> I::F {
        // SAFETY: promised by the caller.
        unsafe { I::load_bf16(p) }
    }
    #[inline(always)]
    unsafe fn store<I: Isa>(_: *mut u8, _: I::F) {
        unreachable!("nothing is written in BF16")
    }
}

impl Stored for I8 {
    const BYTES: usize = 1;
    const SCALED: bool = true;
    #[inline(always)]
    unsafe fn load<I: Isa>(p: *const u8) -> I::F {
        // SAFETY: promised by the caller.
        unsafe { I::load_i8(p) }
    }
    #[inline(always)]
    unsafe fn store<I: Isa>(p: *mut u8, x: I::F) {
        // SAFETY: as above.
        unsafe {
            I::store_i8(p.cast(), x);
        }
    }
}
