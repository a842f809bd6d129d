//! Waits for events until a given time, with a precision of microseconds.
//!
//! mio rounds time-outs up to whole milliseconds, which would delay every start of an open loop. Short waits therefore call
//! `ppoll` on the epoll file descriptor first, which costs one more system call.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use mio::{Events, Poll};
use rustix::event::{PollFd, PollFlags, Timespec};

/// Waits for at most `time`, rounded up to a millisecond, and fills `events`. Makes one system call.
///
/// # Errors
/// The error of `epoll_wait`, except `EINTR`.
pub fn coarsely(poll: &mut Poll, events: &mut Events, time: Duration) -> io::Result<()> {
    ignore_interrupt(poll.poll(events, Some(time)))
}

/// Waits for at most `time`, with a precision of microseconds, and fills `events`.
///
/// # Errors
/// The error of `ppoll` or `epoll_wait`, except `EINTR`.
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

/// Minimum wait for which millisecond precision is sufficient.
const COARSE: Duration = Duration::from_millis(20);
