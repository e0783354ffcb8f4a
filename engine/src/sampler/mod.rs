//! The sampler: one row of logits to one token.
//!
//! Order: NaN out, repetition and frequency penalties, bias, grammar mask; then temperature, top-k,
//! top-p, min-p, one draw. Invariants: a token that is masked, vetoed, NaN or minus infinity is never
//! chosen; the draw for the n-th token depends on the seed, n and this row only, so batch mates and
//! cache hits cannot change it; equal logits are taken lowest id first.
//! Top-p after Holtzman et al. 2019, min-p after Nguyen et al. 2024; penalties as in llama.cpp
//! (repetition) and the OpenAI API (frequency, presence).

mod candidates;
mod error;
mod mask;
mod params;
mod penalties;
mod random;

pub use error::SampleError;
pub use mask::TokenMask;
pub use params::SamplingParams;

use candidates::Candidates;
use penalties::Penalties;

/// What a grammar leaves of the vocabulary.
#[derive(Clone, Copy, Debug, Default)]
pub struct Allowed<'a> {
    /// `None`: everything.
    pub mask: Option<&'a TokenMask>,
    /// Single tokens that were drawn for this position and refused.
    pub vetoed: &'a [u32],
}

/// A drawn token.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    pub id: u32,
    /// Logits of this row that were no number and were left out. More than none is a fault of the
    /// model or of the arithmetic, and is worth a warning.
    pub nan_logits: usize,
    /// Natural logarithms of the raw distribution, where they were asked for.
    pub logprobs: Option<Logprobs>,
}

/// The raw distribution: softmax of the logits as the model gave them.
#[derive(Clone, Debug, PartialEq)]
pub struct Logprobs {
    /// Of the drawn token.
    pub chosen: f32,
    /// The best `n`, best first.
    pub top: Vec<(u32, f32)>,
}

/// The sampler of one request.
#[derive(Clone, Debug)]
pub struct Sampler {
    params: SamplingParams,
    penalties: Penalties,
    /// Tokens accepted so far.
    step: u64,
    row: Vec<f32>,
    candidates: Candidates,
}

impl Sampler {
    /// `prompt` is what the repetition penalty looks back on; only its end counts.
    pub fn new(params: SamplingParams, vocab: usize, prompt: &[u32]) -> Result<Self, SampleError> {
        params.validate(vocab)?;
        let penalties = Penalties::new(&params, prompt);
        Ok(Self {
            params,
            penalties,
            step: 0,
            row: Vec::new(),
            candidates: Candidates::default(),
        })
    }

    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// Draws a token from `logits` `[vocab]`. Changes nothing but scratch: call
    /// [`Sampler::accept`] with the token that is kept.
    pub fn sample(&mut self, logits: &[f32], allowed: Allowed<'_>) -> Result<Sampled, SampleError> {
        let nan_logits = copy_without_nan(logits, &mut self.row);
        self.penalties.apply(&mut self.row);
        for &(id, bias) in &self.params.logit_bias {
            if let Some(logit) = self.row.get_mut(id as usize) {
                *logit += bias;
            }
        }
        if let Some(mask) = allowed.mask {
            mask.apply(&mut self.row);
        }
        for &id in allowed.vetoed {
            if let Some(logit) = self.row.get_mut(id as usize) {
                *logit = f32::NEG_INFINITY;
            }
        }
        let id = self
            .choose(allowed.vetoed.len() as u64)
            .ok_or_else(|| SampleError::Nothing {
                vocab: logits.len(),
                nan: nan_logits,
                masked: allowed
                    .mask
                    .map_or(0, |m| logits.len() - m.count(logits.len())),
            })?;
        let logprobs = self
            .params
            .top_logprobs
            .map(|n| candidates::logprobs(logits, id, n));
        Ok(Sampled {
            id,
            nan_logits,
            logprobs,
        })
    }

    fn choose(&mut self, attempt: u64) -> Option<u32> {
        let (best, max) = candidates::argmax(&self.row)?;
        if self.params.is_greedy() {
            return Some(best);
        }
        self.candidates.collect(&self.row, max, &self.params);
        let draw = random::unit(self.params.seed, self.step, attempt);
        Some(self.candidates.pick(draw).unwrap_or(best))
    }

    /// The token that was kept for this position.
    pub fn accept(&mut self, id: u32) {
        self.step += 1;
        self.penalties.accept(id);
    }
}

/// Copies, with minus infinity for every NaN; says how many there were.
fn copy_without_nan(logits: &[f32], row: &mut Vec<f32>) -> usize {
    row.clear();
    row.extend(
        logits
            .iter()
            .map(|&l| if l.is_nan() { f32::NEG_INFINITY } else { l }),
    );
    // Its own loop, so that both become vector code.
    logits.iter().map(|l| u32::from(l.is_nan())).sum::<u32>() as usize
}

#[cfg(test)]
mod tests;
