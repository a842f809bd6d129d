//! Restricts the system calls of this process with seccomp.
//!
//! A call that is not in the list ([`calls`]) fails with ENOSYS, so that a C library falls back to an older call. A
//! listed call with arguments that are not allowed fails with EPERM. [`refused`] returns the number of refused calls.
//!
//! The kernel sends SIGSYS instead of making a refused call, and the signal handler in this module sets the result. If
//! a thread blocks SIGSYS, the kernel kills the process. The process cannot start other processes: clone3(2) fails with
//! ENOSYS, because a filter cannot see its flags, and clone(2) can only create threads.
//!
//! Sources: seccomp(2), the kernel's `Documentation/userspace-api/seccomp_filter.rst`.

mod calls;
mod denials;

use std::collections::BTreeMap;
use std::io;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use libc::{c_int, c_void};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, sock_filter};

pub use self::calls::name;

/// Refuses all calls except the listed ones, in all threads. This cannot be undone, and executed
/// programs inherit it. Call [`forbid_new_privileges`](crate::privileges::forbid_new_privileges)
/// first.
///
/// # Errors
/// `Unsupported` if the kernel has no filters; otherwise the error of the system call.
pub fn restrict() -> io::Result<()> {
    answer_refusals()?;
    install(&no_clone3()?)?;
    let rules = calls::rules().map_err(io::Error::other)?;
    install(&compile(rules, SeccompAction::Trap, SeccompAction::Allow)?)
}

/// Restricts a process that runs foreign code: it cannot start processes, affect other processes,
/// or administer the system ([`denials`]). Such calls fail with EPERM and are not counted. All
/// other calls are allowed. Call
/// [`forbid_new_privileges`](crate::privileges::forbid_new_privileges) first.
///
/// # Errors
/// As for [`restrict`].
pub fn restrict_foreign_code() -> io::Result<()> {
    let denied = denials::rules().map_err(io::Error::other)?;
    let refused = SeccompAction::Errno(libc::EPERM as u32);
    install(&no_clone3()?)?;
    if cfg!(target_arch = "x86_64") {
        install(&no_x32())?;
    }
    install(&compile(denied, SeccompAction::Allow, refused)?)
}

/// Refuses new Unix sockets, so that the process reaches no service through a path. Sockets that
/// exist stay usable. Call [`forbid_new_privileges`](crate::privileges::forbid_new_privileges)
/// first.
///
/// # Errors
/// As for [`restrict`].
pub fn forbid_unix_sockets() -> io::Result<()> {
    let rules = denials::unix_sockets().map_err(io::Error::other)?;
    let refused = SeccompAction::Errno(libc::EAFNOSUPPORT as u32);
    install(&compile(rules, SeccompAction::Allow, refused)?)
}

/// Returns how often each call was refused, by call number. All numbers from 511 on share one entry.
#[must_use]
pub fn refused() -> BTreeMap<usize, u64> {
    let counts = REFUSED.iter().map(|count| count.load(Relaxed));
    counts.enumerate().filter(|(_, count)| *count > 0).collect()
}

/// Refuses clone3(2). The C library then uses clone(2), whose flags a filter can see.
fn no_clone3() -> io::Result<BpfProgram> {
    let rules = [(libc::SYS_clone3, Vec::new())].into();
    let refused = SeccompAction::Errno(libc::ENOSYS as u32);
    compile(rules, SeccompAction::Allow, refused)
}

/// Refuses the x32 ABI. Its call numbers differ, so a list of denied calls would not match them.
fn no_x32() -> BpfProgram {
    let instruction = |code, jf, k| sock_filter { code, jt: 0, jf, k };
    vec![
        instruction(BPF_LD_W_ABS, 0, NUMBER),
        instruction(BPF_JMP_JGE_K, 1, X32),
        instruction(BPF_RET, 0, libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32),
        instruction(BPF_RET, 0, libc::SECCOMP_RET_ALLOW),
    ]
}

fn compile(
    rules: calls::CallRules,
    otherwise: SeccompAction,
    listed: SeccompAction,
) -> io::Result<BpfProgram> {
    let arch = std::env::consts::ARCH.try_into();
    let arch = arch.map_err(|_| io::ErrorKind::Unsupported)?;
    let filter = SeccompFilter::new(rules, otherwise, listed, arch);
    let program = filter.and_then(BpfProgram::try_from);
    program.map_err(io::Error::other)
}

/// Installs a filter in all threads, without the speculation mitigations that Linux before 5.16
/// adds to a filter. The process does not need them, because it does not isolate parts of its code
/// from each other.
fn install(program: &BpfProgram) -> io::Result<()> {
    let program = libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(io::Error::other)?,
        // Both types have the layout of linux/filter.h: two bytes, two single bytes, four bytes.
        filter: program.as_ptr().cast_mut().cast(),
    };
    let flags = libc::SECCOMP_FILTER_FLAG_TSYNC | libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW;
    let operation = libc::SECCOMP_SET_MODE_FILTER;
    // SAFETY: the kernel copies the instructions that the pointer and length describe.
    let done = unsafe { libc::syscall(libc::SYS_seccomp, operation, flags, &raw const program) };
    match done {
        0 => Ok(()),
        -1 => match io::Error::last_os_error() {
            error if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EINVAL)) => {
                Err(io::ErrorKind::Unsupported.into())
            }
            error => Err(error),
        },
        // A positive result is the ID of a thread that has other filters.
        thread => Err(io::Error::other(format!(
            "thread {thread} has other system call filters"
        ))),
    }
}

fn answer_refusals() -> io::Result<()> {
    // SAFETY: all bytes zero are a valid value: no flags, no restorer, an empty mask.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_sigaction = on_refused as extern "C" fn(_, _, _) as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler does only what is allowed in one (signal-safety(7)): it reads and writes memory.
    match unsafe { libc::sigaction(libc::SIGSYS, &raw const action, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

extern "C" fn on_refused(_: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes both to a handler with SA_SIGINFO, which alone uses them until it returns.
    let (code, context) = unsafe { ((*info).si_code, &mut *context.cast::<libc::ucontext_t>()) };
    if code == SYS_SECCOMP {
        let (number, argument) = call(context);
        set_result(context, -i64::from(answer(number, argument)));
    }
}

fn answer(number: i64, argument: u64) -> c_int {
    if (number, argument as c_int) == (libc::SYS_socket, libc::AF_NETLINK) {
        // getaddrinfo(3) uses netlink to list the address families of this host. It works without
        // the list, so this refusal is not counted.
        return libc::EAFNOSUPPORT;
    }
    note(number);
    if calls::is_listed(number) {
        libc::EPERM
    } else {
        libc::ENOSYS
    }
}

fn note(number: i64) {
    let number = usize::try_from(number).unwrap_or(usize::MAX);
    if let Some(count) = REFUSED.get(number.min(REFUSED.len() - 1)) {
        count.fetch_add(1, Relaxed);
    }
}

/// Returns the number of the refused call and its first argument.
#[cfg(target_arch = "x86_64")]
fn call(context: &libc::ucontext_t) -> (i64, u64) {
    let registers = &context.uc_mcontext.gregs;
    let (number, argument) = (libc::REG_RAX as usize, libc::REG_RDI as usize);
    (registers[number], registers[argument] as u64)
}

#[cfg(target_arch = "x86_64")]
fn set_result(context: &mut libc::ucontext_t, result: i64) {
    context.uc_mcontext.gregs[libc::REG_RAX as usize] = result;
}

/// Returns the number of the refused call and its first argument.
#[cfg(target_arch = "aarch64")]
fn call(context: &libc::ucontext_t) -> (i64, u64) {
    let registers = &context.uc_mcontext.regs;
    (registers[8] as i64, registers[0])
}

#[cfg(target_arch = "aarch64")]
fn set_result(context: &mut libc::ucontext_t, result: i64) {
    context.uc_mcontext.regs[0] = result as u64;
}

/// Number of refusals by call number. The last element counts all larger numbers.
static REFUSED: [AtomicU64; 512] = [const { AtomicU64::new(0) }; 512];

/// `BPF_RET | BPF_K`, `BPF_LD | BPF_W | BPF_ABS` and `BPF_JMP | BPF_JGE | BPF_K` of linux/bpf_common.h.
const BPF_RET: u16 = 0x06;
const BPF_LD_W_ABS: u16 = 0x20;
const BPF_JMP_JGE_K: u16 = 0x35;
/// Offset of the call number in a `struct seccomp_data`.
const NUMBER: u32 = 0;
/// First call number of x32 (asm/unistd.h).
const X32: u32 = 0x4000_0000;
/// `si_code` of a SIGSYS from a filter (asm-generic/siginfo.h).
const SYS_SECCOMP: c_int = 1;
