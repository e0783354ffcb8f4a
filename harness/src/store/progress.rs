//! How far a long job has come, told to whoever watches.

use std::io::Write;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Called from the thread that does the work; must be quick.
pub trait Progress: Send + Sync {
    /// A job of `total_bytes` (when known) starts, of which `done_bytes` were there before.
    fn begin(&self, what: &str, total_bytes: Option<u64>, done_bytes: u64);
    fn advance_to(&self, done_bytes: u64);
    fn end(&self);
    /// One line for the person.
    fn note(&self, text: &str);
}

/// For tests and for commands that must stay quiet.
pub struct Silent;

impl Progress for Silent {
    fn begin(&self, _: &str, _: Option<u64>, _: u64) {}
    fn advance_to(&self, _: u64) {}
    fn end(&self) {}
    fn note(&self, _: &str) {}
}

/// A bar on stderr; without a terminal there, one plain line every few seconds.
pub struct StderrProgress {
    terminal: bool,
    job: Mutex<Option<Job>>,
}

struct Job {
    what: String,
    total_bytes: Option<u64>,
    done_bytes: u64,
    last_line: Instant,
    bar: ProgressBar,
}

const PLAIN_LINE_EVERY: Duration = Duration::from_secs(10);

impl StderrProgress {
    pub fn new(terminal: bool) -> StderrProgress {
        StderrProgress {
            terminal,
            job: Mutex::new(None),
        }
    }

    fn with_job(&self, act: impl FnOnce(&mut Option<Job>)) {
        act(&mut self
            .job
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner()));
    }
}

impl Progress for StderrProgress {
    fn begin(&self, what: &str, total_bytes: Option<u64>, done_bytes: u64) {
        let bar = if self.terminal {
            let bar = ProgressBar::with_draw_target(total_bytes, ProgressDrawTarget::stderr());
            bar.set_style(bar_style(total_bytes.is_some()));
            bar.set_message(what.to_owned());
            bar.set_position(done_bytes);
            bar
        } else {
            let size = total_bytes.map_or(String::new(), |total| format!(" ({})", bytes(total)));
            line(&format!("{what}{size}"));
            ProgressBar::hidden()
        };
        self.with_job(|job| {
            *job = Some(Job {
                what: what.to_owned(),
                total_bytes,
                done_bytes,
                last_line: Instant::now(),
                bar,
            })
        });
    }

    fn advance_to(&self, done_bytes: u64) {
        self.with_job(|job| {
            let Some(job) = job else { return };
            job.done_bytes = done_bytes;
            if self.terminal {
                job.bar.set_position(done_bytes);
            } else if job.last_line.elapsed() >= PLAIN_LINE_EVERY {
                job.last_line = Instant::now();
                let of = job
                    .total_bytes
                    .map_or(String::new(), |total| format!(" of {}", bytes(total)));
                line(&format!("{}: {}{of}", job.what, bytes(done_bytes)));
            }
        });
    }

    fn end(&self) {
        self.with_job(|job| {
            if let Some(job) = job.take() {
                job.bar.finish_and_clear();
            }
        });
    }

    fn note(&self, text: &str) {
        self.with_job(|job| match job {
            Some(job) if self.terminal => job.bar.suspend(|| line(text)),
            _ => line(text),
        });
    }
}

/// 98362432 as "98.4 MB".
pub fn bytes(count: u64) -> String {
    indicatif::DecimalBytes(count).to_string()
}

fn bar_style(total_known: bool) -> ProgressStyle {
    let template = if total_known {
        "{msg} [{bar:30}] {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec} ({eta} left)"
    } else {
        "{msg} {decimal_bytes} {decimal_bytes_per_sec}"
    };
    ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("=> ")
}

/// A closed stderr must not stop a download.
fn line(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}
