//! The source of commands and the way of events: the supervisor, or the signals of a process that has none.
//!
//! A process under a supervisor ignores signals: a service manager may send them to all processes of the service, and the supervisor
//! passes them on.

use std::io;

use tokio::sync::mpsc::UnboundedReceiver;

use super::signals::Signals;
use crate::link::{Delivered, Link};
use crate::protocol::OperatorRequest;
use crate::protocol::{Command, Event};

/// The source of commands.
#[derive(Debug)]
pub struct Commands {
    /// Handled also under a supervisor, so that they do not end this process.
    signals: Signals,
    supervisor: Option<(Link, UnboundedReceiver<Delivered>)>,
}

impl Commands {
    /// Starts to receive commands.
    ///
    /// # Errors
    /// There is no thread for commands of a supervisor.
    pub(crate) fn new(signals: Signals, link: Option<Link>) -> io::Result<Self> {
        if let Some(link) = link.as_ref().filter(|link| link.follows_a_death) {
            let deaths = link.restarts.deaths;
            tracing::warn!(deaths, "started again: the previous serving process died");
        }
        let listen = |link: Link| link.listen().map(|commands| (link, commands));
        let supervisor = link.map(listen).transpose()?;
        Ok(Self {
            signals,
            supervisor,
        })
    }

    /// Waits for the next command. Nothing is lost when the future is dropped.
    pub(crate) async fn next(&mut self) -> Delivered {
        match &mut self.supervisor {
            Some((_, commands)) => match commands.recv().await {
                Some(received) => received,
                // The supervisor has ended, which was the last command.
                None => std::future::pending().await,
            },
            None => {
                let command = match self.signals.next().await {
                    OperatorRequest::Reload => Command::Reload(None),
                    OperatorRequest::Upgrade => Command::Upgrade,
                    OperatorRequest::Reopen => Command::Reopen,
                    OperatorRequest::Drain => Command::Drain,
                    OperatorRequest::Stop => Command::Stop,
                };
                (command, Vec::new())
            }
        }
    }

    /// The way to the supervisor.
    pub(crate) fn supervisor(&self) -> Option<&Link> {
        self.supervisor.as_ref().map(|(link, _)| link)
    }

    /// Reports an event, if there is a supervisor.
    pub(crate) fn report(&self, event: &Event) {
        if let Some((link, _)) = &self.supervisor {
            link.report(event);
        }
    }
}

/// The reason why a process without a supervisor is not replaced.
pub(crate) const NO_SUPERVISOR: &str =
    "this becket has no supervisor that could start another program; becket run has one";
