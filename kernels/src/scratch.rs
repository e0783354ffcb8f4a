//! Buffers that outlive a call, so that nothing is allocated in the token loop.

use crate::activations::Rounded;
use crate::aligned::Aligned;

/// Reused buffers of one executor. They grow to the largest call seen and stay.
#[derive(Default)]
pub struct Scratch {
    pub(crate) rounded: Rounded,
    /// Attention: the buffers of every worker, then partial results.
    pub(crate) attention: Vec<Aligned<[f32; 16]>>,
}

impl Scratch {
    pub fn new() -> Scratch {
        Scratch::default()
    }

    /// `n` floats for attention; what they hold is left from the last call.
    pub(crate) fn attention_floats(&mut self, n: usize) -> &mut [f32] {
        let lines = n.div_ceil(16);
        if self.attention.len() < lines {
            self.attention.resize_with(lines, || Aligned([0.0; 16]));
        }
        let floats: *mut f32 = self.attention.as_mut_ptr().cast();
        // SAFETY: each element is exactly sixteen floats, and there are `lines` of them.
        unsafe { std::slice::from_raw_parts_mut(floats, n) }
    }
}
