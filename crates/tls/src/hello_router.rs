//! Chooses a route and its TLS configuration for a peeked ClientHello, or rejects the ClientHello.
//!
//! Each worker owns one router per listener, which is rebuilt on a reload and on a rotation of
//! ticket keys. A choice allocates only the server name in lower case, which the connection stores
//! for the log and the PROXY header.

use std::sync::Arc;

use becket_config::choices::{AlpnMismatch, UnknownNames};
use becket_proto::client_hello::{ClientHello, MAX_NAME_BYTES};
use rustls::ServerConfig;

use super::challenges::is_of_authority;
use super::route_configs::{RouteConfigs, RouteParts};
use crate::config::{Listener, Route};
use crate::resumption::Offer;
use crate::trial::Evaluated;
use becket_cluster::{Outbox, StoreLookups};
use becket_proto::close_reason::CloseReason;
use becket_proto::session::SessionName;

#[derive(Debug)]
pub struct HelloRouter {
    listener: Arc<Listener>,
    /// Requests to the store; `None` without a store.
    lookups: Option<StoreLookups>,
    /// Configurations by index of the route; `None` if the route passes TLS through.
    configs: Vec<Option<RouteConfigs>>,
}

#[derive(Debug)]
pub enum Choice {
    Serve(Served),
    /// Pass the connection through to a server of the route with this index, without terminating
    /// TLS.
    Pass(usize),
    Refuse {
        /// AlertDescription (RFC 8446, section 6).
        alert: u8,
        reason: CloseReason,
    },
}

#[derive(Debug)]
pub struct Served {
    pub route: usize,
    pub config: Arc<ServerConfig>,
    /// `true` if the ClientHello offers a session that may be valid. `false` means that a full
    /// handshake is necessary.
    pub may_resume: bool,
    /// Kind of resumption that the client may use.
    pub offer: Offer,
    /// Session that the client offers by ID, if only a store may have it.
    pub missing: Option<SessionName>,
    /// Maximum early data that the policy accepts, in bytes.
    pub early_data: u32,
    pub asks: bool,
    /// `true` if the handshake answers a challenge of an ACME authority and no server is needed.
    pub is_challenge: bool,
    pub trial: Option<Evaluated>,
}

impl Served {
    /// Creates the decision for a client that asks for the answer to a challenge.
    pub fn challenge(config: Arc<ServerConfig>) -> Self {
        Self {
            route: 0,
            config,
            may_resume: false,
            offer: Offer::Id,
            missing: None,
            early_data: 0,
            asks: false,
            is_challenge: true,
            trial: None,
        }
    }
}

impl HelloRouter {
    /// Builds the configurations of every route that terminates TLS.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`RouteConfigs::new`].
    pub fn new(listener: Arc<Listener>, parts: &RouteParts) -> Result<Self, rustls::Error> {
        let certificates = &listener.certificates;
        let configs = listener.routes.iter().map(|route| {
            let policy = route.policy.as_deref();
            let configs =
                policy.map(|policy| RouteConfigs::new(route, policy, certificates, parts));
            configs.transpose()
        });
        let configs = configs.collect::<Result<_, _>>()?;
        let lookups = parts.outbox.as_ref().and_then(Outbox::lookups).cloned();
        Ok(Self {
            listener,
            lookups,
            configs,
        })
    }

    pub fn listener(&self) -> &Arc<Listener> {
        &self.listener
    }

    /// Returns the requests to the store; `None` without a store.
    pub fn lookups(&self) -> Option<&StoreLookups> {
        self.lookups.as_ref()
    }

    /// Chooses the route by server name and ALPN protocols. For a route that terminates TLS, also
    /// chooses the configuration by the offered resumption. If the client sent no server name,
    /// `name` is the destination address.
    pub fn choose(&self, hello: &ClientHello<'_>, name: Option<&str>) -> Choice {
        let refuse = |alert, reason| Choice::Refuse { alert, reason };
        let Some((index, route)) = self.find(hello, name) else {
            return refuse(INTERNAL_ERROR, CloseReason::Internal);
        };
        let configs = self.configs.get(index).and_then(Option::as_ref);
        // The version is checked here, because rustls checks signature algorithms first and would
        // send the wrong alert.
        if configs.is_some() && !hello.offers_tls12() && !hello.offers_tls13() {
            return refuse(PROTOCOL_VERSION, CloseReason::HandshakeFailed);
        }
        let unknown = self.listener.keys.unknown_names();
        if unknown == UnknownNames::Strict || name.is_some() && unknown == UnknownNames::Refuse {
            let is_known = name.is_some_and(|name| match configs {
                Some(_) => self.listener.certificates.named(name).is_some(),
                None => !route.keys.names.is_empty(),
            });
            if !is_known {
                return refuse(UNRECOGNIZED_NAME, CloseReason::UnknownName);
            }
        }
        let Some(configs) = configs else {
            return Choice::Pass(index);
        };
        let offered = hello.alpn().next().is_some();
        let alpn = offered && route.overlaps(hello);
        let refuses = self.listener.keys.alpn_mismatch() == AlpnMismatch::Refuse;
        let refuses = refuses && !route.alpn.is_empty() || is_of_authority(hello);
        if offered && !alpn && refuses {
            return refuse(NO_APPLICATION_PROTOCOL, CloseReason::AlpnMismatch);
        }
        let policy = route.policy.as_ref();
        let trial = policy.and_then(|it| it.trial.as_ref());
        let trial = trial.map(|trial| {
            let keys = self.listener.certificates.keys_for(name);
            trial.evaluate(hello, |suite| {
                let mut kinds = keys.chains().iter().map(|it| it.algorithm());
                kinds.any(|kind| suite.usable_for_signature_algorithm(kind))
            })
        });
        Choice::Serve(Served {
            route: index,
            config: Arc::clone(configs.pick(hello, alpn)),
            may_resume: configs.may_resume(hello),
            offer: configs.offer(hello),
            missing: configs.missing(hello),
            early_data: policy.and_then(|it| it.keys.early_data).unwrap_or(0),
            asks: policy.is_some_and(|it| it.verifier.is_some()),
            is_challenge: false,
            trial,
        })
    }

    /// Returns the first route that matches the server name. A route that requires ALPN must also
    /// match an offered protocol.
    fn find(&self, hello: &ClientHello<'_>, name: Option<&str>) -> Option<(usize, &Route)> {
        let mut routes = self.listener.routes_for(name);
        routes.find(|(_, route)| !route.keys.is_for_alpn() || route.overlaps(hello))
    }
}

impl Route {
    /// Returns `true` if the route matches this server name, which must be in lower case.
    pub fn is_for(&self, name: Option<&str>) -> bool {
        let names = &self.keys.names;
        names.is_empty()
            || name.is_some_and(|name| names.iter().any(|pattern| pattern.matches(name)))
    }

    /// Returns `true` if the ClientHello offers an ALPN protocol of this route.
    fn overlaps(&self, hello: &ClientHello<'_>) -> bool {
        let ours = |offer| self.alpn.iter().any(|ours| ours == offer);
        hello.alpn().any(ours)
    }
}

/// Returns the server name in lower case, which `Route::is_for` requires.
pub fn server_name(hello: &ClientHello<'_>) -> Option<Box<str>> {
    let mut buffer = [0; MAX_NAME_BYTES];
    hello
        .server_name()
        .map(|name| Box::from(name.to_lowercase(&mut buffer)))
}

/// Alert `protocol_version` (RFC 8446, section 6.2 and appendix D.2).
const PROTOCOL_VERSION: u8 = 70;
/// Alert `unrecognized_name` (RFC 6066, section 3).
const UNRECOGNIZED_NAME: u8 = 112;
/// Alert `no_application_protocol` (RFC 7301, section 3.2).
const NO_APPLICATION_PROTOCOL: u8 = 120;
/// Alert `internal_error` (RFC 8446, section 6.2).
const INTERNAL_ERROR: u8 = 80;
