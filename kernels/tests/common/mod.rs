//! Seeded numbers and weights for the tests of this crate.

#![allow(dead_code)]

use half::f16;
use kernels::{KernelPath, ThreadPool, WeightType};

/// Splitmix64: a failure prints the seed it came from.
pub struct Random(pub u64);

impl Random {
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// In `0..n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    /// In -1..1.
    pub fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    pub fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.unit()).collect()
    }

    /// Valid source bytes of `n` values: every bit random but the scales, which are small halves.
    pub fn weight(&mut self, ty: WeightType, n: usize) -> Vec<u8> {
        let bytes = ty.row_bytes(n).unwrap();
        let random = (0..bytes).map(|_| self.bits() as u8).collect();
        self.with_scales(ty, random)
    }

    /// As [`Random::weight`], with every stored number at its largest.
    pub fn largest(&mut self, ty: WeightType, n: usize) -> Vec<u8> {
        let bytes = ty.row_bytes(n).unwrap();
        self.with_scales(ty, vec![0xff; bytes])
    }

    fn with_scales(&mut self, ty: WeightType, mut out: Vec<u8>) -> Vec<u8> {
        let halves: &[usize] = match ty {
            WeightType::F32 | WeightType::F16 | WeightType::BF16 => &[],
            WeightType::Q4_0 | WeightType::Q5_0 | WeightType::Q8_0 => &[0],
            WeightType::Q4_1 | WeightType::Q5_1 | WeightType::Q4K | WeightType::Q5K => &[0, 2],
            WeightType::Q2K => &[80, 82],
            WeightType::Q3K => &[108],
            WeightType::Q6K => &[208],
        };
        for block in out.chunks_exact_mut(ty.block_bytes()) {
            for at in halves {
                let scale = f16::from_f32(self.unit() * 0.02).to_le_bytes();
                block[*at..*at + 2].copy_from_slice(&scale);
            }
            let x = self.unit();
            match ty {
                WeightType::F32 => block.copy_from_slice(&x.to_le_bytes()),
                WeightType::F16 => block.copy_from_slice(&f16::from_f32(x).to_le_bytes()),
                WeightType::BF16 => {
                    block.copy_from_slice(&half::bf16::from_f32(x).to_le_bytes());
                }
                _ => {}
            }
        }
        out
    }
}

/// The paths this machine has.
pub fn paths() -> Vec<KernelPath> {
    [
        KernelPath::Portable,
        KernelPath::Avx2,
        KernelPath::Avx512Vnni,
    ]
    .into_iter()
    .filter(|path| path.available())
    .collect()
}

pub fn pool(threads: usize, path: KernelPath) -> ThreadPool {
    ThreadPool::new(threads).unwrap().with_path(path).unwrap()
}

/// Equal bit for bit, or a message that shows where not.
#[track_caller]
pub fn assert_same(got: &[f32], want: &[f32], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    let differs = |(a, b): (&f32, &f32)| a.to_bits() != b.to_bits();
    if let Some(i) = got.iter().zip(want).position(differs) {
        panic!("{what}: element {i} is {:e}, wanted {:e}", got[i], want[i]);
    }
}
