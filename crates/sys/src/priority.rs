//! Lowers the scheduling priority of threads.
//!
//! Sources: setpriority(2), sched(7). On Linux, a nice value belongs to a thread, and threads that it starts inherit
//! it.

use std::io;

use rustix::process::{getpriority_process, setpriority_process};

/// Lowers the priority of the calling thread, and of threads that it starts later, by `steps` nice
/// levels. On a busy core, each level reduces the CPU time of the thread by about a fifth.
///
/// # Errors
/// Does not fail if the thread may read its priority, because lowering a priority needs no
/// privilege.
pub fn give_way(steps: i32) -> io::Result<()> {
    let nice = getpriority_process(None)?.saturating_add(steps);
    Ok(setpriority_process(None, nice.min(NICEST))?)
}

/// Sets the policy `SCHED_BATCH` for the calling thread, and for threads that it starts later. Such
/// a thread does not preempt other threads when it wakes up. Its nice value stays unchanged.
///
/// # Errors
/// Does not fail in practice, because this policy needs no privilege.
pub fn only_computes() -> io::Result<()> {
    let priority: libc::c_int = 0;
    let (call, policy) = (libc::SYS_sched_setscheduler, libc::SCHED_BATCH);
    // SAFETY: 0 is the calling thread; the kernel reads the priority during the call. musl has no such
    // function.
    match unsafe { libc::syscall(call, 0, policy, &raw const priority) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

const NICEST: i32 = 19;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batch_scheduling_applies_to_the_calling_thread_only() {
        // SAFETY: 0 is the calling thread; the call takes nothing else.
        let policy = || unsafe { libc::sched_getscheduler(0) };
        let there = std::thread::spawn(move || {
            only_computes().unwrap();
            policy()
        });
        assert_eq!(there.join().unwrap(), libc::SCHED_BATCH);
        assert_eq!(policy(), libc::SCHED_OTHER);
    }

    #[test]
    fn a_lower_priority_applies_to_the_calling_thread_only() {
        let before = getpriority_process(None).unwrap();
        let there = std::thread::spawn(|| {
            give_way(3).unwrap();
            let once = getpriority_process(None).unwrap();
            give_way(i32::MAX).unwrap();
            (once, getpriority_process(None).unwrap())
        });
        let expected = ((before + 3).min(NICEST), NICEST);
        assert_eq!(there.join().unwrap(), expected);
        assert_eq!(getpriority_process(None).unwrap(), before);
    }
}
