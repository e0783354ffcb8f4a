//! Every limit of the engine, with its reason.

/// Rows of prompt in one step, over all sequences. A decoding neighbour waits for one such chunk at
/// most. 256 rows keep the matrix kernels at their full rate (the rate is flat from about 128).
pub const PREFILL_CHUNK_TOKENS: usize = 256;

/// Sequences in one batch. Each costs one row a step; more only makes all of them slower.
pub const SEQUENCES_MAX: usize = 16;

/// Rows of one step while some of them are drafts. Up to about eight rows a step costs little more than
/// one, because reading the weights is what takes the time.
pub const DRAFT_ROWS_MAX: usize = 8;

/// Tokens that must have stood in a row before for what followed them to be drafted. Two are met by chance
/// too often.
pub const DRAFT_MATCH_TOKENS: usize = 3;

/// How far back that is looked for: some ten microseconds.
pub const DRAFT_LOOKBACK_TOKENS: usize = 32_768;

/// Most steps without a draft after drafts that were wrong.
pub const DRAFT_PAUSE_STEPS_MAX: usize = 16;

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

/// Where attention costs a row about as much as all else does (2,000 to 8,000 tokens, by model): a
/// block that deep costs twice what the first one does.
pub const WORTH_DEPTH_TOKENS: usize = 4_096;

/// What loading a block from disk costs, in parts of computing it: 6 s against 40 ms was measured for a small
/// model on two cores; a fast device computes faster and reads no faster.
pub const WORTH_ON_DISK: f64 = 1.0 / 16.0;

/// Leaves that are weighed from either end of a class when blocks are given up.
pub const VICTIMS_WEIGHED: usize = 4;

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

/// Of how many blocks one can have its part in the layers with a window. A window of 512 positions is a quarter
/// of a conversation of 2,048: so each that fits can be gone on from, and from the end of what it shares with others.
pub const KV_BLOCKS_A_WINDOW_PART: usize = 4;

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

/// Stop strings of one request. The OpenAI API has 4; each costs a state and a step a byte.
pub const STOP_STRINGS_MAX: usize = 64;

/// Bytes of one stop string: what may be held back from the reader.
pub const STOP_BYTES_MAX: usize = 1024;

/// Log-probabilities reported for one token. The OpenAI API has 20.
pub const TOP_LOGPROBS_MAX: usize = 100;

/// A logit bias beyond this is a mistake: it must stay far from infinity when added.
pub const LOGIT_BIAS_MAX: f32 = 1e9;

/// Values nested in a JSON schema. Real ones stay below 20; the compiler takes a few kilobytes of
/// stack a level ([`COMPILE_STACK_BYTES`] holds many times that).
pub const SCHEMA_DEPTH_MAX: usize = 96;

/// Values in a JSON schema. The largest in public use has about 40,000.
pub const SCHEMA_NODES_MAX: usize = 100_000;

/// Bytes of one text in a JSON schema (a pattern, a constant), descriptions aside.
pub const SCHEMA_TEXT_BYTES_MAX: usize = 1 << 16;

/// Bytes of a Lark grammar or a regular expression.
pub const RULE_TEXT_BYTES_MAX: usize = 1 << 18;

/// Stack of the thread that compiles a rule. Only what is touched takes memory.
pub const COMPILE_STACK_BYTES: usize = 64 << 20;
const _: () = assert!(COMPILE_STACK_BYTES / SCHEMA_DEPTH_MAX > 100 << 10);

/// Compilations that are tried to find the place of an error; each takes about a millisecond.
pub const LOCATE_ATTEMPTS_MAX: usize = 100;

/// What building a lexer may cost, in llguidance's units (50,000 take about a millisecond).
pub const LEXER_FUEL: u64 = 1_000_000;

/// What one mask may cost, in the same units (14,000 take about a millisecond).
pub const STEP_LEXER_FUEL: u64 = 200_000;

/// White space in one place of generated JSON: a line break and a deep indentation, but no endless
/// run, which small models fall into.
pub const WHITE_SPACE_MAX: usize = 64;

/// Compiled rules kept for the next call. An agent needs a handful (its tools, some of them masked), a
/// server one for each of its clients; one takes up to some megabytes.
pub const COMPILED_RULES_MAX: usize = 32;

/// Bytes of a token that a grammar may use. The trie holds at most 1,024; such tokens are runs of
/// spaces.
pub const GRAMMAR_TOKEN_BYTES_MAX: usize = 1000;

/// Tools of one request, as in the OpenAI API.
pub const TOOLS_MAX: usize = 128;

/// Blocks in one file of the disk tier: 32,768 tokens. Bounds what a header may ask for.
pub const DISK_RUN_BLOCKS_MAX: usize = 1024;

/// Bytes of blocks in one file of the disk tier, but for a model whose one block is larger. They are copied
/// after one step, which takes about a millisecond; and the disk is given back in such parts.
pub const DISK_RUN_BYTES_MAX: u64 = 8 << 20;

/// Bytes that a file of the disk tier says about its pieces, for people.
pub const DISK_ABOUT_BYTES_MAX: usize = 64 << 10;

/// Bytes that wait for the disk at once. Beyond this nothing more is copied until some are written.
pub const DISK_FLIGHT_BYTES_MAX: u64 = 128 << 20;

/// Nor more than this share of the memory for keys and values, one in so many: a small budget stays one.
pub const DISK_FLIGHT_SHARE: u64 = 8;

/// Ends of calls that wait for their copy; the oldest gives way. Each holds the blocks of its prompt.
pub const DISK_SAVES_MAX: usize = 32;

/// Bytes that are read from disk in one step while a neighbour decodes: some milliseconds, less than a chunk
/// of prompt takes.
pub const DISK_LOAD_BYTES_A_STEP: u64 = 16 << 20;

/// The same while nobody decodes: small enough that a cancelled request ends soon.
pub const DISK_LOAD_BYTES_ALONE: u64 = 128 << 20;

/// Bytes that may be written at once, and what comes back in a second: 34 GB a day, below a tenth of what a
/// common solid-state disk is rated for. What exceeds it stays in memory only.
pub const DISK_WRITE_BURST_BYTES: u64 = 8 << 30;
pub const DISK_WRITE_BYTES_A_SECOND: u64 = 400 << 10;

/// Tokens that must be left to compute for such a look to be worth its milliseconds.
pub const DISK_LOOK_TOKENS_MIN: usize = 256;

/// Tokens that a prompt must have computed to be written before its reply ends.
pub const DISK_SAVE_EARLY_TOKENS: usize = 512;

/// How long the end of the engine waits for the disk. What is not written then is computed again some day.
pub const DISK_CLOSE_MS: u64 = 5_000;

/// How long the disk is let catch up before more is copied for it.
pub const DISK_CATCH_UP_MS: u64 = 20;

/// Between two looks at what other processes have written.
pub const DISK_LOOK_AGAIN_MS: u64 = 1_000;

/// A file whose use was noted within this many seconds is not noted again.
pub const DISK_NOTE_SECONDS: u64 = 60;

/// An unfinished file older than this many seconds belongs to a process that died.
pub const DISK_UNFINISHED_SECONDS: u64 = 3_600;
