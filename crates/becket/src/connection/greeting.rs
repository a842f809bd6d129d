//! Before the hello: the PROXY header of whoever stands in front of us.
//!
//! Only where `accept-proxy` is set, and then of every client: whether a header comes is
//! configuration, never guesswork, because whoever may send one may claim any address. So who is
//! not of `trusted-networks` is reset before a byte of it is read, and what is no header ends the
//! connection.
//!
//! The header is looked at where it lies, in the socket, until it is whole, and then taken out to
//! the byte: what follows it is for the next phase, which need not know that there was one. Nothing
//! is held meanwhile. A header has [`MAX_V2_BYTES`] at most and counts towards
//! `timeouts.hello`.
//!
//! Source: HAProxy's proxy-protocol.txt, sections 2 to 5; the codec is
//! [`becket_proto::proxy_header`].

use std::io::ErrorKind;
use std::rc::Rc;

use becket_proto::proxy_header::{
    Decoded, Endpoints, MAX_V2_BYTES, ProxyHeader, Transport, decode,
};

use super::facts::{Facts, Introduced};
use super::{Core, Net, Next, Phase, Turn};
use crate::close_reason::CloseReason;
use crate::config::{AcceptProxy, Listener};
use crate::connection::listener::ListenerState;
use crate::leg::{Got, Ready};
use crate::scratch::Scratch;
use crate::socket::{Peek, Socket};

/// A client that has not been introduced yet.
#[derive(Debug)]
pub struct Greeting {
    listener: Rc<ListenerState>,
}

/// What came of a look into the socket.
enum Look {
    /// A header was read, and what it says is in the facts.
    Introduced,
    /// More has to come.
    Wait,
    /// There will be no header.
    Refused(CloseReason, String),
}

impl Greeting {
    /// Starts for a client that came through `listener`.
    pub fn new(listener: Rc<ListenerState>) -> Self {
        Self { listener }
    }

    /// Gives the listener back.
    pub fn into_listener(self) -> Rc<ListenerState> {
        self.listener
    }

    /// Whether this readiness can bring the header.
    pub fn cares_for(&self, ready: Ready) -> bool {
        ready.readable || ready.ended
    }

    /// Does what can be done now.
    pub fn advance<N: Net>(self, core: &mut Core<N>, turn: &mut Turn<'_, N>) -> Next<N> {
        let listener = self.listener.config();
        let Some(accepts) = &listener.accept_proxy else {
            return Next::End(CloseReason::Internal);
        };
        if !accepts.trusted.contains(core.facts.client.ip()) {
            let detail = "not in trusted-networks".to_owned();
            return refuse(CloseReason::UntrustedProxy, detail, core, turn);
        }
        match look(listener, accepts, core, turn) {
            Look::Introduced => Next::Go(Phase::first(self.listener, turn.counters)),
            Look::Wait => Next::Wait(Phase::Greeting(self)),
            Look::Refused(reason, detail) => refuse(reason, detail, core, turn),
        }
    }

    /// The header took too long.
    pub fn expire<N: Net>(self, core: &mut Core<N>, turn: &mut Turn<'_, N>) -> Next<N> {
        let detail = "no whole proxy header".to_owned();
        refuse(CloseReason::HelloTimeout, detail, core, turn)
    }
}

fn look<N: Net>(
    listener: &Listener,
    accepts: &AcceptProxy,
    core: &mut Core<N>,
    turn: &mut Turn<'_, N>,
) -> Look {
    turn.scratch.clear();
    let Scratch { sealed_in, .. } = turn.scratch;
    let room = sealed_in.room(MAX_V2_BYTES).get_mut(..MAX_V2_BYTES);
    let seen = match core.client.socket.peek(room.unwrap_or_default()) {
        Ok(0) => return Look::Refused(CloseReason::HandshakeAborted, String::new()),
        Ok(seen) => seen,
        Err(error) if error.kind() == ErrorKind::WouldBlock => {
            core.client.ready.readable = false;
            return Look::Wait;
        }
        Err(_) => return Look::Refused(CloseReason::HandshakeAborted, String::new()),
    };
    sealed_in.advance(seen);
    let taken = match decode(sealed_in.filled(), accepts.versions) {
        Decoded::Header { header, len } => {
            introduce(&header, &mut core.facts);
            // A proxy that speaks for itself is trusted, and no client.
            if header.endpoints != Endpoints::Local {
                let client = core.facts.client.ip();
                match turn.admission.admit(listener, client, turn.now.mono) {
                    Ok(admitted) => core.count(admitted),
                    Err(reason) => return Look::Refused(reason, String::new()),
                }
            }
            len
        }
        // What has come stays in the socket, and no event repeats it: the next byte brings one.
        Decoded::Incomplete if core.client.ready.ended => {
            let detail = "ended within the proxy header".to_owned();
            return Look::Refused(CloseReason::ProxyHeader, detail);
        }
        Decoded::Incomplete => {
            core.client.ready.readable = false;
            return Look::Wait;
        }
        Decoded::Refused(refusal) => {
            return Look::Refused(CloseReason::ProxyHeader, refusal.to_string());
        }
    };
    sealed_in.clear();
    let counter = &turn.counters.client_bytes_in;
    match core.client.receive(sealed_in, taken, counter) {
        // Just seen, so they come at once; and behind them may be more, of which no event tells.
        Ok(Got::Bytes) if sealed_in.len() == taken => {
            core.client.ready.readable = true;
            Look::Introduced
        }
        _ => Look::Refused(CloseReason::HandshakeAborted, String::new()),
    }
}

/// Believes a header. What cannot be the ends of a TCP connection leaves the real ones: "the
/// receiver must use the real connection endpoints" (LOCAL), or "should ignore address
/// information" (unspecified), and a path is no address that anything here could use.
fn introduce(header: &ProxyHeader<'_>, facts: &mut Facts) {
    let mut introduced = Introduced {
        unique_id: header.tlvs.unique_id.map(Box::from),
        ..Introduced::default()
    };
    if let Endpoints::Inet {
        source,
        destination,
        transport: Transport::Stream,
    } = header.endpoints
    {
        facts.client = source;
        introduced.arrived_at = Some(destination);
    }
    facts.introduced = Some(Box::new(introduced));
}

/// Ends a connection that has said nothing which deserves an answer.
fn refuse<N: Net>(
    reason: CloseReason,
    detail: String,
    core: &mut Core<N>,
    turn: &mut Turn<'_, N>,
) -> Next<N> {
    if !detail.is_empty() {
        turn.failures.note(&core.facts, reason, &detail, turn.now);
    }
    core.client.socket.reset_on_close();
    Next::End(reason)
}
