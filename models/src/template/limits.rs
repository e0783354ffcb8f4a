//! Bounds on what a chat template may cost. Templates come inside model files, so they are untrusted programs.

/// Longest template source. The largest public one (Kimi K3, 2026) has 39 KB.
pub const SOURCE_BYTES_MAX: usize = 1 << 20;

/// Work one render may do, in minijinja's unit (one instruction, or 64 bytes copied). Used up in about a second.
/// Measured: 1,000 messages with 500 tool calls (600 KB of text) cost most public templates under 500,000; the few
/// that look back over the whole conversation at each message (Gemma 4, Cohere) stay under 5,000,000.
pub const RENDER_FUEL: u64 = 5_000_000;

/// The same for one trial render of three short messages, of which a new template gets about twenty.
pub const TRIAL_FUEL: u64 = 100_000;

/// Longest render. A window of a million tokens is about 4 MB of text.
pub const OUTPUT_BYTES_MAX: usize = 64 << 20;

/// Nesting of macros, loops and values while rendering.
pub const RECURSION_MAX: usize = 120;

/// Deepest JSON value that `tojson` and printing follow. Python stops near 1,000; a thread's stack must hold ours.
pub const VALUE_DEPTH_MAX: usize = 200;

const _: () = assert!(
    OUTPUT_BYTES_MAX as u64 / 64 <= RENDER_FUEL,
    "fuel must pay for the longest output"
);
const _: () = assert!(
    TRIAL_FUEL < RENDER_FUEL / 20,
    "all trials together must cost less than one render"
);
