//! Listeners of Gateways, and the routes that attach to them.

use becket_config::address::{NamePattern, SectionName};
use becket_config::choices::{ClientCertificates, Mode};
use becket_config::error::{Problem, Report};
use becket_config::listener::Certificate;
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
    pub field: String,
    pub host: Option<NamePattern>,
    /// `None` for clients without TLS.
    pub mode: Option<Mode>,
    pub certificates: Vec<Certificate>,
    /// Policy that verifies client certificates.
    pub policy: Option<Policy>,
    /// Attached routes by host name, those with precedence first.
    pub attached: Vec<(Option<NamePattern>, &'a Object<RouteSpec>)>,
}

/// Returns the listeners of all Gateways, with the routes attached to them.
pub fn entrances<'a>(mounts: Mounts<'a>, report: &mut Report) -> Vec<Entrance<'a>> {
    let mut entrances = Vec::new();
    for gateway in &mounts.objects.gateways {
        for (index, listener) in gateway.spec.listeners.iter().enumerate() {
            let mut entrance = Entrance {
                gateway,
                listener,
                field: format!("spec.listeners[{index}]"),
                host: None,
                mode: None,
                certificates: Vec::new(),
                policy: None,
                attached: Vec::new(),
            };
            let result = entrance.read(mounts);
            result.unwrap_or_else(|problem| gateway.refuse(report, problem));
            entrances.push(entrance);
        }
    }
    for (index, one) in entrances.iter().enumerate() {
        let mut others = entrances.iter().take(index);
        let is_same = |other: &Entrance<'_>| {
            let has_tls = one.mode.is_some() && other.mode.is_some();
            one.listener.port == other.listener.port && !(has_tls && one.host != other.host)
        };
        if let Some(other) = others.find(|other| is_same(other)) {
            let other = format!("{} {}", other.gateway.identity, other.field);
            let fault = format!("Conflicted: {other} has the same clients");
            let accepted = "another port or, with TLS, another hostname";
            let problem = problem(&one.field, fault, accepted);
            one.gateway.refuse(report, problem);
        }
    }
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

impl Entrance<'_> {
    fn read(&mut self, mounts: Mounts<'_>) -> Result<(), Problem> {
        let (field, listener) = (&self.field, self.listener);
        let tls = listener.tls.as_ref();
        let mode = tls.and_then(|tls| tls.mode.as_deref());
        let mode = mode.unwrap_or("Terminate");
        self.mode = match (&*listener.protocol.to_ascii_uppercase(), mode) {
            ("TCP", _) => None,
            ("TLS", "Terminate") => Some(Mode::Terminate),
            ("TLS", "Passthrough") => Some(Mode::Passthrough),
            (protocol, mode) => {
                let problem = Problem::new(field, "UnsupportedProtocol").accepted("TLS or TCP");
                return Err(problem.text(&format!("{protocol} {mode}")));
            }
        };
        if !listener.hostname.is_empty() {
            let field = format!("{field}.hostname");
            self.host = Some(hosts::parse(&field, &listener.hostname)?);
        }
        if listener.port == 0 || self.mode.is_none() && (self.host.is_some() || tls.is_some()) {
            let fault = "port 0, or hostname or tls with protocol TCP";
            let accepted = "a port, and protocol TLS with the others";
            return Err(problem(field, fault, accepted));
        }
        let allowed = &listener.allowed_routes;
        let from = allowed.namespaces.from.as_deref().unwrap_or("Same");
        if !["Same", "All", "None"].contains(&from) {
            let field = format!("{field}.allowedRoutes.namespaces.from");
            return Err(problem(&field, "not supported", "Same or All").text(from));
        }
        let is_own = |kind: &Reference| self.kinds().iter().any(|own| kind.is_to((GROUP, own), ""));
        if !allowed.kinds.iter().all(is_own) {
            let field = format!("{field}.allowedRoutes.kinds");
            let accepted = self.kinds().join(" or ");
            return Err(problem(&field, "InvalidRouteKinds", accepted));
        }
        if self.mode == Some(Mode::Terminate) {
            self.certificates = self.certificates(mounts)?;
            self.policy = self.policy(mounts)?;
        }
        Ok(())
    }

    fn certificates(&self, mounts: Mounts<'_>) -> Result<Vec<Certificate>, Problem> {
        let field = format!("{}.tls.certificateRefs", self.field);
        let tls = self.listener.tls.iter();
        let all = tls.flat_map(|tls| &tls.certificate_refs);
        let pairs = all.map(|to| mounts.pair(self.gateway, &field, to).map(Certificate::Pair));
        let pairs = pairs.collect::<Result<Vec<_>, _>>()?;
        if pairs.is_empty() {
            return Err(problem(
                &field,
                "missing",
                "Secrets of type kubernetes.io/tls",
            ));
        }
        Ok(pairs)
    }

    fn policy(&self, mounts: Mounts<'_>) -> Result<Option<Policy>, Problem> {
        let Some(validation) = &self.gateway.spec.tls.frontend.default.validation else {
            return Ok(None);
        };
        let field = "spec.tls.frontend.default.validation";
        let mode = validation.mode.as_deref();
        if let Some(mode) = mode.filter(|it| *it != "AllowValidOnly") {
            return Err(problem(field, "not supported", "mode AllowValidOnly").text(mode));
        }
        let field = format!("{field}.caCertificateRefs");
        let ca = mounts.authorities(self.gateway, &field, &validation.ca_certificate_refs)?;
        let mut gateways = mounts.objects.gateways.iter();
        let number = gateways.position(|it| it.name == self.gateway.name);
        let name = format!("clients-{}", number.unwrap_or_default());
        Ok(Some(Policy {
            name: SectionName(name.into()),
            client_certificates: ClientCertificates::Required,
            client_ca: Some(ca),
            ..Policy::default()
        }))
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
        let is_listed = kinds.any(|it| it.kind.as_deref() == Some(route.kind));
        is_near && (is_listed || allowed.kinds.is_empty()) && self.kinds().contains(&route.kind)
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
        let field = format!("spec.hostnames[{index}]");
        own.push(Some(hosts::parse(&field, host)?));
    }
    if own.is_empty() {
        own.push(None);
    } else if route.kind == "TCPRoute" {
        return Err(problem("spec.hostnames", "not supported", "a TLSRoute"));
    }
    let target = parent.target(&route.name.namespace);
    let is_selected = |it: &&mut Entrance<'_>| {
        let section = parent.section_name.as_ref();
        parent.is_to((GROUP, "Gateway"), "Gateway")
            && it.gateway.name == target
            && section.is_none_or(|section| *section == it.listener.name)
            && parent.port.is_none_or(|port| port == it.listener.port)
    };
    let mut is_attached = false;
    let mut fault = "NoMatchingParent: no such listener";
    for entrance in entrances.iter_mut().filter(is_selected) {
        if !entrance.admits(route) {
            fault = "NotAllowedByListeners: kind or namespace of the route";
            continue;
        }
        fault = "NoMatchingListenerHostname: no name in common";
        for host in &own {
            if let Some(host) = hosts::intersection(entrance.host.as_ref(), host.as_ref()) {
                entrance.attached.push((host, route));
                is_attached = true;
            }
        }
    }
    let accepted = "a TLS or TCP listener of a Gateway in these files that allows the route";
    let attached = is_attached.then_some(());
    attached.ok_or_else(|| problem(field, fault, accepted))
}
