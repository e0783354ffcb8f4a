//! Measured speed of the forward pass, for estimates.
//!
//! Invariant: unknown until measured; a step of mixed decode and prefill rows is not measured.

/// How much a new measurement counts against the old ones.
const WEIGHT: f64 = 0.2;

/// Rows from which a step counts as prefill.
const PREFILL_ROWS_MIN: usize = 8;

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Rates {
    /// One step of one row.
    decode_step_ms: Option<f64>,
    /// One row of a prefill chunk.
    prefill_row_ms: Option<f64>,
    /// One token that comes from disk.
    disk_token_ms: Option<f64>,
}

impl Rates {
    /// A step of `rows` rows, all of one sequence, took `ms`.
    pub fn measured(&mut self, rows: usize, ms: f64) {
        match rows {
            0 => {}
            1 => blend(&mut self.decode_step_ms, ms),
            2..PREFILL_ROWS_MIN => {}
            _ => blend(&mut self.prefill_row_ms, ms / rows as f64),
        }
    }

    /// Blocks of `tokens` tokens came from disk in `ms`.
    pub fn loaded(&mut self, tokens: usize, ms: f64) {
        if tokens > 0 {
            blend(&mut self.disk_token_ms, ms / tokens as f64);
        }
    }

    /// Time to load `loaded` tokens and to put `rows` rows of one prompt through the forward pass.
    pub fn estimate_ms(&self, rows: usize, loaded: usize) -> Option<f64> {
        let forward = match (self.prefill_row_ms, self.decode_step_ms) {
            (Some(row), Some(step)) => (rows as f64 * row).max(step),
            (Some(row), None) => rows as f64 * row,
            (None, Some(step)) if rows <= 1 => step,
            (None, _) => return None,
        };
        match loaded {
            0 => Some(forward),
            loaded => Some(forward + loaded as f64 * self.disk_token_ms?),
        }
    }
}

fn blend(rate: &mut Option<f64>, ms: f64) {
    *rate = Some(rate.map_or(ms, |old| old + WEIGHT * (ms - old)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_is_not_zero_and_one_row_costs_a_decode_step() {
        let mut rates = Rates::default();
        assert_eq!(rates.estimate_ms(100, 0), None);
        rates.measured(1, 20.0);
        assert_eq!(rates.estimate_ms(1, 0), Some(20.0));
        assert_eq!(rates.estimate_ms(100, 0), None);
        rates.measured(100, 200.0);
        assert_eq!(rates.estimate_ms(1, 0), Some(20.0));
        assert_eq!(rates.estimate_ms(1000, 0), Some(2000.0));
        assert_eq!(rates.estimate_ms(1, 320), None);
        rates.loaded(320, 32.0);
        assert_eq!(rates.estimate_ms(1, 640), Some(84.0));
    }
}
