//! What a caller may ask of the sampler, and the ranges.

use super::SampleError;
use crate::limits::{LOGIT_BIAS_MAX, TOP_LOGPROBS_MAX};

/// All plain data. The default draws from the model's own distribution.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// 0 takes the best token always.
    pub temperature: f32,
    /// Only the best `top_k` tokens; 0 for all.
    pub top_k: usize,
    /// The fewest best tokens that together have this probability; 1 for all, 0 for the best alone.
    pub top_p: f32,
    /// Only tokens at least this fraction as probable as the best; 0 for all.
    pub min_p: f32,
    /// Divides (or multiplies, below zero) the logits of tokens in the last `repetition_window`;
    /// 1 for none.
    pub repetition_penalty: f32,
    /// Tokens of prompt and answer that the repetition penalty looks back on.
    pub repetition_window: usize,
    /// Taken off a logit for each time its token is in the answer.
    pub frequency_penalty: f32,
    /// Taken off a logit if its token is in the answer.
    pub presence_penalty: f32,
    /// Added to the logits of single tokens.
    pub logit_bias: Vec<(u32, f32)>,
    pub seed: u64,
    /// Report the raw probability of the chosen token and of this many best ones.
    pub top_logprobs: Option<usize>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            // As llama.cpp and Ollama have it.
            repetition_window: 64,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: 0,
            top_logprobs: None,
        }
    }
}

impl SamplingParams {
    /// The best token always.
    pub fn greedy() -> Self {
        Self {
            temperature: 0.0,
            ..Self::default()
        }
    }

    /// Whether there is nothing to draw.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0 || self.top_k == 1 || self.top_p == 0.0
    }

    /// Whether every value is in its range, for a vocabulary of `vocab` tokens. A value outside is
    /// an error that names it; nothing is clamped in silence.
    pub fn validate(&self, vocab: usize) -> Result<(), SampleError> {
        let fraction = |v: f32| (0.0..=1.0).contains(&v);
        let rows = [
            (
                "temperature",
                self.temperature,
                "a number from 0 to 100",
                (0.0..=100.0).contains(&self.temperature),
            ),
            (
                "top_p",
                self.top_p,
                "a number from 0 to 1",
                fraction(self.top_p),
            ),
            (
                "min_p",
                self.min_p,
                "a number from 0 to 1",
                fraction(self.min_p),
            ),
            (
                "repetition_penalty",
                self.repetition_penalty,
                "a number above 0, up to 100 (1 for none)",
                self.repetition_penalty > 0.0 && self.repetition_penalty <= 100.0,
            ),
            (
                "frequency_penalty",
                self.frequency_penalty,
                "a number from -100 to 100",
                self.frequency_penalty.abs() <= 100.0,
            ),
            (
                "presence_penalty",
                self.presence_penalty,
                "a number from -100 to 100",
                self.presence_penalty.abs() <= 100.0,
            ),
        ];
        for (name, have, need, good) in rows {
            if !good {
                return Err(SampleError::Parameter {
                    name,
                    need,
                    have: have.to_string(),
                });
            }
        }
        if let Some(have) = self.top_logprobs.filter(|&n| n > TOP_LOGPROBS_MAX) {
            let need = "at most 100 of them";
            return Err(SampleError::Parameter {
                name: "top_logprobs",
                need,
                have: have.to_string(),
            });
        }
        for &(id, bias) in &self.logit_bias {
            if id as usize >= vocab {
                return Err(SampleError::BiasId { id, vocab });
            }
            if bias.is_nan() || bias.abs() > LOGIT_BIAS_MAX {
                let need = "a number from -1e9 to 1e9";
                return Err(SampleError::Parameter {
                    name: "logit_bias",
                    need,
                    have: bias.to_string(),
                });
            }
        }
        Ok(())
    }
}
