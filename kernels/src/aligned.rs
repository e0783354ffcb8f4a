//! Zeroed memory on a cache-line boundary, taken from the system lazily.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

/// A cache line, and the width of the widest register.
pub(crate) const LINE: usize = 64;

/// `len` bytes, zeroed, aligned to 64. The pages are the system's zero page until written:
/// `alloc_zeroed` is asked with a small alignment (a larger one would be cleared by
/// hand) and the start is rounded up.
pub(crate) struct AlignedBytes {
    base: NonNull<u8>,
    start: usize,
    len: usize,
}

// SAFETY: the memory is owned and reached only through `&self` / `&mut self`.
unsafe impl Send for AlignedBytes {}
// SAFETY: as above; shared access only reads.
unsafe impl Sync for AlignedBytes {}

impl AlignedBytes {
    /// `None` when the system refuses.
    pub fn zeroed(len: usize) -> Option<AlignedBytes> {
        let layout = Self::layout(len)?;
        // SAFETY: the layout has a size of at least `LINE`, checked by construction.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        let start = base.as_ptr().align_offset(LINE);
        Some(AlignedBytes { base, start, len })
    }

    fn layout(len: usize) -> Option<Layout> {
        Layout::from_size_align(len.checked_add(LINE)?, 16).ok()
    }

    pub fn as_ptr(&self) -> *const u8 {
        // SAFETY: `start <= LINE` and the allocation has `len + LINE` bytes.
        unsafe { self.base.as_ptr().add(self.start) }
    }

    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.as_ptr().cast_mut()
    }

    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: `len` initialised (zeroed) bytes from `as_ptr`, owned by `self`.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len) }
    }

    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as `as_slice`, and `&mut self` is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.as_mut_ptr(), self.len) }
    }
}

/// A value on a cache line of its own: vectors inside never straddle two lines.
#[repr(align(64))]
pub(crate) struct Aligned<T>(pub T);

impl Drop for AlignedBytes {
    fn drop(&mut self) {
        let layout = Self::layout(self.len).expect("was valid when allocated");
        // SAFETY: allocated in `zeroed` with this same layout.
        unsafe { dealloc(self.base.as_ptr(), layout) }
    }
}
