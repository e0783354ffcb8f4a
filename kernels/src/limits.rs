//! Every limit of this crate, with its reason.

/// Positions in one KV block: the unit of allocation, sharing and copying. 32
/// f16 values are one cache line, so a row of transposed K is one line.
pub const BLOCK_TOKENS: usize = 32;

/// KV blocks in one attention tile. Softmax runs whole over a tile; tiles are
/// merged in order. 128 positions keep the merge under 2% of a tile's work and
/// still give two threads something to share from the second tile on.
pub const TILE_BLOCKS: usize = 4;

/// Positions in one attention tile.
pub const TILE_TOKENS: usize = TILE_BLOCKS * BLOCK_TOKENS;

/// Output rows of a weight that are interleaved: one per 32-bit lane of a
/// 512-bit register.
pub const TILE_ROWS: usize = 16;

/// Columns that share one activation scale.
pub const QUANT_COLS: usize = 32;

/// Most threads of a pool. Above this a fork-join costs more than it brings on
/// any machine this has been run on; the bound also keeps the slots small.
pub const THREADS_MAX: usize = 256;

/// Largest head dimension attention accepts (Gemma uses 256). The accumulators
/// of one query row live on the worker's stack.
pub const HEAD_DIM_MAX: usize = 512;

/// Activation blocks whose largest magnitude is below this are rounded to zero:
/// its reciprocal would overflow.
pub const AMAX_MIN: f32 = 1e-30;

const _: () = assert!(TILE_TOKENS.is_multiple_of(16));
const _: () = assert!(QUANT_COLS == 2 * TILE_ROWS);
// The exact-integer rule of the 16-column types: 2 sub-blocks of 16 products of
// a 6-bit weight, an 8-bit activation and an 8-bit scale fit the 24-bit
// significand of f32, so a float sum of them is exact in any order.
const SUM16_MAX: i32 = 2 * 16 * 32 * 127 * 128;
const _: () = assert!(SUM16_MAX < 1 << 24);

/// Times a waiting thread spins before it yields: 10 to 40 microseconds, longer than the
/// gaps between the kernels of one layer.
pub const SPINS_MAX: u32 = 400;

/// Times a waiting worker yields before it parks: about 0.1 ms, longer than sampling.
pub const YIELDS_MAX: u32 = 200;

/// Memory that small weights share: a whole number of huge pages.
pub const SLAB_BYTES: usize = 32 << 20;

/// Larger requests get a map of their own; the shared one wastes at most this at its end, untouched.
pub const SLAB_SHARE_BYTES_MAX: usize = 4 << 20;

const _: () = assert!(SLAB_BYTES.is_multiple_of(2 << 20) && SLAB_SHARE_BYTES_MAX < SLAB_BYTES);

/// Most threads that repack one weight at load; above this memory is the limit.
pub const PACK_THREADS_MAX: usize = 8;

/// Weights below this are repacked by the calling thread: starting threads would cost more.
pub const PACK_BYTES_MIN: usize = 1 << 18;

/// Activation rows that share one unpacking of a weight block. At 32 the unpacking is under
/// 4% of the work; the accumulators (2 KiB) stay in the first cache.
pub const PANEL_ROWS: usize = 32;

/// Activation rows that meet a word of weights once it is in a register: with sixteen registers
/// of 32 bytes, four rows' sums, a word and an activation fit.
pub const ROWS_AT_ONCE: usize = 4;

// Attention spells out the remainders 1 to 3.
const _: () = assert!(ROWS_AT_ONCE == 4);

/// How far ahead of a single row's product the weights are asked for: a core waits for memory most
/// of a decode, and the machine's own prefetching left a third of its bandwidth unused.
pub const PREFETCH_BYTES: usize = 2048;

/// Bytes of rounded activations that one unit of work walks over, so that they stay in a
/// core's own cache (1 MiB and up on every machine with AVX-512).
pub const PANEL_GROUP_BYTES: usize = 384 << 10;

/// Work below this many bytes of activations is not worth a fork-join.
pub const ROWS_BYTES_MIN: usize = 32 << 10;

/// Units of work a thread should find, so that a slow one does not hold up the rest.
pub const UNITS_PER_THREAD: usize = 8;

/// Most weights of one `matmul_each`: Q, K, V, or gate and up, with room.
pub const WEIGHTS_MAX: usize = 8;

/// (position, query head) rows that share one reading of a KV block. 32 rows of scores are
/// 16 KiB, half of a first-level cache.
pub const ATTENTION_ROWS: usize = 32;

/// Bytes that the memory probe reads: several times the largest last-level cache of a desktop.
pub const PROBE_BYTES: usize = 256 << 20;

/// What a thread reads at a time: small enough that both ends of the work meet.
pub const PROBE_UNIT_BYTES: usize = 1 << 20;

/// Dots of 64 bytes that the arithmetic probe computes a thread: some ten milliseconds.
pub const PROBE_DOTS: usize = 24_000_000;

/// Passes of each probe, of which the best counts.
pub const PROBE_PASSES: usize = 5;

const _: () = assert!(PROBE_BYTES.is_multiple_of(PROBE_UNIT_BYTES));
