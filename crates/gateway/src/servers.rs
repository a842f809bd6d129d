//! Backends of routes: Services, their addresses, weights and TLS.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use becket_config::address::{SectionName, ServerAddress};
use becket_config::backend::{Backend, ServerSection};
use becket_config::error::{Problem, Report};
use becket_config::notation::Text;
use becket_config::policy::{ServerTls, VerifiedName};

use crate::credentials::Mounts;
use crate::kinds::{Port, Reference, RouteSpec, ServiceSpec, TlsPolicySpec};
use crate::objects::{Name, Object, is_name, problem};

/// Servers of one reference.
#[derive(Debug)]
struct Target {
    weight: u32,
    addresses: BTreeSet<String>,
    tls: Option<ServerTls>,
}

impl Mounts<'_> {
    /// Adds the backend of a route to `backends`, unless it is there, and returns its name. If TLS
    /// of clients is passed through, becket adds no TLS of its own.
    pub fn backend(
        self,
        route: &Object<RouteSpec>,
        passes: bool,
        (backends, report): (&mut Vec<Backend>, &mut Report),
    ) -> SectionName {
        let kind = route.kind.to_ascii_lowercase();
        let suffix = if passes { "_passthrough" } else { "" };
        let Name { namespace, name } = &route.name;
        let long = format!("{kind}_{namespace}_{name}{suffix}");
        // Names of Kubernetes may be longer.
        let name = SectionName::parse(&long).unwrap_or_else(|_| {
            let mut routes = self.objects.routes.iter();
            let number = routes.position(|it| it.name == route.name && it.kind == route.kind);
            SectionName(format!("{kind}_{}{suffix}", number.unwrap_or_default()).into())
        });
        if !backends.iter().any(|it| it.name == name) {
            let targets = self.targets(route, report);
            let tls = targets.first().and_then(|target| target.tls.clone());
            backends.push(Backend {
                name: name.clone(),
                tls: tls.filter(|_| !passes),
                server: weighted(&targets),
                ..Backend::default()
            });
        }
        name
    }

    fn targets(self, route: &Object<RouteSpec>, report: &mut Report) -> Vec<Target> {
        let [rule] = &route.spec.rules[..] else {
            let fault = format!("{} rules", route.spec.rules.len());
            route.refuse(report, problem("spec.rules", fault, "one rule"));
            return Vec::new();
        };
        let mut targets = Vec::new();
        for (index, reference) in rule.backend_refs.iter().enumerate() {
            let field = format!("spec.rules[0].backendRefs[{index}]");
            match self.target(route, &field, reference) {
                Ok(target) => targets.push(target),
                Err(problem) => route.refuse(report, problem),
            }
        }
        targets.retain(|target| target.weight > 0);
        let field = "spec.rules[0].backendRefs";
        if targets.is_empty() {
            route.refuse(report, problem(field, "no servers", "a weight above 0"));
        }
        let tls = targets.first().map(|it| &it.tls);
        if targets.iter().any(|it| Some(&it.tls) != tls) {
            let fault = "the Services have different BackendTLSPolicies";
            route.refuse(report, problem(field, fault, "one policy for all Services"));
        }
        targets
    }

    fn target(
        self,
        route: &Object<RouteSpec>,
        field: &str,
        reference: &Reference,
    ) -> Result<Target, Problem> {
        let services = ("Service", &self.objects.services[..]);
        let (name, service) = self.objects.resolve(route, field, reference, services)?;
        let port = reference.port.unwrap_or_default();
        let addresses = match service {
            Some(service) => self.addresses(service, port, field)?,
            None => BTreeSet::from([by_name(&name, port)]),
        };
        // The port may be missing, and a name too long for DNS.
        let mut wrong = addresses
            .iter()
            .filter(|it| ServerAddress::parse(it).is_err());
        if let Some(address) = wrong.next() {
            let accepted = ServerAddress::ACCEPTED;
            return Err(problem(field, "not an address of a server", accepted).text(address));
        }
        Ok(Target {
            weight: reference.weight.unwrap_or(1),
            addresses,
            tls: self.tls(&name, field)?,
        })
    }

    fn addresses(
        self,
        service: &Object<ServiceSpec>,
        number: u16,
        field: &str,
    ) -> Result<BTreeSet<String>, Problem> {
        let spec = &service.spec;
        let mut ports = spec.ports.iter().filter(|port| port.is_tcp());
        let port = ports.find(|port| port.port == number);
        let Some(port) = port.filter(|_| spec.r#type != "ExternalName") else {
            let fault = format!("{} has no TCP port {number}", service.identity);
            return Err(problem(field, fault, "a TCP port of a Service with pods"));
        };
        let slices = self.objects.slices.iter().filter(|it| {
            let of = it.labels.get("kubernetes.io/service-name");
            it.name.namespace == service.name.namespace && of == Some(&service.name.name)
        });
        let mut slices = slices.peekable();
        let mut addresses = BTreeSet::new();
        if slices.peek().is_none() {
            // The name of a headless Service resolves to its pods.
            let target = match &port.target_port {
                target if spec.cluster_ip == "None" && !target.is_null() => target.as_u64(),
                _ => Some(number.into()),
            };
            let target = target.and_then(|it| u16::try_from(it).ok());
            addresses.extend(target.map(|port| by_name(&service.name, port)));
        }
        for slice in slices {
            let mut ports = slice.spec.ports.iter().filter(|it| it.is_tcp());
            let Some(port) = ports.find(|it| it.name == port.name) else {
                continue;
            };
            let endpoints = slice.spec.endpoints.iter();
            let ready = endpoints.filter(|it| it.conditions.ready.unwrap_or(true));
            // All addresses of an endpoint are of one pod.
            let ips = ready.filter_map(|it| it.addresses.first()?.parse::<IpAddr>().ok());
            addresses.extend(ips.map(|ip| SocketAddr::new(ip, port.port).to_string()));
        }
        if addresses.is_empty() {
            let fault = format!("{} has no address for port {number}", service.identity);
            let accepted = "ready endpoints with IP addresses; without EndpointSlices a headless Service needs a number as targetPort";
            return Err(problem(field, fault, accepted));
        }
        Ok(addresses)
    }

    /// Returns TLS towards a Service, from its BackendTLSPolicy.
    fn tls(self, service: &Name, field: &str) -> Result<Option<ServerTls>, Problem> {
        let is_it = |target: &Reference| {
            target.is_to(("", "Service"), "Service") && target.name == service.name
        };
        let policies = self.objects.policies.iter().filter(|it| {
            it.name.namespace == service.namespace && it.spec.target_refs.iter().any(is_it)
        });
        match policies.collect::<Vec<_>>()[..] {
            [] => Ok(None),
            [policy] => self.verification(policy).map(Some),
            _ => Err(problem(
                field,
                "Conflicted: several BackendTLSPolicies",
                "one",
            )),
        }
    }

    fn verification(self, policy: &Object<TlsPolicySpec>) -> Result<ServerTls, Problem> {
        let field = |field: &str| format!("{}: spec.{field}", policy.identity);
        let validation = &policy.spec.validation;
        let mut targets = policy.spec.target_refs.iter();
        if targets.any(|it| it.section_name.is_some()) {
            let field = field("targetRefs.sectionName");
            return Err(problem(&field, "not supported", "whole Services"));
        }
        let ca = match (&*validation.well_known, &validation.ca_certificate_refs[..]) {
            ("System", []) => None,
            ("", all) => {
                let field = field("validation.caCertificateRefs");
                Some(self.authorities(policy, &field, all)?)
            }
            _ => {
                let field = field("validation.wellKnownCACertificates");
                return Err(problem(&field, "unknown, or not alone", "System"));
            }
        };
        let host = &validation.hostname;
        let name = VerifiedName::parse(host).ok().filter(|_| is_name(host));
        let field = field("validation.hostname");
        let name = name.ok_or_else(|| problem(&field, "not a name", "a DNS name").text(host))?;
        Ok(ServerTls {
            ca,
            name: Some(name),
            ..ServerTls::default()
        })
    }
}

impl Port {
    fn is_tcp(&self) -> bool {
        self.protocol.as_deref().unwrap_or("TCP") == "TCP"
    }
}

fn by_name(Name { namespace, name }: &Name, port: u16) -> String {
    format!("{name}.{namespace}.svc:{port}")
}

/// Distributes the weight of each target over its addresses, in becket's range.
fn weighted(targets: &[Target]) -> Vec<ServerSection> {
    let mut shares: BTreeMap<&str, u128> = BTreeMap::new();
    for target in targets {
        let share = u128::from(target.weight) * PRECISION / target.addresses.len().max(1) as u128;
        for address in &target.addresses {
            *shares.entry(address).or_default() += share;
        }
    }
    let divisor = shares
        .values()
        .fold(0, |divisor, share| gcd(divisor, *share))
        .max(1);
    let most = shares.values().max().map_or(1, |share| share / divisor);
    let servers = shares.into_iter().map(|(address, share)| {
        let weight = (share / divisor) * most.min(MOST_WEIGHT) / most.max(1);
        ServerSection {
            address: ServerAddress::parse(address).ok(),
            weight: u32::try_from(weight).map_or(1, |weight| weight.max(1)),
            ..ServerSection::default()
        }
    });
    servers.collect()
}

fn gcd(one: u128, other: u128) -> u128 {
    if other == 0 {
        one
    } else {
        gcd(other, one % other)
    }
}

/// Shares of one unit of weight, so that endpoints can divide it.
const PRECISION: u128 = 1_000_000;
/// Maximum weight of a server in becket.
const MOST_WEIGHT: u128 = 256;
