//! The system calls that a sandboxed command does not get.
//!
//! A list of what is refused, not of what is allowed: build tools use most of the kernel. Refused
//! calls fail with EPERM, or with ENOSYS where programs know how to do without. New sockets are
//! refused whatever their kind, for a socket to a local daemon (docker, ssh-agent, D-Bus) leads
//! out of any file rules; pairs of connected sockets stay, as they lead nowhere. The numbers of the
//! x32 interface, which would pass a filter for x86-64, are refused whole.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, sock_filter,
};

use super::Network;

/// Calls that are refused always.
const REFUSED: &[libc::c_long] = &[
    // Other processes' memory and descriptors.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    // Mounts and namespaces: ways out of, or around, the file rules.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_mount_setattr,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at,
    libc::SYS_fanotify_init,
    libc::SYS_quotactl,
    // The kernel itself, and the machine.
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_syslog,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_modify_ldt,
    // Keys of the user's session.
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
];

/// Calls that programs can do without, and ask for to find out.
const MISSING: &[libc::c_long] = &[
    // Makes sockets and opens files past this filter.
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    // Its flags are in memory, where a filter cannot look; libraries fall back to `clone`.
    libc::SYS_clone3,
];

/// Namespace flags of `clone`.
const NAMESPACE_FLAGS: [libc::c_int; 7] = [
    libc::CLONE_NEWNS,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWNET,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWCGROUP,
];

/// Families of socket that a command may open when it is allowed the network: what a name lookup
/// and a connection need. Local sockets stay refused.
const NETWORK_FAMILIES: [libc::c_int; 3] = [libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];

/// The filters for this machine, or why there are none; the kernel takes the strictest answer.
/// `truncate` is refused where landlock cannot watch it.
pub fn filters(network: Network, refuse_truncate: bool) -> Result<Vec<BpfProgram>, String> {
    let missing = MISSING.iter().map(|call| (*call, Vec::new())).collect();
    let mut filters = vec![
        program(missing, libc::ENOSYS)?,
        program(rules(network, refuse_truncate)?, libc::EPERM)?,
    ];
    if cfg!(target_arch = "x86_64") {
        filters.push(no_x32());
    }
    Ok(filters)
}

fn rules(
    network: Network,
    refuse_truncate: bool,
) -> Result<BTreeMap<i64, Vec<SeccompRule>>, String> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        REFUSED.iter().map(|call| (*call, Vec::new())).collect();
    if refuse_truncate {
        rules.insert(libc::SYS_truncate, Vec::new());
    }
    let clone = NAMESPACE_FLAGS
        .iter()
        .map(|flag| {
            rule(vec![condition(
                0,
                SeccompCmpOp::MaskedEq(*flag as u32 as u64),
                *flag as u32 as u64,
            )?])
        })
        .collect::<Result<_, String>>()?;
    rules.insert(libc::SYS_clone, clone);
    let socket = match network {
        Network::Blocked => Vec::new(),
        Network::Allowed => {
            let other = |family: &libc::c_int| condition(0, SeccompCmpOp::Ne, *family as u64);
            vec![rule(
                NETWORK_FAMILIES
                    .iter()
                    .map(other)
                    .collect::<Result<_, String>>()?,
            )?]
        }
    };
    rules.insert(libc::SYS_socket, socket);
    Ok(rules)
}

fn condition(argument: u8, op: SeccompCmpOp, value: u64) -> Result<SeccompCondition, String> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, op, value).map_err(|e| e.to_string())
}

fn rule(conditions: Vec<SeccompCondition>) -> Result<SeccompRule, String> {
    SeccompRule::new(conditions).map_err(|e| e.to_string())
}

fn program(rules: BTreeMap<i64, Vec<SeccompRule>>, errno: i32) -> Result<BpfProgram, String> {
    let arch = std::env::consts::ARCH
        .try_into()
        .map_err(|_| format!("no filter is known for {}", std::env::consts::ARCH))?;
    let filter = SeccompFilter::new(
        rules,
        SeccompAction::Allow,
        SeccompAction::Errno(errno as u32),
        arch,
    )
    .map_err(|e| e.to_string())?;
    filter
        .try_into()
        .map_err(|e: seccompiler::BackendError| e.to_string())
}

/// Refuses every call of the x32 interface: its numbers have this bit set.
fn no_x32() -> BpfProgram {
    const X32_BIT: u32 = 0x4000_0000;
    // Classic BPF, as in linux/bpf_common.h and linux/seccomp.h.
    let step = |code, jt, jf, k| sock_filter { code, jt, jf, k };
    vec![
        // Load the call's number; if it has the bit, ENOSYS; else allow.
        step(0x20, 0, 0, 0),
        step(0x35, 0, 1, X32_BIT),
        step(0x06, 0, 0, 0x0005_0000 | libc::ENOSYS as u32),
        step(0x06, 0, 0, 0x7fff_0000),
    ]
}
