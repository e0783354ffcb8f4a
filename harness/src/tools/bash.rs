//! The tool `bash`: one command line, its output, how it ended.

use std::path::Path;
use std::time::Duration;

use super::artifacts::Artifacts;
use super::bound::{Keep, ReadOn, Source, grouped};
use super::call::BashArgs;
use super::clean::for_terminal_line;
use super::os::{Limit, Resource, Steps};
use super::output::{Meta, Output};
use super::process::{Cancel, Exit, Finished, Job, run};
use super::sandbox::Sandbox;
use super::sniff::Kind;
use super::surround;
use super::tree::{self, Member};
use crate::limits::{
    COMMAND_FILE_BYTES_MAX, COMMAND_MEMORY_PERCENT_MAX, COMMAND_OUTPUT_BYTES_MAX,
    COMMAND_PROCESSES_MAX, COMMAND_TIMEOUT_S, ROOM_CHARS_MIN,
};

/// What commands run in.
pub struct Place<'a> {
    pub workspace: &'a Path,
    /// The harness's own environment.
    pub environment: &'a [(std::ffi::OsString, std::ffi::OsString)],
    pub sandbox: &'a Sandbox,
    pub artifacts: &'a Artifacts,
    /// Told from other commands by this, in the environment.
    pub mark: String,
}

pub fn bash(args: &BashArgs, place: &Place<'_>, cancel: &Cancel) -> Output {
    let timeout = Duration::from_secs(args.timeout_s.unwrap_or(COMMAND_TIMEOUT_S));
    let shell = surround::shell(place.environment);
    let mut environment = surround::environment(place.environment, place.sandbox.temporary());
    environment.push(("OSTLER_COMMAND".into(), place.mark.clone().into()));
    let mut steps = Steps {
        limits: limits(),
        ..Steps::default()
    };
    place.sandbox.confine(&mut steps);
    let job = Job {
        program: &shell,
        args: vec!["-c".into(), args.command.clone().into()],
        directory: place.workspace,
        environment,
        mark: format!("OSTLER_COMMAND={}", place.mark),
        steps,
        timeout,
        output_bytes_max: COMMAND_OUTPUT_BYTES_MAX,
        tasks_max: COMMAND_PROCESSES_MAX,
        memory_bytes_max: memory_bytes_max(),
    };
    match run(job, place.artifacts, cancel) {
        Ok(finished) => output(args, finished, timeout, place),
        Err(error) => Output::failed(
            "bash",
            format!(
                "the command could not be started: {}",
                super::os::explain(&error)
            ),
        ),
    }
}

/// Limits that no build needs to pass and that stop a runaway. Processes and memory are watched
/// while the command runs: the system's own limit on processes does not hold root, and the one on
/// memory counts what programs reserve and never use.
fn limits() -> Vec<Limit> {
    let limit = |resource, most| Limit { resource, most };
    vec![
        limit(Resource::CoreBytes, 0),
        limit(Resource::FileBytes, COMMAND_FILE_BYTES_MAX),
        // The system counts all of the user's, so this is far above what one command may have.
        limit(Resource::Processes, COMMAND_PROCESSES_MAX * 8),
    ]
}

fn memory_bytes_max() -> u64 {
    tree::machine_memory_bytes().map_or(u64::MAX, |bytes| bytes / 100 * COMMAND_MEMORY_PERCENT_MAX)
}

fn output(args: &BashArgs, finished: Finished, timeout: Duration, place: &Place<'_>) -> Output {
    let Finished {
        exit,
        output: captured,
        left_behind,
        wall,
    } = finished;
    let mut notes = Vec::new();
    let bytes = captured.bytes;
    let mut source = captured.source.clone();
    let binary = match captured.kind {
        Kind::Binary(name) => Some(name),
        Kind::Text | Kind::Utf16 => None,
    };
    let worth_keeping = binary.is_some() || source.gap != Default::default() || {
        source.head.chars().count() > ROOM_CHARS_MIN
    };
    let origin = format!("bash: {}", for_terminal_line(&args.command));
    let artifact = if worth_keeping {
        Some(captured.keep(place.artifacts, &origin))
    } else {
        None
    };
    let artifact = match artifact.transpose() {
        Ok(id) => id,
        Err(error) => {
            notes.push(format!("the full output could not be stored: {error}"));
            None
        }
    };
    if let Some(name) = binary {
        let stored = artifact.map_or(String::new(), |id| format!("; stored as {id}"));
        notes.push(format!(
            "binary output, {} bytes, {name}{stored}",
            grouped(bytes as usize)
        ));
    }
    notes.extend(how_it_ended(exit, timeout, bytes == 0));
    notes.extend(left(&left_behind));
    notes.extend(sandbox_hint(exit, &source, place.sandbox));
    if source.head.ends_with('\n') && source.gap == Default::default() {
        source
            .head
            .truncate(source.head.trim_end_matches('\n').len());
    }
    let footer: Vec<String> = notes.into_iter().map(|note| format!("[{note}]")).collect();
    Output {
        ok: exit == Exit::Code(0),
        source,
        keep: Keep::HeadAndTail,
        read_on: artifact.map_or(ReadOn::Nothing, ReadOn::Artifact),
        footer: footer.join("\n"),
        artifact,
        meta: Meta {
            exit: Some(exit),
            wall,
            ..Meta::of("bash")
        },
    }
}

fn how_it_ended(exit: Exit, timeout: Duration, silent: bool) -> Option<String> {
    let all_ended = "the command and all it started were ended";
    Some(match exit {
        Exit::Code(0) if silent => "no output, exit code 0".into(),
        Exit::Code(0) => return None,
        Exit::Code(code) => format!("exit code {code}"),
        Exit::Signal(signal) => format!("ended by signal {signal}{}", signal_name(signal)),
        Exit::TimedOut => format!("timed out after {} s: {all_ended}", timeout.as_secs()),
        Exit::Cancelled => format!("cancelled: {all_ended}"),
        Exit::TooMuchOutput => {
            format!(
                "more than {} MiB of output: {all_ended}",
                COMMAND_OUTPUT_BYTES_MAX >> 20
            )
        }
        Exit::TooMuchMemory => {
            format!("more than {COMMAND_MEMORY_PERCENT_MAX}% of the machine's memory: {all_ended}")
        }
        Exit::TooManyTasks => format!("more than {COMMAND_PROCESSES_MAX} processes: {all_ended}"),
    })
}

fn signal_name(signal: i32) -> String {
    let names = [
        (libc::SIGHUP, "SIGHUP"),
        (libc::SIGINT, "SIGINT"),
        (libc::SIGQUIT, "SIGQUIT"),
        (libc::SIGILL, "SIGILL"),
        (libc::SIGABRT, "SIGABRT"),
        (libc::SIGBUS, "SIGBUS"),
        (libc::SIGFPE, "SIGFPE"),
        (libc::SIGKILL, "SIGKILL"),
        (libc::SIGSEGV, "SIGSEGV"),
        (libc::SIGPIPE, "SIGPIPE"),
        (libc::SIGALRM, "SIGALRM"),
        (libc::SIGTERM, "SIGTERM"),
        (libc::SIGXCPU, "SIGXCPU"),
        (libc::SIGXFSZ, "SIGXFSZ"),
        (libc::SIGSYS, "SIGSYS"),
    ];
    let name = names.iter().find(|(number, _)| *number == signal);
    name.map_or(String::new(), |(_, name)| format!(" ({name})"))
}

fn left(members: &[Member]) -> Option<String> {
    if members.is_empty() {
        return None;
    }
    let names: Vec<&str> = members.iter().take(3).map(|m| m.name.as_str()).collect();
    let more = if members.len() > 3 { ", ..." } else { "" };
    let (who, were) = match members.len() {
        1 => ("1 process".to_owned(), "was"),
        n => (format!("{n} processes"), "were"),
    };
    let names = names.join(", ");
    Some(format!(
        "{who} {were} still running when the shell ended, and {were} ended: {names}{more}"
    ))
}

/// A failure that looks like the sandbox's doing is told to be that: the model would try again.
fn sandbox_hint(exit: Exit, source: &Source, sandbox: &Sandbox) -> Option<String> {
    const SIGNS: &[&str] = &[
        "Permission denied",
        "Operation not permitted",
        "Read-only file system",
        "Network is unreachable",
        "Could not resolve",
        "Temporary failure in name resolution",
        "PermissionError",
        "EACCES",
        "EPERM",
        "EROFS",
    ];
    let refused = exit != Exit::Code(0)
        && SIGNS
            .iter()
            .any(|sign| source.head.contains(sign) || source.tail.contains(sign));
    let hint = "the sandbox: commands write only in the workspace and $TMPDIR, read only those and the \
                system, and have no network";
    (refused && sandbox.is_verified()).then(|| hint.to_owned())
}
