//! The first turn of a client that has nothing to say before there is a server: on to one, without
//! a word. It speaks no TLS, or not yet.
//!
//! There is nothing to wait for: in some protocols the server speaks first, and what the client
//! has said already is read when the relay begins.

use std::rc::Rc;

use becket_proto::half_pipe::HalfPipe;

use super::connect::{Pending, Purpose};
use super::serving::{Serving, Site};
use super::{Context, Net, Next, Said};
use crate::connection::listener::ListenerState;
use becket_config::listener::ListenMode;
use becket_proto::close_reason::CloseReason;

/// A client that was accepted by a listener without TLS, or with STARTTLS.
#[derive(Debug)]
pub(super) struct Entering {
    listener: Rc<ListenerState>,
}

impl Entering {
    pub(super) fn new(listener: Rc<ListenerState>) -> Self {
        Self { listener }
    }

    /// Goes on to a server.
    pub(super) fn advance<N: Net>(self, cx: &mut Context<'_, '_, N>) -> Next<N> {
        if let Some(redirect) = self.listener.config().keys.redirect {
            let plain = (None, HalfPipe::default());
            return Serving::begin(Site::Https(redirect.port), plain, Said::default(), cx);
        }
        // A listener without TLS has no hello to choose by, and so only its own route.
        let Some(pool) = self.listener.pool(0).cloned() else {
            return Next::End(CloseReason::Internal);
        };
        let purpose = match self.listener.mode {
            ListenMode::StartTls(protocol) => Purpose::Converse(self.listener, protocol),
            _ => Purpose::Relay,
        };
        Pending::new(pool, purpose).begin(None, Said::default(), cx)
    }
}
