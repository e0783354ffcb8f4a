//! Which parts of the machine a sandboxed command may read: the system, its toolchains, and those
//! in the home directory, less what holds secrets.
//!
//! Landlock can only grant, never take back below a granted directory; so where secrets lie beside
//! what is needed (`/etc`, `~/.cargo`), the entries are granted one by one.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

/// Whole trees of the system.
const SYSTEM: &[&str] = &[
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/opt",
    "/nix/store",
    "/snap",
    "/proc",
    "/sys/devices/system",
    "/sys/fs/cgroup",
    "/sys/kernel/mm",
    "/sys/class/drm",
    "/run/current-system",
    "/var/lib/dpkg",
    "/var/cache/fontconfig",
];

/// What is not granted in `/etc`, by the start of its name.
const ETC_SECRETS: &[&str] = &[
    "shadow",
    "gshadow",
    "sudoers",
    "ssh",
    "ssl",
    "ppp",
    "wireguard",
    "NetworkManager",
    "krb5.keytab",
    "security",
    "docker",
    "kubernetes",
    "polkit",
    "cups",
    "audit",
    "letsencrypt",
    "credstore",
    ".",
];

/// What is granted in those of the above that programs need a part of.
const ETC_PUBLIC_PARTS: &[&str] = &[
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/etc/ssl/cert.pem",
    "/etc/ssh/ssh_config",
];

/// Toolchains and their settings below the home directory. No `~/.cargo/credentials.toml`, no
/// `.npmrc`, no `.pypirc`, no `.netrc`: those hold tokens.
const HOME_PARTS: &[&str] = &[
    ".rustup",
    ".cargo/bin",
    ".cargo/registry",
    ".cargo/git",
    ".cargo/env",
    ".cargo/config.toml",
    ".nvm",
    ".fnm",
    ".volta",
    ".bun/bin",
    ".deno/bin",
    ".pyenv",
    ".rbenv",
    ".asdf",
    ".sdkman",
    ".jenv",
    ".ghcup",
    ".cabal/bin",
    ".cabal/packages",
    ".opam",
    ".elan",
    ".juliaup",
    "go",
    ".go",
    ".dotnet",
    ".local/bin",
    ".local/lib",
    ".local/share/mise",
    ".local/share/uv",
    ".local/share/fnm",
    ".local/share/pnpm",
    ".local/share/pipx",
    ".local/share/rtx",
    ".npm-global",
    ".npm-packages",
    "miniconda3",
    "miniforge3",
    "mambaforge",
    "anaconda3",
    ".conda",
    ".gitconfig",
    ".config/git/config",
    ".config/git/ignore",
    ".config/git/attributes",
    ".m2/repository",
    ".gradle/caches",
    ".linuxbrew",
];

/// Variables that name the root of a toolchain.
const TOOLCHAIN_VARIABLES: &[&str] = &[
    "CONDA_PREFIX",
    "GOPATH",
    "GOROOT",
    "JAVA_HOME",
    "NVM_DIR",
    "PYENV_ROOT",
    "RUSTUP_HOME",
    "VIRTUAL_ENV",
    "VOLTA_HOME",
];

/// Devices that a command may read and write.
pub const DEVICES: &[&str] = &[
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
];

/// The existing roots that may be read and executed, for this environment.
pub fn readable(environment: &[(OsString, OsString)], workspace: &Path) -> Vec<PathBuf> {
    let get = |name: &str| {
        environment
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value)
    };
    let home = get("HOME")
        .map(PathBuf::from)
        .filter(|home| home.is_absolute());
    let mut roots: Vec<PathBuf> = SYSTEM.iter().map(PathBuf::from).collect();
    roots.extend(etc(Path::new("/etc")));
    roots.extend(ETC_PUBLIC_PARTS.iter().map(PathBuf::from));
    if let Some(home) = &home {
        roots.extend(HOME_PARTS.iter().map(|part| home.join(part)));
    }
    if let Some(cargo) = get("CARGO_HOME").map(PathBuf::from) {
        let parts = ["bin", "registry", "git", "env", "config.toml"];
        roots.extend(parts.iter().map(|part| cargo.join(part)));
    }
    roots.extend(
        TOOLCHAIN_VARIABLES
            .iter()
            .filter_map(|name| get(name))
            .map(PathBuf::from),
    );
    let path = get("PATH").cloned().unwrap_or_default();
    roots.extend(std::env::split_paths(&path));
    roots.extend(repository_above(workspace));
    roots.retain(|root| {
        root.is_absolute() && root.exists() && !too_much(root, home.as_deref(), workspace)
    });
    roots.sort();
    roots.dedup();
    roots
}

/// A variable or a PATH that names the home directory, or anything above it or the workspace, is
/// not followed: it would grant all of it.
fn too_much(root: &Path, home: Option<&Path>, workspace: &Path) -> bool {
    let real = root.canonicalize().unwrap_or_else(|_| root.to_owned());
    let holds = |other: &Path| {
        other
            .canonicalize()
            .is_ok_and(|other| other.starts_with(&real))
    };
    let shared = [
        "/tmp", "/var/tmp", "/home", "/root", "/etc", "/var", "/run", "/dev", "/sys", "/mnt",
    ];
    home.is_some_and(holds) || holds(workspace) || shared.iter().any(|dir| real == Path::new(dir))
}

fn etc(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else {
        return Vec::new();
    };
    let public = |name: &str| !ETC_SECRETS.iter().any(|secret| name.starts_with(secret));
    entries
        .flatten()
        .filter(|entry| entry.file_name().to_str().is_some_and(public))
        .map(|entry| entry.path())
        .collect()
}

/// The `.git` of the repository that the workspace is a part of, so that git can read it.
fn repository_above(workspace: &Path) -> Option<PathBuf> {
    let git = workspace.ancestors().skip(1).map(|dir| dir.join(".git"));
    git.into_iter()
        .find(|git| git.join("HEAD").is_file() && git.join("objects").is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_among_the_roots() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().join("home");
        for part in [
            ".cargo/bin",
            ".cargo/registry",
            ".ssh",
            "tools/bin",
            "project/sub",
        ] {
            fs::create_dir_all(home.join(part)).unwrap();
        }
        fs::write(home.join(".cargo/credentials.toml"), "token").unwrap();
        fs::create_dir_all(home.join("project/.git/objects")).unwrap();
        fs::write(home.join("project/.git/HEAD"), "ref: refs/heads/main").unwrap();
        let path = format!("{0}/tools/bin:{0}:/:.:/tmp", home.display());
        let environment = [
            ("HOME".into(), home.clone().into_os_string()),
            ("PATH".into(), path.into()),
            ("GOPATH".into(), home.clone().into_os_string()),
        ];
        let roots = readable(&environment, &home.join("project/sub"));
        let granted = |path: &Path| roots.iter().any(|root| path.starts_with(root));
        for path in [
            ".cargo/bin/rustc",
            ".cargo/registry/x",
            "tools/bin/x",
            "project/.git/HEAD",
        ] {
            assert!(granted(&home.join(path)), "{path}");
        }
        for path in [".ssh/id", ".cargo/credentials.toml", "project/x", "x"] {
            assert!(!granted(&home.join(path)), "{path}");
        }
        for path in [
            "/etc/shadow",
            "/etc/shadow-",
            "/etc/sudoers.d/x",
            "/etc/ssl/private/key",
            "/root/x",
            "/tmp/x",
        ] {
            assert!(!granted(Path::new(path)), "{path}");
        }
        assert!(granted(Path::new("/usr/bin/env")));
    }
}
