//! The boundary around commands. Files by landlock, system calls by seccomp, a network
//! of its own and read-only mounts where the kernel allows namespaces.
//!
//! What is active was tried: a probe forks a child inside the sandbox that writes and reads outside
//! and opens sockets, and the same child without the sandbox to show that the test tests something.
//! Invariant: a command runs either with everything that the probe found active, or not at all.
//! With mounts, the hooks and the configuration of the workspace's own git repository are read-only: git
//! obeys them outside.
//! Not covered: what a program does with descriptors it was given (none are); without namespaces, modes
//! and times of files outside, and git's hooks and configuration; those of a repository that is made while
//! the session runs, or lies deeper; before Linux 6.12, signals to other processes of the same user. On
//! systems other than Linux there is no sandbox, and it says so.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
mod roots;
#[cfg(target_os = "linux")]
mod seccomp;

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use super::os::Steps;

/// Whether commands may reach the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    Blocked,
    Allowed,
}

/// What a sandbox is made for.
#[derive(Clone, Debug)]
pub struct SandboxConfig {
    /// Readable and writable; where commands run.
    pub workspace: PathBuf,
    /// A directory for temporary files of commands: made if missing, readable and writable.
    pub temporary: PathBuf,
    pub network: Network,
    /// More that may be read, beyond the system and the toolchains.
    pub also_readable: Vec<PathBuf>,
    /// The environment, for PATH and the roots of toolchains.
    pub environment: Vec<(OsString, OsString)>,
}

/// One layer: on, with what it is, or off, with the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layer {
    On(String),
    Off(String),
}

impl Layer {
    pub fn is_on(&self) -> bool {
        matches!(self, Layer::On(_))
    }
}

/// What the probe found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Active {
    pub landlock: Layer,
    pub seccomp: Layer,
    pub network_namespace: Layer,
    pub read_only_mounts: Layer,
    /// The self-check: denied inside, possible outside.
    pub verified: Layer,
}

impl fmt::Display for Active {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let layers = [
            ("files", &self.landlock),
            ("system calls", &self.seccomp),
            ("network", &self.network_namespace),
            ("mounts", &self.read_only_mounts),
        ];
        match &self.verified {
            Layer::On(how) => write!(f, "sandbox verified ({how})")?,
            Layer::Off(why) => write!(f, "NOT sandboxed, every command asks: {why}")?,
        }
        for (name, layer) in layers {
            match layer {
                Layer::On(what) => write!(f, "; {name}: {what}")?,
                Layer::Off(why) => write!(f, "; {name}: off ({why})")?,
            }
        }
        Ok(())
    }
}

/// A probed sandbox, ready to be put around commands.
pub struct Sandbox {
    active: Active,
    readable: Vec<PathBuf>,
    temporary: Option<PathBuf>,
    tmp_is_temporary: bool,
    #[cfg(target_os = "linux")]
    confinement: Option<std::sync::Arc<super::os::Confinement>>,
}

impl Sandbox {
    /// Builds the strongest sandbox that this kernel allows and tries it. It never fails: what does
    /// not work is off, with the reason.
    pub fn probe(config: &SandboxConfig) -> Sandbox {
        #[cfg(target_os = "linux")]
        return linux::probe(config);
        #[cfg(not(target_os = "linux"))]
        {
            let _ = config;
            Sandbox::off("there is a sandbox on Linux only")
        }
    }

    /// No sandbox, because of `why`.
    pub fn off(why: &str) -> Sandbox {
        let off = || Layer::Off(why.to_owned());
        let active = Active {
            landlock: off(),
            seccomp: off(),
            network_namespace: off(),
            read_only_mounts: off(),
            verified: off(),
        };
        Sandbox {
            active,
            readable: Vec::new(),
            temporary: None,
            tmp_is_temporary: false,
            #[cfg(target_os = "linux")]
            confinement: None,
        }
    }

    /// To be printed.
    pub fn active(&self) -> &Active {
        &self.active
    }

    /// Whether the self-check held: files and sockets outside are out of reach.
    pub fn is_verified(&self) -> bool {
        self.active.verified.is_on()
    }

    /// What commands may read besides the workspace.
    pub fn readable(&self) -> &[PathBuf] {
        &self.readable
    }

    /// Where commands may put temporary files.
    pub fn temporary(&self) -> Option<&Path> {
        self.temporary.as_deref()
    }

    /// Whether commands see that directory as `/tmp`, too.
    pub fn tmp_is_temporary(&self) -> bool {
        self.tmp_is_temporary
    }

    /// Adds the confinement to what a child does before it becomes the command.
    pub(super) fn confine(&self, steps: &mut Steps) {
        #[cfg(target_os = "linux")]
        {
            steps.confinement.clone_from(&self.confinement);
        }
        #[cfg(not(target_os = "linux"))]
        let _ = steps;
    }
}
