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
