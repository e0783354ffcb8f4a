//! What this machine could do at best: the marks that speed is compared with.
//!
//! Two short measurements on the threads and the instructions that the kernels use: how fast
//! memory is read, and how many multiply-adds of bytes the registers take. Each is the best of a
//! few passes, since whatever else the machine does only makes it slower.

use std::time::Instant;

use crate::aligned::{AlignedBytes, LINE};
use crate::isa::{Isa, Job, dispatch};
use crate::limits::{PREFETCH_BYTES, PROBE_BYTES, PROBE_DOTS, PROBE_PASSES, PROBE_UNIT_BYTES};
use crate::{Error, ThreadPool};

/// The marks of one machine, for one number of threads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MachineLimits {
    /// Bytes a second, read from memory in order.
    pub read_bytes_per_second: f64,
    /// Operations a second, two to a multiply-add of two bytes.
    pub dot_ops_per_second: f64,
}

/// Measures the machine with all threads of `pool`. Takes about half a second.
///
/// # Errors
/// `Memory` when there is no room for [`PROBE_BYTES`].
pub fn probe(pool: &ThreadPool) -> Result<MachineLimits, Error> {
    let mut bytes = AlignedBytes::zeroed(PROBE_BYTES).ok_or(Error::Memory {
        what: "buffer of the memory probe",
        need_bytes: PROBE_BYTES,
        fix: "close other programs",
    })?;
    // Pages that nobody wrote to are all the same one, and would be read from the cache.
    bytes.as_mut_slice().fill(1);
    let bytes = bytes.as_slice();
    let read = || {
        pool.for_units(PROBE_BYTES / PROBE_UNIT_BYTES, &|unit, _| {
            let read = Read(&bytes[unit * PROBE_UNIT_BYTES..(unit + 1) * PROBE_UNIT_BYTES]);
            // SAFETY: `Read` holds a slice only.
            std::hint::black_box(unsafe { dispatch(pool.path(), read) });
        });
    };
    let multiply = || {
        pool.run(&|worker| {
            // SAFETY: `Multiply` holds no pointers.
            std::hint::black_box(unsafe { dispatch(pool.path(), Multiply(worker as u8)) });
        });
    };
    let dots = (pool.threads() * PROBE_DOTS) as f64;
    Ok(MachineLimits {
        read_bytes_per_second: PROBE_BYTES as f64 / best_seconds(&read),
        // 64 bytes meet 64.
        dot_ops_per_second: dots * 128.0 / best_seconds(&multiply),
    })
}

fn best_seconds(work: &dyn Fn()) -> f64 {
    let pass = |_| {
        let clock = Instant::now();
        work();
        clock.elapsed().as_secs_f64()
    };
    (0..PROBE_PASSES).map(pass).fold(f64::INFINITY, f64::min)
}

/// Reads a slice from end to end.
struct Read<'a>(&'a [u8]);

impl Job for Read<'_> {
    type Out = u8;

    #[inline(always)]
    unsafe fn on<I: Isa>(self) -> u8 {
        // SAFETY: whole vectors inside the slice.
        unsafe {
            let mut sums = [I::zero(); 4];
            for lines in self.0.chunks_exact(4 * LINE) {
                for (i, sum) in sums.iter_mut().enumerate() {
                    let line = lines.as_ptr().add(i * LINE);
                    I::prefetch(line.wrapping_add(PREFETCH_BYTES));
                    *sum = I::or_mask(*sum, I::load_bytes(line), 255);
                }
            }
            let all = I::or_mask(
                I::or_mask(sums[0], sums[1], 255),
                I::or_mask(sums[2], sums[3], 255),
                255,
            );
            first_byte::<I>(all)
        }
    }
}

/// Multiplies and adds in registers, [`PROBE_DOTS`] times 64 bytes.
struct Multiply(u8);

/// Chains of sums: `W * X` of them, enough to hide the wait for one result.
const W: usize = 3;
const X: usize = 4;

impl Job for Multiply {
    type Out = u8;

    #[inline(always)]
    unsafe fn on<I: Isa>(self) -> u8 {
        let seeds: [[u8; 64]; W + X] =
            std::array::from_fn(|i| std::array::from_fn(|j| (i * 31 + j) as u8 & 7 | self.0 & 1));
        // Fewer where there are half as many registers.
        let (rows, columns) = if I::TILE_PAIRS { (W, X) } else { (2, 2) };
        // SAFETY: each seed is 64 bytes.
        unsafe {
            let w: [I::V; W] = std::array::from_fn(|i| I::load_bytes(seeds[i].as_ptr()));
            let x: [I::V; X] = std::array::from_fn(|i| I::load_bytes(seeds[W + i].as_ptr()));
            let mut sums = [[I::zero(); X]; W];
            for _ in 0..PROBE_DOTS / (rows * columns) {
                for i in 0..rows {
                    for j in 0..columns {
                        sums[i][j] = I::multiply_add(sums[i][j], w[i], x[j]);
                    }
                }
            }
            let mut all = I::zero();
            for sums in &sums {
                for sum in sums {
                    all = I::or_mask(all, *sum, 255);
                }
            }
            first_byte::<I>(all)
        }
    }
}

/// # Safety
/// The machine has the instructions of `I`.
#[inline(always)]
unsafe fn first_byte<I: Isa>(x: I::V) -> u8 {
    // SAFETY: sixteen lanes into sixteen places.
    unsafe {
        let mut lanes = [0f32; 16];
        I::store(lanes.as_mut_ptr(), I::to_f32(x));
        lanes[0] as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_marks_are_numbers() {
        let limits = probe(&ThreadPool::new(2).unwrap()).unwrap();
        for mark in [limits.read_bytes_per_second, limits.dot_ops_per_second] {
            assert!(mark.is_finite() && mark > 1e6, "{limits:?}");
        }
    }
}
