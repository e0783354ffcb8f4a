//! The tools as the loop uses them: parse, gate, run, on a real shell and a real sandbox.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::approve::{Answer, Asker, Mode, Policy, Question};
use super::*;

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
            .gate(parsed, &mut Policy::new(Mode::Yes), &mut Nobody)
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
    assert_eq!(
        result.text.text(),
        format!(
            "{pid}\n[1 process was still running when the shell ended, and was ended: sleep 300]"
        )
    );
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
        .gate(parsed, &mut Policy::new(Mode::Deny), &mut Nobody)
        .unwrap_err();
    let text = denied.text.text();
    assert!(!denied.ok && denied.meta.denied);
    assert!(text.starts_with("denied: it runs `touch`"), "{text}");
    assert!(!bench.work.join("x").exists());
}

// ---- the sandbox ----

/// A sandbox, or a plain statement why this machine has none.
fn sandboxed() -> Option<Bench> {
    let bench = bench(16_384, true);
    println!("{}", bench.tools.sandbox().active());
    if !bench.tools.sandbox().is_verified() {
        println!("SKIPPED: no verified sandbox on this machine");
        return None;
    }
    Some(bench)
}

/// Each of these works without the sandbox and fails inside it.
#[test]
fn the_sandbox_denies_what_works_without_it() {
    let Some(inside) = sandboxed() else { return };
    let outside = bench(16_384, false);
    let python = Path::new("/usr/bin/python3").exists();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let socket = inside.outside.join("socket");
    let _unix = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let secret = inside.outside.join("secret");
    fs::write(&secret, "secret").unwrap();
    let victim = inside.outside.join("victim");
    fs::write(&victim, "whole").unwrap();
    std::os::unix::fs::symlink(&inside.outside, inside.work.join("link")).unwrap();
    std::os::unix::fs::symlink(&inside.outside, outside.work.join("link")).unwrap();
    let [secret, victim, socket] = [&secret, &victim, &socket].map(|p| p.display().to_string());
    let pid = std::process::id();
    let mut commands = vec![
        format!("cat {secret}"),
        "cat link/secret".to_owned(),
        format!("echo x >> {victim}"),
        "echo x > link/new && rm link/new".to_owned(),
        format!("ln {secret} hard && rm hard"),
        format!("truncate -s 0 {victim} && printf whole > {victim}"),
        format!("mv {victim} moved && mv moved {victim}"),
        format!("mkdir {victim}.d && rmdir {victim}.d"),
        format!("kill -0 {pid}"),
        format!("head -c1 /proc/{pid}/environ | wc -c | grep 1"),
    ];
    if outside
        .bash("exec 3<>/dev/tcp/127.0.0.1/1")
        .text
        .text()
        .contains("refused")
    {
        commands.push(format!("exec 3<>/dev/tcp/127.0.0.1/{port}"));
    }
    if python {
        commands.push(format!(
            "python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", {port}))'"
        ));
        commands.push(format!(
            "python3 -c 'import socket; socket.socket(socket.AF_UNIX).connect(\"{socket}\")'"
        ));
        commands.push(
            "python3 -c 'import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM)'"
                .to_owned(),
        );
        commands.push(
            "python3 -c 'import socket; socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)'"
                .to_owned(),
        );
    }
    for command in &commands {
        let free = outside.bash(command);
        assert!(
            free.ok,
            "the test tests nothing: {command}: {}",
            free.text.text()
        );
        let held = inside.bash(command);
        assert!(!held.ok, "NOT DENIED: {command}: {}", held.text.text());
    }
    assert_eq!(
        fs::read_to_string(&victim).unwrap(),
        "wholex\n".replace("wholex\n", "whole")
    );
    assert_eq!(fs::read_to_string(&secret).unwrap(), "secret");
}

/// What a day's work needs goes on inside.
#[test]
fn the_sandbox_allows_the_workspace_and_the_tools() {
    let Some(inside) = sandboxed() else { return };
    for command in [
        "echo x > f && mkdir -p d/e && mv f d/e/ && ln -s d l && cat l/e/f && rm -r d l",
        "echo x > \"$TMPDIR/t\" && cat \"$TMPDIR/t\" && t=$(mktemp) && rm \"$t\"",
        "echo x > /dev/null && head -c 4 /dev/urandom > /dev/null && cat /etc/passwd > /dev/null",
        "ls /usr/bin > /dev/null && date > /dev/null && cat /proc/self/status > /dev/null",
        "chmod 700 . && touch f && chmod 600 f && rm f",
        "echo a | cat | cat > p && (sleep 0.01; echo b) >> p && cat p && rm p",
        "echo to-stderr > /dev/stderr",
        "cat <<< here && cat <(echo process-substitution)",
        "git init -q g && cd g && git config user.name a && git config user.email a@b && echo x > x && git add x && git commit -qm m && git log --oneline",
        "if command -v python3 >/dev/null; then python3 -c 'import socket, subprocess, tempfile, threading; socket.socketpair(); subprocess.run([\"true\"], check=True); tempfile.TemporaryFile(); t = threading.Thread(target=print); t.start(); t.join()'; fi",
    ] {
        let result = inside.bash(command);
        assert!(result.ok, "{command}: {}", result.text.text());
    }
    assert_eq!(
        fs::read_dir(&inside.work).unwrap().count(),
        1,
        "only g is left"
    );
}

/// Models write to /tmp. There it is the command's own, and `read` and `write` mean the same one.
#[test]
fn the_tmp_of_commands_is_their_own() {
    let Some(inside) = sandboxed() else { return };
    if !inside.tools.sandbox().tmp_is_temporary() {
        println!("SKIPPED: no mount namespace on this machine");
        return;
    }
    let name = format!("ostler-test-{}", std::process::id());
    let result = inside.bash(&format!(
        "echo mine > /tmp/{name} && cat \"$TMPDIR/{name}\""
    ));
    assert_eq!(result.text.text(), "mine");
    assert!(!Path::new("/tmp").join(&name).exists());
    let read = inside.call(
        "read",
        serde_json::json!({ "path": format!("/tmp/{name}") }),
    );
    assert_eq!(read.text.text(), "    1\tmine\n");
    let path = format!("/tmp/{name}-2");
    let write = inside.call("write", serde_json::json!({ "path": path, "content": "x" }));
    assert!(write.ok, "{}", write.text.text());
    assert_eq!(inside.bash(&format!("cat {path}")).text.text(), "x");
    let shared = "python3 -c 'import multiprocessing as m; p = m.Pool(2); print(p.map(abs, [-1]))'";
    if Path::new("/usr/bin/python3").exists() {
        assert_eq!(inside.bash(shared).text.text(), "[1]");
    }
}

#[test]
fn a_denied_command_is_told_about_the_sandbox() {
    let Some(inside) = sandboxed() else { return };
    let result = inside.bash(&format!("echo x > {}/y", inside.outside.display()));
    assert!(!result.ok);
    assert!(
        result
            .text
            .text()
            .contains("[the sandbox: commands write only in the workspace"),
        "{}",
        result.text.text()
    );
    assert!(!inside.outside.join("y").exists());
}

/// Modes and times are not landlock's business; a read-only mount makes them safe.
#[test]
fn read_only_mounts_protect_modes_too() {
    let Some(inside) = sandboxed() else { return };
    if !inside.tools.sandbox().active().read_only_mounts.is_on() {
        println!("SKIPPED: no mount namespace on this machine");
        return;
    }
    let file = inside.outside.join("f");
    fs::write(&file, "x").unwrap();
    let command = format!("chmod 777 {}", file.display());
    assert!(!inside.bash(&command).ok);
    assert!(bench(16_384, false).bash(&command).ok);
}

#[test]
fn root_keeps_no_power_over_the_machine() {
    let Some(inside) = sandboxed() else { return };
    let result = inside.bash("grep -E 'CapEff|CapBnd|NoNewPrivs|Seccomp:' /proc/self/status");
    let text = result.text.text();
    let value = |key: &str| {
        let line = text.lines().find(|l| l.starts_with(key)).unwrap();
        u64::from_str_radix(line.split('\t').nth(1).unwrap().trim(), 16).unwrap()
    };
    // CAP_SYS_ADMIN, CAP_NET_ADMIN, CAP_SYS_PTRACE, CAP_SYS_MODULE, CAP_MKNOD.
    for capability in [21, 12, 19, 16, 27] {
        assert_eq!(
            value("CapEff:") & (1 << capability),
            0,
            "{capability}: {text}"
        );
    }
    assert_eq!(value("NoNewPrivs:"), 1);
    assert_eq!(value("Seccomp:"), 2);
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

#[test]
fn a_sandbox_that_is_off_says_so() {
    let sandbox = Sandbox::off("asked for with --no-sandbox");
    assert!(!sandbox.is_verified());
    assert!(
        sandbox
            .active()
            .to_string()
            .starts_with("NOT sandboxed, every command asks: asked for with --no-sandbox")
    );
}
