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

/// Greedy at temperature 0, else drawn from the likeliest tokens.
pub fn greedy_or(temperature: f32, seed: Option<u64>) -> SamplingParams {
    SamplingParams {
        temperature,
        seed: seed.unwrap_or_else(random_seed),
        ..SamplingParams::greedy()
    }
}

/// The standard library seeds its hash maps from the system's randomness; so do we, without a crate for it.
/// 53 bits, so that the number survives JSON.
pub fn random_seed() -> u64 {
    std::collections::hash_map::RandomState::new()
        .build_hasher()
        .finish()
        >> 11
}
