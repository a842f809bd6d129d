//! `becket check`: everything that `run` would load, as a table or as JSON, with its faults.
//!
//! It runs the same `prepare` as a start and a reload, so that what passes here starts there, looks up the names of
//! servers and peers, which those leave for later, and then makes a handshake for every name ([`self_test`]). What it adds
//! besides is what only a look at the running machine tells: addresses that are taken, which is a
//! warning, because a becket that is about to be reloaded holds them rightly. On request it also looks
//! at what is behind: it connects every server.

mod admission;
mod backends;
mod cluster;
mod connect;
pub mod script;
pub mod self_test;

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use becket_proto::ticket::UnixSeconds;
use becket_sys::clock::{Clock, Now};
use rustls::sign::CertifiedKey;
use rustls_pki_types::UnixTime;
use serde::Serialize;

use self::admission::AdmissionSummary;
use self::backends::BackendSummary;
use self::cluster::ClusterSummary;
use self::connect::Tried;
use self::self_test::TestedHandshake;
use crate::config::error::{Problem, Report};
use crate::config::prepare::ServerNames;
use crate::config::source::Source;
use crate::config::{ClientAuth, ClientName, Config, Listener, Policy, UnknownNames, worker_count};
use crate::descriptors::{self, HOW_TO_RAISE};
use crate::files::reason;
use crate::handover::BoundSockets;
use crate::log::Timestamp;
use crate::pki::keys::Facts;
use crate::tls::names;

/// What was found.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Findings {
    /// The file, or the command line.
    pub origin: String,
    /// Any of these refuses the configuration.
    pub errors: Vec<Problem>,
    /// These do not.
    pub warnings: Vec<Problem>,
    /// What would run; absent when there are errors.
    #[serde(flatten)]
    pub(crate) summary: Option<Summary>,
    /// Handshakes that went as they should.
    pub handshakes: Vec<TestedHandshake>,
    /// Servers that were connected; none unless asked to.
    pub(crate) connects: Vec<Tried>,
}

impl Findings {
    /// 0 fine, 1 warnings, 2 errors.
    pub fn exit_code(&self, strict: bool) -> u8 {
        if !self.errors.is_empty() {
            2
        } else {
            u8::from(strict && !self.warnings.is_empty())
        }
    }
}

/// Loads everything, makes a handshake for every name, and looks whether the addresses are free;
/// with `connect` also whether every server can be reached. Blocks.
pub fn check(source: &Source, sockets: &BoundSockets, now: UnixTime, connect: bool) -> Findings {
    let origin = source.origin();
    match source.load(now, ServerNames::Now) {
        Err(rejected) => Findings {
            origin,
            errors: rejected.errors,
            warnings: rejected.warnings,
            summary: None,
            handshakes: Vec::new(),
            connects: Vec::new(),
        },
        Ok(prepared) => {
            let mut report = Report {
                errors: Vec::new(),
                warnings: prepared.warnings,
            };
            let moment = Now {
                unix: Duration::from_secs(now.as_secs()),
                ..Clock::start().now()
            };
            let handshakes = self_test::run(&prepared.config, moment, &mut report);
            report.warnings.extend(taken(&prepared.config, sockets));
            report
                .warnings
                .extend(too_few_descriptors(&prepared.config));
            let connects = match connect {
                true => connect::connect(&prepared.config, &mut report),
                false => Vec::new(),
            };
            Findings {
                origin,
                errors: report.errors,
                warnings: report.warnings,
                summary: Some(Summary::of(&prepared.config, now)),
                handshakes,
                connects,
            }
        }
    }
}

/// Whether `run` would be refused for want of descriptors, unless started with more rights.
fn too_few_descriptors(config: &Config) -> Option<Problem> {
    let fixed = descriptors::fixed(&config.listeners, worker_count(&config.process));
    let wanted = descriptors::needed(config.connections, fixed);
    let most = becket_sys::rlimit::most_open_files();
    let fits = descriptors::fitting(most, fixed);
    let fault = format!("needs {wanted} open files, and the hard limit here is {most}");
    let problem = Problem::new("limits.connections", fault)
        .value(config.connections.to_string())
        .accepted(format!(
            "at most {fits}, or a higher limit ({HOW_TO_RAISE})"
        ));
    (wanted > most).then_some(problem)
}

/// Addresses that cannot be bound now.
fn taken(config: &Config, sockets: &BoundSockets) -> Vec<Problem> {
    let listening = config.listeners.iter().flat_map(|listener| {
        let path = format!("listener[{}].bind", listener.name);
        listener.bind.iter().map(move |at| (path.clone(), *at))
    });
    let admin = config.admin.as_ref();
    let admin = admin.map(|admin| ("admin.address".to_owned(), admin.address));
    let probed = listening.chain(admin).filter_map(|(path, address)| {
        let probed = sockets.probed(address);
        let probed = probed.unwrap_or_else(|| becket_sys::socket::probe(address));
        let error = probed.err()?;
        let fault = match error.kind() {
            ErrorKind::AddrInUse => "in use, perhaps by a running becket".to_owned(),
            ErrorKind::AddrNotAvailable => "not an address of this machine".to_owned(),
            ErrorKind::PermissionDenied => "this user may not bind it".to_owned(),
            _ => format!("cannot be bound: {}", reason(&error)),
        };
        Some(Problem::new(path, fault).text(&address.to_string()))
    });
    probed.collect()
}

/// What would run.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct Summary {
    listeners: Vec<ListenerSummary>,
    policies: Vec<PolicySummary>,
    backends: Vec<BackendSummary>,
    limits: LimitsSummary,
    admission: AdmissionSummary,
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster: Option<ClusterSummary>,
}

/// What peers can make grow, at most; connections are those that fit where the key is not set.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct LimitsSummary {
    connections: usize,
    handshakes: usize,
    client_hello: usize,
    certificate_chain: usize,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct ListenerSummary {
    name: String,
    bind: Vec<String>,
    unknown_names: UnknownNames,
    certificates: Vec<CertificateSummary>,
    routes: Vec<RouteSummary>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct CertificateSummary {
    /// Names for which it is used; `*` where it is the default.
    names: Vec<String>,
    kind: String,
    /// Certificates in the chain.
    chain: usize,
    expires: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct RouteSummary {
    names: Vec<String>,
    alpn: Vec<String>,
    /// Absent where no TLS ends.
    policy: Option<String>,
    /// The beginning of the policy's digest.
    digest: Option<String>,
    backend: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct PolicySummary {
    name: String,
    digest: String,
    versions: Vec<&'static str>,
    suites: Vec<&'static str>,
    groups: Vec<&'static str>,
    client_certificates: &'static str,
    /// Names of which a client's certificate must have one; none lets in all.
    client_names: Vec<ClientName>,
    require_ems: bool,
    tls12_tickets: bool,
    /// Bytes; 0 is none.
    early_data: u32,
}

impl Summary {
    fn of(config: &Config, now: UnixTime) -> Self {
        let mut policies = BTreeMap::new();
        let with_tls = config.listeners.iter();
        for route in with_tls
            .filter(|listener| listener.ends_tls())
            .flat_map(|listener| &listener.routes)
        {
            let summary = PolicySummary::of(&route.policy);
            policies.insert(route.policy.name.to_string(), summary);
        }
        let listeners = config.listeners.iter();
        let backends = config.backends.iter();
        Self {
            listeners: listeners
                .map(|listener| ListenerSummary::of(listener, config))
                .collect(),
            policies: policies.into_values().collect(),
            backends: backends
                .map(|backend| BackendSummary::of(backend))
                .collect(),
            limits: LimitsSummary {
                connections: config.connections,
                handshakes: config.limits.handshakes,
                client_hello: config.limits.client_hello,
                certificate_chain: config.limits.certificate_chain,
            },
            admission: AdmissionSummary::of(config),
            cluster: ClusterSummary::of(config, UnixSeconds(now.as_secs())),
        }
    }
}

impl ListenerSummary {
    fn of(listener: &Listener, config: &Config) -> Self {
        let routes = listener.routes.iter().map(|route| RouteSummary {
            names: route.names.iter().map(ToString::to_string).collect(),
            alpn: route
                .alpn
                .iter()
                .map(|protocol| String::from_utf8_lossy(protocol).into_owned())
                .collect(),
            policy: listener.ends_tls().then(|| route.policy.name.to_string()),
            digest: listener.ends_tls().then(|| short(&route.policy.digest)),
            backend: config
                .backends
                .get(route.backend)
                .map(|backend| backend.name.to_string())
                .unwrap_or_default(),
        });
        Self {
            name: listener.name.to_string(),
            bind: listener.bind.iter().map(ToString::to_string).collect(),
            unknown_names: listener.unknown_names,
            certificates: certificates(listener),
            routes: routes.collect(),
        }
    }
}

/// Every chain of a listener once, with the names it answers to.
fn certificates(listener: &Listener) -> Vec<CertificateSummary> {
    let map = &listener.certificates;
    let named = map.names().flat_map(|(name, keys)| {
        let name = name.to_string();
        keys.iter().map(move |key| (name.clone(), key))
    });
    let default = map.default_keys().iter().map(|key| ("*".to_owned(), key));
    let mut by_chain: Vec<(&Arc<CertifiedKey>, Vec<String>)> = Vec::new();
    for (name, key) in named.chain(default) {
        match by_chain
            .iter_mut()
            .find(|(other, _)| Arc::ptr_eq(other, key))
        {
            Some((_, names)) => names.push(name),
            None => by_chain.push((key, vec![name])),
        }
    }
    let summaries = by_chain.into_iter().map(|(key, mut names)| {
        names.sort_by_key(|name| (name == "*", name.clone()));
        let expires = key.cert.first().and_then(|leaf| Facts::of(leaf).ok());
        let expires = expires.map_or(0, |facts| u64::try_from(facts.not_after).unwrap_or(0));
        CertificateSummary {
            names,
            kind: format!("{:?}", key.key.algorithm()),
            chain: key.cert.len(),
            expires: day(expires),
        }
    });
    let mut summaries: Vec<CertificateSummary> = summaries.collect();
    summaries.sort_by(|a, b| (&a.names, &a.kind).cmp(&(&b.names, &b.kind)));
    summaries
}

impl PolicySummary {
    fn of(policy: &Policy) -> Self {
        let versions = [
            (policy.versions.tls12, "1.2"),
            (policy.versions.tls13, "1.3"),
        ];
        let versions = versions.iter().filter(|(allowed, _)| *allowed);
        let suites = policy
            .suites
            .iter()
            .map(|suite| names::suite(suite.suite()));
        let groups = policy.groups.iter().map(|group| names::group(group.name()));
        Self {
            name: policy.name.to_string(),
            digest: hex(&policy.digest),
            versions: versions.map(|(_, name)| *name).collect(),
            suites: suites.collect(),
            groups: groups.collect(),
            client_certificates: match policy.client_auth {
                ClientAuth::Off => "off",
                ClientAuth::Optional(_) => "optional",
                ClientAuth::Required(_) => "required",
            },
            client_names: policy.client_names.clone(),
            require_ems: policy.require_ems,
            tls12_tickets: policy.tls12_tickets,
            early_data: policy.early_data,
        }
    }
}

/// As much of a digest as people compare.
fn short(digest: &[u8; 32]) -> String {
    let (first, _) = digest.split_at(8);
    hex(first)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The date of a moment, in seconds since 1970.
fn day(seconds: u64) -> String {
    let moment = Timestamp::from_unix(Duration::from_secs(seconds)).to_string();
    moment.chars().take_while(|c| *c != 'T').collect()
}

impl Display for Findings {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if let Some(summary) = &self.summary {
            write!(f, "{summary}")?;
        }
        for handshake in &self.handshakes {
            writeln!(f, "handshake {handshake}")?;
        }
        for tried in &self.connects {
            writeln!(f, "connect {tried}")?;
        }
        for problem in &self.errors {
            writeln!(f, "error: {problem}")?;
        }
        for problem in &self.warnings {
            writeln!(f, "warning: {problem}")?;
        }
        let (errors, warnings) = (self.errors.len(), self.warnings.len());
        match (errors, warnings) {
            (0, 0) => writeln!(f, "{}: fine", self.origin),
            _ => {
                let plural = |count| if count == 1 { "" } else { "s" };
                writeln!(
                    f,
                    "{}: {errors} error{}, {warnings} warning{}",
                    self.origin,
                    plural(errors),
                    plural(warnings)
                )
            }
        }
    }
}

impl Display for Summary {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for listener in &self.listeners {
            write!(f, "{listener}")?;
        }
        for policy in &self.policies {
            writeln!(f, "policy {}", policy.name)?;
            writeln!(f, "  digest    {}", policy.digest)?;
            writeln!(f, "  versions  {}", policy.versions.join(", "))?;
            writeln!(f, "  suites    {}", policy.suites.join("\n            "))?;
            writeln!(f, "  groups    {}", policy.groups.join(", "))?;
            writeln!(f, "  clients   certificates {}", policy.client_certificates)?;
            for name in &policy.client_names {
                writeln!(f, "            {name}")?;
            }
            if policy.early_data > 0 {
                let text = "its sessions open once, end with this process, and are not shared";
                writeln!(f, "  early     up to {} bytes; {text}", policy.early_data)?;
            }
        }
        for backend in &self.backends {
            write!(f, "{backend}")?;
        }
        let limits = &self.limits;
        writeln!(f, "limits")?;
        writeln!(
            f,
            "  at once   {} connections, {} handshakes",
            limits.connections, limits.handshakes
        )?;
        writeln!(
            f,
            "  bytes     {} of a hello, {} of a chain of certificates",
            limits.client_hello, limits.certificate_chain
        )?;
        write!(f, "{}", self.admission)?;
        if let Some(cluster) = &self.cluster {
            write!(f, "{cluster}")?;
        }
        Ok(())
    }
}

impl Display for ListenerSummary {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "listener {}", self.name)?;
        writeln!(f, "  bind      {}", self.bind.join(", "))?;
        for certificate in &self.certificates {
            let CertificateSummary {
                kind,
                chain,
                expires,
                ..
            } = certificate;
            let names = certificate.names.join(" ");
            writeln!(
                f,
                "  {kind:<8}  chain of {chain}, expires {expires}: {names}"
            )?;
        }
        for route in &self.routes {
            let names = match route.names.is_empty() {
                true => "any name".to_owned(),
                false => route.names.join(" "),
            };
            let alpn = match route.alpn.is_empty() {
                true => String::new(),
                false => format!(" ({})", route.alpn.join(", ")),
            };
            let backend = &route.backend;
            match &route.policy {
                Some(policy) => {
                    let digest = route.digest.as_deref().unwrap_or_default();
                    writeln!(
                        f,
                        "  route     {names}{alpn} -> {backend}, policy {policy} ({digest})"
                    )?
                }
                None => writeln!(
                    f,
                    "  route     {names}{alpn} -> {backend}, no TLS ends here"
                )?,
            }
        }
        Ok(())
    }
}
