//! The tools as the loop uses them: parse, gate, run, on a real shell and a real sandbox.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::approve::{Answer, Asker, Mode, Policy, Question};
use super::*;

mod sandbox;

struct Nobody;

impl Asker for Nobody {
    fn ask(&mut self, question: &Question) -> Answer {
        panic!("nobody is there to ask: {question:?}");
    }
}

struct Bench {
    _dirs: tempfile::TempDir,
    work: PathBuf,
    outside: PathBuf,
    tools: ToolBox,
}

fn environment() -> Vec<(OsString, OsString)> {
    std::env::vars_os().collect()
}

fn bench(window_tokens: usize, sandboxed: bool) -> Bench {
    bench_in(window_tokens, sandboxed, |_| {})
}

/// As [`bench`], in a workspace that `prepare` has put something into before the sandbox is made.
fn bench_in(window_tokens: usize, sandboxed: bool, prepare: impl FnOnce(&Path)) -> Bench {
    // Not in /tmp, which the sandbox replaces by its own where it can.
    let dirs = tempfile::tempdir_in("/var/tmp").unwrap();
    let root = dirs.path().canonicalize().unwrap();
    let (work, outside, session) = (
        root.join("work"),
        root.join("outside"),
        root.join("session"),
    );
    for dir in [&work, &outside, &session] {
        fs::create_dir(dir).unwrap();
    }
    prepare(&work);
    let sandbox = match sandboxed {
        true => Sandbox::probe(&SandboxConfig {
            workspace: work.clone(),
            temporary: session.join("tmp"),
            network: Network::Blocked,
            also_readable: Vec::new(),
            environment: environment(),
        }),
        false => Sandbox::off("the test wants none"),
    };
    let tools = ToolBox::new(ToolContext {
        workspace: work.clone(),
        session_dir: session,
        window_tokens,
        sandbox,
        environment: environment(),
        counter: Arc::new(|text: &str| text.len().div_ceil(4)),
    })
    .unwrap();
    Bench {
        _dirs: dirs,
        work,
        outside,
        tools,
    }
}

impl Bench {
    fn call(&self, name: &str, arguments: serde_json::Value) -> ToolResult {
        self.call_until(name, arguments, &Cancel::new())
    }

    fn call_until(&self, name: &str, arguments: serde_json::Value, cancel: &Cancel) -> ToolResult {
        let call = ToolCall {
            id: "c1".into(),
            name: name.into(),
            arguments: arguments.to_string(),
        };
        let parsed = match self.tools.parse(&call) {
            Ok(parsed) => parsed,
            Err(result) => return *result,
        };
        match self
            .tools
            .gate(parsed, None, &mut Policy::new(Mode::Yes), &mut Nobody)
        {
            Ok(approved) => self.tools.run(&approved, cancel),
            Err(result) => *result,
        }
    }

    fn bash(&self, command: &str) -> ToolResult {
        self.call("bash", serde_json::json!({ "command": command }))
    }

    fn bash_for(&self, command: &str, timeout_s: u64) -> ToolResult {
        self.call(
            "bash",
            serde_json::json!({ "command": command, "timeout_s": timeout_s }),
        )
    }
}

fn alive(pid: &str) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or("").starts_with(" Z"))
}

/// Commands that wait for input, or whose children held the pipe, hung the session.
#[test]
fn commands_return() {
    let bench = bench(16_384, false);
    let cases: &[(&str, &str, u64)] = &[
        ("cat", "[no output, exit code 0]", 20_000),
        ("read x; echo got:$x", "got:", 20_000),
        ("exit 3", "[exit code 3]", 20_000),
        ("kill -9 $$", "[ended by signal 9 (SIGKILL)]", 20_000),
        (
            "echo out; echo err >&2; false",
            "out\nerr\n[exit code 1]",
            20_000,
        ),
        ("printf 'no newline'", "no newline", 20_000),
        (
            "test -t 0 || test -t 1 || echo no terminal; (: < /dev/tty) 2>/dev/null || echo none",
            "no terminal\nnone",
            20_000,
        ),
        (
            "echo $TERM $PAGER $GIT_TERMINAL_PROMPT",
            "dumb cat 0",
            20_000,
        ),
        (
            "ssh-keygen -f k > /dev/null 2>&1; echo \"${PWD##*/}\"",
            "work",
            20_000,
        ),
    ];
    for (command, right, most_ms) in cases {
        let begun = Instant::now();
        let result = bench.bash(command);
        assert_eq!(result.text.text(), *right, "{command}");
        assert!(
            begun.elapsed() < Duration::from_millis(*most_ms),
            "{command}: {:?}",
            begun.elapsed()
        );
        assert_eq!(
            result.ok,
            result.meta.exit == Some(Exit::Code(0)),
            "{command}"
        );
    }
}

#[test]
fn git_does_not_wait_for_an_editor() {
    let bench = bench(16_384, false);
    let begun = Instant::now();
    let result = bench.bash("git init -q . && echo x > f && git add f && git -c user.name=a -c user.email=a@b commit; git log");
    assert!(
        begun.elapsed() < Duration::from_secs(10),
        "{:?}",
        begun.elapsed()
    );
    assert!(!result.ok, "{}", result.text.text());
}

/// The rule: what still runs when the shell ends is ended, and named.
#[test]
fn children_left_behind_do_not_hold_the_result() {
    let bench = bench(16_384, false);
    let begun = Instant::now();
    let result = bench.bash("sleep 300 & echo $!");
    assert!(
        begun.elapsed() < Duration::from_secs(20),
        "{:?}",
        begun.elapsed()
    );
    let pid = result.text.text().lines().next().unwrap().to_owned();
    assert!(!alive(&pid), "{pid} is alive");
    let text = result.text.text();
    let note = "[1 process was still running when the shell ended, and was ended: ";
    assert!(text.contains(note) && text.contains("sleep 300"), "{text}");
    assert!(result.ok);

    let result = bench.bash("(while :; do echo tick; sleep 0.1; done) & sleep 0.5; echo fg");
    assert!(result.text.text().contains("tick") && result.text.text().contains("fg"));

    // A child that leaves the session is found by its mark.
    let result = bench.bash("setsid sh -c 'echo $$; exec sleep 301' & disown; sleep 0.3; echo ok");
    let text = result.text.text();
    assert!(text.contains("ok") && text.contains("sleep 301"), "{text}");
    let pid = text.lines().next().unwrap();
    assert!(!alive(pid), "{pid} is alive: {text}");
}

#[test]
fn the_time_limit_ends_the_whole_group() {
    let bench = bench(16_384, false);
    let cases = [
        "echo begun; sleep 300",
        "echo begun; trap '' TERM INT HUP; sleep 300; sleep 300",
        "echo begun; timeout 400 sleep 300",
        "echo begun; sh -c 'sleep 300 & sleep 300'; wait",
    ];
    for command in cases {
        let begun = Instant::now();
        let result = bench.bash_for(&format!("echo $$; {command}"), 1);
        assert!(
            begun.elapsed() < Duration::from_secs(20),
            "{command}: {:?}",
            begun.elapsed()
        );
        let text = result.text.text();
        assert!(
            text.ends_with(
                "begun\n[timed out after 1 s: the command and all it started were ended]"
            ),
            "{text}"
        );
        assert_eq!(result.meta.exit, Some(Exit::TimedOut));
        assert!(!alive(text.lines().next().unwrap()), "{command}");
    }
}

#[test]
fn a_cancel_ends_the_command() {
    let bench = bench(16_384, false);
    let cancel = Cancel::new();
    let other = cancel.clone();
    let waker = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        other.cancel();
    });
    let begun = Instant::now();
    let arguments = serde_json::json!({ "command": "echo begun; sleep 300" });
    let result = bench.call_until("bash", arguments, &cancel);
    waker.join().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(20));
    assert_eq!(
        result.text.text(),
        "begun\n[cancelled: the command and all it started were ended]"
    );
}

/// A tool result of 1.7 MB on one line, or of 300 MB, blew the window and the memory.
#[test]
fn large_output_is_capped_in_every_window_and_kept_whole() {
    for (window, chars) in [(4_096, 3_200), (8_192, 6_000), (32_768, 60_000)] {
        let bench = bench(window, false);
        let one_line = format!("START{}END", "x".repeat(1_700_000));
        fs::write(bench.work.join("min.js"), &one_line).unwrap();
        fs::write(
            bench.work.join("wide.txt"),
            format!("{}\n", "w".repeat(90_000)).repeat(3),
        )
        .unwrap();
        let many: String = (1..=200_000).map(|i| format!("line {i}\n")).collect();
        fs::write(bench.work.join("many.txt"), &many).unwrap();
        let calls = [
            (
                "bash",
                serde_json::json!({ "command": "cat many.txt" }),
                "line 1\n",
            ),
            (
                "bash",
                serde_json::json!({ "command": "cat min.js" }),
                "START",
            ),
            (
                "read",
                serde_json::json!({ "path": "many.txt" }),
                "    1\tline 1\n",
            ),
            (
                "read",
                serde_json::json!({ "path": "min.js" }),
                "    1\tSTART",
            ),
            (
                "read",
                serde_json::json!({ "path": "wide.txt" }),
                "    1\tww",
            ),
            (
                "search",
                serde_json::json!({ "pattern": "." }),
                "many.txt:1: line 1\n",
            ),
        ];
        for (tool, arguments, begins) in calls {
            let result = bench.call(tool, arguments.clone());
            let text = result.text.text();
            assert!(result.ok, "{tool} {arguments}: {text}");
            assert!(
                text.starts_with(begins),
                "{tool} {arguments}: {}",
                &text[..100]
            );
            assert!(
                text.chars().count() <= chars,
                "{tool}: {}",
                text.chars().count()
            );
            assert!(text.len().div_ceil(4) <= window / 4, "{tool}");
            assert!(
                text.contains("[..."),
                "{tool} {arguments} has no marker:\n{text}"
            );
        }
        let cut = bench.bash("cat many.txt");
        let id = cut.artifact.unwrap();
        assert_eq!(
            fs::read_to_string(bench.tools.artifacts.path(id)).unwrap(),
            many
        );
        // The marker's own call reads on where the text stops.
        let omitted = cut.text.cut().unwrap();
        let marker = format!(
            "artifact {{\"id\": \"{id}\", \"start\": {}}}",
            omitted.first_line
        );
        assert!(
            cut.text.text().contains(&marker),
            "{marker}\n{}",
            cut.text.text()
        );
        let next = bench.call(
            "artifact",
            serde_json::json!({ "id": id.to_string(), "start": omitted.first_line, "lines": 2 }),
        );
        let n = omitted.first_line;
        assert!(
            next.text.text().starts_with(&format!("{n:>5}\tline {n}\n")),
            "{}",
            next.text.text()
        );
        let found = bench.call(
            "artifact",
            serde_json::json!({ "id": id.to_string(), "pattern": "^line 77777$" }),
        );
        assert_eq!(
            found.text.text(),
            "77777\tline 77777\n[1 of 200,000 lines match ^line 77777$]"
        );
    }
}

#[test]
fn a_flood_is_held_in_bounded_memory_and_its_end_is_seen() {
    let bench = bench(4_096, false);
    let result = bench.bash("yes | head -c 20000000; echo END");
    let text = result.text.text();
    assert!(
        text.starts_with("y\ny\n") && text.ends_with("\nEND"),
        "{text}"
    );
    assert_eq!(result.text.lines_total(), 10_000_001);
    let size = fs::metadata(bench.tools.artifacts.path(result.artifact.unwrap()))
        .unwrap()
        .len();
    assert_eq!(size, 20_000_004);
}

/// NULs and bytes that are not UTF-8 made the next request invalid, and the session was lost.
#[test]
fn binary_output_is_harmless() {
    let bench = bench(16_384, false);
    assert_eq!(
        bench.bash(r"printf 'a\0b\xff\xfe\xc3'").text.text(),
        "a\\x00b\\xff\\xfe\\xc3"
    );
    assert_eq!(
        bench.bash(r"printf '\xf0\x9f\x98'").text.text(),
        "\\xf0\\x9f\\x98"
    );
    assert_eq!(
        bench.bash("head -c 3000 /dev/urandom").text.text(),
        "[binary output, 3,000 bytes, unknown type; stored as a1]"
    );
    let result = bench.bash("cat /bin/true");
    assert!(
        result
            .text
            .text()
            .contains("ELF program or library; stored as a2]"),
        "{}",
        result.text.text()
    );
    fs::write(bench.work.join("x.png"), b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR").unwrap();
    fs::write(bench.work.join("zeros"), [0; 100_000]).unwrap();
    for (path, says) in [
        ("x.png", "PNG image, 16 bytes"),
        ("zeros", "unknown type, 100,000 bytes"),
    ] {
        let result = bench.call("read", serde_json::json!({ "path": path }));
        assert!(
            !result.ok && result.text.text().contains(says),
            "{}",
            result.text.text()
        );
    }
    let result = bench.bash(r"printf '\033]52;c;ZXZpbA==\007\033[31mred\033[0m\n'");
    assert_eq!(result.text.text(), "red");
}

#[test]
fn read_shows_what_an_editor_must_know() {
    let bench = bench(16_384, false);
    fs::write(bench.work.join("crlf.txt"), "\u{feff}a\r\nb\r\n").unwrap();
    fs::write(bench.work.join("latin1.txt"), b"caf\xe9\n").unwrap();
    fs::create_dir(bench.work.join("src")).unwrap();
    let read = |arguments| bench.call("read", arguments).text.text().to_owned();
    assert_eq!(
        read(serde_json::json!({ "path": "crlf.txt" })),
        "    1\ta\n    2\tb\n[line endings: CRLF; edit keeps them]\n[begins with a byte order mark; edit keeps it]"
    );
    assert_eq!(
        read(serde_json::json!({ "path": "latin1.txt" })),
        "    1\tcaf\\xe9\n[the file is not UTF-8 (byte 0xe9 at offset 3; looks like Latin-1 or Windows-1252): shown with \\xNN, edit refuses it]"
    );
    assert_eq!(
        read(serde_json::json!({ "path": "." })),
        "crlf.txt\nlatin1.txt\nsrc/\n[`.` is a directory with 3 entries]"
    );
    assert!(read(serde_json::json!({ "path": "clrf.txt" })).contains("did you mean `crlf.txt`?"));
    assert!(read(serde_json::json!({ "path": "/dev/zero" })).contains("device"));
    let fifo = bench.bash("mkfifo pipe && echo made");
    assert_eq!(fifo.text.text(), "made");
    assert!(read(serde_json::json!({ "path": "pipe" })).contains("named pipe"));
}

#[test]
fn without_a_terminal_commands_are_denied() {
    let bench = bench(16_384, false);
    let call = ToolCall {
        id: "c".into(),
        name: "bash".into(),
        arguments: r#"{"command":"touch x"}"#.into(),
    };
    let parsed = bench.tools.parse(&call).unwrap();
    let denied = bench
        .tools
        .gate(parsed, None, &mut Policy::new(Mode::Deny), &mut Nobody)
        .unwrap_err();
    let text = denied.text.text();
    assert!(!denied.ok && denied.meta.denied);
    assert!(text.starts_with("denied: it runs `touch`"), "{text}");
    assert!(!bench.work.join("x").exists());
}

#[test]
fn a_runaway_is_ended() {
    let bench = bench(16_384, false);
    let artifacts = &bench.tools.artifacts;
    let job = |script: &str, tasks_max, output_bytes_max| process::Job {
        program: Path::new("/bin/sh"),
        args: vec!["-c".into(), script.into()],
        directory: &bench.work,
        environment: environment(),
        mark: "OSTLER_COMMAND=runaway".into(),
        steps: Default::default(),
        timeout: Duration::from_secs(20),
        output_bytes_max,
        tasks_max,
        memory_bytes_max: u64::MAX,
    };
    let many = "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 60 & done; wait";
    let finished = process::run(job(many, 8, u64::MAX), artifacts, &Cancel::new()).unwrap();
    assert_eq!(finished.exit, Exit::TooManyTasks);
    let finished = process::run(job("yes", 100, 1 << 20), artifacts, &Cancel::new()).unwrap();
    assert_eq!(finished.exit, Exit::TooMuchOutput);
    let greedy = process::Job {
        memory_bytes_max: 1,
        ..job("sleep 60", 100, u64::MAX)
    };
    assert_eq!(
        process::run(greedy, artifacts, &Cancel::new())
            .unwrap()
            .exit,
        Exit::TooMuchMemory
    );
}
