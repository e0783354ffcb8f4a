//! The environment that commands get: the user's, without what asks, pages, colours or lets in.
//!
//! Secrets stay out: what a command prints goes to a model, and what a file says may have made it
//! print. Variables that make a shell run something at its start stay out too.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// Set for every command.
const FIXED: &[(&str, &str)] = &[
    // No colours, no cursor, no pager, no editor, no question.
    ("TERM", "dumb"),
    ("NO_COLOR", "1"),
    ("PAGER", "cat"),
    ("MANPAGER", "cat"),
    ("GIT_PAGER", "cat"),
    ("GIT_TERMINAL_PROMPT", "0"),
    // `:` is an editor that saves what it was given; git knows it.
    ("EDITOR", ":"),
    ("VISUAL", ":"),
    ("GIT_EDITOR", ":"),
    ("GIT_SEQUENCE_EDITOR", ":"),
    ("SSH_ASKPASS_REQUIRE", "never"),
    ("GIT_SSH_COMMAND", "ssh -oBatchMode=yes"),
    ("DEBIAN_FRONTEND", "noninteractive"),
    ("PIP_NO_INPUT", "1"),
    ("PIP_DISABLE_PIP_VERSION_CHECK", "1"),
    ("NPM_CONFIG_UPDATE_NOTIFIER", "false"),
    // Output so far is not lost at a time limit.
    ("PYTHONUNBUFFERED", "1"),
    // What a repository may have git run when it only shows something.
    ("GIT_CONFIG_COUNT", "4"),
    ("GIT_CONFIG_KEY_0", "core.fsmonitor"),
    ("GIT_CONFIG_VALUE_0", "false"),
    ("GIT_CONFIG_KEY_1", "log.showSignature"),
    ("GIT_CONFIG_VALUE_1", "false"),
    // A format of the repository's own may ask for signatures (`%G?`), and so for its `gpg.program`.
    ("GIT_CONFIG_KEY_2", "format.pretty"),
    ("GIT_CONFIG_VALUE_2", "medium"),
    // A remote `ext::COMMAND` is a command.
    ("GIT_CONFIG_KEY_3", "protocol.ext.allow"),
    ("GIT_CONFIG_VALUE_3", "never"),
];

/// Not passed on: they start something, ask somewhere, or change which code runs.
const DROPPED: &[&str] = &[
    "BASH_ENV",
    "ENV",
    "PROMPT_COMMAND",
    "SHELLOPTS",
    "BASHOPTS",
    "CDPATH",
    "GLOBIGNORE",
    "PS4",
    "SSH_AUTH_SOCK",
    "SSH_AGENT_PID",
    "SSH_ASKPASS",
    "GIT_ASKPASS",
    "GPG_AGENT_INFO",
    "GPG_TTY",
    "DBUS_SESSION_BUS_ADDRESS",
    "DISPLAY",
    "WAYLAND_DISPLAY",
    "XAUTHORITY",
    "COLORTERM",
    "LS_COLORS",
    "FORCE_COLOR",
    "CLICOLOR_FORCE",
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
];

/// Parts of names that hold secrets: `HF_TOKEN`, `OPENAI_API_KEY`, `AWS_SECRET_ACCESS_KEY`, ...
const SECRET_PARTS: &[&str] = &[
    "TOKEN",
    "SECRET",
    "PASSWORD",
    "PASSWD",
    "API_KEY",
    "APIKEY",
    "ACCESS_KEY",
    "PRIVATE_KEY",
    "CREDENTIAL",
];

/// The environment of commands: `own` is the harness's, `temporary` where they may write.
pub fn environment(
    own: &[(OsString, OsString)],
    temporary: Option<&Path>,
) -> Vec<(OsString, OsString)> {
    let mut out: Vec<(OsString, OsString)> = own
        .iter()
        .filter(|(name, _)| passes(name))
        .cloned()
        .collect();
    out.extend(
        FIXED
            .iter()
            .map(|(name, value)| (OsString::from(name), OsString::from(value))),
    );
    if let Some(temporary) = temporary {
        let moved = ["TMPDIR", "XDG_CACHE_HOME", "NPM_CONFIG_CACHE"];
        out.retain(|(name, _)| !moved.iter().any(|moved| name == moved));
        let below = |name: &str| temporary.join(name).into_os_string();
        out.push(("TMPDIR".into(), temporary.as_os_str().to_owned()));
        out.push(("XDG_CACHE_HOME".into(), below("cache")));
        out.push(("NPM_CONFIG_CACHE".into(), below("npm")));
    }
    out
}

fn passes(name: &OsStr) -> bool {
    let name = name.to_string_lossy().to_uppercase();
    let fixed = FIXED.iter().any(|(fixed, _)| *fixed == name);
    let secret = SECRET_PARTS.iter().any(|part| name.contains(part));
    // Functions exported by bash: `BASH_FUNC_ls%%` would be run for `ls`.
    let function = name.starts_with("BASH_FUNC_");
    !(fixed || secret || function || DROPPED.contains(&name.as_str()))
}

/// Whether every directory of the command path is absolute and outside the workspace, so that the
/// name of a known command means the system's.
pub fn path_is_trusted(own: &[(OsString, OsString)], workspace: &Path) -> bool {
    let Some((_, path)) = own.iter().find(|(name, _)| name == "PATH") else {
        return false;
    };
    std::env::split_paths(path).all(|dir| {
        let real = dir.canonicalize().unwrap_or(dir.clone());
        dir.is_absolute() && !real.starts_with(workspace)
    })
}

/// The shell: bash where there is one on the command path, else sh.
pub fn shell(own: &[(OsString, OsString)]) -> PathBuf {
    let path = own
        .iter()
        .find(|(name, _)| name == "PATH")
        .map(|(_, path)| path.clone());
    let dirs: Vec<PathBuf> = path.iter().flat_map(std::env::split_paths).collect();
    let system = ["/bin", "/usr/bin", "/usr/local/bin"].map(PathBuf::from);
    let all = system
        .iter()
        .chain(dirs.iter().filter(|dir| dir.is_absolute()));
    let found = all.map(|dir| dir.join("bash")).find(|bash| bash.is_file());
    found.unwrap_or_else(|| PathBuf::from("/bin/sh"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(list: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
        list.iter()
            .map(|(k, v)| (OsString::from(k), OsString::from(v)))
            .collect()
    }

    #[test]
    fn secrets_and_start_files_stay_out() {
        let own = pairs(&[
            ("PATH", "/usr/bin"),
            ("HOME", "/h"),
            ("LANG", "de_DE.UTF-8"),
            ("HF_TOKEN", "x"),
            ("OPENAI_API_KEY", "x"),
            ("AWS_SECRET_ACCESS_KEY", "x"),
            ("BASH_ENV", "x"),
            ("TERM", "xterm"),
            ("BASH_FUNC_ls%%", "() { rm -r d; }"),
            ("SSH_AUTH_SOCK", "x"),
            ("CARGO_HOME", "/c"),
        ]);
        let out = environment(&own, Some(Path::new("/t")));
        let get = |name: &str| {
            let all: Vec<_> = out
                .iter()
                .filter(|(k, _)| k == name)
                .map(|(_, v)| v.to_str().unwrap())
                .collect();
            assert!(all.len() <= 1, "{name} twice");
            all.first().copied()
        };
        for (name, value) in [
            ("PATH", Some("/usr/bin")),
            ("HOME", Some("/h")),
            ("LANG", Some("de_DE.UTF-8")),
            ("CARGO_HOME", Some("/c")),
            ("TERM", Some("dumb")),
            ("TMPDIR", Some("/t")),
            ("GIT_TERMINAL_PROMPT", Some("0")),
            ("HF_TOKEN", None),
            ("OPENAI_API_KEY", None),
            ("AWS_SECRET_ACCESS_KEY", None),
            ("BASH_ENV", None),
            ("BASH_FUNC_ls%%", None),
            ("SSH_AUTH_SOCK", None),
        ] {
            assert_eq!(get(name), value, "{name}");
        }
    }

    #[test]
    fn a_path_into_the_workspace_is_not_trusted() {
        let dir = tempfile::tempdir().unwrap();
        let work = dir.path().canonicalize().unwrap();
        let trusted = |path: &str| path_is_trusted(&pairs(&[("PATH", path)]), &work);
        assert!(trusted("/usr/bin:/bin"));
        assert!(
            !trusted("/usr/bin:.")
                && !trusted("/usr/bin:")
                && !trusted(&format!("{}/bin:/bin", work.display()))
        );
        assert!(!path_is_trusted(&[], &work));
    }

    /// `git log` is run unasked where there is no sandbox: a cloned repository's configuration must not make it
    /// run a program. The same configuration does without what we set.
    #[test]
    fn a_repository_cannot_have_git_log_run_its_programs() {
        let dir = tempfile::tempdir().unwrap();
        let evil = dir.path().join("evil");
        std::fs::write(&evil, "#!/bin/sh\ntouch \"$(dirname \"$0\")/ran\"\n").unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&evil, mode).unwrap();
        let own: Vec<(OsString, OsString)> = std::env::vars_os().collect();
        let git = |args: &[&str], environment: &[(OsString, OsString)]| {
            let output = std::process::Command::new("git")
                .args(args)
                .current_dir(dir.path())
                .env_clear()
                .envs(environment.iter().cloned())
                .output()
                .unwrap();
            assert!(output.status.success(), "{args:?}: {output:?}");
        };
        let tree = "4b825dc642cb6eb9a060e54bf8d69288fbee4904";
        git(&["init", "-q"], &own);
        git(&["hash-object", "-t", "tree", "-w", "/dev/null"], &own);
        let commit = format!(
            "tree {tree}\nauthor a <a@b> 1 +0000\ncommitter a <a@b> 1 +0000\ngpgsig -----BEGIN PGP SIGNATURE-----\n \n x\n -----END PGP SIGNATURE-----\n\nm\n"
        );
        std::fs::write(dir.path().join("commit"), commit).unwrap();
        git(&["hash-object", "-t", "commit", "-w", "commit"], &own);
        let hash = std::process::Command::new("git")
            .args(["hash-object", "-t", "commit", "commit"])
            .current_dir(dir.path())
            .output()
            .unwrap();
        let hash = String::from_utf8(hash.stdout).unwrap();
        git(&["update-ref", "HEAD", hash.trim()], &own);
        git(&["config", "gpg.program", evil.to_str().unwrap()], &own);
        git(&["config", "format.pretty", "%G? %s"], &own);
        let ran = dir.path().join("ran");
        git(&["log"], &environment(&own, None));
        assert!(!ran.exists(), "with ours");
        git(&["log"], &own);
        assert!(ran.exists(), "the test tests something");
    }
}
