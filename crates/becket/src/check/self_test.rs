//! Makes a handshake in memory for every configured name, before any client connects.
//!
//! A rustls client connects to a rustls server that is configured as in a worker: the
//! [`HelloRouter`] selects a route for the ClientHello, and sessions use becket's store and
//! ticketer. The test covers every name of each listener: every version of the policy with every
//! kind of key, a second handshake that resumes, and every ALPN protocol of the routes.
//!
//! The server must send the configured chain, and the client verifies the signature. The test does
//! not check whether browsers trust the chain. If client certificates are required, the handshake
//! must fail because the client has none. The test does not connect to servers; `becket check
//! --connect` does.
//!
//! rustls cannot offer exactly the signature schemes of one key, so a custom verifier
//! ([`SignatureOnly`]) offers them.

use std::fmt::{self, Display, Formatter};
use std::net::IpAddr;
use std::sync::Arc;

use becket_config::address::NamePattern;
use becket_config::choices::ClientCertificates;
use becket_config::error::{Problem, Report};
use becket_config::file::File;
use becket_proto::client_hello::peek;
use becket_sys::clock::Now;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ClientConfig, ClientConnection};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ServerConnection;
use rustls::{ConnectionCommon, DigitallySignedStruct, Error, HandshakeKind, SideData};
use rustls::{SignatureScheme, SupportedProtocolVersion, version};
use serde::Serialize;

use becket_control::rotation::Rotation;
use becket_keys::certificates::KeySet;
use becket_keys::loaded::Loaded;
use becket_log::facts::ResumedBy;
use becket_proto::close_reason::CloseReason;
use becket_tls::chain::is_of_old_version;
use becket_tls::config::{Config, Listener, Policy, Route};
use becket_tls::hello_router::{Choice, HelloRouter, server_name};
use becket_tls::names;
use becket_tls::policy::versions;
use becket_tls::route_configs::RouteParts;
use becket_tls::sessions::context::{self, HandshakeContext};

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct TestedHandshake {
    pub listener: String,
    /// Name as in the certificates, or `*` for clients that send no name.
    pub name: String,
    pub key: String,
    pub version: &'static str,
    pub suite: Option<&'static str>,
    pub group: Option<&'static str>,
    pub alpn: Option<String>,
    pub backend: String,
    /// Method by which the second handshake resumed. `None` if resumption is impossible or was not
    /// tested.
    pub resumes: Option<&'static str>,
    /// `true` if the server rejected the client because the policy requires a client certificate.
    pub refused: bool,
}

impl Display for TestedHandshake {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} {}", self.name, self.version, self.key)?;
        for part in [self.suite, self.group].into_iter().flatten() {
            write!(f, " {part}")?;
        }
        if let Some(alpn) = &self.alpn {
            write!(f, ", alpn {alpn}")?;
        }
        if self.refused {
            return f.write_str(", refused without a client certificate");
        }
        write!(f, " -> {}", self.backend)?;
        if let Some(resumes) = self.resumes {
            write!(f, ", resumes by {resumes}")?;
        }
        Ok(())
    }
}

/// Tests every name of every listener at `now`, and adds problems to `report`. Makes one signature
/// per name, version and kind of key, and one more per protocol. Tests at most
/// [`MOST_NAMES`] names of a listener.
pub fn run(config: &Config, now: Now, report: &mut Report) -> Vec<TestedHandshake> {
    let rotation = match Rotation::start(config.file.ticket_rotation(), now) {
        Ok(rotation) => rotation,
        Err(error) => {
            report.error(Problem::new("", error.to_string()));
            return Vec::new();
        }
    };
    let parts = RouteParts::apart(rotation.secrets(), &config.file);
    let mut tested = Vec::new();
    let ends_tls = |one: &&Arc<Listener>| one.routes.iter().any(|route| route.policy.is_some());
    for listener in config.listeners.iter().filter(ends_tls) {
        let path = format!("listener[{}]", listener.keys.name);
        match HelloRouter::new(Arc::clone(listener), &parts) {
            Err(error) => report.error(Problem::new(path, error.to_string())),
            Ok(router) => SelfTest {
                config,
                listener,
                router,
                now,
                path,
                report,
                tested: &mut tested,
            }
            .all_names(),
        }
    }
    tested
}

struct SelfTest<'a> {
    config: &'a Config,
    listener: &'a Listener,
    router: HelloRouter,
    now: Now,
    path: String,
    report: &'a mut Report,
    tested: &'a mut Vec<TestedHandshake>,
}

struct TestedName<'a> {
    shown: String,
    asks_for: Option<String>,
    keys: &'a KeySet,
}

struct ClientOffer<'a> {
    asks_for: Option<&'a str>,
    version: &'static SupportedProtocolVersion,
    chain: &'a Loaded,
    alpn: Option<&'a [u8]>,
    /// Expected resumption of the second handshake; `None` if there is no second handshake.
    again: Option<ResumedBy>,
}

impl SelfTest<'_> {
    fn all_names(&mut self) {
        let listener = self.listener;
        let map = &listener.certificates;
        let step = map.name_count().div_ceil(MOST_NAMES).max(1);
        let mut subjects: Vec<TestedName<'_>> = map
            .names()
            .step_by(step)
            .map(|keys| TestedName {
                shown: keys.name().to_owned(),
                asks_for: Some(sample(&keys.pattern(), |sample| {
                    map.named(sample)
                        .is_some_and(|found| std::ptr::eq(found, keys))
                })),
                keys,
            })
            .collect();
        subjects.sort_by(|a, b| a.shown.cmp(&b.shown));
        subjects.push(TestedName {
            shown: "*".to_owned(),
            asks_for: None,
            keys: map.default_keys(),
        });
        for subject in &subjects {
            self.one_name(subject);
        }
    }

    fn one_name(&mut self, subject: &TestedName<'_>) {
        let listener = self.listener;
        let name = subject.asks_for.as_deref();
        let mut routes = listener.routes_for(name).map(|(_, route)| route);
        let mut tried: Vec<&[u8]> = Vec::new();
        // Stop at the first route that accepts clients of this name with any ALPN protocols,
        // because no later route can match.
        let last = loop {
            let Some(route) = routes.next() else {
                return self.error(subject, "no route accepts this name".to_owned());
            };
            for protocol in &route.alpn {
                if !tried.contains(&protocol.as_slice()) {
                    tried.push(protocol);
                    self.protocol(subject, route, protocol);
                }
            }
            if !route.keys.is_for_alpn() {
                break route;
            }
        };
        let policy = last.policy.iter();
        for version in policy.flat_map(|policy| versions(&policy.keys.versions)) {
            self.every_key(subject, last, version);
        }
    }

    /// Tests every kind of key, without ALPN. A failure is only a warning if another key works,
    /// because clients then receive the certificate of that key.
    fn every_key(
        &mut self,
        subject: &TestedName<'_>,
        route: &Route,
        version: &'static SupportedProtocolVersion,
    ) {
        let mut failed = Vec::new();
        let mut worked = false;
        for (index, chain) in subject.keys.chains().iter().enumerate() {
            let policy = route.policy.as_deref();
            let again = policy.and_then(|it| resumption(it, version, &self.config.file));
            let offer = ClientOffer {
                asks_for: subject.asks_for.as_deref(),
                version,
                chain,
                alpn: None,
                again: again.filter(|_| index == 0),
            };
            match self.play(subject, route, &offer) {
                Ok(()) => worked = true,
                Err(fault) => failed.push(format!("{}: {fault}", offer.shown())),
            }
        }
        for fault in failed {
            if worked {
                let problem = Problem::new(&self.path, fault).text(&subject.shown);
                self.report.warn(problem);
            } else {
                self.error(subject, fault);
            }
        }
    }

    /// Tests one protocol in the highest version of its route.
    fn protocol(&mut self, subject: &TestedName<'_>, route: &Route, protocol: &[u8]) {
        let policy = route.policy.as_ref();
        let versions = policy.map_or_else(Vec::new, |it| versions(&it.keys.versions));
        let chains = subject.keys.chains();
        let both = chains.first().zip(versions.first().copied());
        let Some((chain, version)) = both else {
            return;
        };
        let offer = ClientOffer {
            asks_for: subject.asks_for.as_deref(),
            version,
            chain,
            alpn: Some(protocol),
            again: None,
        };
        if let Err(fault) = self.play(subject, route, &offer) {
            self.error(subject, format!("{}: {fault}", offer.shown()));
        }
    }

    fn error(&mut self, subject: &TestedName<'_>, fault: String) {
        let problem = Problem::new(&self.path, fault).text(&subject.shown);
        self.report.error(problem);
    }

    /// Makes one handshake, and a second one that resumes if `offer` requests it.
    fn play(
        &mut self,
        subject: &TestedName<'_>,
        route: &Route,
        offer: &ClientOffer<'_>,
    ) -> Result<(), SelfTestError> {
        let client = Arc::new(offer.client()?);
        let asked = route.policy.as_ref().map(|it| it.keys.client_certificates);
        let must_refuse = asked == Some(ClientCertificates::Required);
        let (server, _) = self.handshake(&client, offer, must_refuse)?;
        let again = offer.again.filter(|_| !must_refuse);
        if let Some(expected) = again {
            let (_, resumed) = self.handshake(&client, offer, false)?;
            if resumed != Some(expected) {
                let expected = expected.label();
                return unexpected(format!("the second handshake did not resume by {expected}"));
            }
        }
        let backend = self.config.backends.get(route.backend);
        let suite = server.negotiated_cipher_suite();
        let group = server.negotiated_key_exchange_group();
        self.tested.push(TestedHandshake {
            listener: self.listener.keys.name.to_string(),
            name: subject.shown.clone(),
            key: offer.kind(),
            version: names::version(offer.version.version),
            suite: suite.map(|suite| names::suite(suite.suite())),
            group: group.map(|group| names::group(group.name())),
            alpn: agreed_text(offer.alpn),
            backend: backend
                .map(|backend| backend.keys.name.to_string())
                .unwrap_or_default(),
            resumes: again.map(ResumedBy::label),
            refused: must_refuse,
        });
        Ok(())
    }

    fn handshake(
        &self,
        config: &Arc<ClientConfig>,
        offer: &ClientOffer<'_>,
        must_refuse: bool,
    ) -> Result<(ServerConnection, Option<ResumedBy>), SelfTestError> {
        let name = offer.asks_for.unwrap_or(NO_NAME).to_owned();
        let address = offer.asks_for.filter(|it| it.parse::<IpAddr>().is_ok());
        let name = ServerName::try_from(name).or_else(|_| unexpected("not a valid server name"))?;
        let client = ClientConnection::new(Arc::clone(config), name);
        let mut client = client?;
        let hello = flight_of(&mut client);
        let (mut server, mut handshake) = self.answer(&hello, address)?;
        match context::lend(&mut handshake, || {
            exchange_flights(&mut client, &mut server, hello)
        }) {
            Err(SelfTestError::Server(Error::NoCertificatesPresented)) if must_refuse => {}
            Err(error) => return Err(error),
            Ok(()) if must_refuse => {
                return unexpected("a client without a certificate was accepted");
            }
            Ok(()) if client.is_handshaking() || server.is_handshaking() => {
                return unexpected("the handshake stalled");
            }
            Ok(()) => {}
        }
        if client.peer_certificates() != Some(&offer.chain.chain()) {
            return unexpected("the server sent the chain of another name");
        }
        let agreed = client.alpn_protocol();
        if agreed != offer.alpn {
            let agreed = agreed.map(String::from_utf8_lossy);
            return unexpected(format!("the negotiated protocol is {agreed:?}"));
        }
        let opened = handshake.and_then(|handshake| handshake.resumption.opened);
        let resumed = opened.filter(|_| server.handshake_kind() == Some(HandshakeKind::Resumed));
        let by = resumed.map(|opened| {
            if offer.version == &version::TLS13 {
                ResumedBy::Psk
            } else if opened.by_id {
                ResumedBy::Id
            } else {
                ResumedBy::Ticket
            }
        });
        Ok((server, by))
    }

    /// Returns the server connection that a worker would create for this ClientHello, and its
    /// handshake context.
    fn answer(
        &self,
        hello: &[u8],
        address: Option<&str>,
    ) -> Result<(ServerConnection, Option<HandshakeContext>), SelfTestError> {
        let Ok(Some(hello)) = peek(hello) else {
            return unexpected("cannot parse the hello");
        };
        if hello.wire_len() > self.config.file.limits.client_hello {
            return unexpected(CloseReason::HelloTooLarge.label());
        }
        let mut handshake = HandshakeContext::new(server_name(&hello));
        let certificate = &mut handshake.certificate;
        certificate.address = address.map(Box::from);
        let served = match self.router.choose(&hello, certificate.name()) {
            Choice::Serve(served) => served,
            Choice::Pass(_) => return unexpected("TLS is passed through"),
            Choice::Refuse { reason, .. } => return unexpected(reason.label()),
        };
        let server = ServerConnection::new(served.config).map_err(SelfTestError::Server)?;
        handshake.clock.unix = self.now.unix.into();
        handshake.clock.mono = self.now.mono;
        Ok((server, Some(handshake)))
    }
}

impl ClientOffer<'_> {
    fn client(&self) -> Result<ClientConfig, Error> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let mut config = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[self.version])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(SignatureOnly::of(self.chain, provider)))
            .with_no_client_auth();
        config.enable_sni = self.asks_for.is_some();
        config.alpn_protocols = self.alpn.map(<[u8]>::to_vec).into_iter().collect();
        Ok(config)
    }

    fn kind(&self) -> String {
        format!("{:?}", self.chain.algorithm())
    }

    fn shown(&self) -> String {
        let version = names::version(self.version.version);
        let alpn = agreed_text(self.alpn).map(|alpn| format!(", alpn {alpn}"));
        format!("{version} {}{}", self.kind(), alpn.unwrap_or_default())
    }
}

#[derive(Debug, thiserror::Error)]
enum SelfTestError {
    #[error("{reason}: {0}", reason = CloseReason::HandshakeFailed.label())]
    Server(Error),
    #[error("the client failed: {0}")]
    Client(#[from] Error),
    #[error("{0}")]
    Unexpected(String),
}

fn unexpected<T>(fault: impl Into<String>) -> Result<T, SelfTestError> {
    Err(SelfTestError::Unexpected(fault.into()))
}

/// Exchanges flights until neither side has anything to send. `hello` is the client's first flight.
fn exchange_flights(
    client: &mut ClientConnection,
    server: &mut ServerConnection,
    hello: Vec<u8>,
) -> Result<(), SelfTestError> {
    let mut flight = hello;
    while !flight.is_empty() {
        receive(server, &flight).map_err(SelfTestError::Server)?;
        receive(client, &flight_of(server)).map_err(SelfTestError::Client)?;
        flight = flight_of(client);
    }
    Ok(())
}

fn flight_of<D: SideData>(peer: &mut ConnectionCommon<D>) -> Vec<u8> {
    let mut flight = Vec::new();
    // Writing to a `Vec` cannot fail.
    while peer.wants_write() && peer.write_tls(&mut flight).is_ok() {}
    flight
}

fn receive<D: SideData>(peer: &mut ConnectionCommon<D>, mut flight: &[u8]) -> Result<(), Error> {
    while peer.read_tls(&mut flight).is_ok_and(|n| n > 0) {
        peer.process_new_packets()?;
    }
    Ok(())
}

/// Certificate verifier that offers the signature schemes of one key, checks signatures, and trusts
/// any chain.
#[derive(Debug)]
struct SignatureOnly {
    provider: Arc<CryptoProvider>,
    schemes: Vec<SignatureScheme>,
}

impl SignatureOnly {
    fn of(chain: &Loaded, provider: Arc<CryptoProvider>) -> Self {
        let known = provider
            .signature_verification_algorithms
            .supported_schemes();
        let signs = |scheme: &SignatureScheme| chain.supports(&[*scheme]);
        let schemes = known.into_iter().filter(signs).collect();
        Self { provider, schemes }
    }
}

impl ServerCertVerifier for SignatureOnly {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        unless_old(verify_tls12_signature(message, leaf, signed, algorithms))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        unless_old(verify_tls13_signature(message, leaf, signed, algorithms))
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes.clone()
    }
}

/// Accepts the signature if webpki could not parse the certificate because it is older than X.509
/// version 3. becket can serve such certificates.
fn unless_old(
    verified: Result<HandshakeSignatureValid, Error>,
) -> Result<HandshakeSignatureValid, Error> {
    match verified {
        Err(error) if is_of_old_version(&error) => Ok(HandshakeSignatureValid::assertion()),
        verified => verified,
    }
}

/// Returns a name that `pattern` matches, preferably one for which `is_covered` returns `true`.
fn sample(pattern: &NamePattern, is_covered: impl Fn(&str) -> bool) -> String {
    match pattern {
        NamePattern::Exact(name) => name.clone(),
        NamePattern::Wildcard(suffix) => {
            let labels = (0..MOST_LABELS).map(|n| format!("becket-{n}.{suffix}"));
            let mut labels = labels.skip_while(|label| !is_covered(label));
            labels.next().unwrap_or_else(|| format!("becket.{suffix}"))
        }
    }
}

/// Returns how a client that supports tickets resumes. Returns `None` for TLS 1.2 if becket neither
/// issues tickets nor stores sessions.
fn resumption(
    policy: &Policy,
    version: &SupportedProtocolVersion,
    file: &File,
) -> Option<ResumedBy> {
    if version.version == version::TLS13.version {
        Some(ResumedBy::Psk)
    } else if file.tls12_tickets(&policy.keys) {
        Some(ResumedBy::Ticket)
    } else {
        (file.sessions.table_entries > 0).then_some(ResumedBy::Id)
    }
}

fn agreed_text(alpn: Option<&[u8]>) -> Option<String> {
    alpn.map(|protocol| String::from_utf8_lossy(protocol).into_owned())
}

/// Placeholder name. rustls requires a name even for a client that sends none.
const NO_NAME: &str = "no-name.invalid";
/// Maximum number of tested names per listener. A name takes about two milliseconds.
const MOST_NAMES: usize = 1000;
/// Maximum number of generated names to try per wildcard. A certificate rarely contains such a
/// name.
const MOST_LABELS: usize = 1000;
