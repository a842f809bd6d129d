//! Listeners of Gateways: which are accepted, and which routes attach to them.

use becket_config::address::NamePattern;
use becket_config::choices::{ClientCertificates, Mode};
use becket_config::error::{Problem, Report};
use becket_config::listener::Pair;
use becket_config::policy::Policy;

use crate::credentials::Mounts;
use crate::hosts;
use crate::kinds::{GatewaySpec, Listener, Reference, RouteSpec};
use crate::objects::{GROUP, Object, problem};

/// A listener of a Gateway with the routes attached to it.
#[derive(Debug)]
pub struct Entrance<'a> {
    pub gateway: &'a Object<GatewaySpec>,
    pub listener: &'a Listener,
    /// Field of the Gateway, such as `spec.listeners[0]`.
    field: String,
    pub host: Option<NamePattern>,
    /// `None` for clients without TLS.
    pub mode: Option<Mode>,
    pub certificates: Vec<Pair>,
    /// Policy that verifies client certificates, without a name.
    pub policy: Option<Policy>,
    /// `false` if the listener has a problem: its clients are rejected.
    pub is_usable: bool,
    /// Attached routes by host name, those with precedence first.
    pub attached: Vec<(Option<NamePattern>, &'a Object<RouteSpec>)>,
}

/// Returns the listeners of all Gateways, with the routes attached to them.
pub fn entrances<'a>(mounts: Mounts<'a>, report: &mut Report) -> Vec<Entrance<'a>> {
    let mut entrances = Vec::new();
    for gateway in &mounts.objects.gateways {
        for (index, listener) in gateway.spec.listeners.iter().enumerate() {
            match Entrance::new(gateway, listener, format!("spec.listeners[{index}]")) {
                Ok(mut entrance) => {
                    let result = entrance.complete(mounts);
                    result.unwrap_or_else(|problem| entrance.refuse(report, problem));
                    entrances.push(entrance);
                }
                Err(problem) => gateway.refuse(report, problem),
            }
        }
    }
    refuse_conflicts(&mut entrances, report);
    for route in &mounts.objects.routes {
        for (index, parent) in route.spec.parent_refs.iter().enumerate() {
            let field = format!("spec.parentRefs[{index}]");
            let result = attach(&mut entrances, route, &field, parent);
            result.unwrap_or_else(|problem| route.refuse(report, problem));
        }
        if route.spec.parent_refs.is_empty() {
            route.refuse(report, problem("spec.parentRefs", "missing", "a Gateway"));
        }
    }
    entrances
}

impl<'a> Entrance<'a> {
    /// Creates the entrance with the fields that decide which clients it is for.
    fn new(
        gateway: &'a Object<GatewaySpec>,
        listener: &'a Listener,
        field: String,
    ) -> Result<Self, Problem> {
        let tls = listener.tls.as_ref();
        let mode = tls.and_then(|tls| tls.mode.as_deref()).unwrap_or("Terminate");
        let mode = match (&*listener.protocol.to_ascii_uppercase(), mode) {
            ("TCP", _) => None,
            ("TLS", "Terminate") => Some(Mode::Terminate),
            ("TLS", "Passthrough") => Some(Mode::Passthrough),
            ("TLS", mode) => {
                let field = format!("{field}.tls.mode");
                return Err(problem(&field, "unknown", "Terminate or Passthrough").text(mode));
            }
            _ => {
                let field = format!("{field}.protocol");
                let problem = problem(&field, "UnsupportedProtocol", "TLS or TCP");
                return Err(problem.text(&listener.protocol));
            }
        };
        let host = Some(&*listener.hostname).filter(|host| !host.is_empty());
        let host = host.map(|host| hosts::parse(&format!("{field}.hostname"), host));
        let host = host.transpose()?;
        if listener.port == 0 || mode.is_none() && (host.is_some() || tls.is_some()) {
            let fault = "port 0, or hostname or tls with protocol TCP";
            return Err(problem(&field, fault, "a port, and protocol TLS with hostname or tls"));
        }
        Ok(Self {
            gateway,
            listener,
            field,
            host,
            mode,
            certificates: Vec::new(),
            policy: None,
            is_usable: true,
            attached: Vec::new(),
        })
    }

    /// Checks the other fields, and resolves certificates.
    fn complete(&mut self, mounts: Mounts<'_>) -> Result<(), Problem> {
        let (gateway, field) = (self.gateway, &self.field);
        // These are reported already.
        self.is_usable = !gateway.unknown.iter().any(|path| {
            path.starts_with(&format!("{field}.")) || path.starts_with("spec.tls.")
        });
        let allowed = &self.listener.allowed_routes;
        let from = allowed.namespaces.from.as_deref().unwrap_or("Same");
        if !["Same", "All", "None"].contains(&from) {
            let field = format!("{field}.allowedRoutes.namespaces.from");
            return Err(problem(&field, "not supported", "Same or All").text(from));
        }
        for (index, kind) in allowed.kinds.iter().enumerate() {
            if !self.kinds().iter().any(|own| kind.is_to((GROUP, own), "")) {
                let field = format!("{field}.allowedRoutes.kinds[{index}]");
                return Err(problem(&field, "InvalidRouteKinds", self.kinds().join(" or ")));
            }
        }
        if self.mode != Some(Mode::Terminate) {
            return Ok(());
        }
        let references = self.listener.tls.iter().flat_map(|tls| &tls.certificate_refs);
        for (index, reference) in references.enumerate() {
            let field = format!("{field}.tls.certificateRefs[{index}]");
            self.certificates.push(mounts.pair(gateway, &field, reference)?);
        }
        if self.certificates.is_empty() {
            let field = format!("{field}.tls.certificateRefs");
            return Err(problem(&field, "missing", "a Secret of type kubernetes.io/tls"));
        }
        if let Some(validation) = &gateway.spec.tls.frontend.default.validation {
            let field = "spec.tls.frontend.default.validation";
            let mode = validation.mode.as_deref().unwrap_or("AllowValidOnly");
            if mode != "AllowValidOnly" {
                let field = format!("{field}.mode");
                return Err(problem(&field, "not supported", "AllowValidOnly").text(mode));
            }
            let field = format!("{field}.caCertificateRefs");
            let references = &validation.ca_certificate_refs;
            self.policy = Some(Policy {
                client_certificates: ClientCertificates::Required,
                client_ca: Some(mounts.authorities(gateway, &field, references)?),
                ..Policy::default()
            });
        }
        Ok(())
    }

    /// Returns the kinds of routes for the protocol. A TCPRoute takes all names.
    fn kinds(&self) -> &'static [&'static str] {
        match self.mode {
            None => &["TCPRoute"],
            Some(Mode::Passthrough) => &["TLSRoute"],
            Some(Mode::Terminate) => &["TLSRoute", "TCPRoute"],
        }
    }

    fn admits(&self, route: &Object<RouteSpec>) -> bool {
        let allowed = &self.listener.allowed_routes;
        let is_near = match allowed.namespaces.from.as_deref() {
            None | Some("Same") => self.gateway.name.namespace == route.name.namespace,
            Some(from) => from == "All",
        };
        let mut kinds = allowed.kinds.iter();
        let is_listed =
            allowed.kinds.is_empty() || kinds.any(|it| it.kind.as_deref() == Some(route.kind));
        is_near && is_listed && self.kinds().contains(&route.kind)
    }

    fn refuse(&mut self, report: &mut Report, problem: Problem) {
        self.is_usable = false;
        self.gateway.refuse(report, problem);
    }
}

/// Rejects listeners whose clients cannot be told apart: TCP on a shared port, or TLS with the same
/// port and host name.
fn refuse_conflicts(entrances: &mut [Entrance<'_>], report: &mut Report) {
    let key = |it: &Entrance<'_>| (it.listener.port, it.mode.is_none(), it.host.clone());
    let keys: Vec<_> = entrances.iter().map(key).collect();
    for (index, entrance) in entrances.iter_mut().enumerate() {
        let (port, is_tcp, host) = key(entrance);
        let mut others = keys.iter().enumerate().filter(|(other, _)| *other != index);
        if others.any(|(_, it)| it.0 == port && (it.1 || is_tcp || it.2 == host)) {
            let fault = format!("Conflicted: another listener has port {port} for these clients");
            let accepted = "another port or, with TLS, another hostname";
            let problem = problem(&entrance.field, fault, accepted);
            entrance.refuse(report, problem);
        }
    }
}

/// Attaches a route to the listeners that a reference selects.
fn attach<'a>(
    entrances: &mut [Entrance<'a>],
    route: &'a Object<RouteSpec>,
    field: &str,
    parent: &Reference,
) -> Result<(), Problem> {
    let mut own = Vec::new();
    for (index, host) in route.spec.hostnames.iter().enumerate() {
        own.push(Some(hosts::parse(&format!("spec.hostnames[{index}]"), host)?));
    }
    if own.is_empty() || route.kind == "TCPRoute" {
        own = vec![None];
    }
    let target = parent.target(&route.name.namespace);
    let is_selected = |it: &&mut Entrance<'_>| {
        let section = parent.section_name.as_ref();
        parent.is_to((GROUP, "Gateway"), "Gateway")
            && it.gateway.name == target
            && section.is_none_or(|section| *section == it.listener.name)
            && parent.port.is_none_or(|port| port == it.listener.port)
    };
    let mut fault = Some("NoMatchingParent: no such listener");
    for entrance in entrances.iter_mut().filter(is_selected) {
        let before = entrance.attached.len();
        if !entrance.admits(route) {
            fault = fault.and(Some("NotAllowedByListeners: kind or namespace of the route"));
            continue;
        }
        for host in &own {
            let host = hosts::intersection(entrance.host.as_ref(), host.as_ref());
            entrance.attached.extend(host.map(|host| (host, route)));
        }
        fault = fault.filter(|_| entrance.attached.len() == before);
        fault = fault.and(Some("NoMatchingListenerHostname: no name in common"));
    }
    match fault {
        None => Ok(()),
        Some(fault) => {
            let accepted = "a TLS or TCP listener of a Gateway in these files that allows the route";
            Err(problem(field, fault, accepted))
        }
    }
}
