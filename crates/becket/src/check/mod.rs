//! `becket check`: shows the configuration that `run` would load, as TOML or JSON, with all
//! problems.
//!
//! It runs the same `prepare` as a start and a reload, so a configuration that passes the check
//! also starts. It also resolves the names of servers and peers, performs a handshake for every
//! name ([`self_test`]), and checks whether the addresses of listeners can be bound now. An address
//! in use is only a warning, because it may belong to a running becket that will be reloaded. On
//! request, it also connects to every server.

mod connect;
pub mod self_test;

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use becket_config::error::{Problem, Report};
use becket_config::file::File;
use becket_config::process::Log;
use becket_proto::ticket::UnixSeconds;
use becket_sys::clock::{Clock, Now};
use becket_sys::port_holder::port_holder;
use rustls_pki_types::UnixTime;
use serde::Serialize;

use self::connect::Tried;
use self::self_test::TestedHandshake;
use crate::status::counted;
use becket_control::certificates::{CertificateStatus, certificates};
use becket_keys::files::reason;
use becket_log::Timestamp;
use becket_log::output::Output;
use becket_prepare::descriptors::{self, HOW_TO_RAISE};
use becket_prepare::source::ConfigSource;
use becket_prepare::{LoadPurpose, refused_user};
use becket_process::link::resources::{BoundSockets, ProcessResources};
use becket_tls::config::{Backend, Cluster, Config, worker_count};

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Findings {
    /// Source of the configuration: its file, or the command line.
    pub origin: String,
    /// Problems for which `run` rejects the configuration.
    pub errors: Vec<Problem>,
    /// Problems despite which `run` accepts the configuration.
    pub warnings: Vec<Problem>,
    /// Effective configuration; `None` if it cannot be loaded.
    #[serde(flatten)]
    pub(crate) running: Option<CheckedConfiguration>,
    pub handshakes: Vec<TestedHandshake>,
    /// Connection attempts to servers; empty unless requested.
    pub(crate) connects: Vec<Tried>,
}

impl Findings {
    /// Returns 2 if there are errors, 1 if there are warnings and `strict` is set, and otherwise 0.
    pub fn exit_code(&self, strict: bool) -> u8 {
        if !self.errors.is_empty() {
            2
        } else {
            u8::from(strict && !self.warnings.is_empty())
        }
    }
}

/// Loads the configuration, makes a handshake for every name, and tests whether addresses are free
/// and logs can be opened. With `connect`, also connects to every server. Blocks.
pub fn check(
    source: &ConfigSource,
    given: &ProcessResources,
    now: UnixTime,
    connect: bool,
) -> Findings {
    let origin = source.origin();
    match source.load(now, LoadPurpose::Check) {
        Err(rejected) => Findings {
            origin,
            errors: rejected.errors,
            warnings: rejected.warnings,
            ..Findings::default()
        },
        Ok(prepared) => {
            let mut report = Report::default();
            let moment = Now {
                unix: Duration::from_secs(now.as_secs()),
                ..Clock::start().now()
            };
            if let Err(error) = prepared.config.tokens.serve() {
                report.error(Problem::new("process", error.to_string()));
            }
            let handshakes = self_test::run(&prepared.config, moment, &mut report);
            report
                .warnings
                .extend(taken(&prepared.config, &given.sockets));
            report.errors.extend(refused_user(&prepared.config));
            report
                .errors
                .extend(closed_logs(&prepared.config.log, given));
            report
                .warnings
                .extend(too_few_descriptors(&prepared.config));
            let connects = if connect {
                connect::connect(&prepared.config, &mut report)
            } else {
                Vec::new()
            };
            source.place(&mut report);
            let mut warnings = prepared.warnings;
            warnings.append(&mut report.warnings);
            Findings {
                origin,
                errors: report.errors,
                warnings,
                running: Some(CheckedConfiguration::of(
                    &prepared.config,
                    source.read_by_root(),
                    now,
                )),
                handshakes,
                connects,
            }
        }
    }
}

/// Returns a problem if `run` needs more open files than the hard limit allows.
fn too_few_descriptors(config: &Config) -> Option<Problem> {
    let workers = worker_count(&config.file.process);
    let fixed = descriptors::fixed(&config.listeners, &config.backends, workers);
    let wanted = descriptors::needed(config.connections, fixed);
    let most = becket_sys::rlimit::most_open_files();
    let fits = descriptors::fitting(most, fixed);
    let fault = format!(
        "needs {wanted} open files, and the hard limit here is {most}; run would not start"
    );
    let problem = Problem::new("limits.connections", fault)
        .value(config.connections.to_string())
        .accepted(format!(
            "at most {fits}, or a higher limit ({HOW_TO_RAISE})"
        ));
    (wanted > most).then_some(problem)
}

/// Returns a problem for each log file that cannot be opened. Skips files that root opens.
fn closed_logs(log: &Log, given: &ProcessResources) -> Vec<Problem> {
    let files = [("log.file", &log.file), ("log.access", &log.access)].into_iter();
    let files = files.filter_map(|(key, target)| Some((key, target.file()?)));
    let opened = files.filter(|(_, path)| !given.logs.iter().any(|it| it == path));
    let closed = opened.filter_map(|(key, path)| {
        let error = Output::check(path).err()?;
        Some(Problem::new(key, reason(&error)))
    });
    closed.collect()
}

/// Returns a problem for each listener or admin address that cannot be bound now.
fn taken(config: &Config, sockets: &BoundSockets) -> Vec<Problem> {
    let listening = config.listeners.iter().flat_map(|listener| {
        let path = format!("listener[{}].bind", listener.keys.name);
        listener.bind.iter().map(move |at| (path.clone(), *at))
    });
    let admin = config.admin.address;
    let admin = admin.map(|address| ("admin.address".to_owned(), address));
    let probed = listening.chain(admin).filter_map(|(path, address)| {
        let probed = sockets.probed(address);
        let probed = probed.unwrap_or_else(|| becket_sys::socket::probe(address));
        let error = probed.err()?;
        let fault = match error.kind() {
            ErrorKind::AddrInUse => match port_holder(address) {
                Some(holder) => format!("in use by {holder}"),
                None => "in use, perhaps by a running becket".to_owned(),
            },
            ErrorKind::AddrNotAvailable => "not an address of this machine".to_owned(),
            ErrorKind::PermissionDenied => "permission denied for this user".to_owned(),
            _ => format!("cannot bind: {}", reason(&error)),
        };
        Some(Problem::new(path, fault).text(&address.to_string()))
    });
    probed.collect()
}

/// Effective configuration: every key with its value, and results from files, DNS and the clock.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct CheckedConfiguration {
    #[serde(flatten)]
    file: Arc<File>,
    /// Configured maximum number of connections. If none is configured, it is computed from the
    /// limit on open files.
    connections: usize,
    /// `true` if the configuration enables RSA batching and the processor supports it.
    rsa_batches: bool,
    certificates: Arc<[CertificateStatus]>,
    /// Number of certificates in use that are not listed.
    #[serde(skip)]
    certificates_omitted: usize,
    /// Digests of the policies in use, by name. Policies with equal digests share sessions.
    digests: BTreeMap<String, String>,
    /// Directories from which files are served, by backend.
    files: BTreeMap<String, PathBuf>,
    /// Files that root reads, because `process.user` cannot read them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    read_by_root: Vec<PathBuf>,
    /// Addresses to which the names of servers and peers resolve.
    addresses: BTreeMap<String, Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shared: Option<SharedFacts>,
    /// Kernel TLS support; `None` if kernel TLS is disabled.
    #[serde(skip_serializing_if = "Option::is_none")]
    kernel: Option<String>,
}

/// Values that must be equal on all nodes of a cluster, in addition to the policy digests.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct SharedFacts {
    /// IDs of the cluster secrets; the first one seals tickets.
    secrets: Vec<String>,
    rotation_seconds: u64,
    epoch: u32,
    epoch_began: Timestamp,
    next_rotation: Timestamp,
}

impl CheckedConfiguration {
    fn of(config: &Config, read_by_root: Vec<PathBuf>, now: UnixTime) -> Self {
        let routes = config.listeners.iter().flat_map(|one| &one.routes);
        let policies = routes.filter_map(|route| route.policy.as_ref());
        let servers = config.backends.iter().flat_map(|backend| &backend.servers);
        let servers = servers.map(|one| (one.name.to_string(), texts(&one.addresses)));
        let peers = config.cluster.iter().flat_map(|cluster| &cluster.peers);
        let peers = peers.map(|one| (one.name.to_string(), texts(&one.addresses)));
        let certificates = certificates(config);
        Self {
            file: Arc::clone(&config.file),
            connections: config.connections,
            rsa_batches: config.batches.is_some(),
            certificates: certificates.listed,
            certificates_omitted: certificates.omitted,
            digests: policies
                .map(|one| (one.keys.name.to_string(), one.digest_in_hex()))
                .collect(),
            files: config.backends.iter().filter_map(folder).collect(),
            read_by_root,
            addresses: servers.chain(peers).collect(),
            shared: config
                .cluster
                .as_ref()
                .map(|cluster| SharedFacts::of(cluster, now)),
            kernel: config.kernel_tls().map(ToString::to_string),
        }
    }
}

impl SharedFacts {
    fn of(cluster: &Cluster, now: UnixTime) -> Self {
        let length = cluster.rotation;
        let epoch = length.number_at(UnixSeconds(now.as_secs()));
        let moment = |seconds| Timestamp::from_unix(Duration::from_secs(seconds));
        let ids = cluster
            .secrets
            .iter()
            .map(|secret| format!("{:08x}", secret.id.0));
        Self {
            secrets: ids.collect(),
            rotation_seconds: length.duration().as_secs(),
            epoch: epoch.0,
            epoch_began: moment(length.start(epoch).0.into()),
            next_rotation: moment(length.end(epoch).0),
        }
    }
}

impl CheckedConfiguration {
    fn dump(&self) -> String {
        toml::to_string(self).unwrap_or_else(|error| error.to_string())
    }

    fn summary(&self) -> Vec<String> {
        let file = &self.file;
        let servers = file.backend.iter().map(|backend| backend.server.len());
        let mut lines = vec![format!(
            "listeners: {}, backends: {}, servers: {}, names with certificates: {}, connections: {}",
            file.listener.len(),
            file.backend.len(),
            servers.sum::<usize>(),
            self.certificates.len() + self.certificates_omitted,
            self.connections,
        )];
        if !self.read_by_root.is_empty() {
            lines.push(format!("read-by-root = {:?}", self.read_by_root));
        }
        lines
    }
}

fn folder(backend: &Arc<Backend>) -> Option<(String, PathBuf)> {
    let docroot = backend.docroot.as_ref()?;
    Some((backend.keys.name.to_string(), docroot.path.clone()))
}

fn texts(values: &[impl ToString]) -> Vec<String> {
    values.iter().map(ToString::to_string).collect()
}

impl Findings {
    /// Returns the human-readable report, which ends with the verdict. With `dump`, it includes the
    /// effective configuration and every handshake. Otherwise it has about a dozen lines and every
    /// problem.
    pub fn page(&self, dump: bool) -> String {
        let mut lines: Vec<String> = match &self.running {
            None => Vec::new(),
            Some(running) if dump => vec![running.dump()],
            Some(running) => running.summary(),
        };
        let connects = self.connects.iter().map(|it| format!("connect {it}"));
        let handshakes = self.handshakes.iter().map(|it| format!("handshake {it}"));
        let mut tried: Vec<String> = connects.chain(handshakes).collect();
        let more = tried.len().saturating_sub(MOST_TRIED);
        if !dump && more > 0 {
            tried.truncate(MOST_TRIED);
            tried.push(format!("and {more} more (--dump)"));
        }
        lines.append(&mut tried);
        let errors = self.errors.iter().map(|it| it.labelled("error: "));
        lines.extend(errors);
        let warnings = self.warnings.iter().map(|it| it.labelled("warning: "));
        lines.extend(warnings);
        let errors = counted(self.errors.len() as u64, "error");
        let warnings = counted(self.warnings.len() as u64, "warning");
        let verdict = if self.errors.is_empty() && self.warnings.is_empty() {
            "fine".to_owned()
        } else {
            format!("{errors}, {warnings}")
        };
        lines.push(format!("{}: {verdict}\n", self.origin));
        lines.join("\n")
    }
}

/// Maximum number of servers and handshakes listed without `--dump`.
const MOST_TRIED: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_at_most_12_lines_unless_all_details_are_requested() {
        let handshake = TestedHandshake {
            listener: "web".into(),
            name: "a.test".into(),
            key: "ECDSA".into(),
            version: "TLSv1.3",
            suite: None,
            group: None,
            alpn: None,
            backend: "app".into(),
            resumes: None,
            refused: false,
        };
        let findings = Findings {
            origin: "becket.toml".into(),
            warnings: vec![Problem {
                file: Some("becket.toml".into()),
                line: Some(3),
                ..Problem::new("a", "odd")
            }],
            handshakes: vec![handshake; 30],
            ..Findings::default()
        };
        let page = findings.page(false);
        assert!(page.lines().count() <= 12, "{page}");
        let end = "and 22 more (--dump)\nbecket.toml:3: warning: a: odd\n\
                   becket.toml: 0 errors, 1 warning\n";
        assert!(page.ends_with(end), "{page}");
        assert_eq!(findings.page(true).lines().count(), 32);
    }
}
