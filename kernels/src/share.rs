//! One slice, written in parts that do not overlap, by several workers.

use std::marker::PhantomData;

/// A mutable slice whose disjoint parts may be taken from any thread.
#[derive(Clone, Copy)]
pub(crate) struct Parts<'a, T> {
    base: *mut T,
    len: usize,
    life: PhantomData<&'a mut [T]>,
}

// SAFETY: parts are disjoint by the contract of `part`, so this is a `&mut [T]` cut up.
unsafe impl<T: Send> Send for Parts<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Parts<'_, T> {}

impl<'a, T> Parts<'a, T> {
    pub fn new(slice: &'a mut [T]) -> Parts<'a, T> {
        Parts {
            base: slice.as_mut_ptr(),
            len: slice.len(),
            life: PhantomData,
        }
    }

    /// Elements `at .. at + len`.
    ///
    /// # Safety
    /// No other live part overlaps it.
    ///
    /// # Panics
    /// When it reaches over the end.
    #[inline]
    #[expect(clippy::mut_from_ref)]
    pub unsafe fn part(&self, at: usize, len: usize) -> &mut [T] {
        assert!(at <= self.len && len <= self.len - at);
        // SAFETY: inside the slice by the assertion, disjoint by the caller.
        unsafe { std::slice::from_raw_parts_mut(self.base.add(at), len) }
    }

    /// Where element `at` lies, with `len` elements from it inside the slice. For parts that
    /// interleave (heads of a row): writers keep to their own elements.
    ///
    /// # Panics
    /// When it reaches over the end.
    #[inline]
    pub fn at(&self, at: usize, len: usize) -> *mut T {
        assert!(at <= self.len && len <= self.len - at);
        self.base.wrapping_add(at)
    }
}
