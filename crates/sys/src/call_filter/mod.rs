//! Which system calls this process may make from now on: seccomp.
//!
//! A call that is not in the list ([`calls`]) is not made: the caller gets ENOSYS, so that a C library which knows a newer call takes the
//! one before it; a call of the list with arguments that are not in it gets EPERM. Each is counted by its number ([`refused`]). The
//! kernel sends SIGSYS in place of the call, and the handler here answers; a thread that blocks that signal is killed with the process.
//! No process can be started: clone3(2), whose flags no filter can see, fails with ENOSYS, and clone(2) makes threads only.
//!
//! Sources: seccomp(2), seccomp_unotify(2), the kernel's `Documentation/userspace-api/seccomp_filter.rst`.

mod calls;
mod denials;

use std::collections::BTreeMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::thread;

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
    install(&no_clone3()?, libc::SECCOMP_FILTER_FLAG_TSYNC)?;
    install(&listed()?, libc::SECCOMP_FILTER_FLAG_TSYNC).map(drop)
}

/// Refuses this process, which runs code of others, to start processes, to touch those that are there, and to administer the system
/// ([`denials`]); all other calls are made. They fail with EPERM and are not counted. Forbid new privileges first.
///
/// # Errors
/// As [`restrict`].
pub fn restrict_foreign_code() -> io::Result<()> {
    let denied = denials::rules().map_err(io::Error::other)?;
    let refused = SeccompAction::Errno(libc::EPERM as u32);
    install(&no_clone3()?, libc::SECCOMP_FILTER_FLAG_TSYNC)?;
    if cfg!(target_arch = "x86_64") {
        install(&no_x32(), libc::SECCOMP_FILTER_FLAG_TSYNC)?;
    }
    let denied = compile(denied, SeccompAction::Allow, refused)?;
    install(&denied, libc::SECCOMP_FILTER_FLAG_TSYNC).map(drop)
}

/// Counts the calls that [`restrict`] would refuse to the calling thread and to those that it starts, and lets them through. A thread is told
/// of each by the kernel, and such a call waits for it.
///
/// # Errors
/// As [`restrict`]; this takes Linux 5.5.
pub fn observe() -> io::Result<()> {
    let mut program = listed()?;
    for instruction in &mut program {
        if (instruction.code, instruction.k) == (BPF_RET, libc::SECCOMP_RET_TRAP) {
            instruction.k = libc::SECCOMP_RET_USER_NOTIF;
        }
    }
    // Before there is a filter: what this thread calls must not wait for itself.
    let (sender, receiver) = channel::<OwnedFd>();
    let thread = thread::Builder::new().name("becket-calls".to_owned());
    thread.spawn(move || {
        if let Ok(listener) = receiver.recv() {
            while let Ok(()) | Err(libc::EINTR | libc::ENOENT) = let_through(&listener) {}
        }
    })?;
    let listener = install(&program, libc::SECCOMP_FILTER_FLAG_NEW_LISTENER)?;
    // SAFETY: the kernel has just made it for this call, and nobody else knows it.
    let listener = unsafe { OwnedFd::from_raw_fd(listener) };
    sender.send(listener).map_err(io::Error::other)
}

/// The numbers of calls that were refused, or would be, and how often. Numbers that are no call's are one.
#[must_use]
pub fn refused() -> BTreeMap<usize, u64> {
    let counts = REFUSED.iter().map(|count| count.load(Relaxed));
    counts.enumerate().filter(|(_, count)| *count > 0).collect()
}

fn listed() -> io::Result<BpfProgram> {
    let rules = calls::rules().map_err(io::Error::other)?;
    compile(rules, SeccompAction::Trap, SeccompAction::Allow)
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

/// Has the kernel take a filter. It is not to slow the processor down for it, as it did before Linux 5.16: there is no foreign code in
/// this process to be kept from its neighbours.
fn install(program: &BpfProgram, flags: libc::c_ulong) -> io::Result<c_int> {
    let program = libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(io::Error::other)?,
        // The same struct: two bytes, two of one, four (linux/filter.h).
        filter: program.as_ptr().cast_mut().cast(),
    };
    let flags = flags | libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW;
    let operation = libc::SECCOMP_SET_MODE_FILTER;
    // SAFETY: the kernel copies the instructions that the pointer and length describe.
    let done = unsafe { libc::syscall(libc::SYS_seccomp, operation, flags, &raw const program) };
    match done {
        -1 => Err(match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ENOSYS) => {
                io::ErrorKind::Unsupported.into()
            }
            error if error.raw_os_error() == Some(libc::EINVAL) => {
                io::ErrorKind::Unsupported.into()
            }
            error => error,
        }),
        // Not a descriptor but the number of a thread that has other filters.
        thread if thread > 0 && flags & libc::SECCOMP_FILTER_FLAG_TSYNC != 0 => Err(
            io::Error::other(format!("thread {thread} has a filter of its own")),
        ),
        descriptor => Ok(descriptor as c_int),
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

/// Waits for a call that is not in the list, counts it and lets it through. Fails with the number of the error: ENOENT where the
/// caller is gone meanwhile.
fn let_through(listener: &OwnedFd) -> Result<(), c_int> {
    // SAFETY: all bytes zero are a valid value, and what the kernel asks for.
    let mut asked: libc::seccomp_notif = unsafe { MaybeUninit::zeroed().assume_init() };
    notification(listener, SECCOMP_IOCTL_NOTIF_RECV, (&raw mut asked).cast())?;
    note(asked.data.nr.into());
    let mut answer = libc::seccomp_notif_resp {
        id: asked.id,
        val: 0,
        error: 0,
        flags: SECCOMP_USER_NOTIF_FLAG_CONTINUE,
    };
    notification(listener, SECCOMP_IOCTL_NOTIF_SEND, (&raw mut answer).cast())
}

fn notification(listener: &OwnedFd, request: u64, value: *mut c_void) -> Result<(), c_int> {
    // SAFETY: each request comes with a struct of the size that its number says, which outlives the call.
    match unsafe { libc::ioctl(listener.as_raw_fd(), request as _, value) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()
            .raw_os_error()
            .unwrap_or(libc::EIO)),
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
/// `_IOWR('!', 0, struct seccomp_notif)` and `_IOWR('!', 1, struct seccomp_notif_resp)` of linux/seccomp.h.
const SECCOMP_IOCTL_NOTIF_RECV: u64 = 0xc050_2100;
const SECCOMP_IOCTL_NOTIF_SEND: u64 = 0xc018_2101;
const SECCOMP_USER_NOTIF_FLAG_CONTINUE: u32 = 1;
