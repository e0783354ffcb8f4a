//! Cosines and sines for as many positions as were ever asked for.
//!
//! A table for the whole context of a model would take gigabytes where a file claims millions of
//! positions, so it starts small and doubles. A longer table begins with the same bits.

use kernels::{RopeStyle, RopeTable, ThreadPool};

use super::kernel_error;
use crate::config::Rope;
use crate::limits::ROPE_POSITIONS_FIRST;
use crate::{Config, Result};

/// The rotations of one model.
pub(crate) struct Rotations {
    pub all: Rotation,
    /// Of the layers with a window.
    pub window: Option<Rotation>,
}

impl Rotations {
    pub fn new(config: &Config) -> Result<Self> {
        let new = |rope: &Rope| Rotation::new(rope, config.context_train);
        Ok(Self {
            all: new(&config.rope)?,
            window: config.window.as_ref().map(|w| new(&w.rope)).transpose()?,
        })
    }
}

/// One rotation.
pub(crate) struct Rotation {
    rope: Rope,
    context: usize,
    table: RopeTable,
}

impl Rotation {
    fn new(rope: &Rope, context: usize) -> Result<Self> {
        Ok(Self {
            rope: rope.clone(),
            context,
            table: build(rope, context.min(ROPE_POSITIONS_FIRST))?,
        })
    }

    /// A table that covers position `last`, which lies within the context.
    pub fn table_up_to(&mut self, last: usize) -> Result<&RopeTable> {
        if last >= self.table.positions() {
            let positions = (last + 1).next_power_of_two().min(self.context);
            self.table = build(&self.rope, positions)?;
        }
        Ok(&self.table)
    }
}

impl Rotation {
    /// Cosines and sines of the given positions: each [T, dims / 2], with the bits that the kernels
    /// rotate with.
    pub fn rows(&mut self, positions: &[u32]) -> Result<(Vec<f32>, Vec<f32>)> {
        let last = positions.iter().max().map_or(0, |&p| p as usize);
        let (dims, style) = (self.rope.dims, self.rope.style);
        let table = self.table_up_to(last)?;
        // A pair (1, 0) is rotated to its (cos, sin).
        let half = dims / 2;
        let place = |pair: usize| match style {
            RopeStyle::Norm => (2 * pair, 2 * pair + 1),
            RopeStyle::Neox => (pair, pair + half),
        };
        let mut ones = vec![0.0; positions.len() * dims];
        for row in ones.chunks_exact_mut(dims) {
            (0..half).for_each(|pair| row[place(pair).0] = 1.0);
        }
        let pool = ThreadPool::new(1).map_err(kernel_error)?;
        kernels::rope(&pool, &mut ones, dims, positions, table);
        let column = |of: fn((usize, usize)) -> usize| {
            let rows = ones.chunks_exact(dims);
            rows.flat_map(|row| (0..half).map(|pair| row[of(place(pair))]))
                .collect()
        };
        Ok((column(|p| p.0), column(|p| p.1)))
    }
}

fn build(rope: &Rope, positions: usize) -> Result<RopeTable> {
    RopeTable::new(rope.spec(), positions).map_err(kernel_error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Family;
    use crate::tiny::TinySpec;

    /// Bits of the angles at some positions.
    fn bits(rotation: &mut Rotation) -> Vec<u32> {
        let (cos, sin) = rotation.rows(&[0, 1, 7, 500]).unwrap();
        cos.iter().chain(&sin).map(|v| v.to_bits()).collect()
    }

    #[test]
    fn a_longer_table_begins_with_the_same_bits() {
        for spec in [
            TinySpec::default(),
            TinySpec {
                family: Family::Qwen2,
                ..TinySpec::default()
            },
        ] {
            let config = TinySpec {
                context: 1 << 24,
                ..spec
            }
            .config();
            let mut rotation = Rotation::new(&config.rope, config.context_train).unwrap();
            let before = bits(&mut rotation);
            assert_eq!(rotation.table.positions(), ROPE_POSITIONS_FIRST);
            rotation.table_up_to(10_000).unwrap();
            assert_eq!(rotation.table.positions(), 16_384);
            assert_eq!(before, bits(&mut rotation));
            let angle = 500f64 / 10_000f64.powf(2.0 / config.rope.dims as f64);
            let (cos, _) = rotation.rows(&[500]).unwrap();
            assert_eq!(
                cos[1],
                angle.cos() as f32,
                "the second pair at position 500"
            );
        }
    }

    #[test]
    fn a_table_is_never_longer_than_the_context() {
        let config = TinySpec {
            context: 10_000,
            ..TinySpec::default()
        }
        .config();
        let mut rotation = Rotation::new(&config.rope, config.context_train).unwrap();
        assert_eq!(rotation.table_up_to(9_999).unwrap().positions(), 10_000);
    }
}
