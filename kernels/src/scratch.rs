//! Buffers that outlive a call, so that nothing is allocated in the token loop.

use crate::activations::Rounded;

/// Reused buffers of one executor. They grow to the largest call seen and stay.
#[derive(Default)]
pub struct Scratch {
    pub(crate) rounded: Rounded,
    /// Attention: the buffers of every worker, then partial results.
    pub(crate) attention: Vec<f32>,
}

impl Scratch {
    pub fn new() -> Scratch {
        Scratch::default()
    }

    /// `n` floats for attention; what they hold is left from the last call.
    pub(crate) fn attention_floats(&mut self, n: usize) -> &mut [f32] {
        if self.attention.len() < n {
            self.attention.resize(n, 0.0);
        }
        &mut self.attention[..n]
    }
}
