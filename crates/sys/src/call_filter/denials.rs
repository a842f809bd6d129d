//! System calls denied to a process that runs foreign code, such as a loaded library. All other calls are allowed,
//! because the needs of that code are not known.
//!
//! The process may use files, threads, and sockets to devices and hosts. It cannot start other processes, so killing it
//! ends all of its code. It cannot affect other processes. Calls for system administration are denied, because most
//! kernel bugs are in these calls.

use libc::{c_long, *};
use seccompiler::SeccompCmpArgLen::Dword;
use seccompiler::SeccompCmpOp::{self, Eq, MaskedEq, Ne};
use seccompiler::{BackendError, SeccompCondition, SeccompRule};

use super::calls::CallRules;

pub(super) fn rules() -> Result<CallRules, BackendError> {
    let never = NEVER.iter().chain(NEVER_X86_64);
    let mut rules: CallRules = never.map(|call| (*call, Vec::new())).collect();
    let own = u64::from(std::process::id());
    // Without CLONE_THREAD, clone would create a process.
    let is_process = all(&[(0, MaskedEq(CLONE_THREAD as u64), 0)])?;
    rules.insert(SYS_clone, vec![is_process]);
    for signals in [SYS_kill, SYS_tgkill] {
        rules.insert(signals, vec![all(&[(0, Ne, own)])?]);
    }
    // The kernel sends a signal to the owner of a descriptor that becomes ready. Setting the owner
    // is denied, because the owner may be another process.
    let owners = [
        (SYS_fcntl, [F_SETOWN as u64, F_SETOWN_EX]),
        (SYS_ioctl, [FIOSETOWN, SIOCSPGRP]),
    ];
    for (call, commands) in owners {
        let is = commands.map(|command| all(&[(1, Eq, command)]));
        rules.insert(call, is.into_iter().collect::<Result<_, _>>()?);
    }
    for turns in [
        SYS_sched_setaffinity,
        SYS_sched_setscheduler,
        SYS_sched_setparam,
        SYS_sched_setattr,
    ] {
        rules.insert(turns, vec![all(&[(0, Ne, 0)])?]);
    }
    // Only PRIO_PROCESS with the calling thread is allowed.
    let others_priority = [all(&[(0, Ne, 0)])?, all(&[(1, Ne, 0)])?];
    rules.insert(SYS_setpriority, others_priority.into());
    let others_limits = all(&[(0, Ne, 0), (0, Ne, own)])?;
    rules.insert(SYS_prlimit64, vec![others_limits]);
    let families = FAMILIES.map(|family| (0, Ne, family as u64));
    rules.insert(SYS_socket, vec![all(&families)?]);
    // Changing the dumpable flag is denied, because other processes of the user can read the memory
    // of a dumpable process.
    let dumpable = all(&[(0, Eq, PR_SET_DUMPABLE as u64)])?;
    rules.insert(SYS_prctl, vec![dumpable]);
    Ok(rules)
}

/// Returns the calls that create a Unix socket.
pub(super) fn unix_sockets() -> Result<CallRules, BackendError> {
    let is_unix = all(&[(0, Eq, AF_UNIX as u64)])?;
    Ok([(SYS_socket, vec![is_unix]), (SYS_socketpair, Vec::new())].into())
}

/// Returns a rule that matches if every comparison is true. Arguments are counted from zero.
fn all(arguments: &[(u8, SeccompCmpOp, u64)]) -> Result<SeccompRule, BackendError> {
    let conditions = arguments.iter().map(|(argument, comparison, value)| {
        SeccompCondition::new(*argument, Dword, comparison.clone(), *value)
    });
    SeccompRule::new(conditions.collect::<Result<_, _>>()?)
}

/// Allowed address families. Netlink announces devices, and enclaves communicate through vsock.
const FAMILIES: [c_int; 5] = [AF_UNIX, AF_INET, AF_INET6, AF_NETLINK, AF_VSOCK];

/// asm-generic/fcntl.h.
const F_SETOWN_EX: u64 = 15;
/// asm-generic/sockios.h.
const FIOSETOWN: u64 = 0x8901;
const SIOCSPGRP: u64 = 0x8902;

#[rustfmt::skip]
const NEVER: &[c_long] = &[
    SYS_execve, SYS_execveat,
    SYS_ptrace, SYS_process_vm_readv, SYS_process_vm_writev, SYS_process_madvise, SYS_kcmp,
    SYS_pidfd_open, SYS_pidfd_getfd, SYS_pidfd_send_signal, SYS_tkill, SYS_rt_sigqueueinfo, SYS_rt_tgsigqueueinfo,
    SYS_move_pages, SYS_migrate_pages, SYS_ioprio_set,
    SYS_keyctl, SYS_add_key, SYS_request_key,
    SYS_mount, SYS_umount2, SYS_pivot_root, SYS_chroot, SYS_unshare, SYS_setns, SYS_open_tree, SYS_move_mount, SYS_fsopen,
    SYS_fsconfig, SYS_fsmount, SYS_fspick, SYS_mount_setattr, SYS_quotactl, SYS_swapon, SYS_swapoff, SYS_acct,
    SYS_open_by_handle_at, SYS_fanotify_init,
    SYS_kexec_load, SYS_kexec_file_load, SYS_init_module, SYS_finit_module, SYS_delete_module, SYS_reboot, SYS_syslog,
    SYS_sethostname, SYS_setdomainname, SYS_settimeofday, SYS_clock_settime, SYS_adjtimex, SYS_clock_adjtime, SYS_vhangup,
    // Interfaces that no device needs, and that expose much kernel code.
    SYS_bpf, SYS_perf_event_open, SYS_userfaultfd, SYS_io_uring_setup, SYS_io_uring_enter, SYS_io_uring_register,
    SYS_personality,
];

#[cfg(target_arch = "x86_64")]
const NEVER_X86_64: &[c_long] = &[SYS_fork, SYS_vfork, SYS_iopl, SYS_ioperm, SYS_modify_ldt];
#[cfg(not(target_arch = "x86_64"))]
const NEVER_X86_64: &[c_long] = &[];
