//! Waits for events until a moment, precise to microseconds.
//!
//! mio's time-outs are whole milliseconds, rounded up, which would make every start of an open loop
//! late. Short waits therefore go through `ppoll` on the epoll descriptor, one call more.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use mio::{Events, Poll};
use rustix::event::{PollFd, PollFlags, Timespec};

/// Waits at most this long, rounded up to a millisecond, and fills `events`. One system call.
///
/// # Errors
/// What `epoll_wait` returns, but for an interruption.
pub fn coarsely(poll: &mut Poll, events: &mut Events, time: Duration) -> io::Result<()> {
    ignore_interrupt(poll.poll(events, Some(time)))
}

/// Waits at most this long, precise to microseconds, and fills `events`.
///
/// # Errors
/// What `ppoll` and `epoll_wait` return, but for an interruption.
pub fn precisely(poll: &mut Poll, events: &mut Events, time: Duration) -> io::Result<()> {
    if time.is_zero() || time >= COARSE {
        return ignore_interrupt(poll.poll(events, Some(time)));
    }
    let fine = Timespec {
        tv_sec: 0,
        tv_nsec: i64::from(time.subsec_nanos()),
    };
    let mut fds = [PollFd::from_borrowed_fd(
        poll.registry().as_fd(),
        PollFlags::IN,
    )];
    ignore_interrupt(rustix::event::poll(&mut fds, Some(&fine)).map_err(io::Error::from))?;
    ignore_interrupt(poll.poll(events, Some(Duration::ZERO)))
}

fn ignore_interrupt<T>(result: io::Result<T>) -> io::Result<()> {
    match result {
        Err(e) if e.kind() != io::ErrorKind::Interrupted => Err(e),
        _ => Ok(()),
    }
}

/// From here on a millisecond more does not matter.
const COARSE: Duration = Duration::from_millis(20);
