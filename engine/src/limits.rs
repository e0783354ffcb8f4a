//! Every limit of the engine, with its reason.

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

/// Bytes of a token that a grammar may use. The trie holds at most 1,024; such tokens are runs of
/// spaces.
pub const GRAMMAR_TOKEN_BYTES_MAX: usize = 1000;

/// Tools of one request, as in the OpenAI API.
pub const TOOLS_MAX: usize = 128;
