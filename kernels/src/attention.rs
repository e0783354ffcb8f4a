//! Causal attention with grouped query heads over block tables.

use crate::{KvArena, Scratch, SeqSpan, ThreadPool, plain};

/// Heads of one attention layer. Query head `h` reads KV head `h / (q_heads / kv_heads)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttnShape {
    pub q_heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    /// Multiplies the scores, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
}

/// `q` [T, Hq, D] f32, KV already appended -> `out` [T, Hq, D] f32.
#[expect(clippy::too_many_arguments)]
pub fn attention(
    pool: &ThreadPool,
    kv: &KvArena,
    layer: usize,
    seqs: &[SeqSpan<'_>],
    q: &[f32],
    shape: AttnShape,
    out: &mut [f32],
    scratch: &mut Scratch,
) {
    let _ = (pool, scratch);
    plain::attention(kv, layer, seqs, q, shape, out);
}
