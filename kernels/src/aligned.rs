//! Zeroed memory on a cache-line boundary, taken from the system lazily, in huge pages where it has them.
//!
//! A model is read from end to end for every token. With pages of 4 KiB the walk over the page tables
//! costs a quarter of the bandwidth and more; so small weights share maps that are large enough for
//! pages of 2 MiB. What is freed goes back to the system with the last of its map; the map that is being filled
//! stays.

use std::sync::{Arc, Mutex};

use memmap2::MmapMut;

use crate::limits::{SLAB_BYTES, SLAB_SHARE_BYTES_MAX};

/// A cache line, and the width of the widest register.
pub(crate) const LINE: usize = 64;

/// Memory of the system's own, zero until written.
struct Slab {
    base: *mut u8,
    /// Unmaps when dropped; reached through `base` only.
    _map: MmapMut,
}

// SAFETY: parts of a slab are handed out once each and reached through their `AlignedBytes` alone.
unsafe impl Send for Slab {}
// SAFETY: as above.
unsafe impl Sync for Slab {}

impl Slab {
    fn new(len: usize) -> Option<Slab> {
        let mut map = MmapMut::map_anon(len).ok()?;
        // Where the system has no huge pages, small ones serve.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        Some(Slab {
            base: map.as_mut_ptr(),
            _map: map,
        })
    }
}

/// The slab that small requests share, and how much of it is taken.
static SHARED: Mutex<Option<(Arc<Slab>, usize)>> = Mutex::new(None);

/// `len` bytes, zeroed, aligned to 64.
pub(crate) struct AlignedBytes {
    slab: Arc<Slab>,
    start: usize,
    len: usize,
}

impl AlignedBytes {
    /// `None` when the system refuses.
    pub fn zeroed(len: usize) -> Option<AlignedBytes> {
        let room = len.max(1).checked_next_multiple_of(LINE)?;
        if room > SLAB_SHARE_BYTES_MAX {
            let slab = Arc::new(Slab::new(room)?);
            return Some(AlignedBytes {
                slab,
                start: 0,
                len,
            });
        }
        let mut shared = SHARED.lock().unwrap_or_else(|e| e.into_inner());
        let (slab, start) = match &mut *shared {
            Some((slab, taken)) if *taken + room <= SLAB_BYTES => (slab.clone(), *taken),
            _ => (Arc::new(Slab::new(SLAB_BYTES)?), 0),
        };
        *shared = Some((slab.clone(), start + room));
        Some(AlignedBytes { slab, start, len })
    }

    pub fn as_ptr(&self) -> *const u8 {
        // SAFETY: `start + len` bytes are inside the slab, by `zeroed`.
        unsafe { self.slab.base.add(self.start) }
    }

    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.as_ptr().cast_mut()
    }

    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: `len` initialised (zeroed) bytes from `as_ptr`, handed out to `self` alone.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Parts of one map, of the next, and a map of its own: zero, aligned, and nobody else's.
    #[test]
    fn parts_are_zero_and_disjoint() {
        let sizes = [1, 64, 65, SLAB_SHARE_BYTES_MAX, SLAB_SHARE_BYTES_MAX + 1, 0];
        let many = sizes.iter().cycle().take(60);
        let mut parts: Vec<_> = many.map(|n| AlignedBytes::zeroed(*n).unwrap()).collect();
        for (i, part) in parts.iter_mut().enumerate() {
            assert!(part.as_ptr().addr().is_multiple_of(LINE));
            assert!(part.as_slice().iter().all(|byte| *byte == 0), "part {i}");
            part.as_mut_slice().fill(i as u8 + 1);
        }
        for (i, part) in parts.iter().enumerate() {
            assert_eq!(part.as_slice().len(), sizes[i % sizes.len()]);
            assert!(part.as_slice().iter().all(|byte| *byte == i as u8 + 1));
        }
    }
}
