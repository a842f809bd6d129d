//! Signals, as what they ask for.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// SIGHUP: reload the configuration.
    Reload,
    /// SIGUSR1: open log files anew.
    Reopen,
    /// SIGUSR2: be replaced by the program as it is now.
    Upgrade,
    /// SIGTERM: take no new clients, finish, end.
    Drain,
    /// SIGINT: end now.
    Stop,
}

/// Where signals arrive.
#[derive(Debug)]
pub(crate) struct Signals {
    hangup: Signal,
    user1: Signal,
    user2: Signal,
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Takes over the signals of this process.
    ///
    /// # Errors
    ///
    /// When the system refuses, or there is no runtime.
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self {
            hangup: signal(SignalKind::hangup())?,
            user1: signal(SignalKind::user_defined1())?,
            user2: signal(SignalKind::user_defined2())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for the next one. Nothing is lost when the future is dropped.
    pub(crate) async fn next(&mut self) -> Wanted {
        tokio::select! {
            _ = self.hangup.recv() => Wanted::Reload,
            _ = self.user1.recv() => Wanted::Reopen,
            _ = self.user2.recv() => Wanted::Upgrade,
            _ = self.terminate.recv() => Wanted::Drain,
            _ = self.interrupt.recv() => Wanted::Stop,
        }
    }
}
