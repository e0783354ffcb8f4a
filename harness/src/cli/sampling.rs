//! From the options of a command to the sampler's parameters.

use std::hash::{BuildHasher, Hasher};

use engine::SamplingParams;

use super::args::SamplingArgs;

pub fn params(args: &SamplingArgs) -> SamplingParams {
    SamplingParams {
        temperature: args.temperature,
        top_k: args.top_k,
        top_p: args.top_p,
        min_p: args.min_p,
        repetition_penalty: args.repetition_penalty,
        seed: args.seed.unwrap_or_else(random_seed),
        ..SamplingParams::default()
    }
}

/// The standard library seeds its hash maps from the system's randomness; so do we, without a crate for it.
/// 53 bits, so that the number survives JSON.
fn random_seed() -> u64 {
    std::collections::hash_map::RandomState::new()
        .build_hasher()
        .finish()
        >> 11
}
