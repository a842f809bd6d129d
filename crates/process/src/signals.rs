//! Converts signals to operator requests.

use std::io;
use std::time::Duration;

use becket_sys::process::{hold_signals, receive_signals};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::timeout;

use crate::protocol::OperatorRequest;

#[derive(Debug)]
pub struct Signals {
    hangup: Signal,
    user1: Signal,
    user2: Signal,
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Installs handlers for the signals of this process.
    ///
    /// # Errors
    ///
    /// Fails if a handler cannot be installed, or outside a runtime.
    pub fn listen() -> io::Result<Self> {
        Ok(Self {
            hangup: signal(SignalKind::hangup())?,
            user1: signal(SignalKind::user_defined1())?,
            user2: signal(SignalKind::user_defined2())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for the next signal. Cancel-safe.
    pub async fn next(&mut self) -> OperatorRequest {
        tokio::select! {
            _ = self.hangup.recv() => OperatorRequest::Reload,
            _ = self.user1.recv() => OperatorRequest::Reopen,
            _ = self.user2.recv() => OperatorRequest::Upgrade,
            _ = self.terminate.recv() => OperatorRequest::Drain,
            _ = self.interrupt.recv() => OperatorRequest::Stop,
        }
    }

    /// Blocks signals until [`Self::release`]; they stay blocked across an exec. Returns the
    /// signals that arrived before.
    pub async fn hold(&mut self) -> io::Result<Vec<OperatorRequest>> {
        hold_signals()?;
        let mut received = Vec::new();
        // A signal that was just delivered exists only in this process, and an exec would lose it.
        while let Ok(request) = timeout(MOMENT, self.next()).await {
            received.push(request);
        }
        Ok(received)
    }

    pub fn release(&self) -> io::Result<()> {
        receive_signals()
    }
}

/// Maximum time until a delivered signal reaches its receiver.
const MOMENT: Duration = Duration::from_millis(1);
