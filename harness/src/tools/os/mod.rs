//! The only unsafe code of the harness: what runs between fork and exec, and the few system calls
//! around a child that the standard library does not offer.
//!
//! Invariant: what runs after the fork makes system calls only, on memory that was prepared before
//! it. No allocation, no lock, no formatting: another thread may have held the allocator's lock
//! when the process was copied (signal-safety(7)).
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

#[cfg(target_os = "linux")]
mod linux;

#[cfg(target_os = "linux")]
pub use linux::{Check, Confinement, Mount, Namespaces, Report, WritableMounts, landlock_abi};

/// A resource limit, as `setrlimit` takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    pub resource: Resource,
    pub most: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    CoreBytes,
    FileBytes,
    Processes,
}

/// What the child does to itself before it becomes the command.
#[derive(Default)]
pub struct Steps {
    pub limits: Vec<Limit>,
    #[cfg(target_os = "linux")]
    pub confinement: Option<std::sync::Arc<Confinement>>,
    /// Test the confinement and exit with the report, instead of becoming the command.
    #[cfg(target_os = "linux")]
    pub check: Option<Check>,
}

/// Makes `command` carry out `steps` after the fork. Its own session comes first: no terminal, and
/// a process group that can be ended as one.
pub fn prepare(command: &mut Command, steps: Steps) {
    // SAFETY: the closure only makes system calls (see each function it calls) on memory that
    // `steps` holds since before the fork.
    unsafe {
        command.pre_exec(move || steps.run());
    }
}

impl Steps {
    fn run(&self) -> io::Result<()> {
        // SAFETY: takes no argument; a fresh child is no group leader, so it cannot fail for that.
        if unsafe { libc::setsid() } < 0 {
            return Err(failed(Step::Session));
        }
        for limit in &self.limits {
            set_limit(*limit)?;
        }
        #[cfg(target_os = "linux")]
        {
            linux::close_on_exec_from(3);
            linux::prefer_for_oom();
            if let Some(confinement) = &self.confinement {
                confinement.enter()?;
            }
            linux::die_with_parent()?;
            if let Some(confinement) = &self.confinement {
                confinement.filter()?;
            }
            if let Some(check) = &self.check {
                check.run_and_exit();
            }
        }
        Ok(())
    }
}

fn set_limit(limit: Limit) -> io::Result<()> {
    let resource = match limit.resource {
        Resource::CoreBytes => libc::RLIMIT_CORE,
        Resource::FileBytes => libc::RLIMIT_FSIZE,
        Resource::Processes => libc::RLIMIT_NPROC,
    };
    let mut current = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `current` is a valid place for the answer.
    if unsafe { libc::getrlimit(resource, &mut current) } < 0 {
        return Err(failed(Step::Limits));
    }
    // Never above what the process was given.
    let most = (limit.most as libc::rlim_t).min(current.rlim_max);
    let new = libc::rlimit {
        rlim_cur: most,
        rlim_max: most,
    };
    // SAFETY: `new` is a valid limit, not above the old hard one.
    if unsafe { libc::setrlimit(resource, &new) } < 0 {
        return Err(failed(Step::Limits));
    }
    Ok(())
}

/// Which step failed. It travels inside the error number, the only thing that a child between fork
/// and exec can tell its parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Session = 1,
    Limits,
    Unshare,
    UserMap,
    Mounts,
    Capabilities,
    NoNewPrivileges,
    Landlock,
    Parent,
    Filter,
}

const STEPS: [(Step, &str); 10] = [
    (Step::Session, "setsid"),
    (Step::Limits, "setrlimit"),
    (Step::Unshare, "unshare"),
    (Step::UserMap, "writing the user map"),
    (Step::Mounts, "mounting read-only"),
    (Step::Capabilities, "dropping capabilities"),
    (Step::NoNewPrivileges, "no_new_privs"),
    (Step::Landlock, "landlock_restrict_self"),
    (Step::Parent, "prctl"),
    (Step::Filter, "seccomp"),
];

/// Error numbers are below this on every system.
const STEP_FACTOR: i32 = 10_000;

fn failed(step: Step) -> io::Error {
    let errno = io::Error::last_os_error().raw_os_error().unwrap_or(0);
    io::Error::from_raw_os_error(step as i32 * STEP_FACTOR + errno)
}

/// The error of a spawn, with the step that failed by name.
pub fn explain(error: &io::Error) -> String {
    let code = error.raw_os_error().unwrap_or(0);
    match STEPS
        .iter()
        .find(|(step, _)| *step as i32 == code / STEP_FACTOR)
    {
        Some((_, name)) => {
            format!(
                "{name}: {}",
                io::Error::from_raw_os_error(code % STEP_FACTOR)
            )
        }
        None => error.to_string(),
    }
}

/// Waits until `pid`, a child of ours, has ended, and leaves it to be reaped: until then its
/// number, and that of its group, cannot be given to another process.
pub fn wait_until_ended(pid: u32) -> io::Result<()> {
    loop {
        // SAFETY: an all-zero siginfo_t is valid, and the kernel fills it.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: `info` is a valid place for the answer.
        let result = unsafe {
            libc::waitid(
                libc::P_PID,
                pid as libc::id_t,
                &mut info,
                libc::WEXITED | libc::WNOWAIT,
            )
        };
        if result == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Signals every process of a group. A group that is gone is no error.
pub fn signal_group(leader: u32, signal: i32) {
    if leader > 1 {
        // SAFETY: plain integers; `leader` is above 1, so this is never "all processes".
        unsafe { libc::kill(-(leader as libc::pid_t), signal) };
    }
}

/// Signals one process. One that is gone is no error.
pub fn signal_process(pid: u32, signal: i32) {
    if pid > 1 {
        // SAFETY: plain integers; `pid` is above 1, so this is never a group.
        unsafe { libc::kill(pid as libc::pid_t, signal) };
    }
}

/// Whether there is something to read from `file` (or its end) within `time`.
pub fn readable_within(file: &impl AsFd, time: Duration) -> bool {
    let fd = file.as_fd().as_raw_fd();
    let mut poll = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    let ms = libc::c_int::try_from(time.as_millis()).unwrap_or(libc::c_int::MAX);
    // SAFETY: one valid `pollfd`, for a descriptor that is borrowed for the call.
    let ready = unsafe { libc::poll(&mut poll, 1, ms) };
    // Any answer but "nothing yet" is for `read` to find out.
    ready != 0
}

/// The user whose rights count.
pub fn effective_user() -> u32 {
    // SAFETY: takes no argument and cannot fail.
    unsafe { libc::geteuid() }
}

/// The group whose rights count.
pub fn effective_group() -> u32 {
    // SAFETY: takes no argument and cannot fail.
    unsafe { libc::getegid() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_step_that_failed_is_named() {
        let error = io::Error::from_raw_os_error(Step::Unshare as i32 * STEP_FACTOR + libc::EPERM);
        assert_eq!(
            explain(&error),
            "unshare: Operation not permitted (os error 1)"
        );
        let plain = io::Error::from_raw_os_error(libc::ENOENT);
        assert_eq!(explain(&plain), "No such file or directory (os error 2)");
    }
}
