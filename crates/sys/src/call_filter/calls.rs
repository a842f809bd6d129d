//! System calls that a running server may make, grouped by purpose.
//!
//! The list contains the calls of the code and of the C library that the end-to-end tests make
//! under [`super::restrict`]. It also contains variants of these calls, because another C library
//! or another version may use them.

use std::collections::BTreeMap;

use libc::{c_long, *};
use seccompiler::{
    BackendError, SeccompCmpArgLen::Dword, SeccompCmpOp, SeccompCondition, SeccompRule,
};

/// Rules by call number. A call without rules is always allowed. A call with rules is allowed if at
/// least one rule matches.
pub(super) type CallRules = BTreeMap<i64, Vec<SeccompRule>>;

pub(super) fn rules() -> Result<CallRules, BackendError> {
    let always = ALWAYS.iter().chain(ALWAYS_X86_64);
    let mut rules: CallRules = always.map(|call| (call.0, Vec::new())).collect();
    for (call, arguments) in SOMETIMES {
        let conditions = arguments.iter().map(|(argument, comparison)| {
            let (operator, value) = match *comparison {
                Is(value) => (SeccompCmpOp::Eq, value),
                Has(bits) => (SeccompCmpOp::MaskedEq(bits.into()), bits),
                HasNot(bits) => (SeccompCmpOp::MaskedEq(bits.into()), 0),
                IsOwnProcess => (SeccompCmpOp::Eq, std::process::id()),
            };
            SeccompCondition::new(*argument, Dword, operator, value.into())
        });
        let rule = SeccompRule::new(conditions.collect::<Result<_, _>>()?)?;
        rules.entry(call.0).or_default().push(rule);
    }
    Ok(rules)
}

pub(super) fn is_listed(number: i64) -> bool {
    listed().any(|call| call.0 == number)
}

fn listed() -> impl Iterator<Item = &'static Call> {
    let sometimes = SOMETIMES.iter().map(|(call, _)| call);
    ALWAYS.iter().chain(ALWAYS_X86_64).chain(sometimes)
}

#[must_use]
pub fn name(number: usize) -> Option<&'static str> {
    let mut all = listed().chain(REFUSED).chain(REFUSED_X86_64);
    let call = all.find(|call| usize::try_from(call.0) == Ok(number))?;
    Some(call.1.trim_start_matches("SYS_"))
}

struct Call(c_long, &'static str);

enum Comparison {
    Is(u32),
    Has(u32),
    HasNot(u32),
    IsOwnProcess,
}

use Comparison::{Has, HasNot, Is, IsOwnProcess};

macro_rules! calls {
    ($($name:ident)*) => { &[$(Call($name, stringify!($name))),*] };
}

macro_rules! sometimes {
    ($($(#[$where:meta])? $name:ident $($argument:literal $comparison:expr),+;)*) => {
        &[$($(#[$where])? (Call($name, stringify!($name)), &[$(($argument, $comparison)),+])),*]
    };
}

const ALWAYS: &[Call] = calls! {
    SYS_read SYS_write SYS_readv SYS_writev SYS_pread64 SYS_pwrite64 SYS_preadv SYS_pwritev SYS_preadv2 SYS_pwritev2
    SYS_sendto SYS_recvfrom SYS_sendmsg SYS_recvmsg SYS_sendmmsg SYS_recvmmsg SYS_sendfile SYS_splice SYS_tee
    SYS_connect SYS_accept SYS_accept4 SYS_bind SYS_listen SYS_shutdown SYS_close SYS_close_range
    SYS_getsockname SYS_getpeername SYS_getsockopt SYS_setsockopt SYS_pipe2 SYS_dup SYS_dup3
    SYS_epoll_create1 SYS_epoll_ctl SYS_epoll_pwait SYS_epoll_pwait2 SYS_eventfd2 SYS_ppoll SYS_pselect6
    SYS_timerfd_create SYS_timerfd_settime SYS_timerfd_gettime
    // Calls that access files by path or by descriptor. Landlock restricts the paths.
    SYS_openat SYS_openat2 SYS_newfstatat SYS_statx SYS_statfs SYS_fstat SYS_fstatfs SYS_faccessat SYS_faccessat2
    SYS_readlinkat SYS_getdents64 SYS_lseek SYS_getcwd SYS_fsync SYS_fdatasync SYS_ftruncate SYS_fadvise64 SYS_readahead
    SYS_flock SYS_renameat SYS_renameat2 SYS_unlinkat SYS_fchown SYS_fchownat SYS_umask
    // Memory calls. `SOMETIMES` contains the rules for executable memory.
    SYS_brk SYS_munmap SYS_mremap SYS_madvise SYS_mincore SYS_msync SYS_mlock SYS_mlock2 SYS_munlock SYS_mlockall
    // Threads and signals between them. clone3 is listed here because the filter of `no_clone3`
    // refuses it without a SIGSYS.
    SYS_clone3
    SYS_futex SYS_set_robust_list SYS_get_robust_list SYS_set_tid_address SYS_rseq SYS_membarrier SYS_exit SYS_exit_group
    SYS_gettid SYS_getpid SYS_getppid SYS_sched_yield SYS_sched_getaffinity SYS_sched_getparam
    SYS_sched_getscheduler SYS_sched_getattr SYS_sched_get_priority_max
    SYS_sched_get_priority_min SYS_getpriority SYS_getcpu SYS_rt_sigaction SYS_rt_sigprocmask
    SYS_rt_sigreturn SYS_rt_sigpending SYS_rt_sigtimedwait SYS_sigaltstack SYS_restart_syscall
    // Time, random numbers, and properties of this process.
    SYS_clock_gettime SYS_clock_getres SYS_clock_nanosleep SYS_nanosleep SYS_gettimeofday SYS_getrandom SYS_uname SYS_sysinfo
    SYS_getrusage SYS_times SYS_getuid SYS_geteuid SYS_getgid SYS_getegid SYS_getresuid SYS_getresgid SYS_getgroups SYS_capget
    SYS_getrlimit
};

#[cfg(target_arch = "x86_64")]
const ALWAYS_X86_64: &[Call] = calls! {
    SYS_open SYS_stat SYS_lstat SYS_access SYS_readlink SYS_rename SYS_unlink SYS_chown SYS_getdents
    SYS_poll SYS_select SYS_epoll_create SYS_epoll_wait SYS_eventfd SYS_pipe SYS_dup2 SYS_time
};

/// Calls that are allowed if all arguments of one line match. Arguments are counted from zero.
const SOMETIMES: &[(Call, &[(u8, Comparison)])] = sometimes! {
    // Internet and Unix sockets; no netlink or packet sockets.
    SYS_socket 0 Is(AF_INET as u32);
    SYS_socket 0 Is(AF_INET6 as u32);
    SYS_socket 0 Is(AF_UNIX as u32);
    SYS_socketpair 0 Is(AF_UNIX as u32);
    // Without CLONE_THREAD, clone would create a process.
    SYS_clone 0 Has(CLONE_THREAD as u32);
    // Writable memory must not be executable. Executable mappings that are not writable are
    // allowed, because the C library needs them to load the modules named in nsswitch.conf.
    SYS_mmap 2 HasNot(PROT_EXEC as u32);
    SYS_mmap 2 HasNot(PROT_WRITE as u32);
    SYS_mprotect 2 HasNot(PROT_EXEC as u32);
    SYS_prctl 0 Is(PR_SET_NAME as u32);
    SYS_prctl 0 Is(PR_GET_NAME as u32);
    // A serving process clears its PR_SET_PDEATHSIG, so that it outlives its supervisor.
    SYS_prctl 0 Is(PR_SET_PDEATHSIG as u32);
    SYS_prctl 0 Is(PR_GET_DUMPABLE as u32);
    SYS_prctl 0 Is(PR_SET_VMA as u32);
    // PID 0 means the calling process.
    SYS_prlimit64 0 Is(0);
    // Signals to other processes are refused, including signals for descriptor events (F_SETOWN).
    SYS_tgkill 0 IsOwnProcess;
    SYS_fcntl 1 Is(F_DUPFD as u32);
    SYS_fcntl 1 Is(F_DUPFD_CLOEXEC as u32);
    SYS_fcntl 1 Is(F_GETFD as u32);
    SYS_fcntl 1 Is(F_SETFD as u32);
    SYS_fcntl 1 Is(F_GETFL as u32);
    SYS_fcntl 1 Is(F_SETFL as u32);
    SYS_fcntl 1 Is(F_GETLK as u32);
    SYS_fcntl 1 Is(F_SETLK as u32);
    SYS_fcntl 1 Is(F_SETLKW as u32);
    SYS_fcntl 1 Is(F_GETPIPE_SZ as u32);
    SYS_fcntl 1 Is(F_SETPIPE_SZ as u32);
    // Priority and CPUs of the calling thread; the first argument is PRIO_PROCESS.
    SYS_setpriority 0 Is(0), 1 Is(0);
    SYS_sched_setaffinity 0 Is(0);
    SYS_sched_setscheduler 0 Is(0);
    SYS_sched_setattr 0 Is(0);
    // Files cannot be made set-user-ID or set-group-ID.
    SYS_fchmod 1 HasNot(S_ISUID | S_ISGID);
    SYS_fchmodat 2 HasNot(S_ISUID | S_ISGID);
    #[cfg(target_arch = "x86_64")]
    SYS_chmod 1 HasNot(S_ISUID | S_ISGID);
    // None of these ioctls can inject input into a terminal.
    SYS_ioctl 1 Is(FIONBIO as u32);
    SYS_ioctl 1 Is(FIONREAD as u32);
    SYS_ioctl 1 Is(FIOCLEX as u32);
    SYS_ioctl 1 Is(TIOCOUTQ as u32);
    SYS_ioctl 1 Is(SIOCGIFINDEX as u32);
    SYS_ioctl 1 Is(TCGETS as u32);
    SYS_ioctl 1 Is(TIOCGWINSZ as u32);
};

/// Calls that the filter refuses, listed so that [`name`] can return their names.
const REFUSED: &[Call] = calls! {
    SYS_execve SYS_execveat SYS_ptrace SYS_process_vm_readv SYS_process_vm_writev SYS_pidfd_open SYS_pidfd_getfd
    SYS_pidfd_send_signal SYS_kill SYS_tkill SYS_rt_sigqueueinfo SYS_wait4 SYS_waitid SYS_setuid SYS_setgid SYS_setresuid SYS_setresgid
    SYS_setgroups SYS_capset SYS_chroot SYS_pivot_root SYS_mount SYS_umount2 SYS_unshare SYS_setns SYS_bpf SYS_perf_event_open
    SYS_io_uring_setup SYS_userfaultfd SYS_memfd_create SYS_keyctl SYS_add_key SYS_request_key SYS_init_module
    SYS_finit_module SYS_kexec_load SYS_seccomp SYS_personality SYS_mknodat SYS_mkdirat SYS_linkat SYS_symlinkat SYS_chdir
    SYS_fchdir SYS_utimensat SYS_fallocate SYS_sync SYS_syncfs SYS_vmsplice SYS_copy_file_range SYS_shmget SYS_setrlimit
    SYS_setsid SYS_syslog SYS_reboot SYS_sethostname
};

#[cfg(target_arch = "x86_64")]
const REFUSED_X86_64: &[Call] = calls! { SYS_fork SYS_vfork SYS_mkdir SYS_link SYS_symlink SYS_mknod SYS_arch_prctl SYS_getpgrp };

#[cfg(not(target_arch = "x86_64"))]
const ALWAYS_X86_64: &[Call] = &[];
#[cfg(not(target_arch = "x86_64"))]
const REFUSED_X86_64: &[Call] = &[];
