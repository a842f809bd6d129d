//! How much of a busy core a thread gets beside others.
//!
//! Source: setpriority(2): on Linux a nice value belongs to a thread, and threads that it starts inherit it.

use std::io;

use rustix::process::{getpriority_process, setpriority_process};

/// Puts the calling thread, and those that it will start, behind the others: `steps` of nice, each worth about a fifth of the
/// time on a core that others want, too.
///
/// # Errors
/// None where the thread may see itself: to give way needs no privilege.
pub fn give_way(steps: i32) -> io::Result<()> {
    let nice = getpriority_process(None)?.saturating_add(steps);
    Ok(setpriority_process(None, nice.min(NICEST))?)
}

const NICEST: i32 = 19;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_thread_that_gives_way_does() {
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
