//! The `ServerConfig`s of one route, which differ only in resumption and ALPN.
//!
//! Some settings of rustls are fixed per configuration but must depend on the ClientHello: the
//! result of a failed ALPN negotiation, the number of tickets, and ticket or session ID for TLS
//! 1.2. So each route has several configurations, and the peeked ClientHello selects one
//! ([`RouteConfigs::pick`]). All of them have the same certificates, verifier and policy. Their
//! `ResolvesServerCert` chooses the certificate from [`becket_keys::certificates`].
//!
//! If a policy accepts early data, its configurations have no ticketer. Only sessions in a separate
//! [`Store`] can then be resumed.

use std::sync::Arc;
use std::time::Duration;

use becket_config::file::File;
use becket_config::suites::ServedVersion;
use becket_proto::client_hello::ClientHello;
use becket_proto::session::{PolicyTag, SessionName};
use becket_proto::session_table::{Lookup, SessionTable};
use rustls::ServerConfig;
use rustls::compress::CompressionCache;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::server::ProducesTickets;
use rustls::server::{ClientHello as ReadHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::certificate_compression::COMPRESSORS;
use super::key_log::LateKeyLog;
use super::policy::{groups, versions};
use super::served_key::served_key;
use super::skipping::SecretsForSkipping;
use crate::config::{Policy, Route};
use crate::random::TlsRandom;
use crate::resumption::Offer;
use crate::sessions::context;
use crate::sessions::store::{Store, StoreKind};
use crate::sessions::stored::ReturningClients;
use crate::sessions::tickets::{TicketSecrets, Ticketer};
use becket_cluster::Outbox;
use becket_keys::certificates::CertificateMap;
use becket_keys::key_cache::WorkerKeys;

#[derive(Clone, Debug)]
pub struct RouteParts {
    pub table: Arc<SessionTable>,
    /// Table of sessions that allow early data. All workers share it; it is not sent to other
    /// nodes.
    pub early: Arc<SessionTable>,
    pub secrets: Arc<TicketSecrets>,
    /// Configuration file, which contains the session lifetimes.
    pub file: Arc<File>,
    /// `true` to write TLS secrets to the file that `SSLKEYLOGFILE` names.
    pub key_log: bool,
    /// Chains with parsed keys of the certificates in use. All workers share most of them.
    pub keys: Arc<WorkerKeys>,
    /// Outbox for new sessions, which are sent to the peers of the cluster; `None` without a
    /// cluster.
    pub outbox: Option<Outbox>,
}

impl RouteParts {
    /// Returns inputs with new, empty tables. They are used to test a configuration without an
    /// effect on the running service.
    pub fn apart(secrets: &Arc<TicketSecrets>, file: &Arc<File>) -> Self {
        let table = || Arc::new(SessionTable::new(Default::default(), Default::default()));
        Self {
            table: table(),
            early: table(),
            secrets: Arc::clone(secrets),
            file: Arc::clone(file),
            key_log: false,
            keys: Arc::default(),
            outbox: None,
        }
    }
}

#[derive(Debug)]
pub struct RouteConfigs {
    with_alpn: Resuming,
    without_alpn: Resuming,
    ticketer: Arc<Ticketer>,
    /// Sessions that allow early data; `None` unless the policy accepts early data.
    early: Option<Store>,
    /// Sessions by ID that a store may have if they are not in this table; `None` without a store.
    stored: Option<(Arc<SessionTable>, PolicyTag)>,
    tls13: bool,
    tls12_tickets: bool,
}

/// Configurations with one ALPN setting, by kind of resumption.
#[derive(Debug)]
struct Resuming {
    /// TLS 1.3 with two tickets, for a client without a valid ticket.
    two_tickets: Arc<ServerConfig>,
    /// TLS 1.3 with one ticket that replaces the client's ticket. Also TLS 1.2 with tickets.
    one_ticket: Arc<ServerConfig>,
    by_id: Arc<ServerConfig>,
}

impl RouteConfigs {
    /// Builds the configurations of a route. Derives one ticket key for each ticket secret.
    ///
    /// # Errors
    ///
    /// Fails if suites, groups and versions of the policy are incompatible, if the set of CAs is
    /// empty, or if there is no ticket secret.
    pub fn new(
        route: &Route,
        policy: &Policy,
        certificates: &Arc<CertificateMap>,
        parts: &RouteParts,
    ) -> Result<Self, rustls::Error> {
        let clients = ReturningClients::new(policy.verifier.clone());
        let ticketer = Ticketer::new(&parts.secrets, policy.digest, parts.file.session_max_age())
            .ok_or_else(|| rustls::Error::General("no ticket secret".into()))?
            .admitting(clients.clone())
            .at_most(parts.file.limits.client_hello / 2);
        let ticketer = Arc::new(ticketer);
        let resolver = ChainResolver {
            certificates: Arc::clone(certificates),
            keys: Arc::clone(&parts.keys),
        };
        let mut plain = base(policy, resolver)?;
        plain.cert_compressors = COMPRESSORS.to_vec();
        plain.cert_compression_cache = Arc::new(CompressionCache::Disabled);
        plain.enable_secret_extraction = true;
        if parts.key_log {
            plain.key_log = Arc::new(LateKeyLog::default());
        }
        plain.key_log = Arc::new(SecretsForSkipping {
            next: plain.key_log,
        });
        let mut with_alpn = plain.clone();
        with_alpn.alpn_protocols.clone_from(&route.alpn);
        let early = policy.keys.early_data.map(|_| Store {
            table: Arc::clone(&parts.early),
            policy: PolicyTag::from_digest(&policy.digest),
            max_age: parts.file.session_max_age(),
            clients,
            kind: StoreKind::Early,
        });
        let resuming = |base| match &early {
            Some(store) => Resuming::early(base, policy, store),
            None => Resuming::new(base, policy, parts, &ticketer),
        };
        Ok(Self {
            with_alpn: resuming(with_alpn),
            without_alpn: resuming(plain),
            ticketer,
            stored: {
                let outbox = parts.outbox.as_ref();
                let lookups = outbox.and_then(Outbox::lookups);
                let keeps = early.is_none() && parts.file.sessions.table_entries > 0;
                let tag = PolicyTag::from_digest(&policy.digest);
                lookups
                    .filter(|_| keeps)
                    .map(|_| (Arc::clone(&parts.table), tag))
            },
            early,
            tls13: policy.keys.versions.contains(&ServedVersion::Tls13),
            tls12_tickets: parts.file.tls12_tickets(&policy.keys),
        })
    }

    /// Returns the configuration for this ClientHello, with ALPN negotiation if `alpn` is `true`.
    pub fn pick(&self, hello: &ClientHello<'_>, alpn: bool) -> &Arc<ServerConfig> {
        let by_resumption = if alpn {
            &self.with_alpn
        } else {
            &self.without_alpn
        };
        if self.tls13 && hello.offers_tls13() {
            return if self.may_resume(hello) {
                &by_resumption.one_ticket
            } else {
                &by_resumption.two_tickets
            };
        }
        if self.tls12_tickets && hello.session_ticket().is_some() {
            return &by_resumption.one_ticket;
        }
        &by_resumption.by_id
    }

    pub fn offer(&self, hello: &ClientHello<'_>) -> Offer {
        match hello.session_ticket() {
            _ if self.tls13 && hello.offers_tls13() => Offer::Psk,
            Some([_, ..]) if self.tls12_tickets => Offer::Ticket,
            _ => Offer::Id,
        }
    }

    /// Returns the name of the session that the client offers by ID, if only a store may have it.
    /// A client that offers TLS 1.3 or a ticket may send a random ID, which no host knows (RFC 8446,
    /// appendix D.4, and RFC 5077, section 3.4).
    pub fn missing(&self, hello: &ClientHello<'_>) -> Option<SessionName> {
        let (table, policy) = self.stored.as_ref()?;
        let has_ticket = hello.session_ticket().is_some_and(|it| !it.is_empty());
        if hello.offers_tls13() || has_ticket {
            return None;
        }
        let name = SessionName::new(*policy, hello.session_id())?;
        // The time is zero, because the store has no other state of an expired session.
        let found = table.get(*policy, name.id(), Duration::ZERO);
        (found == Lookup::Miss).then_some(name)
    }

    /// Returns `true` if the ClientHello offers a session that may be valid: a well-formed ticket
    /// with a known key, or a TLS 1.2 session ID. `false` means that a full handshake is necessary.
    pub fn may_resume(&self, hello: &ClientHello<'_>) -> bool {
        if self.tls13 && hello.offers_tls13() {
            // In TLS 1.3, the session ID exists only for compatibility with middleboxes (RFC 8446,
            // appendix D.4).
            return match &self.early {
                Some(early) => early.recognises(hello),
                None => hello
                    .psk_identities()
                    .any(|ticket| self.ticketer.recognises(ticket)),
            };
        }
        match hello.session_ticket() {
            Some(ticket @ [_, ..]) => self.ticketer.recognises(ticket),
            _ => !hello.session_id().is_empty(),
        }
    }
}

impl Resuming {
    fn new(
        base: ServerConfig,
        policy: &Policy,
        parts: &RouteParts,
        ticketer: &Arc<Ticketer>,
    ) -> Self {
        let store = |stores| {
            Arc::new(Store {
                table: parts.table.clone(),
                policy: PolicyTag::from_digest(&policy.digest),
                max_age: parts.file.session_max_age(),
                clients: ReturningClients::new(policy.verifier.clone()),
                kind: StoreKind::ById {
                    lifetime: parts.file.sessions.id_lifetime,
                    stores,
                    outbox: parts.outbox.clone().filter(|_| stores),
                },
            })
        };
        let mut two_tickets = base.clone();
        two_tickets.session_storage = store(false);
        two_tickets.ticketer = Arc::clone(ticketer) as Arc<dyn ProducesTickets>;
        let mut one_ticket = two_tickets.clone();
        one_ticket.send_tls13_tickets = 1;
        let mut by_id = base;
        by_id.session_storage = store(parts.file.sessions.table_entries > 0);
        Self {
            two_tickets: Arc::new(two_tickets),
            one_ticket: Arc::new(one_ticket),
            by_id: Arc::new(by_id),
        }
    }

    /// Creates the TLS 1.3 configuration for a policy that accepts early data. rustls then sends
    /// the table keys of sessions as tickets. becket may send data before the handshake is
    /// complete, so that the answer to early data needs no further round trip.
    fn early(base: ServerConfig, policy: &Policy, store: &Store) -> Self {
        let mut two_tickets = base;
        two_tickets.session_storage = Arc::new(store.clone());
        two_tickets.max_early_data_size = policy.keys.early_data.unwrap_or(0);
        two_tickets.send_half_rtt_data = true;
        let mut one_ticket = two_tickets.clone();
        one_ticket.send_tls13_tickets = 1;
        let two_tickets = Arc::new(two_tickets);
        Self {
            by_id: Arc::clone(&two_tickets),
            two_tickets,
            one_ticket: Arc::new(one_ticket),
        }
    }
}

fn base(policy: &Policy, resolver: ChainResolver) -> Result<ServerConfig, rustls::Error> {
    let provider = CryptoProvider {
        cipher_suites: policy.suites.clone(),
        kx_groups: groups(&policy.keys.groups),
        secure_random: &TlsRandom,
        ..aws_lc_rs::default_provider()
    };
    let builder = ServerConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&versions(&policy.keys.versions))?;
    let builder = match policy.verifier.clone() {
        Some(verifier) => builder.with_client_cert_verifier(verifier),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(Arc::new(resolver));
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.ignore_client_order = true;
    config.require_ems = policy.keys.requires_ems();
    Ok(config)
}

/// Selects the certificate chain for the server name that rustls parsed. Fails if this name differs
/// from the peeked name that selected the route.
#[derive(Debug)]
struct ChainResolver {
    certificates: Arc<CertificateMap>,
    keys: Arc<WorkerKeys>,
}

impl ResolvesServerCert for ChainResolver {
    fn resolve(&self, hello: ReadHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello.server_name();
        let keys = context::with(|handshake| {
            let certificate = &handshake.certificate;
            let is_same = certificate.server_name.as_deref() == name;
            is_same.then(|| self.certificates.keys_for(certificate.name()))
        })??;
        let authorities = hello.certificate_authorities().unwrap_or_default();
        let place = keys.choose(hello.signature_schemes(), authorities)?;
        let now = context::with(|handshake| {
            handshake.certificate.presented = Some(place);
            handshake.clock.unix
        })?;
        Some(self.keys.get(keys.chains().get(place)?, now, served_key))
    }
}
