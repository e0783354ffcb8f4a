//! What the sampler refuses, and whose fault it is.

use kernels::Blame;

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SampleError {
    /// A parameter outside its range.
    #[error("{name}: need {need}, have {have}")]
    Parameter {
        name: &'static str,
        need: &'static str,
        have: String,
    },
    /// A bias for a token that the model does not have.
    #[error(
        "logit_bias: need token ids below {vocab}, have {id}; ids are of this model's vocabulary"
    )]
    BiasId { id: u32, vocab: usize },
    /// Nothing is left to choose from.
    #[error(
        "no token can be chosen: of {vocab} logits {nan} are no number, {masked} are forbidden by the grammar, the rest are minus infinity"
    )]
    Nothing {
        vocab: usize,
        nan: usize,
        masked: usize,
    },
}

impl SampleError {
    pub fn blame(&self) -> Blame {
        match self {
            SampleError::Parameter { .. } | SampleError::BiasId { .. } => Blame::Caller,
            // Weights that overflow, or a grammar that this vocabulary cannot write.
            SampleError::Nothing { .. } => Blame::Input,
        }
    }
}
