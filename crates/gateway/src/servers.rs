//! Backends of routes: Services, their addresses, weights and TLS.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use becket_config::address::{SectionName, ServerAddress};
use becket_config::backend::{Backend, ServerSection};
use becket_config::error::{Problem, Report};
use becket_config::notation::Text;
use becket_config::policy::{ServerTls, VerifiedName};

use crate::credentials::Mounts;
use crate::kinds::{Port, Reference, RouteSpec, ServiceSpec, SliceSpec, TlsPolicySpec};
use crate::objects::{Name, Object, is_name, problem};

/// Backends of the configuration, built as routes need them.
#[derive(Debug)]
pub struct Backends<'a> {
    mounts: Mounts<'a>,
    /// Backend of a route, for clients whose TLS ends here or is passed through; `None` rejects
    /// the clients.
    known: BTreeMap<(String, bool), Option<String>>,
    pub sections: Vec<Backend>,
}

/// Servers of one reference.
#[derive(Debug)]
struct Target {
    weight: u32,
    addresses: BTreeSet<String>,
    tls: Option<ServerTls>,
}

impl<'a> Backends<'a> {
    pub fn new(mounts: Mounts<'a>) -> Self {
        Self {
            mounts,
            known: BTreeMap::new(),
            sections: Vec::new(),
        }
    }

    /// Returns the name of a route's backend. If TLS of clients is passed through, becket adds no
    /// TLS of its own. Reports each problem once.
    pub fn of_route(
        &mut self,
        route: &Object<RouteSpec>,
        passes: bool,
        report: &mut Report,
    ) -> Option<String> {
        let key = (route.to_string(), passes);
        if let Some(known) = self.known.get(&key) {
            return known.clone();
        }
        let mut unreported = Report::default();
        let is_reported = self.known.contains_key(&(key.0.clone(), !passes));
        let targets = self.targets(route, if is_reported { &mut unreported } else { report });
        let tls = targets.first().and_then(|target| target.tls.clone());
        let name = (!targets.is_empty()).then(|| {
            let suffix = if passes { "_passthrough" } else { "" };
            let name = format!("{}{suffix}", key.0.to_ascii_lowercase().replace('/', "_"));
            let name = self.free_name(&name);
            self.sections.push(Backend {
                name: name.clone(),
                tls: tls.filter(|_| !passes),
                server: weighted(&targets),
                ..Backend::default()
            });
            name.to_string()
        });
        self.known.insert(key, name.clone());
        name
    }

    /// Returns the backend that rejects clients: its only server is disabled.
    pub fn rejecting(&mut self) -> String {
        if !self.sections.iter().any(|it| &*it.name == REJECTED) {
            self.sections.push(Backend {
                name: SectionName(REJECTED.into()),
                server: vec![ServerSection {
                    address: ServerAddress::parse("127.0.0.1:1").ok(),
                    disabled: true,
                    ..ServerSection::default()
                }],
                ..Backend::default()
            });
        }
        REJECTED.to_owned()
    }

    /// Returns a unique name for a section. Names of Kubernetes may be longer.
    fn free_name(&self, wanted: &str) -> SectionName {
        let base: String = wanted.chars().take(LONGEST_BASE).collect();
        let numbered = (2..).map(|number| format!("{base}_{number}"));
        let mut names = [wanted.to_owned()].into_iter().chain(numbered);
        let names = names.by_ref().filter_map(|name| SectionName::parse(&name).ok());
        let mut free = names.filter(|name| !self.sections.iter().any(|it| it.name == *name));
        free.next().unwrap_or_default()
    }

    /// Returns the servers of a route; none if a problem concerns all of them.
    fn targets(&self, route: &Object<RouteSpec>, report: &mut Report) -> Vec<Target> {
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
        if targets.windows(2).any(|two| matches!(two, [one, other] if one.tls != other.tls)) {
            let fault = "the Services have different BackendTLSPolicies";
            let accepted = "one policy for all Services of a rule";
            route.refuse(report, problem("spec.rules[0].backendRefs", fault, accepted));
            return Vec::new();
        }
        targets.retain(|_| route.unknown.is_empty());
        targets
    }

    fn target(
        &self,
        route: &Object<RouteSpec>,
        field: &str,
        reference: &Reference,
    ) -> Result<Target, Problem> {
        let objects = self.mounts.objects;
        let name = objects.resolve(route, field, reference, "Service")?;
        let number = reference.port.unwrap_or_default();
        let addresses = match objects.find(&objects.services, "Service", &name, field)? {
            None => BTreeSet::from([at(&name, number)]),
            Some(service) => {
                let mut ports = service.spec.ports.iter().filter(|port| port.is_tcp());
                let port = ports.find(|port| port.port == number);
                let port = port.filter(|_| service.spec.r#type != "ExternalName");
                let port = port.ok_or_else(|| {
                    let fault = format!("{service} has no TCP port {number}");
                    problem(field, fault, "a TCP port of a Service, not of type ExternalName")
                })?;
                self.addresses(service, port, field)?
            }
        };
        // The port may be missing, and a name too long for DNS.
        if let Some(address) = addresses.iter().find(|it| ServerAddress::parse(it).is_err()) {
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
        &self,
        service: &Object<ServiceSpec>,
        port: &Port,
        field: &str,
    ) -> Result<BTreeSet<String>, Problem> {
        let is_own = |slice: &&Object<SliceSpec>| {
            slice.name.namespace == service.name.namespace
                && slice.labels.get(SERVICE_OF_SLICE) == Some(&service.name.name)
        };
        let mut slices = self.mounts.objects.slices.iter().filter(is_own).peekable();
        if slices.peek().is_none() {
            // The name of a headless Service resolves to its pods.
            let is_headless = service.spec.cluster_ip == "None" && !port.target_port.is_null();
            let target = port.target_port.as_u64().filter(|_| is_headless);
            let target = target.and_then(|port| u16::try_from(port).ok());
            if is_headless && target.is_none() {
                let fault = format!("{service} is headless, and its targetPort is a name");
                let accepted = "a number, or the EndpointSlices of the Service";
                return Err(problem(field, fault, accepted));
            }
            return Ok(BTreeSet::from([at(&service.name, target.unwrap_or(port.port))]));
        }
        let mut addresses = BTreeSet::new();
        for slice in slices {
            let mut ports = slice.spec.ports.iter().filter(|it| it.is_tcp());
            let Some(port) = ports.find(|it| it.name == port.name) else {
                continue;
            };
            let endpoints = slice.spec.endpoints.iter();
            for endpoint in endpoints.filter(|it| it.conditions.ready.unwrap_or(true)) {
                // All addresses of an endpoint are of one pod.
                let ip = endpoint.addresses.first().and_then(|ip| ip.parse::<IpAddr>().ok());
                let ip = ip.ok_or_else(|| {
                    let fault = format!("{slice} has an endpoint without an IP address");
                    problem(field, fault, "addressType IPv4 or IPv6")
                })?;
                addresses.insert(SocketAddr::new(ip, port.port).to_string());
            }
        }
        if addresses.is_empty() {
            let fault = format!("no EndpointSlice of {service} has a ready endpoint with this port");
            let accepted = "a ready endpoint; without EndpointSlices becket looks the name up";
            return Err(problem(field, fault, accepted));
        }
        Ok(addresses)
    }

    /// Returns TLS towards a Service, from its BackendTLSPolicy.
    fn tls(&self, service: &Name, field: &str) -> Result<Option<ServerTls>, Problem> {
        let applies = |policy: &&Object<TlsPolicySpec>| {
            let is_it = |target: &Reference| {
                target.is_to(("", "Service"), "Service") && target.name == service.name
            };
            policy.name.namespace == service.namespace
                && policy.spec.target_refs.iter().any(is_it)
        };
        let policies = self.mounts.objects.policies.iter().filter(applies);
        match policies.collect::<Vec<_>>()[..] {
            [] => Ok(None),
            [policy] => self.verification(policy).map(Some).map_err(|cause| {
                let fault = format!("{policy}: {}: {}", cause.path, cause.fault);
                Problem {
                    path: field.to_owned(),
                    fault,
                    ..cause
                }
            }),
            [first, second, ..] => {
                let fault = format!("Conflicted: {first} and {second} are for {service}");
                Err(problem(field, fault, "one BackendTLSPolicy for each Service"))
            }
        }
    }

    fn verification(&self, policy: &Object<TlsPolicySpec>) -> Result<ServerTls, Problem> {
        let mut unknown = policy.unknown.iter().map(String::as_str);
        let of_port = policy.spec.target_refs.iter().any(|it| it.section_name.is_some());
        let of_port = of_port.then_some("spec.targetRefs.sectionName");
        if let Some(field) = unknown.next().or(of_port) {
            return Err(problem(field, "not supported", "a policy without it"));
        }
        let validation = &policy.spec.validation;
        let ca = match (&*validation.well_known, &validation.ca_certificate_refs[..]) {
            ("System", []) => None,
            ("", references) => {
                let field = "spec.validation.caCertificateRefs";
                Some(self.mounts.authorities(policy, field, references)?)
            }
            _ => {
                let field = "spec.validation.wellKnownCACertificates";
                return Err(problem(field, "unknown, or not alone", "System"));
            }
        };
        let host = &validation.hostname;
        let name = VerifiedName::parse(host).ok().filter(|_| is_name(host));
        let name = name.ok_or_else(|| {
            problem("spec.validation.hostname", "not a DNS name", "a DNS name").text(host)
        })?;
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

/// Returns the address of a Service by its DNS name.
fn at(Name { namespace, name }: &Name, port: u16) -> String {
    format!("{name}.{namespace}.svc:{port}")
}

/// Distributes the weight of each target over its addresses, in becket's range.
fn weighted(targets: &[Target]) -> Vec<ServerSection> {
    let mut shares: BTreeMap<&str, u64> = BTreeMap::new();
    for target in targets {
        let count = target.addresses.len().max(1) as u64;
        for address in &target.addresses {
            let share = u64::from(target.weight) * PRECISION / count;
            *shares.entry(address).or_default() += share;
        }
    }
    let divisor = shares.values().fold(0, |divisor, share| gcd(divisor, *share)).max(1);
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

fn gcd(one: u64, other: u64) -> u64 {
    if other == 0 { one } else { gcd(other, one % other) }
}

const REJECTED: &str = "rejected";
/// Maximum length of a name to which a number is added; section names have 64 characters.
const LONGEST_BASE: usize = 56;
/// Shares of one unit of weight, so that endpoints can divide it.
const PRECISION: u64 = 1_000_000;
/// Maximum weight of a server in becket.
const MOST_WEIGHT: u64 = 256;
const SERVICE_OF_SLICE: &str = "kubernetes.io/service-name";
