//! The steps that only Linux has: namespaces, mounts, capabilities, landlock, seccomp, and the check
//! that tries them. After user_namespaces(7), capabilities(7), mount_setattr(2), landlock(7), seccomp(2).
//!
//! As in the parent module: between fork and exec only system calls, on memory made before.

use super::{Step, failed};
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;

/// Which namespaces a command gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Namespaces {
    None,
    /// A network of its own, with the rights at hand.
    Network,
    /// The same inside a user namespace, which needs no rights.
    UserAndNetwork,
}

/// Everything that confines a command, prepared before the fork.
pub struct Confinement {
    pub namespaces: Namespaces,
    /// All mounts read-only but these. Needs namespaces.
    pub writable_mounts: Option<WritableMounts>,
    /// `0 1000 1` and the like, for a user namespace.
    pub user_map: CString,
    pub group_map: CString,
    /// None: the kernel has no landlock.
    pub ruleset: Option<OwnedFd>,
    /// Empty: there are none for this machine.
    pub filters: Vec<seccompiler::BpfProgram>,
}

pub struct WritableMounts {
    /// The working directory.
    pub workspace: CString,
    pub mounts: Vec<Mount>,
    /// What lies in one of them and stays read-only all the same.
    pub sealed: Vec<CString>,
}

/// `source` seen at `target`, writable. Often the same.
pub struct Mount {
    pub source: CString,
    pub target: CString,
}

/// Capabilities that root keeps: to work on files of any owner, as it does outside. They reach
/// no further than landlock lets them.
const KEPT_CAPABILITIES: u64 = 1 << 0 /* CHOWN */
    | 1 << 1 /* DAC_OVERRIDE */
    | 1 << 2 /* DAC_READ_SEARCH */
    | 1 << 3 /* FOWNER */
    | 1 << 4 /* FSETID */
    | 1 << 6 /* SETGID */
    | 1 << 7 /* SETUID */;

#[repr(C)]
struct CapabilityHeader {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct CapabilityData {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

const CAPABILITY_VERSION_3: u32 = 0x2008_0522;

impl Confinement {
    /// Namespaces, mounts, capabilities, landlock: all but the filter, which comes last.
    pub(super) fn enter(&self) -> io::Result<()> {
        self.unshare()?;
        if let Some(mounts) = &self.writable_mounts {
            mounts.apply()?;
        }
        drop_capabilities()?;
        // SAFETY: plain integers.
        if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } < 0 {
            return Err(failed(Step::NoNewPrivileges));
        }
        if let Some(ruleset) = &self.ruleset {
            // SAFETY: a file descriptor that `self` keeps open, and no flags.
            let result = unsafe {
                libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0u32)
            };
            if result < 0 {
                return Err(failed(Step::Landlock));
            }
        }
        Ok(())
    }

    fn unshare(&self) -> io::Result<()> {
        let mounts = if self.writable_mounts.is_some() {
            libc::CLONE_NEWNS
        } else {
            0
        };
        let flags = match self.namespaces {
            Namespaces::None => return Ok(()),
            Namespaces::Network => libc::CLONE_NEWNET | mounts,
            Namespaces::UserAndNetwork => libc::CLONE_NEWUSER | libc::CLONE_NEWNET | mounts,
        };
        // SAFETY: plain integers; a child between fork and exec has one thread.
        if unsafe { libc::unshare(flags) } < 0 {
            return Err(failed(Step::Unshare));
        }
        if self.namespaces == Namespaces::UserAndNetwork {
            write_file(c"/proc/self/setgroups", c"deny").map_err(|()| failed(Step::UserMap))?;
            write_file(c"/proc/self/uid_map", &self.user_map)
                .map_err(|()| failed(Step::UserMap))?;
            write_file(c"/proc/self/gid_map", &self.group_map)
                .map_err(|()| failed(Step::UserMap))?;
        }
        Ok(())
    }

    pub(super) fn filter(&self) -> io::Result<()> {
        self.filters.iter().try_for_each(|filter| install(filter))
    }
}

fn install(filter: &[seccompiler::sock_filter]) -> io::Result<()> {
    // Same layout as `struct sock_fprog`.
    #[repr(C)]
    struct Program {
        len: u16,
        filter: *const seccompiler::sock_filter,
    }
    let program = Program {
        len: filter.len() as u16,
        filter: filter.as_ptr(),
    };
    // SAFETY: `program` points at `len` instructions that the caller keeps; the kernel copies
    // them. `sock_filter` has the kernel's layout (repr(C) in seccompiler).
    let result = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            0u32,
            &program,
        )
    };
    if result < 0 {
        Err(failed(Step::Filter))
    } else {
        Ok(())
    }
}

/// `struct mount_attr` of mount_setattr(2).
#[repr(C)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

const MOUNT_ATTR_RDONLY: u64 = 1;

impl WritableMounts {
    /// Landlock does not cover modes, owners, times and extended attributes of files; a
    /// read-only mount does.
    fn apply(&self) -> io::Result<()> {
        let mount = |source: Option<&CStr>, target: &CStr, flags: libc::c_ulong| {
            let source = source.map_or(ptr::null(), CStr::as_ptr);
            // SAFETY: strings that end in NUL, or null where mount(2) allows it.
            let result =
                unsafe { libc::mount(source, target.as_ptr(), ptr::null(), flags, ptr::null()) };
            if result < 0 {
                Err(failed(Step::Mounts))
            } else {
                Ok(())
            }
        };
        mount(None, c"/", libc::MS_REC | libc::MS_PRIVATE)?;
        for bind in &self.mounts {
            mount(
                Some(&bind.source),
                &bind.target,
                libc::MS_BIND | libc::MS_REC,
            )?;
        }
        for path in &self.sealed {
            mount(Some(path), path, libc::MS_BIND | libc::MS_REC)?;
        }
        let read_only = MountAttr {
            set: MOUNT_ATTR_RDONLY,
            clear: 0,
            propagation: 0,
            user_namespace: 0,
        };
        set_mount(c"/", libc::AT_RECURSIVE, &read_only)?;
        let writable = MountAttr {
            set: 0,
            clear: MOUNT_ATTR_RDONLY,
            ..read_only
        };
        for bind in &self.mounts {
            set_mount(&bind.target, 0, &writable)?;
        }
        // The working directory was opened below the old mount.
        // SAFETY: a string that ends in NUL.
        if unsafe { libc::chdir(self.workspace.as_ptr()) } < 0 {
            return Err(failed(Step::Mounts));
        }
        Ok(())
    }
}

fn set_mount(path: &CStr, flags: libc::c_int, attr: &MountAttr) -> io::Result<()> {
    // SAFETY: a string that ends in NUL, and a struct of the size that is given.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            path.as_ptr(),
            flags,
            ptr::from_ref(attr),
            size_of::<MountAttr>(),
        )
    };
    if result < 0 {
        Err(failed(Step::Mounts))
    } else {
        Ok(())
    }
}

/// Leaves root with rights over files only. Without rights there is nothing to drop.
fn drop_capabilities() -> io::Result<()> {
    for capability in 0..64 {
        if KEPT_CAPABILITIES & (1 << capability) != 0 {
            continue;
        }
        // SAFETY: plain integers. Numbers the kernel does not know fail, and so does every one
        // for a process without CAP_SETPCAP; what counts is the set below.
        unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) };
    }
    let header = CapabilityHeader {
        version: CAPABILITY_VERSION_3,
        pid: 0,
    };
    let mut now = [CapabilityData {
        effective: 0,
        permitted: 0,
        inheritable: 0,
    }; 2];
    // SAFETY: the header and two data structs, as version 3 wants them.
    if unsafe { libc::syscall(libc::SYS_capget, &header, now.as_mut_ptr()) } < 0 {
        return Err(failed(Step::Capabilities));
    }
    for (i, data) in now.iter_mut().enumerate() {
        let kept = (KEPT_CAPABILITIES >> (32 * i)) as u32;
        data.permitted &= kept;
        data.effective = data.permitted;
        data.inheritable = 0;
    }
    // SAFETY: as above; the sets only shrink, which is always allowed.
    if unsafe { libc::syscall(libc::SYS_capset, &header, now.as_ptr()) } < 0 {
        return Err(failed(Step::Capabilities));
    }
    Ok(())
}

fn write_file(path: &CStr, text: &CStr) -> Result<(), ()> {
    // SAFETY: strings that end in NUL; the descriptor is closed here and nowhere else.
    unsafe {
        let fd = libc::open(path.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        if fd < 0 {
            return Err(());
        }
        let length = text.count_bytes();
        let written = libc::write(fd, text.as_ptr().cast(), length);
        if written != length as isize {
            // `close` may change the error number, and there is nothing to save it in.
            return Err(());
        }
        libc::close(fd);
    }
    Ok(())
}

/// When memory runs out, the command goes before the process that holds the model.
pub(super) fn prefer_for_oom() {
    // Not allowed everywhere, and only a preference.
    let _ = write_file(c"/proc/self/oom_score_adj", c"800");
}

/// Nothing that a library of this process has open reaches the command.
pub(super) fn close_on_exec_from(first: u32) {
    // SAFETY: plain integers. Descriptors are marked, not closed: until exec they serve.
    unsafe {
        libc::syscall(
            libc::SYS_close_range,
            first,
            u32::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        );
    }
}

/// The shell ends when the thread that runs it does.
pub(super) fn die_with_parent() -> io::Result<()> {
    // SAFETY: plain integers.
    if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } < 0 {
        return Err(failed(Step::Parent));
    }
    Ok(())
}

/// The landlock version of this kernel; 0 without it.
pub fn landlock_abi() -> u32 {
    const VERSION: u32 = 1;
    // SAFETY: with this flag and no attributes, the call only tells its version.
    let version = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            ptr::null::<u8>(),
            0usize,
            VERSION,
        )
    };
    u32::try_from(version).unwrap_or(0)
}

/// Tries what a confined command must not be able to do.
pub struct Check {
    /// A file to make outside the workspace.
    pub write_outside: CString,
    /// A file that exists outside the workspace.
    pub read_outside: CString,
    /// A file to make in the workspace.
    pub write_inside: CString,
}

/// What a check found possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    pub wrote_outside: bool,
    pub read_outside: bool,
    pub wrote_inside: bool,
    pub internet_socket: bool,
    pub unix_socket: bool,
    pub io_uring: bool,
}

impl Report {
    /// From the exit code of a child that ran a check.
    pub fn from_code(code: i32) -> Report {
        let bit = |n: i32| code & (1 << n) != 0;
        Report {
            wrote_outside: bit(0),
            read_outside: bit(1),
            wrote_inside: bit(2),
            internet_socket: bit(3),
            unix_socket: bit(4),
            io_uring: bit(5),
        }
    }
}

impl Check {
    pub(super) fn run_and_exit(&self) -> ! {
        let make = libc::O_WRONLY | libc::O_CREAT | libc::O_CLOEXEC;
        let mut params = [0u8; 256];
        // SAFETY: strings that end in NUL, plain integers, and 256 bytes for the 120 of
        // `struct io_uring_params`. The process ends here, which closes what was opened.
        unsafe {
            let found = [
                libc::open(self.write_outside.as_ptr(), make, 0o600) >= 0,
                libc::open(self.read_outside.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) >= 0,
                libc::open(self.write_inside.as_ptr(), make, 0o600) >= 0,
                libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0) >= 0,
                libc::socket(libc::AF_UNIX, libc::SOCK_STREAM, 0) >= 0,
                libc::syscall(libc::SYS_io_uring_setup, 1u32, params.as_mut_ptr()) >= 0,
            ];
            let code = found
                .iter()
                .enumerate()
                .fold(0, |code, (i, yes)| code | (i32::from(*yes) << i));
            libc::_exit(code)
        }
    }
}
