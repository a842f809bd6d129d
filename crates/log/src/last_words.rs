//! What a process says when it panics: to standard error, which may be a pipe that nobody reads.
//!
//! The hook of the standard library writes from the thread that panics, for as long as that takes; with a backtrace that is more than
//! any pipe has room for, and a process that cannot die keeps its clients waiting. So another thread writes, and is waited for a moment.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{self, Write};
use std::panic;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

/// From now on no panic waits longer than this for a reader.
pub(super) fn hasten(patience: Duration) {
    panic::set_hook(Box::new(move |panic| {
        let thread = thread::current();
        let name = thread.name().unwrap_or("<unnamed>");
        let mut text = format!("\nthread '{name}' {panic}\n");
        let backtrace = Backtrace::capture();
        if backtrace.status() == BacktraceStatus::Captured {
            text.push_str(&backtrace.to_string());
        }
        say(text, io::stderr(), patience);
    }));
}

fn say(text: String, mut to: impl Write + Send + 'static, patience: Duration) {
    let (said, waiting) = channel();
    let speaking = thread::Builder::new().name("last-words".to_owned());
    let speaking = speaking.spawn(move || {
        let written = to.write_all(text.as_bytes());
        // Nobody is left who could be told that it failed, or that it came too late.
        said.send(written).ok();
    });
    if speaking.is_ok() {
        waiting.recv_timeout(patience).ok();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender};

    use super::*;

    /// Takes nothing before it is told to.
    struct Pipe(Receiver<()>, Sender<Vec<u8>>);

    impl Write for Pipe {
        fn write(&mut self, text: &[u8]) -> io::Result<usize> {
            self.0.recv().ok();
            self.1.send(text.to_owned()).ok();
            Ok(text.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn who_does_not_read_is_not_waited_for_and_who_reads_is() {
        let ((reader, wait), (taken, text)) = (channel(), channel());
        say(
            "unread".to_owned(),
            Pipe(wait, taken),
            Duration::from_millis(1),
        );
        assert!(text.try_recv().is_err(), "and yet it has returned");
        drop(reader);
        assert_eq!(text.recv().unwrap(), b"unread");

        let ((_, wait), (taken, text)) = (channel(), channel());
        say(
            "read".to_owned(),
            Pipe(wait, taken),
            Duration::from_secs(60),
        );
        assert_eq!(text.try_recv().unwrap(), b"read");
    }
}
