//! Finds the processes that a command started: those of its session, and those that left it but
//! still carry the mark in their environment (`setsid`, daemons). A process that clears its
//! environment and leaves the session is not found.

/// A process that is still there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    pub pid: u32,
    /// Its command line, or its name.
    pub name: String,
}

/// How the processes of one command are told from others.
#[derive(Clone, Debug)]
pub struct Mark {
    /// The session: the shell's process number.
    pub session: u32,
    /// `NAME=value`, in the environment of all that descend from the shell.
    pub variable: String,
    /// When the shell started, in clock ticks since boot: nothing older belongs to it.
    pub started: u64,
}

/// Clock ticks since boot at which `pid` started; 0 where that is not known.
pub fn started(pid: u32) -> u64 {
    stat(pid).map_or(0, |stat| stat.started)
}

struct Stat {
    zombie: bool,
    session: u32,
    threads: u64,
    started: u64,
}

/// The fields of `/proc/PID/stat` that matter, by proc_pid_stat(5).
fn stat(pid: u32) -> Option<Stat> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in brackets and may hold anything, brackets too.
    let (_, after) = text.rsplit_once(')')?;
    let fields: Vec<&str> = after.split_ascii_whitespace().collect();
    Some(Stat {
        zombie: matches!(*fields.first()?, "Z" | "X"),
        session: fields.get(3)?.parse().ok()?,
        threads: fields.get(17)?.parse().ok()?,
        started: fields.get(19)?.parse().ok()?,
    })
}

/// All members but the shell itself. Empty where there is no `/proc`.
pub fn members(mark: &Mark) -> Vec<Member> {
    let mut members = Vec::new();
    for pid in pids() {
        if pid != mark.session && belongs(pid, mark) {
            members.push(Member {
                pid,
                name: name(pid),
            });
        }
    }
    members
}

/// What a session takes at the moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Processes and threads.
    pub tasks: u64,
    /// Resident memory. Shared pages count for each process.
    pub resident_bytes: u64,
}

/// What `session` takes, the shell included. Cheaper than `members`.
pub fn usage(session: u32) -> Usage {
    let mut usage = Usage::default();
    for pid in pids() {
        if let Some(stat) = stat(pid)
            && stat.session == session
            && !stat.zombie
        {
            usage.tasks += stat.threads;
            usage.resident_bytes +=
                kib_in(&format!("/proc/{pid}/status"), "VmRSS:").unwrap_or(0) * 1024;
        }
    }
    usage
}

pub fn machine_memory_bytes() -> Option<u64> {
    Some(kib_in("/proc/meminfo", "MemTotal:")? * 1024)
}

/// The number on the line of `file` that begins with `key`.
fn kib_in(file: &str, key: &str) -> Option<u64> {
    let text = std::fs::read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.starts_with(key))?;
    line.split_ascii_whitespace().nth(1)?.parse().ok()
}

fn pids() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn belongs(pid: u32, mark: &Mark) -> bool {
    let Some(stat) = stat(pid) else { return false };
    if stat.zombie || stat.started < mark.started {
        return false;
    }
    stat.session == mark.session || carries(pid, &mark.variable)
}

fn carries(pid: u32, variable: &str) -> bool {
    let Ok(environment) = std::fs::read(format!("/proc/{pid}/environ")) else {
        return false;
    };
    environment
        .split(|b| *b == 0)
        .any(|entry| entry == variable.as_bytes())
}

fn name(pid: u32) -> String {
    let read = |file: &str| std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let mut bytes = read("cmdline");
    if bytes.is_empty() {
        bytes = read("comm");
    }
    let text = String::from_utf8_lossy(&bytes).replace('\0', " ");
    super::clean::for_terminal_line(text.trim())
        .chars()
        .take(80)
        .collect()
}
