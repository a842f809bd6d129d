//! The TLS side of one listener: from a peeked hello to a route's configuration, or to a refusal.
//!
//! Owned by one worker, rebuilt on reload and when ticket keys rotate. Choosing allocates only
//! the lower-cased server name, which the connection keeps for the log and the PROXY header.

use std::sync::Arc;

use becket_proto::client_hello::{ClientHello, MAX_NAME_BYTES};
use rustls::ServerConfig;

use super::route_configs::{Parts, RouteConfigs};
use crate::close_reason::CloseReason;
use crate::config::{Listener, Route};
use crate::metrics::Offer;
use becket_config::choices::{AlpnMismatch, UnknownNames};

/// Routes of one listener with their configurations.
#[derive(Debug)]
pub struct HelloRouter {
    listener: Arc<Listener>,
    configs: Vec<RouteConfigs>,
}

/// How a hello is answered.
#[derive(Debug)]
pub(crate) enum Choice {
    /// By a handshake.
    Serve(Served),
    /// By a fatal alert.
    Refuse {
        /// AlertDescription (RFC 8446, section 6).
        alert: u8,
        /// For the log and the metrics.
        reason: CloseReason,
    },
}

/// A hello that a route takes.
#[derive(Debug)]
pub(crate) struct Served {
    /// Index of the route in its listener.
    pub route: usize,
    /// The configuration to handshake with.
    pub config: Arc<ServerConfig>,
    /// It offers something that might resume; otherwise the handshake can only be a full one.
    pub(crate) may_resume: bool,
    /// What that would be.
    pub offer: Offer,
}

impl HelloRouter {
    /// Builds the configurations of every route; where no TLS ends, there are none.
    ///
    /// # Errors
    ///
    /// As [`RouteConfigs::new`].
    pub fn new(listener: Arc<Listener>, parts: &Parts) -> Result<Self, rustls::Error> {
        let routes = listener.routes.iter().filter(|_| listener.ends_tls());
        let configs = routes
            .map(|route| RouteConfigs::new(route, &listener.certificates, parts))
            .collect::<Result<_, _>>()?;
        Ok(Self { listener, configs })
    }

    /// The listener's configuration.
    pub fn listener(&self) -> &Arc<Listener> {
        &self.listener
    }

    /// A route and its configurations, by [`Served::route`].
    pub fn route(&self, index: usize) -> Option<(&Route, &RouteConfigs)> {
        self.listener.routes.get(index).zip(self.configs.get(index))
    }

    /// Chooses the route by name and protocols, then its configuration by what the hello can resume.
    pub(crate) fn choose(&self, hello: &ClientHello<'_>, name: Option<&str>) -> Choice {
        // rustls would look at signature algorithms first, and answer with the wrong alert.
        if !hello.offers_tls12() && !hello.offers_tls13() {
            return Choice::Refuse {
                alert: PROTOCOL_VERSION,
                reason: CloseReason::HandshakeFailed,
            };
        }
        if let Some(name) = name
            && self.listener.unknown_names == UnknownNames::Refuse
            && self.listener.certificates.named(name).is_none()
        {
            return Choice::Refuse {
                alert: UNRECOGNIZED_NAME,
                reason: CloseReason::UnknownName,
            };
        }
        let Some((index, alpn)) = self.find(hello, name) else {
            return Choice::Refuse {
                alert: NO_APPLICATION_PROTOCOL,
                reason: CloseReason::AlpnMismatch,
            };
        };
        match self.configs.get(index) {
            Some(configs) => Choice::Serve(Served {
                route: index,
                config: Arc::clone(configs.pick(hello, alpn)),
                may_resume: configs.may_resume(hello),
                offer: configs.offer(hello),
            }),
            None => Choice::Refuse {
                alert: INTERNAL_ERROR,
                reason: CloseReason::Internal,
            },
        }
    }

    /// The index of the route of a hello that is passed on as it is.
    ///
    /// # Errors
    ///
    /// The alert and the reason when no route takes it. A name is unknown here when no route has it.
    pub(crate) fn pass(
        &self,
        hello: &ClientHello<'_>,
        name: Option<&str>,
    ) -> Result<usize, (u8, CloseReason)> {
        let refuses = self.listener.unknown_names == UnknownNames::Refuse;
        let (index, _) = self
            .find(hello, name)
            .ok_or((NO_APPLICATION_PROTOCOL, CloseReason::AlpnMismatch))?;
        let named = self.listener.routes.get(index);
        if refuses && name.is_some() && named.is_none_or(|route| route.names.is_empty()) {
            return Err((UNRECOGNIZED_NAME, CloseReason::UnknownName));
        }
        Ok(index)
    }

    /// The first route that is for this name and, if it insists, for a protocol on offer. The
    /// flag says whether ALPN is negotiated. Nothing when the lists do not overlap and must.
    fn find(&self, hello: &ClientHello<'_>, name: Option<&str>) -> Option<(usize, bool)> {
        let overlaps = |route: &Route| {
            hello
                .alpn()
                .any(|offer| route.alpn.iter().any(|ours| ours == offer))
        };
        let (index, route) = self
            .listener
            .routes
            .iter()
            .enumerate()
            .find(|(_, route)| route.is_for(name) && (!route.alpn_only || overlaps(route)))?;
        let offered = hello.alpn().next().is_some();
        if !offered || route.alpn.is_empty() {
            return Some((index, false));
        }
        match route.alpn_mismatch {
            _ if overlaps(route) => Some((index, true)),
            AlpnMismatch::Continue => Some((index, false)),
            AlpnMismatch::Refuse => None,
        }
    }
}

impl Route {
    /// Whether the route takes clients that ask for this name, which is in lower case.
    pub(crate) fn is_for(&self, name: Option<&str>) -> bool {
        if self.names.is_empty() {
            return true;
        }
        name.is_some_and(|name| self.names.iter().any(|pattern| pattern.matches(name)))
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
