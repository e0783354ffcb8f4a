//! Layers that see only the newest positions, between layers that see all.

use std::num::NonZeroUsize;

use super::Rope;
use super::keys::Keys;
use crate::Result;

/// Of every `period` layers all but the last have the window.
#[derive(Clone, Debug, PartialEq)]
pub struct Window {
    /// Positions that a row sees, its own included.
    pub tokens: NonZeroUsize,
    /// At least 2.
    pub period: usize,
    /// How these layers turn queries and keys.
    pub rope: Rope,
}

/// What gemma3 was trained with; most of its files leave it out.
const PERIOD: usize = 6;
const BASE: f32 = 10_000.0;

impl Window {
    /// Whether layer `layer` has the window.
    pub fn limits(&self, layer: usize) -> bool {
        !(layer + 1).is_multiple_of(self.period)
    }

    /// How many of the first `layers` layers have no window.
    pub fn seeing_all(&self, layers: usize) -> usize {
        layers / self.period
    }

    /// gemma3: the layers of the window turn by a base of their own, and are not stretched where the others
    /// are for a longer context. No window, or one of 0, means that every layer sees all.
    pub(super) fn read(
        keys: &Keys<'_>,
        rope: &Rope,
        layers: usize,
        context: usize,
    ) -> Result<Option<Window>> {
        const PERIOD_KEY: &str = "attention.sliding_window_pattern";
        let tokens = keys.optional::<usize>("attention.sliding_window")?;
        let tokens = tokens.map(|tokens| tokens.min(context));
        let period = keys.positive_or(PERIOD_KEY, PERIOD)?;
        let base = keys.optional_positive_f32("rope.freq_base_swa")?;
        let window = tokens.and_then(NonZeroUsize::new).map(|tokens| Window {
            tokens,
            period,
            rope: Rope {
                base: base.unwrap_or(BASE),
                linear_scale: 1.0,
                factors: None,
                ..*rope
            },
        });
        // With a period of 1 no layer has the window.
        let window = window.filter(|window| window.period > 1);
        match &window {
            Some(window) if window.seeing_all(layers) == 0 => {
                let why = format!(
                    "{layers} layers, of which one in {} sees all positions: need one that does",
                    window.period
                );
                Err(keys.fault("block_count", &why))
            }
            _ => Ok(window),
        }
    }
}
