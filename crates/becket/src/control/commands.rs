//! Commands of the supervisor, and events for it.

use std::future::pending;
use std::io;

use tokio::sync::mpsc::UnboundedReceiver;

use crate::link::{Delivered, Link};
use crate::protocol::Event;

/// The connection to the supervisor, if there is one.
#[derive(Debug)]
pub(crate) struct Commands {
    supervisor: Option<(Link, UnboundedReceiver<Delivered>)>,
}

impl Commands {
    /// Starts to receive commands.
    ///
    /// # Errors
    /// There can be no more threads.
    pub(crate) fn new(link: Option<Link>) -> io::Result<Self> {
        if let Some(link) = link.as_ref().filter(|link| link.follows_a_death) {
            let deaths = link.restarts.deaths;
            tracing::warn!(deaths, "started again: the previous serving process died");
        }
        let listen = |link: Link| link.listen().map(|commands| (link, commands));
        let supervisor = link.map(listen).transpose()?;
        Ok(Self { supervisor })
    }

    /// Waits for the next command. Nothing is lost when the future is dropped.
    pub(crate) async fn next(&mut self) -> Delivered {
        let received = match &mut self.supervisor {
            Some((_, commands)) => commands.recv().await,
            None => None,
        };
        match received {
            Some(delivered) => delivered,
            // There is no supervisor, or its end was the last command.
            None => pending().await,
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
