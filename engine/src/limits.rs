//! Every limit of the engine, with its reason. The sampler's and the grammar's are beside them.

/// Rows of prompt in one step, over all sequences. A decoding neighbour waits for one such chunk at
/// most. 256 rows keep the matrix kernels at their full rate (FACTS: the rate is flat from about 128).
pub const PREFILL_CHUNK_TOKENS: usize = 256;

/// Sequences in one batch. Each costs one row a step; more only makes all of them slower.
pub const SEQUENCES_MAX: usize = 16;

/// Requests that may wait. Beyond this an error is kinder than an answer after minutes.
pub const QUEUE_MAX: usize = 256;

/// Tokens of decode that admission sets aside, so that a new sequence does not preempt at once.
pub const DECODE_RESERVE_TOKENS: usize = 128;

/// How long a plan holds what it counts on. Long enough for a person's harness to make the call,
/// short enough that a plan nobody follows up does not hold memory.
pub const PLAN_PIN_MS: u64 = 10_000;

/// Plans that may be pinned at once; the oldest gives way.
pub const PLAN_PINS_MAX: usize = 64;

/// Piece ends remembered per generation of the diagnosis memory (two generations are kept), to
/// tell an edited piece from an evicted one. About 200 bytes each.
pub const SEEN_PIECES_MAX: usize = 32_768;

/// A sequence waits for another that is prefilling the same prefix only for at least this many
/// tokens; fewer are computed sooner than waited for.
pub const JOIN_TOKENS_MIN: usize = kernels::BLOCK_TOKENS;

/// The share of free memory that the KV cache takes when nobody says otherwise, in percent. The
/// weights are mapped already; the rest is for activations and for the machine's other work.
pub const KV_SHARE_PERCENT: u64 = 50;

/// Whole context windows that the KV cache is given by default, memory permitting: two live
/// conversations and two that rest.
pub const KV_WINDOWS_DEFAULT: usize = 4;

/// The cache is not made smaller than this many tokens because a short window was asked for.
pub const KV_TOKENS_DEFAULT_MIN: usize = 16_384;

/// No more KV than this unless asked for: a person's machine is not only ours.
pub const KV_BYTES_DEFAULT_MAX: u64 = 8 << 30;

/// The smallest context worth starting with, in tokens: a template, a line and a reply.
pub const CONTEXT_TOKENS_MIN: usize = 64;

/// Block ids are u32 and the arena is indexed with them.
pub const BLOCKS_MAX: usize = u32::MAX as usize / 2;

/// Turns of the engine's loop in a row that may run nothing although requests wait; more is a bug.
pub const IDLE_TURNS_MAX: usize = 1_000;

const _: () = assert!(PREFILL_CHUNK_TOKENS.is_multiple_of(kernels::BLOCK_TOKENS));
const _: () = assert!(PREFILL_CHUNK_TOKENS >= SEQUENCES_MAX);
const _: () = assert!(DECODE_RESERVE_TOKENS >= kernels::BLOCK_TOKENS);
const _: () = assert!(CONTEXT_TOKENS_MIN >= kernels::BLOCK_TOKENS);
const _: () = assert!(KV_SHARE_PERCENT <= 100);
