//! Builds the Linux sandbox and tries it.

use std::ffi::CString;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use landlock::{
    ABI, Access, AccessFs, AccessNet, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreated,
    RulesetCreatedAttr, Scope,
};

use super::{Active, Layer, Network, Sandbox, SandboxConfig, roots, seccomp};
use crate::tools::os::{
    self, Check, Confinement, Mount, Namespaces, Report, Steps, WritableMounts, effective_group,
    effective_user, explain, landlock_abi,
};

/// The newest landlock version whose rights this code was written for.
const ABI_KNOWN: ABI = ABI::V7;
/// From this version on, landlock watches `truncate`.
const ABI_WITH_TRUNCATE: u32 = 3;

pub fn probe(config: &SandboxConfig) -> Sandbox {
    match build(config) {
        Ok(sandbox) => sandbox,
        Err(why) => Sandbox::off(&why),
    }
}

fn build(config: &SandboxConfig) -> Result<Sandbox, String> {
    let workspace = config
        .workspace
        .canonicalize()
        .map_err(|e| format!("workspace: {e}"))?;
    fs::create_dir_all(&config.temporary).map_err(|e| format!("temporary directory: {e}"))?;
    let temporary = config
        .temporary
        .canonicalize()
        .map_err(|e| format!("temporary directory: {e}"))?;
    let mut readable = roots::readable(&config.environment, &workspace);
    readable.extend(config.also_readable.iter().filter(|p| p.exists()).cloned());

    fs::create_dir_all(temporary.join("shm")).map_err(|e| format!("temporary directory: {e}"))?;

    let ground = ProbeGround::new(&workspace, &temporary, &readable)?;
    let abi = landlock_abi();
    let rules = Rules {
        workspace: &workspace,
        temporary: &temporary,
        readable: &readable,
    };
    let (ruleset, landlock) = match landlock_layer(abi, &rules, config.network) {
        Ok(fd) => (Some(fd), Layer::On(format!("landlock ABI {abi}"))),
        Err(why) => (None, Layer::Off(why)),
    };
    let (filters, seccomp) = match seccomp::filters(config.network, abi < ABI_WITH_TRUNCATE) {
        Ok(filters) => (filters, Layer::On(describe_filter(config.network).into())),
        Err(why) => (Vec::new(), Layer::Off(why)),
    };
    let mut confinement = Confinement {
        namespaces: Namespaces::None,
        writable_mounts: None,
        user_map: one_to_one(effective_user()),
        group_map: one_to_one(effective_group()),
        ruleset,
        filters,
    };
    let network_namespace = choose_namespaces(&mut confinement, config.network, &ground);
    let (read_only_mounts, tmp_is_temporary) = choose_mounts(&mut confinement, &rules, &ground);

    let confinement = Arc::new(confinement);
    let verified = verify(&confinement, config.network, &ground);
    let active = Active {
        landlock,
        seccomp,
        network_namespace,
        read_only_mounts,
        verified,
    };
    Ok(Sandbox {
        active,
        readable,
        temporary: Some(temporary),
        tmp_is_temporary,
        confinement: Some(confinement),
    })
}

fn describe_filter(network: Network) -> &'static str {
    match network {
        Network::Blocked => "seccomp, no new sockets",
        Network::Allowed => "seccomp, internet sockets allowed",
    }
}

fn one_to_one(id: u32) -> CString {
    // Digits and spaces hold no NUL.
    CString::new(format!("{id} {id} 1")).unwrap_or_default()
}

struct Rules<'a> {
    workspace: &'a Path,
    temporary: &'a Path,
    readable: &'a [PathBuf],
}

fn landlock_layer(abi: u32, rules: &Rules<'_>, network: Network) -> Result<OwnedFd, String> {
    if abi == 0 {
        return Err("this kernel has no landlock, or it is switched off".into());
    }
    let ruleset = ruleset(rules, network).map_err(|e| e.to_string())?;
    Option::<OwnedFd>::from(ruleset).ok_or_else(|| "landlock took no rules".to_owned())
}

fn ruleset(rules: &Rules<'_>, network: Network) -> Result<RulesetCreated, landlock::RulesetError> {
    let all = AccessFs::from_all(ABI_KNOWN);
    let read = AccessFs::from_read(ABI_KNOWN);
    let mut ruleset = Ruleset::default()
        .handle_access(all)?
        .scope(Scope::from_all(ABI_KNOWN))?;
    if network == Network::Blocked {
        ruleset = ruleset.handle_access(AccessNet::from_all(ABI_KNOWN))?;
    }
    let mut created = ruleset.create()?;
    for path in rules.readable {
        created = grant(created, path, read)?;
    }
    for device in roots::DEVICES {
        created = grant(
            created,
            Path::new(device),
            AccessFs::ReadFile | AccessFs::WriteFile,
        )?;
    }
    // Everything but making devices: a device node is a way to anything.
    let work = all & !(AccessFs::MakeChar | AccessFs::MakeBlock);
    // The directory that is seen as /dev/shm is reached without passing through its parent.
    for path in [rules.workspace, rules.temporary, &rules.shared_memory()] {
        created = grant(created, path, work)?;
    }
    Ok(created)
}

fn grant(
    ruleset: RulesetCreated,
    path: &Path,
    access: landlock::BitFlags<AccessFs>,
) -> Result<RulesetCreated, landlock::RulesetError> {
    // A root that cannot be opened, or is gone by now, is simply not granted.
    let Ok(fd) = PathFd::new(path) else {
        return Ok(ruleset);
    };
    let access = if path.is_dir() {
        access
    } else {
        access & AccessFs::from_file(ABI_KNOWN)
    };
    ruleset.add_rule(PathBeneath::new(fd, access))
}

/// A network namespace: with the rights at hand, else in a user namespace, else none.
fn choose_namespaces(
    confinement: &mut Confinement,
    network: Network,
    ground: &ProbeGround,
) -> Layer {
    if network == Network::Allowed {
        return Layer::Off("the network is allowed".into());
    }
    let mut why = String::new();
    let ways = [
        (Namespaces::Network, "namespace of its own"),
        (
            Namespaces::UserAndNetwork,
            "namespace of its own, in a user namespace",
        ),
    ];
    for (namespaces, name) in ways {
        if namespaces == Namespaces::Network && effective_user() != 0 {
            continue;
        }
        confinement.namespaces = namespaces;
        match ground.starts(confinement) {
            Ok(()) => return Layer::On(name.into()),
            Err(error) => why = error,
        }
    }
    confinement.namespaces = Namespaces::None;
    Layer::Off(why)
}

/// Everything read-only but what is writable, with `/tmp` and `/dev/shm` of the command's own.
/// Returns whether `/tmp` is.
fn choose_mounts(
    confinement: &mut Confinement,
    rules: &Rules<'_>,
    ground: &ProbeGround,
) -> (Layer, bool) {
    if confinement.namespaces == Namespaces::None {
        return (Layer::Off("needs namespaces".into()), false);
    }
    let own_tmp = rules.hidden_by(Path::new("/tmp")).is_none();
    let mut why = String::new();
    for own_tmp in [own_tmp, false] {
        match rules.mounts(own_tmp) {
            Ok(mounts) => confinement.writable_mounts = Some(mounts),
            Err(error) => return (Layer::Off(error), false),
        }
        match ground.starts(confinement) {
            Ok(()) if own_tmp => {
                return (
                    Layer::On("read-only outside the workspace, /tmp its own".into()),
                    true,
                );
            }
            Ok(()) => return (Layer::On("read-only outside the workspace".into()), false),
            Err(error) => why = error,
        }
    }
    confinement.writable_mounts = None;
    (Layer::Off(why), false)
}

/// What git runs, or is told to run, when a person uses it outside the sandbox.
const GIT_OBEYS: [&str; 2] = ["hooks", "config"];

impl Rules<'_> {
    /// What of ours lies below `dir`, and would be gone if something else were mounted there.
    fn hidden_by(&self, dir: &Path) -> Option<&Path> {
        let dir = dir.canonicalize().ok()?;
        let ours = [self.workspace, self.temporary].into_iter();
        let mut all = ours.chain(self.readable.iter().map(PathBuf::as_path));
        all.find(|path| path.canonicalize().is_ok_and(|path| path.starts_with(&dir)))
    }

    fn shared_memory(&self) -> PathBuf {
        self.temporary.join("shm")
    }

    fn mounts(&self, own_tmp: bool) -> Result<WritableMounts, String> {
        let mount = |source: &Path, target: &Path| -> Result<Mount, String> {
            Ok(Mount {
                source: c_path(source)?,
                target: c_path(target)?,
            })
        };
        let mut mounts = vec![
            mount(self.workspace, self.workspace)?,
            mount(self.temporary, self.temporary)?,
        ];
        let shm = Path::new("/dev/shm");
        if shm.is_dir() && self.hidden_by(shm).is_none() {
            mounts.push(mount(&self.shared_memory(), shm)?);
        }
        if own_tmp {
            mounts.push(mount(self.temporary, Path::new("/tmp"))?);
        }
        let mut sealed = Vec::new();
        let git = self.workspace.join(".git");
        if git.is_dir() && !git.is_symlink() {
            // A mount of its own cannot be moved away, and with it what is sealed below.
            mounts.push(mount(&git, &git)?);
            for name in GIT_OBEYS {
                let path = git.join(name);
                if path.exists() && !path.is_symlink() {
                    sealed.push(c_path(&path)?);
                }
            }
        }
        Ok(WritableMounts {
            workspace: c_path(self.workspace)?,
            mounts,
            sealed,
        })
    }
}

fn c_path(path: &Path) -> Result<CString, String> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| format!("{} holds a NUL", path.display()))
}

/// The self-check: what must be impossible inside, and possible without the sandbox.
fn verify(confinement: &Arc<Confinement>, network: Network, ground: &ProbeGround) -> Layer {
    if confinement.ruleset.is_none() || confinement.filters.is_empty() {
        return Layer::Off("it takes landlock and seccomp".into());
    }
    let (inside, outside) = match (ground.report(Some(confinement)), ground.report(None)) {
        (Ok(inside), Ok(outside)) => (inside, outside),
        (Err(why), _) | (_, Err(why)) => {
            return Layer::Off(format!("the self-check did not run: {why}"));
        }
    };
    if !(outside.wrote_outside && outside.read_outside && outside.wrote_inside) {
        return Layer::Off(
            "the self-check proves nothing: without a sandbox its files are out of reach too"
                .into(),
        );
    }
    if !inside.wrote_inside {
        return Layer::Off("the temporary directory is not writable inside the sandbox".into());
    }
    let holes = [
        (inside.wrote_outside, "a file outside could be written"),
        (inside.read_outside, "a file outside could be read"),
        (
            inside.internet_socket && network == Network::Blocked,
            "an internet socket could be opened",
        ),
        (inside.unix_socket, "a local socket could be opened"),
        (inside.io_uring, "io_uring could be used"),
    ];
    if let Some((_, hole)) = holes.iter().find(|(open, _)| *open) {
        return Layer::Off(format!("the self-check found a hole: {hole}"));
    }
    match ground.shell(confinement) {
        Ok(()) => Layer::On("tried: files outside and sockets are out of reach".into()),
        Err(why) => Layer::Off(format!("a shell does not run inside: {why}")),
    }
}

/// Files that the probe works with, removed at the end.
struct ProbeGround {
    outside: PathBuf,
    inside: PathBuf,
    workspace: PathBuf,
}

impl Drop for ProbeGround {
    fn drop(&mut self) {
        // Best effort; both are named after this process.
        let _ = fs::remove_dir_all(&self.outside);
        let _ = fs::remove_file(&self.inside);
    }
}

impl ProbeGround {
    fn new(
        workspace: &Path,
        temporary: &Path,
        readable: &[PathBuf],
    ) -> Result<ProbeGround, String> {
        let name = format!(".ostler-probe-{}-{}", std::process::id(), next());
        let granted = |dir: &Path| {
            dir.starts_with(workspace)
                || dir.starts_with(temporary)
                || readable
                    .iter()
                    .any(|root| root.canonicalize().is_ok_and(|root| dir.starts_with(root)))
        };
        let places = temporary.ancestors().skip(1).map(Path::to_owned);
        let places = places.chain(["/tmp", "/var/tmp", "/dev/shm"].map(PathBuf::from));
        for place in places.filter(|p| p.canonicalize().is_ok_and(|p| !granted(&p))) {
            let outside = place.join(&name);
            if fs::create_dir(&outside).is_ok() {
                let ground = ProbeGround {
                    outside,
                    inside: temporary.join(&name),
                    workspace: workspace.to_owned(),
                };
                fs::write(ground.outside.join("read"), "x").map_err(|e| e.to_string())?;
                return Ok(ground);
            }
        }
        Err("no directory outside the workspace to test with".into())
    }

    fn command(&self, steps: Steps) -> Command {
        let mut command = Command::new("/bin/sh");
        command.current_dir(&self.workspace).env_clear();
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        os::prepare(&mut command, steps);
        command
    }

    /// Whether a child gets through all steps of `confinement`. It is lent to the child: nothing
    /// of the parent's runs in between.
    fn starts(&self, confinement: &mut Confinement) -> Result<(), String> {
        let lent = std::mem::replace(confinement, empty());
        let lent = Arc::new(lent);
        let result = self.report(Some(&lent)).map(|_| ());
        match Arc::try_unwrap(lent) {
            Ok(back) => *confinement = back,
            Err(_) => return Err("the probe kept its rules".into()),
        }
        result
    }

    fn report(&self, confinement: Option<&Arc<Confinement>>) -> Result<Report, String> {
        let check = Check {
            write_outside: c_path(&self.outside.join("write"))?,
            read_outside: c_path(&self.outside.join("read"))?,
            write_inside: c_path(&self.inside)?,
        };
        let steps = Steps {
            confinement: confinement.cloned(),
            check: Some(check),
            ..Steps::default()
        };
        let status = self.command(steps).status().map_err(|e| explain(&e))?;
        let code = status
            .code()
            .ok_or_else(|| format!("the probe ended by a signal: {status}"))?;
        Ok(Report::from_code(code))
    }

    /// A real shell inside: it runs, writes where it may, and fails where it may not.
    fn shell(&self, confinement: &Arc<Confinement>) -> Result<(), String> {
        let steps = Steps {
            confinement: Some(confinement.clone()),
            ..Steps::default()
        };
        let script = "echo x > \"$1\" || exit 2; (echo x > \"$2\") 2>/dev/null && exit 3; exit 0";
        let mut command = self.command(steps);
        command
            .arg("-c")
            .arg(script)
            .arg("sh")
            .arg(&self.inside)
            .arg(self.outside.join("shell"));
        let status = command.status().map_err(|e| explain(&e))?;
        match status.code() {
            Some(0) => Ok(()),
            Some(2) => Err("it cannot write in the temporary directory".into()),
            Some(3) => Err("it wrote outside".into()),
            _ => Err(status.to_string()),
        }
    }
}

fn empty() -> Confinement {
    Confinement {
        namespaces: Namespaces::None,
        writable_mounts: None,
        user_map: CString::default(),
        group_map: CString::default(),
        ruleset: None,
        filters: Vec::new(),
    }
}

fn next() -> u32 {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
