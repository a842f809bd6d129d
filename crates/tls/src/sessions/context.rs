//! Context of the running handshake, for the callbacks of rustls.
//!
//! rustls calls the session store and the ticketer synchronously and passes only bytes. So the
//! worker makes the [`HandshakeContext`] available to the callbacks of this thread during each call
//! of rustls. When a session is created, `encrypt` and `put` add the handshake's origin to rustls'
//! state. When a session is offered, `decrypt` and `get` record the opened session, or why it could
//! not be opened. The certificate resolver compares the name that rustls parsed with the peeked
//! server name.
//!
//! The *origin* of a session is the full handshake from which it descends through resumptions.
//! rustls issues every ticket with a new time and does not limit the total age. So this module
//! stores the time of the origin, to limit the age of sessions.

use std::cell::RefCell;
use std::time::Duration;
use std::{fmt, iter};

use becket_proto::session::SessionName;
use becket_proto::session_state::with_chain;
use becket_proto::ticket::{Origin, OriginId, UnixSeconds};

use zeroize::Zeroizing;

use crate::admission::HandshakePermit;
use crate::random;
use crate::resumption::Resumption;
use becket_keys::signing::SignatureRequest;
use becket_proto::close_reason::CloseReason;

/// Data of one handshake, which callbacks of rustls read and write.
#[derive(Debug)]
pub struct HandshakeContext {
    pub clock: HandshakeClock,
    pub certificate: ServerCertificate,
    pub resumption: ResumptionState,
    pub client: ClientChain,
    /// Traffic secrets of a client that announced early data; `None` for all other clients.
    pub secrets: Option<Box<ClientSecrets>>,
    pub signature: AwaitedSignature,
    /// Permit for a full handshake; `None` if full handshakes are not limited.
    pub permit: Option<HandshakePermit>,
}

/// Time of the current turn of the event loop.
#[derive(Clone, Copy, Debug)]
pub struct HandshakeClock {
    pub unix: UnixSeconds,
    pub mono: Duration,
}

/// State of choosing the certificate that is presented to the client.
#[derive(Debug)]
pub struct ServerCertificate {
    /// Peeked server name in lower case.
    pub server_name: Option<Box<str>>,
    /// Address to which the client connected. Set if the client sent no server name and a
    /// certificate contains the address.
    pub address: Option<Box<str>>,
    /// Index of the selected chain among the chains of the name. Also set in a resumed handshake,
    /// for logs and PROXY headers, although no chain is presented then.
    pub presented: Option<usize>,
}

#[derive(Debug, Default)]
pub struct ResumptionState {
    /// The session that the client offered; `None` until it has been decrypted or found.
    pub opened: Option<OpenedSession>,
    /// Result of the resumption; `None` if the client offered no session.
    pub outcome: Option<Resumption>,
    /// Name of the session that this handshake stored or found in the session table. It must be
    /// removed if the connection fails (RFC 5246, section 7.2.2).
    pub session: Option<SessionName>,
    /// `true` after the certificate chain of an offered session was checked, even if the check
    /// failed.
    pub verified: bool,
    /// `true` if no ticket was created because it would be too long.
    pub withheld: bool,
    /// Origin for sessions of this handshake if it is full. Created on first use.
    fresh: Option<Origin>,
}

/// Verified properties of the certificate chain that the client presented in this handshake.
#[derive(Debug, Default)]
pub struct ClientChain {
    pub until: Option<UnixSeconds>,
    /// Indices of the certificates on the verified path among the client's intermediate
    /// certificates.
    pub path: Option<Vec<usize>>,
    /// Summary of a rejected certificate, for the log.
    pub refused: Option<String>,
}

/// A requested signature that another thread or a token makes. The handshake step is suspended
/// until the signature arrives.
#[derive(Debug, Default)]
pub struct AwaitedSignature {
    pub request: Option<SignatureRequest>,
    pub answer: Option<Result<Vec<u8>, rustls::Error>>,
    pub token_failed: bool,
}

/// Traffic secrets of a client that announced early data, kept during its handshake.
#[derive(Default)]
pub struct ClientSecrets {
    pub early: Option<Zeroizing<Vec<u8>>>,
    pub handshake: Option<Zeroizing<Vec<u8>>>,
}

/// Omits all secrets from the output.
impl fmt::Debug for ClientSecrets {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("ClientSecrets")
    }
}

/// A session that was decrypted or found. rustls may still reject it, so only `handshake_kind`
/// shows whether it was resumed.
#[derive(Clone, Copy, Debug)]
pub struct OpenedSession {
    /// The full handshake from which the session descends.
    pub origin: Origin,
    /// `true` if the session was found by ID in the session table; `false` if it was in a ticket.
    pub by_id: bool,
}

impl HandshakeContext {
    pub fn new(server_name: Option<Box<str>>) -> Self {
        Self {
            clock: HandshakeClock {
                unix: UnixSeconds(0),
                mono: Duration::ZERO,
            },
            certificate: ServerCertificate {
                server_name,
                address: None,
                presented: None,
            },
            resumption: ResumptionState::default(),
            client: ClientChain::default(),
            secrets: None,
            signature: AwaitedSignature::default(),
            permit: None,
        }
    }

    /// Returns the origin to store with a new session: the origin of the opened session, or this
    /// full handshake. If a session was opened but not used, call
    /// [`ResumptionState::forget_opened`] before.
    ///
    /// A session must not outlive the client's certificate, because each resumption would then be
    /// rejected without a request for a new certificate. So the time of the origin is set so early
    /// that `max_age` ends when the certificate expires.
    pub fn origin(&mut self, max_age: Duration) -> Origin {
        if let Some(opened) = self.resumption.opened {
            return opened.origin;
        }
        let until = self.client.until;
        let last = until.map_or(u64::MAX, |until| until.0.saturating_sub(max_age.as_secs()));
        let at = UnixSeconds(self.clock.unix.0.min(last));
        *self.resumption.fresh.get_or_insert_with(|| Origin {
            id: random_id(),
            at,
        })
    }

    /// Returns the close reason if admission control rejected the full handshake.
    pub fn shed(&self) -> Option<CloseReason> {
        self.permit.as_ref().and_then(HandshakePermit::refused)
    }
}

impl ServerCertificate {
    pub fn name(&self) -> Option<&str> {
        self.server_name.as_deref().or(self.address.as_deref())
    }
}

impl ClientChain {
    /// Returns rustls' session state with only the client's leaf and the certificates on its
    /// verified path. Uses `room` if the state becomes shorter.
    ///
    /// Returns `None` if the state has an unexpected format, because a resumption could then not
    /// verify the chain.
    pub fn kept<'a>(&self, state: &'a [u8], room: &'a mut Zeroizing<Vec<u8>>) -> Option<&'a [u8]> {
        let Some(path) = &self.path else {
            return Some(state);
        };
        let issuers = path.iter().map(|place| place + 1);
        let places: Vec<usize> = iter::once(0).chain(issuers).collect();
        *room = Zeroizing::new(with_chain(state, &places)?);
        Some(room)
    }
}

impl ResumptionState {
    /// Returns the ID of the origin of this connection's session. Returns `None` if no session was
    /// stored. Valid only after the handshake, and only if an opened session was also used.
    pub fn origin_id(&self) -> Option<OriginId> {
        let origin = self.opened.map(|opened| opened.origin).or(self.fresh);
        // ID 0 means that the system provided no random bytes.
        origin
            .map(|origin| origin.id)
            .filter(|origin| origin.0 != 0)
    }

    /// Records whether an offered session or ticket was opened, or why it could not be opened.
    pub fn note<T>(
        &mut self,
        result: &Result<T, Resumption>,
        opened: impl FnOnce(&T) -> OpenedSession,
    ) {
        match result {
            Ok(found) => {
                self.opened = Some(opened(found));
                self.outcome = Some(Resumption::Opened);
            }
            Err(cause) => self.outcome = Some(*cause),
        }
    }

    /// Removes the opened session, because the handshake turned out to be full.
    pub fn forget_opened(&mut self) {
        self.opened = None;
        self.session = None;
    }
}

fn random_id() -> OriginId {
    let mut bytes = [0; 8];
    // Fails only without a system random source. In that case, the handshake has already failed.
    match random::fill(&mut bytes) {
        Ok(()) => OriginId(u64::from_ne_bytes(bytes)),
        Err(_) => OriginId(0),
    }
}

thread_local! {
    static CURRENT: RefCell<Option<HandshakeContext>> = const { RefCell::new(None) };
}

/// Makes `handshake` available to `with` on this thread while `body` runs.
pub fn lend<T>(handshake: &mut Option<HandshakeContext>, body: impl FnOnce() -> T) -> T {
    let before = CURRENT.replace(handshake.take());
    let result = body();
    *handshake = CURRENT.replace(before);
    result
}

/// Passes the context that `lend` made available to `body`. Returns `None` if there is none.
pub fn with<T>(body: impl FnOnce(&mut HandshakeContext) -> T) -> Option<T> {
    CURRENT.with_borrow_mut(|current| current.as_mut().map(body))
}

/// Returns `true` if a full handshake must claim a permit.
pub fn is_limited() -> bool {
    with(|handshake| handshake.permit.is_some()).unwrap_or(false)
}

/// Claims the permit for a full handshake. Does nothing if this thread has no handshake context.
///
/// # Errors
///
/// Returns the close reason if the client must be shed.
pub fn pay() -> Result<(), CloseReason> {
    with(|handshake| {
        let now = handshake.clock.mono;
        let permit = handshake.permit.as_mut();
        permit.map_or(Ok(()), |permit| permit.claim(now))
    })
    .unwrap_or(Ok(()))
}
