//! Which system calls this process may make from now on: seccomp.
//!
//! A call that is not in the list ([`calls`]) is not made: the caller gets ENOSYS, so that a C library which knows a newer call takes the
//! one before it; a call of the list with arguments that are not in it gets EPERM. Each is counted by its number ([`refused`]). The
//! kernel sends SIGSYS in place of the call, and the handler here answers; a thread that blocks that signal is killed with the process.
//! No process can be started: clone3(2), whose flags no filter can see, fails with ENOSYS, and clone(2) makes threads only.
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

/// Refuses every other call from now on, to all threads. Forbid new privileges first. There is no way back, and programs that are
/// executed inherit it.
///
/// # Errors
/// `Unsupported` where the kernel has no filters, or what it says.
pub fn restrict() -> io::Result<()> {
    answer_refusals()?;
    install(&no_clone3()?)?;
    let rules = calls::rules().map_err(io::Error::other)?;
    install(&compile(rules, SeccompAction::Trap, SeccompAction::Allow)?)
}

/// Refuses this process, which runs code of others, to start processes, to touch those that are there, and to administer the system
/// ([`denials`]); all other calls are made. They fail with EPERM and are not counted. Forbid new privileges first.
///
/// # Errors
/// As [`restrict`].
pub fn restrict_foreign_code() -> io::Result<()> {
    let denied = denials::rules().map_err(io::Error::other)?;
    let refused = SeccompAction::Errno(libc::EPERM as u32);
    install(&no_clone3()?)?;
    if cfg!(target_arch = "x86_64") {
        install(&no_x32())?;
    }
    install(&compile(denied, SeccompAction::Allow, refused)?)
}

/// The numbers of calls that were refused, and how often. Numbers that are no call's are one.
#[must_use]
pub fn refused() -> BTreeMap<usize, u64> {
    let counts = REFUSED.iter().map(|count| count.load(Relaxed));
    counts.enumerate().filter(|(_, count)| *count > 0).collect()
}

/// The C library takes clone(2) then, whose flags can be seen.
fn no_clone3() -> io::Result<BpfProgram> {
    let rules = [(libc::SYS_clone3, Vec::new())].into();
    let refused = SeccompAction::Errno(libc::ENOSYS as u32);
    compile(rules, SeccompAction::Allow, refused)
}

/// The same calls have other numbers in the ABI x32, by which a list of denials would be passed.
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

/// Has the kernel take a filter for all threads. It is not to slow the processor down for it, as it did before Linux 5.16: there is no
/// foreign code in this process to be kept from its neighbours.
fn install(program: &BpfProgram) -> io::Result<()> {
    let program = libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(io::Error::other)?,
        // The same struct: two bytes, two of one, four (linux/filter.h).
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
        // The number of a thread that has other filters.
        thread => Err(io::Error::other(format!(
            "thread {thread} has a filter of its own"
        ))),
    }
}

fn answer_refusals() -> io::Result<()> {
    // SAFETY: all bytes zero are a valid value: no flags, no restorer, an empty mask.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_sigaction = on_refused as extern "C" fn(_, _, _) as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler does what may be done in one (signal-safety(7)): it reads and writes memory.
    match unsafe { libc::sigaction(libc::SIGSYS, &raw const action, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

extern "C" fn on_refused(_: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes both to a handler with SA_SIGINFO, and they are its own until it returns.
    let (code, context) = unsafe { ((*info).si_code, &mut *context.cast::<libc::ucontext_t>()) };
    if code == SYS_SECCOMP {
        let (number, argument) = call(context);
        set_result(context, -i64::from(answer(number, argument)));
    }
}

/// The error for a call.
fn answer(number: i64, argument: u64) -> c_int {
    if (number, argument as c_int) == (libc::SYS_socket, libc::AF_NETLINK) {
        // getaddrinfo(3) looks for the kinds of addresses that this host has, and does without.
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

/// The number of the call that was refused, and its first argument.
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

/// The number of the call that was refused, and its first argument.
#[cfg(target_arch = "aarch64")]
fn call(context: &libc::ucontext_t) -> (i64, u64) {
    let registers = &context.uc_mcontext.regs;
    (registers[8] as i64, registers[0])
}

#[cfg(target_arch = "aarch64")]
fn set_result(context: &mut libc::ucontext_t, result: i64) {
    context.uc_mcontext.regs[0] = result as u64;
}

/// By number; the last one for those beyond.
static REFUSED: [AtomicU64; 512] = [const { AtomicU64::new(0) }; 512];

/// `BPF_RET | BPF_K`, `BPF_LD | BPF_W | BPF_ABS` and `BPF_JMP | BPF_JGE | BPF_K` of linux/bpf_common.h.
const BPF_RET: u16 = 0x06;
const BPF_LD_W_ABS: u16 = 0x20;
const BPF_JMP_JGE_K: u16 = 0x35;
/// Where a `struct seccomp_data` has the number of the call.
const NUMBER: u32 = 0;
/// The numbers of x32 begin here (asm/unistd.h).
const X32: u32 = 0x4000_0000;
/// `si_code` of a SIGSYS that a filter sent (asm-generic/siginfo.h).
const SYS_SECCOMP: c_int = 1;
