//! Every limit of the harness, with the reason beside it.

/// Redirects followed on one request. The hub needs two (rename, then its file servers); browsers stop at 20.
pub const REDIRECTS_MAX: usize = 10;

/// Attempts at one file that bring no new byte before we give up. Each attempt resumes where the last stopped.
pub const FRUITLESS_ATTEMPTS_MAX: u32 = 4;

/// A connection that brings no byte for this long is taken for dead. File servers pause some seconds under load.
pub const STALL_MS_MAX: u64 = 30_000;

/// Time to reach a host.
pub const CONNECT_MS_MAX: u64 = 15_000;

/// Wait before attempt n is n times this.
pub const RETRY_WAIT_MS: u64 = 500;

/// A hub's answer to "which files are in this repository". The largest seen are a few MiB.
pub const LISTING_BYTES_MAX: u64 = 64 << 20;

/// Bytes moved per step of a download: large enough that the system calls do not matter, small enough for a smooth bar.
pub const COPY_CHUNK_BYTES: usize = 256 << 10;

/// What we keep of a failed helper command's last words.
pub const HELPER_STDERR_LINES_MAX: usize = 12;

/// How often the bar looks at a growing file.
pub const PROGRESS_POLL_MS: u64 = 120;

/// Names listed in a "did you mean" or "has these files" hint.
pub const HINTS_MAX: usize = 12;

const _: () = assert!(CONNECT_MS_MAX < STALL_MS_MAX);

/// A prompt on standard input: 64 MiB is some 16 million tokens.
pub const STDIN_BYTES_MAX: u64 = 64 << 20;

/// Bytes of keys and values that are kept on disk when nobody says otherwise: some hundred thousand tokens of
/// a small model. And the share of the free space that they never exceed, in percent.
pub const KV_DISK_BYTES: u64 = 16 << 30;
pub const KV_DISK_SHARE_PERCENT: u64 = 25;

/// Pieces of a model that `ostler cache` lists one by one; a long conversation has hundreds.
pub const CACHE_PIECES_SHOWN: usize = 12;

/// A model of at least this size shows how far loading is; a smaller one is there before a bar could be read.
pub const LOADING_SHOWN_BYTES: u64 = 512 << 20;

/// How often a server that was told to stop looks whether it still answers, and how often it must find
/// that it does not: the last bytes of the last answer have left by then.
pub const IDLE_LOOK_MS: u64 = 250;
pub const IDLE_LOOKS_BEFORE_STOP: usize = 4;

/// Lines of chat history kept for the arrow keys.
pub const HISTORY_LINES_MAX: usize = 2000;

// ---- tools: what one result may take ----

/// A window of at most this many tokens gets `RESULT_CHARS_TINY`.
pub const WINDOW_TOKENS_TINY: usize = 4_096;
/// A window of at most this many tokens gets `RESULT_CHARS_SMALL`.
pub const WINDOW_TOKENS_SMALL: usize = 8_192;
/// Characters of one result in a window of 4k: about 1,000 tokens of prose or code, so that one
/// or two results fit beside the fixed pieces.
pub const RESULT_CHARS_TINY: usize = 3_200;
/// Characters of one result in a window of 8k.
pub const RESULT_CHARS_SMALL: usize = 6_000;
/// Characters of one result in any larger window.
pub const RESULT_CHARS: usize = 60_000;
/// A result is also held to `RESULT_CHARS* / 3` tokens: code and prose have 3.5 to 4.5 characters
/// a token, but hexadecimal has 1.1, and 3,200 characters of it would be 2,800 tokens.
pub const CHARS_PER_TOKEN_LEAST: usize = 3;
/// ... and never to more than this share of the window, so that two results fit.
pub const WINDOW_SHARE_OF_RESULT: usize = 4;
/// Where a result has to be cut, a line longer than this is cut inside first, unless there are so
/// few lines that each may have more.
pub const LINE_CHARS: usize = 2_000;
/// The longest marker: five numbers of 20 digits and the way to read on.
pub const MARKER_CHARS_MAX: usize = 420;
/// Below this room, a result is not worth its marker: the caller compacts first.
pub const ROOM_CHARS_MIN: usize = 640;
/// Characters kept in memory from the start and from the end of a stream.
pub const KEEP_CHARS: usize = 64_000;
/// Omitted text is counted in tokens exactly up to this many characters, by sample beyond.
pub const TOKEN_SAMPLE_CHARS: usize = 16_000;

const _: () = assert!(RESULT_CHARS <= KEEP_CHARS);
const _: () = assert!(ROOM_CHARS_MIN > MARKER_CHARS_MAX && ROOM_CHARS_MIN < RESULT_CHARS_TINY);

// ---- tools: cleaning ----

/// An escape string (OSC, DCS, ...) that has not ended after this many characters is no escape
/// string: what was held back is given as text. Terminals stop at similar lengths.
pub const ESCAPE_CHARS_MAX: usize = 4_096;
/// A line is held back up to this length, so that a progress bar (`\r`) leaves its last state only.
pub const HELD_LINE_CHARS_MAX: usize = 16_384;
/// Binary is told from text by this much of the start.
pub const SNIFF_BYTES: usize = 8_192;
/// The share of control characters, or of bytes that are not UTF-8, in percent, from which that
/// start is binary (see `tools::sniff`).
pub const BINARY_PERCENT: usize = 10;
/// Fewer bytes than this are always shown, with `\xNN` for what is not text.
pub const BINARY_BYTES_MIN: usize = 64;

// ---- tools: commands ----

/// A command's time when it asks for none: builds and test suites are minutes, hangs are for ever.
pub const COMMAND_TIMEOUT_S: u64 = 120;
/// The most a command may ask for.
pub const COMMAND_TIMEOUT_S_MAX: u64 = 1_800;
/// Output beyond this ends the command: a flood would fill the disk before the time is up.
pub const COMMAND_OUTPUT_BYTES_MAX: u64 = 512 << 20;
/// Raw output held in memory before it goes to the artifact's file.
pub const COMMAND_MEMORY_BYTES: usize = 256 << 10;
/// Between the shell's end and the end of what it left behind: time to flush, not to work.
pub const LEFTOVER_GRACE_MS: u64 = 150;
/// Between SIGTERM and SIGKILL.
pub const KILL_GRACE_MS: u64 = 700;
/// After SIGKILL, how long the pipe may take to close before it is left.
pub const PIPE_CLOSE_MS: u64 = 1_000;
/// How often a running command looks at the cancel flag.
pub const CANCEL_POLL_MS: u64 = 20;
/// How often a running command's processes and memory are looked at.
pub const TASK_COUNT_MS: u64 = 250;
/// Processes and threads of one command. A fork bomb stops here; a parallel build does not.
pub const COMMAND_PROCESSES_MAX: u64 = 2_048;
/// Resident memory of one command, in percent of the machine's. What is left must hold the model.
pub const COMMAND_MEMORY_PERCENT_MAX: u64 = 75;
/// One file written by a command.
pub const COMMAND_FILE_BYTES_MAX: u64 = 16 << 30;
/// Characters of a file's new text in a question: two screens.
pub const QUESTION_CHARS_MAX: usize = 4_000;
/// Characters of the reason for a question.
pub const REASON_CHARS_MAX: usize = 300;
/// The longest command line taken: longer ones belong in a file.
pub const COMMAND_CHARS_MAX: usize = 100_000;

// ---- tools: files ----

/// The largest file that `edit` loads and `write` accepts.
pub const EDIT_BYTES_MAX: u64 = 16 << 20;
/// Replacements in one call.
pub const EDITS_MAX: usize = 50;
/// `read` counts a file's lines up to here; beyond, it says "at least".
pub const READ_COUNT_BYTES_MAX: u64 = 256 << 20;
/// Entries shown when `read` meets a directory.
pub const READ_ENTRIES_MAX: usize = 200;
/// `search` skips larger files and says how many it skipped.
pub const SEARCH_FILE_BYTES_MAX: u64 = 16 << 20;
/// Matching lines kept by one `search`; the result itself is bounded far earlier.
pub const SEARCH_MATCHES_MAX: usize = 2_000;
/// Characters shown of one line, around its match.
pub const SEARCH_LINE_CHARS: usize = 300;
/// Lines of context that a call may ask for.
pub const SEARCH_CONTEXT_MAX: usize = 20;
/// A compiled pattern's size, against `(a{1000}){1000}`.
pub const SEARCH_PATTERN_BYTES_MAX: usize = 4 << 20;
/// Symbolic links followed while one path is resolved (as Linux does).
pub const LINKS_MAX: usize = 40;

// ---- the agent ----

/// What a template writes around a result and to open the reply: 20 to 40 tokens in the families we
/// run. Added where the context is reckoned from the last reply instead of measured, so never too low.
pub const RESULT_FRAME_TOKENS_MAX: usize = 128;

/// The smallest window the agent works in: below it the fixed pieces, a summary and one result do
/// not fit together.
pub const AGENT_WINDOW_MIN: usize = 3_072;
/// The message that asks for a summary is about 130 tokens in the tokenizers at hand.
pub const COMPACTION_INSTRUCTION_TOKENS: usize = 150;
/// Files that a summary lists as changed, and as read.
pub const COMPACTION_FILES_MAX: usize = 20;
/// Room for a result below which the context is compacted first: a marker and a few lines.
pub const RESULT_TOKENS_MIN: usize = 200;
/// Rounds of tools in one run. Long tasks of small models take some dozens.
pub const TOOL_ROUNDS_MAX: usize = 100;
/// The window of scripted eval tasks: the smallest that people use.
pub const EVAL_WINDOW: usize = 4_096;
/// Rounds of tools for one goal of an eval task: a model that needs more goes in circles.
pub const EVAL_ROUNDS_MAX: usize = 25;
/// Rounds of tools of a sub-agent: its task is a part of one.
pub const TASK_ROUNDS_MAX: usize = 40;
/// Broken calls in a row that are corrected before the run stops.
pub const CORRECTIONS_MAX: usize = 2;
/// Failures of the runtime in a row that are tried again.
pub const RETRIES_MAX: usize = 2;
/// Identical (call, result) pairs in one run: the model is told at the second, and from the third on
/// it must answer without a tool.
pub const REPEATS_WARN: usize = 2;
pub const REPEATS_BAR: usize = 3;
/// Characters of an answer that a model is made to give because it went in circles: it may go in
/// circles there too (seen, until the reply's limit), and a grammar can end a string.
pub const FORCED_ANSWER_CHARS_MAX: usize = 1_000;
/// A compaction should leave at most this share of the context.
pub const COMPACTION_SHRINK_PERCENT: usize = 80;
/// Compactions in a row that freed too little before the run stops (law 11).
pub const COMPACTION_STRIKES: usize = 2;
/// The project's rules are sent with every call: about 4,000 tokens at the most.
pub const RULES_BYTES_MAX: usize = 16 << 10;
/// Entries that one call of `transcript` shows.
pub const TRANSCRIPT_ENTRIES_MAX: usize = 20;
/// Characters shown of one of them.
pub const TRANSCRIPT_ENTRY_CHARS: usize = 1_200;

// ---- other runtimes ----

/// Bytes of a token of a server whose tokenizer we have not: code and hex have 2 to 3, prose 4 to 5. What the server
/// counts takes its place.
pub const REMOTE_BYTES_A_TOKEN: f64 = 3.0;
pub const REMOTE_BYTES_A_TOKEN_MAX: f64 = 6.0;
/// Fewer bytes than this say more of the template than of the text.
pub const REMOTE_LEARN_BYTES_MIN: usize = 1_000;

// ---- skills ----

/// A skill is read whole: longer ones point at files beside them.
pub const SKILL_BYTES_MAX: usize = 32 << 10;
/// Skills that the prompt describes, and characters of each description: about 2,000 tokens at the most.
pub const SKILLS_LISTED_MAX: usize = 40;
pub const SKILL_DESCRIPTION_CHARS: usize = 200;

// ---- memory ----

/// A fact is a sentence or two; a document belongs in a file.
pub const MEMORY_CHARS_MAX: usize = 2_000;
/// A file of more bytes than this was not written by us.
pub const MEMORY_FILE_BYTES_MAX: u64 = 64 << 10;
/// Memories that one search gives.
pub const MEMORIES_FOUND_MAX: usize = 8;
/// Tokens of memories in every prompt: a share of the window, and at most so many.
pub const MEMORY_SHARE_OF_WINDOW: usize = 20;
pub const MEMORY_TOKENS_MAX: usize = 1_000;
/// Calls that a note names as what it may come from, and characters of each.
pub const MEMORY_SOURCES_MAX: usize = 4;
pub const MEMORY_SOURCE_CHARS: usize = 80;
/// A word of a memory shorter than this names nothing that could be told from other words.
pub const MEMORY_NAME_CHARS_MIN: usize = 5;

const _: () = assert!(REPEATS_WARN < REPEATS_BAR);

/// A session's lock is tried this often, this far apart, before it counts as held by another.
pub const LOCK_TRIES: u32 = 50;
pub const LOCK_WAIT: std::time::Duration = std::time::Duration::from_millis(10);

// ---- text to tokens ----

/// Encoded runs that are remembered; cleared when full. A conversation has some hundreds.
pub const ENCODED_RUNS_MAX: usize = 8_192;
/// Their texts and ids together: some long conversations.
pub const ENCODED_BYTES_MAX: usize = 64 << 20;
/// The literal of a control token; the longest in the field have about 40 bytes.
pub const CONTROL_BYTES_MAX: usize = 256;
/// Conversations whose ids are remembered, for clients that send their history back.
pub const THREADS_MAX: usize = 1_024;

// ---- the server ----

/// The largest request body: a million tokens of text are about 4 MiB.
pub const BODY_BYTES_MAX: usize = 32 << 20;
/// Chunks of a stream that may wait for a slow client before the reply waits too.
pub const STREAM_CHUNKS_AHEAD: usize = 64;
/// A comment is sent when nothing else was for this long, so that proxies do not close the stream.
pub const KEEP_ALIVE: std::time::Duration = std::time::Duration::from_secs(10);
/// What OpenAI's API takes when a request names no temperature.
pub const SERVER_TEMPERATURE: f32 = 1.0;
/// Stop strings of one request. OpenAI takes 4; clients of other servers send more.
pub const STOPS_MAX: usize = 16;
/// As OpenAI's API has it.
pub const TOP_LOGPROBS_MAX: u64 = 20;
/// JSON has no infinity: the log probability of what cannot happen.
pub const LOGPROB_MIN: f32 = -9_999.0;

/// New tokens of a prompt that `bench speed` measures: what peers' benchmarks use.
pub const BENCH_PREFILL_TOKENS: usize = 512;

/// What `bench cache` may write for its scenario of a restart, into a folder that it removes.
pub const BENCH_DISK_BYTES: u64 = 4 << 30;

/// Tokens of an answer that `bench speed` measures: a second or two of a small model.
pub const BENCH_DECODE_TOKENS: usize = 64;
