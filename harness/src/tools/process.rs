//! Runs one shell command to its end, whatever it does: it waits for input, floods, hangs, ignores
//! signals, leaves children behind.
//!
//! Rules, in order. Standard input is closed and there is no terminal. When the shell ends, what it
//! left behind gets a moment to flush and is then ended. At the time limit, at a cancel, at too much
//! output or too many processes, everything is ended: SIGTERM, a moment, SIGKILL.
//! Invariant: `run` returns within the limit plus the moments named in `limits`, with no process of
//! the command alive that can be found (see `tree`).

use std::ffi::OsString;
use std::io::{self, PipeReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::artifacts::Artifacts;
use super::capture::{Capture, Captured};
use super::os::{self, Steps};
use super::tree::{self, Mark, Member};
use crate::limits::{
    CANCEL_POLL_MS, KILL_GRACE_MS, LEFTOVER_GRACE_MS, PIPE_CLOSE_MS, TASK_COUNT_MS,
};

/// Ends a running tool from another thread.
#[derive(Clone, Default)]
pub struct Cancel(Arc<Wish>);

/// That something should end, and how to tell it.
#[derive(Default)]
struct Wish {
    set: AtomicBool,
    stop: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Cancel {
    pub fn new() -> Cancel {
        Cancel::default()
    }

    pub fn cancel(&self) {
        self.0.set.store(true, Ordering::SeqCst);
        self.tell();
    }

    pub fn is_cancelled(&self) -> bool {
        self.0.set.load(Ordering::SeqCst)
    }

    /// Calls `stop` once if this is cancelled (at once if it has been) before the guard is dropped. For
    /// what cannot look at [`Cancel::is_cancelled`] while it waits; one at a time.
    pub fn on_cancel(&self, stop: impl FnOnce() + Send + 'static) -> OnCancel<'_> {
        *self.0.stop.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(stop));
        if self.is_cancelled() {
            self.tell();
        }
        OnCancel(self)
    }

    fn tell(&self) {
        let stop = self
            .0
            .stop
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(stop) = stop {
            stop();
        }
    }
}

/// While this lives, cancelling calls what was given to [`Cancel::on_cancel`].
pub struct OnCancel<'a>(&'a Cancel);

impl Drop for OnCancel<'_> {
    fn drop(&mut self) {
        *self.0.0.stop.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// What to run, and within what bounds.
pub struct Job<'a> {
    pub program: &'a Path,
    pub args: Vec<OsString>,
    pub directory: &'a Path,
    /// The whole environment; nothing is inherited.
    pub environment: Vec<(OsString, OsString)>,
    /// One `NAME=value` of that environment which no other command has.
    pub mark: String,
    pub steps: Steps,
    pub timeout: Duration,
    pub output_bytes_max: u64,
    pub tasks_max: u64,
    pub memory_bytes_max: u64,
}

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Code(i32),
    Signal(i32),
    TimedOut,
    Cancelled,
    TooMuchOutput,
    TooManyTasks,
    TooMuchMemory,
}

pub struct Finished {
    pub exit: Exit,
    pub output: Captured,
    /// What the shell left running, now ended.
    pub left_behind: Vec<Member>,
    pub wall: Duration,
}

enum Event {
    ShellEnded,
    PipeClosed,
}

/// Exit code 1, for a child whose status somebody else took.
const NO_STATUS: i32 = 1 << 8;

/// Runs `job`. Standard output and standard error arrive in one stream, in their order.
pub fn run(job: Job<'_>, artifacts: &Artifacts, cancel: &Cancel) -> io::Result<Finished> {
    let begun = Instant::now();
    let limits = Bounds {
        deadline: begun + job.timeout,
        output_bytes_max: job.output_bytes_max,
        tasks_max: job.tasks_max,
        memory_bytes_max: job.memory_bytes_max,
    };
    let variable = job.mark.clone();
    let (child, reader) = spawn(job)?;
    let mark = Mark {
        session: child.id(),
        variable,
        started: tree::started(child.id()),
    };
    let (bytes, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let (output, (exit, status, left_behind)) = std::thread::scope(|scope| {
        let (events, inbox) = channel();
        let at_pipe = Collector {
            capture: Capture::new(artifacts),
            bytes: &bytes,
            stop: &stop,
            events: events.clone(),
        };
        let collecting = scope.spawn(move || at_pipe.collect(reader));
        let pid = child.id();
        scope.spawn(move || {
            // An error means that there is no such child, so it has ended.
            let _ = os::wait_until_ended(pid);
            // The receiver may be gone already, and then nobody needs to know.
            let _ = events.send(Event::ShellEnded);
        });
        let run = Run {
            inbox,
            mark,
            limits,
            cancel,
            bytes: &bytes,
        };
        let ended = run.until_ended(child);
        stop.store(true, Ordering::Relaxed);
        let capture = collecting
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        (capture.finish(), ended)
    });
    let exit = exit.unwrap_or(match (status.code(), status.signal()) {
        (Some(code), _) => Exit::Code(code),
        (None, Some(signal)) => Exit::Signal(signal),
        (None, None) => Exit::Code(-1),
    });
    Ok(Finished {
        exit,
        output,
        left_behind,
        wall: begun.elapsed(),
    })
}

fn spawn(job: Job<'_>) -> io::Result<(Child, PipeReader)> {
    let (reader, writer) = io::pipe()?;
    let mut command = Command::new(job.program);
    command.args(&job.args).current_dir(job.directory);
    command.env_clear().envs(job.environment);
    command
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer);
    os::prepare(&mut command, job.steps);
    // With `command`, our ends of the pipe go: it closes when the child's do.
    Ok((command.spawn()?, reader))
}

/// The thread at the pipe.
struct Collector<'a> {
    capture: Capture<'a>,
    bytes: &'a AtomicU64,
    /// Nobody waits any more.
    stop: &'a AtomicBool,
    events: Sender<Event>,
}

impl<'a> Collector<'a> {
    /// Reads the pipe until it closes, or until it is told to stop.
    fn collect(mut self, mut pipe: PipeReader) -> Capture<'a> {
        let mut buffer = vec![0; 64 << 10];
        while !self.stop.load(Ordering::Relaxed) {
            if !os::readable_within(&pipe, Duration::from_millis(CANCEL_POLL_MS)) {
                continue;
            }
            match pipe.read(&mut buffer) {
                Ok(n) if n > 0 => {
                    self.bytes.fetch_add(n as u64, Ordering::Relaxed);
                    self.capture.push(&buffer[..n]);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(_) | Err(_) => {
                    // The receiver may be gone already, and then nobody needs to know.
                    let _ = self.events.send(Event::PipeClosed);
                    break;
                }
            }
        }
        self.capture
    }
}

struct Bounds {
    deadline: Instant,
    output_bytes_max: u64,
    tasks_max: u64,
    memory_bytes_max: u64,
}

struct Run<'a> {
    inbox: Receiver<Event>,
    mark: Mark,
    limits: Bounds,
    cancel: &'a Cancel,
    bytes: &'a AtomicU64,
}

impl Run<'_> {
    /// Why it was ended (if it did not end itself), the shell's status, what was left behind.
    fn until_ended(self, mut child: Child) -> (Option<Exit>, ExitStatus, Vec<Member>) {
        let mut pipe_closed = false;
        let ended_because = self.wait_for_shell(&mut pipe_closed);
        if ended_because.is_some() {
            self.end_all();
        } else if !pipe_closed {
            self.wait_for_pipe(LEFTOVER_GRACE_MS, &mut pipe_closed);
        }
        let left_behind = self.end_leftovers();
        // Reaped only now: until here, the group's number could not be given to another.
        let status = child
            .wait()
            .unwrap_or_else(|_| ExitStatus::from_raw(NO_STATUS));
        if !pipe_closed {
            self.wait_for_pipe(PIPE_CLOSE_MS, &mut pipe_closed);
        }
        let left_behind = if ended_because.is_some() {
            Vec::new()
        } else {
            left_behind
        };
        (ended_because, status, left_behind)
    }

    fn wait_for_shell(&self, pipe_closed: &mut bool) -> Option<Exit> {
        let mut next_count = Instant::now() + Duration::from_millis(TASK_COUNT_MS);
        loop {
            match self
                .inbox
                .recv_timeout(Duration::from_millis(CANCEL_POLL_MS))
            {
                Ok(Event::ShellEnded) | Err(RecvTimeoutError::Disconnected) => return None,
                Ok(Event::PipeClosed) => *pipe_closed = true,
                Err(RecvTimeoutError::Timeout) => {}
            }
            if self.cancel.is_cancelled() {
                return Some(Exit::Cancelled);
            }
            if self.bytes.load(Ordering::Relaxed) > self.limits.output_bytes_max {
                return Some(Exit::TooMuchOutput);
            }
            let now = Instant::now();
            if now >= self.limits.deadline {
                return Some(Exit::TimedOut);
            }
            if now >= next_count {
                next_count = now + Duration::from_millis(TASK_COUNT_MS);
                let too_much = self.takes_too_much();
                if too_much.is_some() {
                    // No time to be polite: a fork bomb goes on.
                    os::signal_group(self.mark.session, libc::SIGKILL);
                    return too_much;
                }
            }
        }
    }

    fn takes_too_much(&self) -> Option<Exit> {
        let usage = tree::usage(self.mark.session);
        if usage.tasks > self.limits.tasks_max {
            return Some(Exit::TooManyTasks);
        }
        (usage.resident_bytes > self.limits.memory_bytes_max).then_some(Exit::TooMuchMemory)
    }

    fn wait_for_pipe(&self, most_ms: u64, pipe_closed: &mut bool) {
        let deadline = Instant::now() + Duration::from_millis(most_ms);
        while !*pipe_closed {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.inbox.recv_timeout(left) {
                Ok(Event::PipeClosed) => *pipe_closed = true,
                Ok(Event::ShellEnded) => {}
                Err(_) => return,
            }
        }
    }

    /// The shell and all it started: asked to end, then ended.
    fn end_all(&self) {
        os::signal_group(self.mark.session, libc::SIGTERM);
        for member in tree::members(&self.mark) {
            os::signal_process(member.pid, libc::SIGTERM);
        }
        let deadline = Instant::now() + Duration::from_millis(KILL_GRACE_MS);
        let mut shell_ended = false;
        while Instant::now() < deadline {
            match self
                .inbox
                .recv_timeout(Duration::from_millis(CANCEL_POLL_MS))
            {
                Ok(Event::ShellEnded) => shell_ended = true,
                Err(RecvTimeoutError::Disconnected) => {
                    std::thread::sleep(Duration::from_millis(CANCEL_POLL_MS));
                }
                Ok(Event::PipeClosed) | Err(RecvTimeoutError::Timeout) => {}
            }
            if shell_ended && tree::members(&self.mark).is_empty() {
                return;
            }
        }
        os::signal_group(self.mark.session, libc::SIGKILL);
    }

    /// Ends what is still there, again until nothing is: it may be starting more.
    fn end_leftovers(&self) -> Vec<Member> {
        let first = tree::members(&self.mark);
        let mut left = first.clone();
        for _ in 0..20 {
            // The group in one step, which a fork bomb does not outrun.
            os::signal_group(self.mark.session, libc::SIGKILL);
            if left.is_empty() {
                break;
            }
            for member in &left {
                os::signal_process(member.pid, libc::SIGKILL);
            }
            std::thread::sleep(Duration::from_millis(CANCEL_POLL_MS / 2));
            left = tree::members(&self.mark);
        }
        first
    }
}
