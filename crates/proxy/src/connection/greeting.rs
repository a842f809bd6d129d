//! Reads the PROXY header of a proxy in front of becket.
//!
//! With `accept-proxy`, every client must send a header. A header is never detected automatically,
//! because it can claim any client address. A client outside `trusted-networks` is reset before any
//! byte is read. Any data other than a header ends the connection.
//!
//! The header is peeked in the socket until it is complete, and exactly its bytes are then read. So
//! the next phase reads the following bytes as if there were no header, and no byte is buffered. A
//! header has at most [`MAX_V2_BYTES`], and `timeouts.hello` includes the wait for it.
//!
//! Source: HAProxy's proxy-protocol.txt, sections 2 to 5; the codec is
//! [`becket_proto::proxy_header`].

use std::io::ErrorKind;
use std::rc::Rc;

use becket_config::choices::Introduction;
use becket_proto::proxy_header::{Accept, Endpoints, MAX_V2_BYTES, ProxyHeader, decode};

use super::context::{Context, Net};
use super::listener::ListenerState;
use super::reached::{Advance, Reached};
use crate::leg::Got;
use crate::socket::StreamSocket;
use becket_log::facts::{Facts, ProxyDetails};
use becket_proto::close_reason::CloseReason;
use becket_tls::scratch::{Buffer, Scratch};

#[derive(Debug)]
pub(super) struct Greeting {
    listener: Rc<ListenerState>,
}

impl Greeting {
    pub(super) fn new(listener: Rc<ListenerState>) -> Self {
        Self { listener }
    }

    pub(super) fn advance<N: Net>(
        self,
        cx: &mut Context<'_, '_, N>,
        scratch: &mut Scratch,
    ) -> Advance<Self, N> {
        let listener = self.listener.config();
        let Some(versions) = listener.keys.accept_proxy else {
            return Advance::end(CloseReason::Internal);
        };
        if !listener.trusted.contains(cx.core.facts.client.ip()) {
            let detail = "not in trusted-networks".to_owned();
            return refuse(CloseReason::UntrustedProxy, detail, cx);
        }
        scratch.clear();
        match look(&self.listener, versions, &mut scratch.sealed_in, cx) {
            Ok(true) => Advance::Reached(Reached::Client(self.listener)),
            Ok(false) => Advance::Wait(self),
            Err((reason, detail)) => refuse(reason, detail, cx),
        }
    }

    pub(super) fn expire<N: Net>(self, cx: &mut Context<'_, '_, N>) -> Advance<Self, N> {
        let detail = "incomplete proxy header".to_owned();
        refuse(CloseReason::HelloTimeout, detail, cx)
    }
}

/// Peeks the header in the socket. If it is complete, reads it, stores its contents in [`Facts`]
/// and returns `true`. Returns `false` if more bytes are needed.
fn look<N: Net>(
    state: &ListenerState,
    versions: Accept,
    seen: &mut Buffer,
    cx: &mut Context<'_, '_, N>,
) -> Result<bool, (CloseReason, String)> {
    let quietly = |reason| (reason, String::new());
    match cx.core.client.socket.peek(seen.next(MAX_V2_BYTES)) {
        // The kernel returns received bytes before it reports the end of the stream, so this client
        // has sent none.
        Ok(0) => return Err(quietly(CloseReason::HealthCheck)),
        Ok(n) => seen.advance(n),
        Err(error) if error.kind() == ErrorKind::WouldBlock => {
            cx.core.client.ready.readable = false;
            return Ok(false);
        }
        Err(_) => return Err(quietly(CloseReason::HealthCheck)),
    }
    let (header, len) = match decode(seen.filled(), versions) {
        Ok(Some((header, len))) => (header, len),
        // Peeking does not consume the bytes, so only the next byte or the end of the stream causes
        // an event.
        Ok(None) if cx.core.client.ready.ended => {
            let detail = "the stream ended inside the proxy header".to_owned();
            return Err((CloseReason::ProxyHeader, detail));
        }
        Ok(None) => {
            cx.core.client.ready.readable = false;
            return Ok(false);
        }
        Err(refusal) => {
            return Err((CloseReason::ProxyHeader, refusal.to_string()));
        }
    };
    let whole = seen.filled().get(..len).filter(|_| passes_on(state));
    introduce(&header, whole, &mut cx.core.facts);
    // A LOCAL header means that the connection is the proxy's own, such as a health check. It has
    // no client to count.
    if header.endpoints != Endpoints::Local {
        let client = cx.core.facts.client.ip();
        let admitted = cx
            .turn
            .admission
            .admit(state.config(), client, cx.turn.now.mono);
        cx.core.count(admitted.map_err(quietly)?);
    }
    seen.clear();
    match cx.receive(seen, len) {
        // The bytes were just peeked, so they are available. The bytes after the header may cause
        // no event.
        Ok(Got::Bytes(_)) if seen.len() == len => {
            cx.core.client.ready.readable = true;
            cx.core.header = len as u64;
            Ok(true)
        }
        _ => Err(quietly(CloseReason::HandshakeAborted)),
    }
}

/// Stores the contents of a header. The real endpoints remain for LOCAL ("the receiver must use the
/// real connection endpoints") and for unspecified addresses ("should ignore address information").
/// A unix path is ignored, because [`Facts::client`] is an IP address.
fn introduce(header: &ProxyHeader<'_>, whole: Option<&[u8]>, facts: &mut Facts) {
    let mut introduced = ProxyDetails {
        header: whole.map(Box::from),
        unique_id: header.tlvs.unique_id.map(Box::from),
        ..ProxyDetails::default()
    };
    if let Endpoints::Tcp {
        source,
        destination,
    } = header.endpoints
    {
        facts.client = source;
        introduced.arrived_at = Some(destination);
    }
    facts.introduced = Some(Box::new(introduced));
}

/// Returns `true` if a backend of this listener forwards the received header unchanged.
fn passes_on(state: &ListenerState) -> bool {
    let routes = state.config().routes.iter();
    let mut pools = routes.filter_map(|route| state.pools.get(route.backend));
    pools.any(|pool| pool.backend().keys.proxy_header == Some(Introduction::Received))
}

fn refuse<N: Net>(
    reason: CloseReason,
    detail: String,
    cx: &mut Context<'_, '_, N>,
) -> Advance<Greeting, N> {
    if !detail.is_empty() {
        cx.note(reason, &detail);
    }
    cx.core.client.socket.reset_on_close();
    Advance::end(reason)
}
