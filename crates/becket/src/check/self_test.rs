//! Real handshakes in memory for every name that a configuration serves, before any client comes.
//!
//! A rehearsal is a rustls client against a [`Connection`](crate::connection::Connection) on
//! scripted sockets: the bytes go through the worker's own path, from the peek to the policy, the
//! configuration, the signature and the connect. For each name of each listener: every version that its
//! policy allows, with every kind of key that it has, once more to resume, and every protocol of
//! its routes. The chain that arrives must be the one that is configured for the name, and what
//! the client verifies is its signature; whether browsers trust the chain is not asked here.
//!
//! Where client certificates are required the rehearsal has none to show: then it must get as far
//! as being refused for that.
//!
//! The servers are scripted and speak plain TCP, whatever the configuration says: what real ones say
//! is asked by `becket check --connect`.
//!
//! The Rust API of rustls knows the schemes that a key can sign with but not how to offer only
//! those: hence a verifier of our own, which offers the schemes of one key.

use std::fmt::{self, Display, Formatter};
use std::io::ErrorKind;
use std::rc::Rc;
use std::sync::Arc;

use becket_proto::session_table::SessionTable;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ClientConfig, ClientConnection};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;
use rustls::{DigitallySignedStruct, Error, SignatureScheme, SupportedProtocolVersion, version};
use serde::Serialize;

use crate::backend::inbox::TestInbox;
use crate::backend::pool::Pool;
use crate::check::script::link::End;
use crate::check::script::net::Plan;
use crate::check::script::stage::Stage;
use crate::clock::Now;
use crate::close_reason::CloseReason;
use crate::config::error::{Problem, Report};
use crate::config::{ClientAuth, Config, Face, Listener, NamePattern, Policy, Route, Sessions};
use crate::connection::listener::ListenerState;
use crate::control::rotation::Rotation;
use crate::log::access::ResumedBy;
use crate::pki::certificates::KeySet;
use crate::socket::Socket;
use crate::tls::chain::is_of_old_version;
use crate::tls::hello_router::HelloRouter;
use crate::tls::names;
use crate::tls::route_configs::Parts;

/// A handshake that went as it should.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Rehearsed {
    /// Configuration name of the listener.
    pub listener: String,
    /// The name as the certificates have it; `*` for clients that send none.
    pub name: String,
    /// Kind of the key that signed.
    pub key: String,
    /// Negotiated version.
    pub version: &'static str,
    /// Negotiated suite; `None` where a TLS 1.2 client was refused before it mattered.
    pub suite: Option<&'static str>,
    /// Negotiated group.
    pub group: Option<&'static str>,
    /// The protocol that was offered and agreed on.
    pub alpn: Option<String>,
    /// The server that the client was led to.
    pub server: Option<String>,
    /// What a second handshake resumed by; `None` where nothing is to be resumed, or not tried.
    pub resumes: Option<&'static str>,
    /// Refused for want of a client certificate, as the policy says.
    pub refused: bool,
}

impl Display for Rehearsed {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (name, key, version) = (&self.name, &self.key, self.version);
        write!(f, "{name}: {version} {key}")?;
        for part in [self.suite, self.group].into_iter().flatten() {
            write!(f, " {part}")?;
        }
        if let Some(alpn) = &self.alpn {
            write!(f, ", alpn {alpn}")?;
        }
        if let Some(server) = &self.server {
            write!(f, " -> {server}")?;
        }
        if let Some(resumes) = self.resumes {
            write!(f, ", resumes by {resumes}")?;
        }
        if self.refused {
            f.write_str(", refused without a client certificate")?;
        }
        Ok(())
    }
}

/// Rehearses every name of every listener at `now`; what goes wrong goes to `report`. Costs one
/// signature per name, version and kind of key, and another per protocol.
pub fn rehearse(config: &Config, now: Now, report: &mut Report) -> Vec<Rehearsed> {
    let rotation = match Rotation::start(config.sessions.ticket_rotation, now) {
        Ok(rotation) => rotation,
        Err(error) => {
            report.error(Problem::new("", error.to_string()));
            return Vec::new();
        }
    };
    let parts = Parts {
        table: Arc::new(SessionTable::new(Default::default(), Default::default())),
        early: Arc::new(SessionTable::new(Default::default(), Default::default())),
        secrets: Arc::clone(rotation.secrets()),
        sessions: config.sessions.clone(),
        key_log: false,
        outbox: None,
    };
    let pools = config.backends.iter();
    let pools: Rc<[_]> = pools
        .map(|one| Pool::lone(Arc::clone(one), Arc::<TestInbox>::default()))
        .map(|pool| Rc::new(pool.in_clear()))
        .collect();
    let mut rehearsed = Vec::new();
    let with_tls = config.listeners.iter();
    for listener in with_tls.filter(|listener| listener.ends_tls()) {
        let path = format!("listener[{}]", listener.name);
        let router = match HelloRouter::new(Arc::clone(listener), &parts) {
            Ok(router) => router,
            Err(error) => {
                report.error(Problem::new(path, error.to_string()));
                continue;
            }
        };
        let state = ListenerState {
            face: Face::Tls,
            router,
            pools: Rc::clone(&pools),
        };
        let mut stage = Stage::new(
            config.limits.clone(),
            config.timeouts.clone(),
            now,
            CAPACITY,
        );
        stage.skips_greeting = true;
        let mut rehearsal = Rehearsal {
            listener,
            sessions: &config.sessions,
            state: Rc::new(state),
            stage,
            path,
            report: &mut *report,
            rehearsed: Vec::new(),
        };
        rehearsal.all_names();
        rehearsed.append(&mut rehearsal.rehearsed);
    }
    rehearsed
}

/// One listener's.
struct Rehearsal<'a> {
    listener: &'a Listener,
    sessions: &'a Sessions,
    state: Rc<ListenerState>,
    stage: Stage,
    path: String,
    report: &'a mut Report,
    rehearsed: Vec<Rehearsed>,
}

/// A name with its keys, and how a client asks for it.
struct Subject<'a> {
    shown: String,
    asks_for: Option<String>,
    keys: &'a KeySet,
}

/// What a client of the rehearsal offers.
struct Offer<'a> {
    asks_for: Option<&'a str>,
    version: &'static SupportedProtocolVersion,
    key: &'a Arc<CertifiedKey>,
    alpn: Option<&'a [u8]>,
    /// Look whether a second handshake resumes.
    again: Option<ResumedBy>,
}

impl Rehearsal<'_> {
    fn all_names(&mut self) {
        let listener = self.listener;
        let map = &listener.certificates;
        let mut subjects: Vec<Subject<'_>> = map
            .names()
            .map(|(name, keys)| Subject {
                shown: name.to_string(),
                asks_for: Some(sample(&name, |sample| {
                    map.named(sample)
                        .is_some_and(|found| std::ptr::eq(found, keys))
                })),
                keys,
            })
            .collect();
        subjects.sort_by(|a, b| a.shown.cmp(&b.shown));
        subjects.push(Subject {
            shown: "*".to_owned(),
            asks_for: None,
            keys: map.default_keys(),
        });
        for subject in &subjects {
            self.one_name(subject);
        }
    }

    fn one_name(&mut self, subject: &Subject<'_>) {
        let listener = self.listener;
        let name = subject.asks_for.as_deref();
        let routes = || listener.routes.iter().filter(|route| route.is_for(name));
        let Some(route) = routes().next() else {
            return self.error(subject, "no route takes it".to_owned());
        };
        for version in versions(&route.policy) {
            self.every_key(subject, route, version);
        }
        let mut tried: Vec<&[u8]> = Vec::new();
        for (route, protocol) in
            routes().flat_map(|route| route.alpn.iter().map(move |protocol| (route, protocol)))
        {
            if tried.contains(&protocol.as_slice()) {
                continue;
            }
            tried.push(protocol);
            self.protocol(subject, route, protocol);
        }
    }

    /// Every kind of key, without ALPN. That one of several kinds has no suite in this version is
    /// only a warning: clients get the other.
    fn every_key(
        &mut self,
        subject: &Subject<'_>,
        route: &Route,
        version: &'static SupportedProtocolVersion,
    ) {
        let mut failed = Vec::new();
        let mut worked = false;
        for (index, key) in subject.keys.iter().enumerate() {
            let again = resumption(&route.policy, version, self.sessions);
            let offer = Offer {
                asks_for: subject.asks_for.as_deref(),
                version,
                key,
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

    /// One protocol, in the highest version of its route.
    fn protocol(&mut self, subject: &Subject<'_>, route: &Route, protocol: &[u8]) {
        let keys = subject
            .keys
            .iter()
            .next()
            .zip(versions(&route.policy).next());
        let Some((key, version)) = keys else {
            return;
        };
        let offer = Offer {
            asks_for: subject.asks_for.as_deref(),
            version,
            key,
            alpn: Some(protocol),
            again: None,
        };
        if let Err(fault) = self.play(subject, route, &offer) {
            self.error(subject, format!("{}: {fault}", offer.shown()));
        }
    }

    fn error(&mut self, subject: &Subject<'_>, fault: String) {
        let problem = Problem::new(&self.path, fault).text(&subject.shown);
        self.report.error(problem);
    }

    /// Makes the handshake, and the second one if it is asked for.
    fn play(
        &mut self,
        subject: &Subject<'_>,
        route: &Route,
        offer: &Offer<'_>,
    ) -> Result<(), String> {
        let client = Arc::new(offer.client().map_err(|error| error.to_string())?);
        let must_refuse = matches!(route.policy.client_auth, ClientAuth::Required(_));
        let first = self.handshake(&client, offer, must_refuse)?;
        let mut rehearsed = Rehearsed {
            listener: self.listener.name.to_string(),
            name: subject.shown.clone(),
            key: offer.kind(),
            ..first
        };
        if let Some(expected) = offer.again.filter(|_| !must_refuse) {
            let again = self.handshake(&client, offer, false)?;
            if again.resumes != Some(expected.label()) {
                let expected = expected.label();
                return Err(format!("the second handshake did not resume by {expected}"));
            }
            rehearsed.resumes = again.resumes;
        }
        self.rehearsed.push(rehearsed);
        Ok(())
    }

    fn handshake(
        &mut self,
        config: &Arc<ClientConfig>,
        offer: &Offer<'_>,
        must_refuse: bool,
    ) -> Result<Rehearsed, String> {
        let name = offer.asks_for.unwrap_or(NO_NAME).to_owned();
        let name = ServerName::try_from(name).map_err(|_| "no client can ask for it".to_owned())?;
        let client = ClientConnection::new(Arc::clone(config), name);
        let mut client = client.map_err(|error| error.to_string())?;
        let mut end = self.stage.admit(Rc::clone(&self.state), [Plan::Accept]);
        let told = converse(&mut client, &mut end, &mut self.stage).err();
        if told.is_some() {
            // A connection that has refused waits for its client to leave.
            end.finish();
            self.stage.settle();
        }
        match self.stage.closed() {
            Some(CloseReason::ClientCertificate) if must_refuse => {}
            Some(reason) => return Err(failure(reason.label(), told)),
            None if must_refuse => {
                return Err("a client without a certificate was let in".to_owned());
            }
            None if client.is_handshaking() || told.is_some() => {
                return Err(failure("the handshake came to a stand", told));
            }
            None => {}
        }
        let Some(record) = self.stage.record() else {
            return Err("the connection left no record".to_owned());
        };
        if client.peer_certificates() != Some(&offer.key.cert) {
            return Err("another chain came than the one of this name".to_owned());
        }
        let agreed = client.alpn_protocol();
        if agreed != offer.alpn {
            let agreed = agreed.map(String::from_utf8_lossy);
            return Err(format!("the protocol agreed on is {agreed:?}"));
        }
        if !must_refuse {
            self.part(client, end)?;
        }
        Ok(Rehearsed {
            listener: String::new(),
            name: String::new(),
            key: String::new(),
            version: record
                .version
                .unwrap_or(names::version(offer.version.version)),
            suite: record.suite,
            group: record.group,
            alpn: agreed_text(offer.alpn),
            server: record.server.map(|server| server.to_string()),
            resumes: record.resumed.map(ResumedBy::label),
            refused: must_refuse,
        })
    }

    /// Ends in good order: close_notify there, FIN through to the server and back.
    fn part(&mut self, mut client: ClientConnection, mut end: End) -> Result<(), String> {
        client.send_close_notify();
        let told = converse(&mut client, &mut end, &mut self.stage).err();
        for server in &mut self.stage.net.dialled {
            server.far.finish();
        }
        self.stage.settle();
        match self.stage.closed() {
            Some(CloseReason::Finished) => Ok(()),
            Some(reason) => Err(failure(reason.label(), told)),
            None => Err(failure("the connection did not end", told)),
        }
    }
}

impl Offer<'_> {
    fn client(&self) -> Result<ClientConfig, Error> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let mut config = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[self.version])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(SignatureOnly::of(self.key, provider)))
            .with_no_client_auth();
        config.enable_sni = self.asks_for.is_some();
        config.alpn_protocols = self.alpn.map(<[u8]>::to_vec).into_iter().collect();
        Ok(config)
    }

    fn kind(&self) -> String {
        format!("{:?}", self.key.key.algorithm())
    }

    fn shown(&self) -> String {
        let version = names::version(self.version.version);
        let alpn = agreed_text(self.alpn).map(|alpn| format!(", alpn {alpn}"));
        format!("{version} {}{}", self.kind(), alpn.unwrap_or_default())
    }
}

/// Lets client and connection talk until neither has anything to say.
fn converse(client: &mut ClientConnection, end: &mut End, stage: &mut Stage) -> Result<(), Error> {
    let mut failed = Ok(());
    for _ in 0..MOST_ROUNDS {
        while client.wants_write() && client.write_tls(end).is_ok_and(|n| n > 0) {}
        stage.settle();
        let received = match client.read_tls(end) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
            Err(_) => return failed,
            Ok(n) => n,
        };
        if failed.is_ok() {
            failed = client.process_new_packets().map(drop);
        }
        if received == 0 && !client.wants_write() {
            break;
        }
    }
    failed
}

/// Offers the schemes of one key, verifies the signature with it, and trusts any chain.
#[derive(Debug)]
struct SignatureOnly {
    provider: Arc<CryptoProvider>,
    schemes: Vec<SignatureScheme>,
}

impl SignatureOnly {
    fn of(key: &CertifiedKey, provider: Arc<CryptoProvider>) -> Self {
        let known = provider
            .signature_verification_algorithms
            .supported_schemes();
        let signs = |scheme: &SignatureScheme| key.key.choose_scheme(&[*scheme]).is_some();
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

/// webpki does not read certificates before X.509 version 3, but they can be served.
fn unless_old(
    verified: Result<HandshakeSignatureValid, Error>,
) -> Result<HandshakeSignatureValid, Error> {
    match verified {
        Err(error) if is_of_old_version(&error) => Ok(HandshakeSignatureValid::assertion()),
        verified => verified,
    }
}

/// A name that a pattern covers, and no other pattern before it.
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

/// The versions that a policy allows, highest first.
fn versions(policy: &Policy) -> impl Iterator<Item = &'static SupportedProtocolVersion> {
    let tls13 = policy.versions.tls13.then_some(&version::TLS13);
    let tls12 = policy.versions.tls12.then_some(&version::TLS12);
    tls13.into_iter().chain(tls12)
}

/// How a client that takes tickets resumes; `None` where nothing is kept.
fn resumption(
    policy: &Policy,
    version: &SupportedProtocolVersion,
    sessions: &Sessions,
) -> Option<ResumedBy> {
    if version.version == version::TLS13.version {
        Some(ResumedBy::Psk)
    } else if policy.tls12_tickets {
        Some(ResumedBy::Ticket)
    } else {
        (sessions.table_entries > 0).then_some(ResumedBy::Id)
    }
}

fn failure(what: &str, told: Option<Error>) -> String {
    match told {
        Some(error) => format!("{what}: {error}"),
        None => what.to_owned(),
    }
}

fn agreed_text(alpn: Option<&[u8]>) -> Option<String> {
    alpn.map(|protocol| String::from_utf8_lossy(protocol).into_owned())
}

/// What a client that sends no name calls us to itself.
const NO_NAME: &str = "no-name.invalid";
/// Bytes that a stream holds: any flight.
const CAPACITY: usize = 256 * 1024;
/// A handshake takes three.
const MOST_ROUNDS: usize = 1000;
/// Exact names of this form beside a wildcard are not to be expected at all.
const MOST_LABELS: usize = 1000;
