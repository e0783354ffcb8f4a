//! The sandbox denies, each time beside proof that the same command works without it.

use std::fs;
use std::path::Path;

use super::{Bench, bench, bench_in};
use crate::tools::Sandbox;

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

/// Whether what is read-only is a mount, or a plain statement why not.
fn has_mounts(bench: &Bench) -> bool {
    let mounts = bench.tools.sandbox().active().read_only_mounts.is_on();
    if !mounts {
        println!("SKIPPED: no mount namespace on this machine");
    }
    mounts
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
    assert_eq!(fs::read_to_string(&victim).unwrap(), "whole");
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

/// `write` asks before it touches what git obeys, and a command in the sandbox wrote a hook unasked, to be
/// run outside at the person's next commit.
#[test]
fn what_git_obeys_cannot_be_planted() {
    let make = |work: &Path| {
        let made = std::process::Command::new("git")
            .args(["init", "-q"])
            .current_dir(work)
            .status();
        assert!(made.unwrap().success());
        fs::create_dir_all(work.join(".git/hooks")).unwrap();
    };
    let inside = bench_in(16_384, true, make);
    if !has_mounts(&inside) {
        return;
    }
    let outside = bench_in(16_384, false, make);
    for command in [
        "echo x > .git/hooks/post-checkout",
        "git config core.fsmonitor ./x",
        "mv .git old && mv old .git",
        "mv .git/hooks old && mv old .git/hooks",
        "cp .git/config c && mv c .git/config",
    ] {
        let result = outside.bash(command);
        assert!(result.ok, "{command}: {}", result.text.text());
        assert!(!inside.bash(command).ok, "{command}");
    }
    let commit = "echo x > x && git add x && git -c user.name=a -c user.email=a@b commit -qm m && git log --oneline";
    let result = inside.bash(commit);
    assert!(result.ok, "{}", result.text.text());
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
    if !has_mounts(&inside) {
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
