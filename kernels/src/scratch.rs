//! Buffers that outlive a call, so that nothing is allocated in the token loop.

/// Reused buffers of one executor. They grow to the largest call seen and stay.
#[derive(Default)]
pub struct Scratch {}

impl Scratch {
    pub fn new() -> Scratch {
        Scratch::default()
    }
}
