//! Every limit of this crate, with the reason beside it. An error at a limit says need, have and
//! what to change.

/// Bytes of a GGUF header (metadata and tensor table). The largest in the field, a vocabulary of
/// 262,144 tokens with its merges, takes about 16 MiB; reading this much stays under a second.
pub const HEADER_BYTES_MAX: u64 = 256 << 20;

/// Metadata pairs in one file. Real files have 20 to 60; the bound keeps a file of nothing but keys
/// from growing a map many times its own size.
pub const METADATA_PAIRS_MAX: u64 = 1 << 16;

/// Bytes of a metadata key: the bound of the GGUF specification.
pub const KEY_BYTES_MAX: u64 = 65_535;

/// Arrays within arrays. The specification sets no bound and real files nest once at most; a bound
/// keeps the reader's stack flat.
pub const ARRAY_DEPTH_MAX: u32 = 4;

/// Tensors in one model. The largest in the field have a few thousand.
pub const TENSORS_MAX: u64 = 1 << 16;

/// Bytes of a tensor's name. The specification says 64; some converters go a little beyond.
pub const TENSOR_NAME_BYTES_MAX: u64 = 256;

/// Dimensions of a tensor, as in ggml (`GGML_MAX_DIMS`).
pub const TENSOR_DIMS_MAX: u32 = 4;

/// `general.alignment`. Files use 32, seldom 64; above a huge page nothing is gained.
pub const ALIGNMENT_MIN: u64 = 8;
pub const ALIGNMENT_MAX: u64 = 2 << 20;
const _: () = assert!(ALIGNMENT_MIN.is_power_of_two() && ALIGNMENT_MAX.is_power_of_two());

/// Parts of a split model. The names have room for 99,999; a trillion parameters take about 50.
pub const SPLIT_PARTS_MAX: u64 = 1024;

/// Positions a model may claim to have been trained on. The longest published is 10 million.
pub const CONTEXT_MAX: u64 = 1 << 24;

/// Values in one attention head. Published models have 64 to 256; kernels keep a head on the stack.
pub const HEAD_DIM_MAX: u64 = 512;

/// Digests of weights remembered in the cache file; the oldest goes first. An entry is about
/// 200 bytes.
pub const DIGESTS_REMEMBERED_MAX: usize = 256;

/// Bytes of the digest cache that are read: far above what we ever write.
pub const DIGEST_CACHE_BYTES_MAX: u64 = 1 << 20;
const _: () = assert!((DIGESTS_REMEMBERED_MAX * 1024) as u64 <= DIGEST_CACHE_BYTES_MAX);

/// Characters of foreign text (a key, a name, a value) quoted in an error.
pub const QUOTE_CHARS_MAX: usize = 80;

/// Rows of one forward pass. Activations of a pass take a few hundred KiB a row in the largest
/// models; a longer prompt goes in chunks.
pub const ROWS_PER_PASS_MAX: usize = 8192;

/// Positions in the first table of cosines and sines; it doubles when a sequence is longer. 4,096
/// positions of 64 pairs take 2 MiB.
pub const ROPE_POSITIONS_FIRST: usize = 4096;

/// Attention scores that the tensor executor holds at once, in f32: rows of a chunk times positions
/// times heads. 256 MiB is 512 rows at 8,192 positions and 16 heads.
pub const ATTENTION_SCORES_BYTES_MAX: usize = 256 << 20;

/// Memory that must be left beside the weights: activations, the KV of a short conversation, and the
/// program itself.
pub const MEMORY_RESERVE_BYTES: u64 = 128 << 20;
/// Tokens of a vocabulary. The largest in the field have 262,144; ids are sorted, hashed and masked
/// as one array.
pub const VOCAB_TOKENS_MAX: usize = 1 << 21;

/// Bytes of one token. The longest in the field is a run of 1,024 spaces.
pub const TOKEN_BYTES_MAX: usize = 1 << 16;

/// Bytes of a `tokenizer.json`. The largest in the field, with 262,144 tokens, has 33 MB.
pub const TOKENIZER_JSON_BYTES_MAX: u64 = 256 << 20;
