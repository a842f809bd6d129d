//! The running handshake, as rustls' session store and ticketer see it.
//!
//! rustls calls the store and the ticketer synchronously from `process_tls_records` and passes
//! nothing but bytes. So the worker lends the handshake's [`HandshakeContext`] to this thread for the
//! time of that call: `encrypt` and `put` seal its origin next to rustls' state, `decrypt` and
//! `get` leave in it what they opened or why they did not. The certificate resolver finds the
//! peeked server name here and refuses if rustls read another one.
//!
//! RFC 8446 has no notion of the *origin*: the full handshake from which all later tickets of a
//! client descend. rustls stamps every ticket again and checks no age, so the age is kept here.

use std::cell::RefCell;
use std::time::Duration;
use std::{fmt, iter};

use becket_proto::session::SessionName;
use becket_proto::session_state::with_chain;
use becket_proto::ticket::{Origin, OriginId, UnixSeconds};

use zeroize::Zeroizing;

use crate::admission::HandshakePermit;
use crate::resumption::Resumption;
use becket_keys::signing::SignatureRequest;
use becket_proto::close_reason::CloseReason;

/// One handshake, as rustls' callbacks see it.
#[derive(Debug)]
pub struct HandshakeContext {
    pub clock: HandshakeClock,
    pub certificate: ServerCertificate,
    pub resumption: ResumptionState,
    pub client: ClientChain,
    /// `None` unless the client announced early data.
    pub secrets: Option<Box<ClientSecrets>>,
    pub signature: AwaitedSignature,
    /// Pays for a full handshake; `None` if full handshakes are not limited.
    pub permit: Option<HandshakePermit>,
}

/// The time of this loop turn.
#[derive(Clone, Copy, Debug)]
pub struct HandshakeClock {
    pub unix: UnixSeconds,
    /// Monotonic, from the process start.
    pub mono: Duration,
}

/// The certificate that the client gets.
#[derive(Debug)]
pub struct ServerCertificate {
    /// The name that was peeked from the hello, lower case.
    pub server_name: Option<Box<str>>,
    /// Without such a name: the address that the client connected to, if a certificate is for it.
    pub address: Option<Box<str>>,
    /// Index of the chain that was chosen among those of the name; a resumption presents none, but
    /// has one to be known by.
    pub presented: Option<usize>,
}

/// The session that the client brought, and the one that it gets.
#[derive(Debug, Default)]
pub struct ResumptionState {
    /// The session that the client brought, once it was opened.
    pub opened: Option<OpenedSession>,
    /// `None` while the client has offered nothing.
    pub outcome: Option<Resumption>,
    /// The session in the table that this handshake made or found: what must be forgotten if the
    /// connection fails (RFC 5246, section 7.2.2).
    pub session: Option<SessionName>,
    /// The chain of a session that the client brought was verified.
    pub verified: bool,
    /// A ticket was not made, because it would be too long.
    pub withheld: bool,
    /// This handshake's own origin; made when first needed.
    fresh: Option<Origin>,
}

/// The chain that the client has just shown.
#[derive(Debug, Default)]
pub struct ClientChain {
    /// When its certificate expires.
    pub until: Option<UnixSeconds>,
    /// Indices of that certificate's issuers among the certificates that the client has shown with it.
    pub path: Option<Vec<usize>>,
}

/// A signature that is made elsewhere; the step is suspended until it is there.
#[derive(Debug, Default)]
pub struct AwaitedSignature {
    pub request: Option<SignatureRequest>,
    pub answer: Option<Result<Vec<u8>, rustls::Error>>,
    /// The token that has the key did not make it.
    pub token_failed: bool,
}

/// Secrets under which a client that announced early data seals, while its handshake lasts.
#[derive(Default)]
pub struct ClientSecrets {
    /// Traffic secret of early data.
    pub early: Option<Zeroizing<Vec<u8>>>,
    /// Traffic secret of the handshake.
    pub handshake: Option<Zeroizing<Vec<u8>>>,
}

/// Shows nothing of the secrets.
impl fmt::Debug for ClientSecrets {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("ClientSecrets")
    }
}

/// A session that was opened; whether rustls also used it, only `handshake_kind` tells.
#[derive(Clone, Copy, Debug)]
pub struct OpenedSession {
    /// The full handshake from which it descends.
    pub origin: Origin,
    /// Found by ID in the table, else sealed in a ticket.
    pub by_id: bool,
}

impl HandshakeContext {
    /// Starts for a hello with this server name.
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

    /// The origin to seal: the one that was opened, or this handshake's own. Must not be called
    /// for a handshake that opened a session and did not use it; see [`ResumptionState::forget_opened`].
    ///
    /// A session must not outlive the certificate that the client showed: it would be refused
    /// each time it resumed, and the client never asked for its new one. So its origin is dated
    /// back until `max_age` ends with the certificate.
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

    /// Why admission refused it, if it did.
    pub fn shed(&self) -> Option<CloseReason> {
        self.permit.as_ref().and_then(HandshakePermit::refused)
    }
}

impl ServerCertificate {
    /// The name by which the certificate is chosen.
    pub fn name(&self) -> Option<&str> {
        self.server_name.as_deref().or(self.address.as_deref())
    }
}

impl ClientChain {
    /// The state to keep: of the client's chain only what verified it in this handshake. One that a
    /// session brought is as short already. Nothing when rustls' state is not what it was taken for:
    /// such a session could not be verified later. To erase it is the receiver's task.
    pub fn kept(&self, state: &[u8]) -> Option<Vec<u8>> {
        let Some(path) = &self.path else {
            return Some(state.to_vec());
        };
        let issuers = path.iter().map(|place| place + 1);
        let places: Vec<usize> = iter::once(0).chain(issuers).collect();
        with_chain(state, &places).ok()
    }
}

impl ResumptionState {
    /// The line that this handshake continued or began; nothing when it made no session. Ask when
    /// the handshake is complete, and only one that used what it opened.
    pub fn origin_id(&self) -> Option<OriginId> {
        let origin = self.opened.map(|opened| opened.origin).or(self.fresh);
        // 0 is what is left when the system gives no random bytes.
        origin
            .map(|origin| origin.id)
            .filter(|origin| origin.0 != 0)
    }

    /// Keeps what became of an offered session or ticket.
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

    /// The handshake turned out to be a full one: what was opened is not its origin.
    pub fn forget_opened(&mut self) {
        self.opened = None;
        self.session = None;
    }
}

fn random_id() -> OriginId {
    let mut bytes = [0; 8];
    // Only a broken system source fails, and then the handshake before this call has failed too.
    match aws_lc_rs::rand::fill(&mut bytes) {
        Ok(()) => OriginId(u64::from_ne_bytes(bytes)),
        Err(_) => OriginId(0),
    }
}

thread_local! {
    static CURRENT: RefCell<Option<HandshakeContext>> = const { RefCell::new(None) };
}

/// Runs `body` with `handshake` lent to this thread.
pub fn lend<T>(handshake: &mut Option<HandshakeContext>, body: impl FnOnce() -> T) -> T {
    let before = CURRENT.replace(handshake.take());
    let result = body();
    *handshake = CURRENT.replace(before);
    result
}

/// Gives `body` the handshake that is lent to this thread; `None` outside of [`lend`].
pub fn with<T>(body: impl FnOnce(&mut HandshakeContext) -> T) -> Option<T> {
    CURRENT.with_borrow_mut(|current| current.as_mut().map(body))
}

/// Pays for the signature that the lent handshake needs. Outside of [`lend`] nothing is paid.
///
/// # Errors
///
/// Why the client is to be shed.
pub fn pay() -> Result<(), CloseReason> {
    with(|handshake| {
        let now = handshake.clock.mono;
        let permit = handshake.permit.as_mut();
        permit.map_or(Ok(()), |permit| permit.claim(now))
    })
    .unwrap_or(Ok(()))
}
