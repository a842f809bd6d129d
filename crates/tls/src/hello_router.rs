//! The TLS side of one listener: from a peeked hello to a route's configuration, or to a refusal.
//!
//! Owned by one worker, rebuilt on reload and when ticket keys rotate. Choosing allocates only
//! the lower-cased server name, which the connection keeps for the log and the PROXY header.

use std::sync::Arc;

use becket_config::choices::{AlpnMismatch, UnknownNames};
use becket_proto::client_hello::{ClientHello, MAX_NAME_BYTES};
use rustls::ServerConfig;

use super::route_configs::{RouteConfigs, RouteParts};
use crate::config::{Listener, Route};
use crate::resumption::Offer;
use crate::trial::Evaluated;
use becket_proto::close_reason::CloseReason;

/// Routes of one listener with their configurations.
#[derive(Debug)]
pub struct HelloRouter {
    listener: Arc<Listener>,
    /// By route; none where TLS passes.
    configs: Vec<Option<RouteConfigs>>,
}

/// How a hello is answered.
#[derive(Debug)]
pub enum Choice {
    /// By a handshake.
    Serve(Served),
    /// By the server that it is passed on to, through the route of this index.
    Pass(usize),
    /// By a fatal alert.
    Refuse {
        /// AlertDescription (RFC 8446, section 6).
        alert: u8,
        /// For the log and the metrics.
        reason: CloseReason,
    },
}

/// A hello that is answered here.
#[derive(Debug)]
pub struct Served {
    /// Index of the route in its listener.
    pub route: usize,
    /// The configuration to handshake with.
    pub config: Arc<ServerConfig>,
    /// It offers something that might resume; otherwise the handshake can only be a full one.
    pub may_resume: bool,
    /// What that would be.
    pub offer: Offer,
    /// How much early data the policy takes.
    pub early_data: u32,
    /// The client is asked for a certificate.
    pub asks: bool,
    /// The client, as the trial of the policy evaluates its hello.
    pub trial: Option<Evaluated>,
}

impl HelloRouter {
    /// Builds the configurations of every route on which TLS ends.
    ///
    /// # Errors
    ///
    /// As [`RouteConfigs::new`].
    pub fn new(listener: Arc<Listener>, parts: &RouteParts) -> Result<Self, rustls::Error> {
        let configs = listener.routes.iter().map(|route| {
            let policy = route.policy.as_deref();
            let configs = policy.map(|policy| RouteConfigs::new(route, policy, &listener, parts));
            configs.transpose()
        });
        let configs = configs.collect::<Result<_, _>>()?;
        Ok(Self { listener, configs })
    }

    /// The listener's configuration.
    pub fn listener(&self) -> &Arc<Listener> {
        &self.listener
    }

    /// Chooses the route by name, or by the address that stands for it, and protocols; where TLS ends, also its configuration,
    /// by what the hello can resume.
    pub fn choose(&self, hello: &ClientHello<'_>, name: Option<&str>) -> Choice {
        let refuse = |alert, reason| Choice::Refuse { alert, reason };
        let Some((index, route)) = self.find(hello, name) else {
            return refuse(INTERNAL_ERROR, CloseReason::Internal);
        };
        let configs = self.configs.get(index).and_then(Option::as_ref);
        // rustls would look at signature algorithms first, and answer with the wrong alert.
        if configs.is_some() && !hello.offers_tls12() && !hello.offers_tls13() {
            return refuse(PROTOCOL_VERSION, CloseReason::HandshakeFailed);
        }
        if let Some(name) = name
            && self.listener.keys.unknown_names() == UnknownNames::Refuse
        {
            let is_known = match configs {
                Some(_) => self.listener.certificates.named(name).is_some(),
                None => !route.keys.names.is_empty(),
            };
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
        if offered && !alpn && refuses && !route.alpn.is_empty() {
            return refuse(NO_APPLICATION_PROTOCOL, CloseReason::AlpnMismatch);
        }
        let policy = route.policy.as_ref();
        let trial = policy.and_then(|it| it.trial.as_ref());
        let trial = trial.map(|trial| {
            let keys = self.listener.certificates.keys_for(name);
            trial.evaluate(hello, |suite| {
                let mut kinds = keys.iter().map(|it| it.key.algorithm());
                kinds.any(|kind| suite.usable_for_signature_algorithm(kind))
            })
        });
        Choice::Serve(Served {
            route: index,
            config: Arc::clone(configs.pick(hello, alpn)),
            may_resume: configs.may_resume(hello),
            offer: configs.offer(hello),
            early_data: policy.and_then(|it| it.keys.early_data).unwrap_or(0),
            asks: configs.verifier().is_some(),
            trial,
        })
    }

    /// The first route that is for this name and, if it insists, for a protocol on offer.
    fn find(&self, hello: &ClientHello<'_>, name: Option<&str>) -> Option<(usize, &Route)> {
        let mut routes = self.listener.routes_for(name);
        routes.find(|(_, route)| !route.keys.is_for_alpn() || route.overlaps(hello))
    }
}

impl Route {
    /// Whether the route takes clients that ask for this name, which is in lower case.
    pub fn is_for(&self, name: Option<&str>) -> bool {
        let names = &self.keys.names;
        names.is_empty()
            || name.is_some_and(|name| names.iter().any(|pattern| pattern.matches(name)))
    }

    /// Whether a hello offers a protocol of this route.
    fn overlaps(&self, hello: &ClientHello<'_>) -> bool {
        let ours = |offer| self.alpn.iter().any(|ours| ours == offer);
        hello.alpn().any(ours)
    }
}

/// The hello's server name in lower case.
pub fn server_name(hello: &ClientHello<'_>) -> Option<Box<str>> {
    let mut buffer = [0; MAX_NAME_BYTES];
    hello
        .server_name()
        .map(|name| Box::from(name.to_lowercase(&mut buffer)))
}

/// RFC 8446, section 6.2 and appendix D.2.
const PROTOCOL_VERSION: u8 = 70;
/// RFC 6066, section 3.
const UNRECOGNIZED_NAME: u8 = 112;
/// RFC 7301, section 3.2.
const NO_APPLICATION_PROTOCOL: u8 = 120;
/// RFC 8446, section 6.2.
const INTERNAL_ERROR: u8 = 80;
