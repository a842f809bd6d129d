//! Signals, as what they ask for.

use std::io;
use std::time::Duration;

use becket_sys::process::{self, hold_signals, receive_signals};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::timeout;

use crate::protocol::OperatorRequest;

/// The signal that asks for this.
pub fn signal_for(request: OperatorRequest) -> process::Signal {
    match request {
        OperatorRequest::Reload => process::Signal::HUP,
        OperatorRequest::Upgrade => process::Signal::USR2,
        OperatorRequest::Reopen => process::Signal::USR1,
        OperatorRequest::Drain => process::Signal::TERM,
        OperatorRequest::Stop => process::Signal::INT,
    }
}

/// Where signals arrive.
#[derive(Debug)]
pub struct Signals {
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
    pub fn listen() -> io::Result<Self> {
        Ok(Self {
            hangup: signal(SignalKind::hangup())?,
            user1: signal(SignalKind::user_defined1())?,
            user2: signal(SignalKind::user_defined2())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for the next one. Nothing is lost when the future is dropped.
    pub async fn next(&mut self) -> OperatorRequest {
        tokio::select! {
            _ = self.hangup.recv() => OperatorRequest::Reload,
            _ = self.user1.recv() => OperatorRequest::Reopen,
            _ = self.user2.recv() => OperatorRequest::Upgrade,
            _ = self.terminate.recv() => OperatorRequest::Drain,
            _ = self.interrupt.recv() => OperatorRequest::Stop,
        }
    }

    /// Blocks signals until [`Self::release`]; they stay blocked over an execve. Returns the signals that came before.
    pub async fn hold(&mut self) -> io::Result<Vec<OperatorRequest>> {
        hold_signals()?;
        let mut received = Vec::new();
        // A signal that came just now is in this process, and would be lost with it.
        while let Ok(request) = timeout(MOMENT, self.next()).await {
            received.push(request);
        }
        Ok(received)
    }

    /// Takes signals again.
    pub fn release(&self) -> io::Result<()> {
        receive_signals()
    }
}

/// After this a signal that was received would have been seen.
const MOMENT: Duration = Duration::from_millis(1);
