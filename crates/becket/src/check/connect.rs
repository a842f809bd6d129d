//! Implements `becket check --connect`, which connects to every server and resolves the name of
//! every peer.
//!
//! A server must accept a connection at one of its addresses. With TLS, it must also present a
//! certificate that becket accepts. With a health check, it must also pass the check. A failure at
//! every address of a server is an error; a failure at some addresses is a warning. The command
//! sends only a PROXY header (LOCAL), TLS messages and the request of an HTTP check.
//!
//! At most [`MOST_AT_ONCE`] addresses are tried at a time, each for at most `timeouts.connect`,
//! [`ALERT_TIMEOUT`] and the time of a health check.
//!
//! [`ALERT_TIMEOUT`]: becket_control::health::check::ALERT_TIMEOUT

use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use becket_config::error::{Problem, Report};
use becket_sys::clock::Clock;
use serde::Serialize;

use becket_control::health::check::{Check, ConnectedServer};
use becket_keys::identity::Identity;
use becket_tls::config::{Backend, Config, Server};
use becket_tls::names;

#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct Tried {
    backend: String,
    server: String,
    #[serde(skip)]
    index: usize,
    address: Option<String>,
    #[serde(flatten)]
    outcome: ConnectOutcome,
}

#[derive(Debug, Serialize)]
#[serde(
    tag = "outcome",
    rename_all = "kebab-case",
    rename_all_fields = "kebab-case"
)]
enum ConnectOutcome {
    Ok {
        /// Total duration of the connect and the TLS handshake.
        milliseconds: f64,
        version: Option<&'static str>,
        certificate: Option<String>,
    },
    Failed {
        fault: String,
    },
    /// Not tried, because the server is disabled.
    Disabled,
}

/// Tries all servers, and adds failures to the report. Blocks.
pub(super) fn connect(config: &Config, report: &mut Report) -> Vec<Tried> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    match runtime {
        Ok(runtime) => {
            let tried = runtime.block_on(run(attempts(config)));
            judge(&tried, report);
            look_for_peers(config, report);
            tried
        }
        Err(error) => {
            report.error(Problem::new(
                "",
                format!("cannot start the connection tests: {error}"),
            ));
            Vec::new()
        }
    }
}

struct ConnectAttempt {
    tried: Tried,
    /// Checks to run: a connect as for a client, and the backend's health check if that does more
    /// than connect. `None` if the address is not tried.
    checks: Option<(Check, Option<Check>)>,
}

fn attempts(config: &Config) -> Vec<ConnectAttempt> {
    let backends = config.backends.iter();
    let servers = backends.flat_map(|backend| {
        let servers = backend.servers.iter().enumerate();
        servers.flat_map(|one| ConnectAttempt::all(backend, one, config.file.timeouts.connect))
    });
    servers.collect()
}

impl ConnectAttempt {
    /// Returns one attempt per address of a server. Returns a single attempt without checks if the
    /// server is disabled or has no address.
    fn all(backend: &Backend, one: (usize, &Server), timeout: Duration) -> Vec<Self> {
        let (index, server) = one;
        let tried = |address: Option<String>, outcome| Tried {
            backend: backend.keys.name.to_string(),
            server: server.name.to_string(),
            index,
            address,
            outcome,
        };
        let nothing = |outcome| {
            let tried = tried(None, outcome);
            vec![Self {
                tried,
                checks: None,
            }]
        };
        if server.keys.disabled {
            return nothing(ConnectOutcome::Disabled);
        }
        let unknown = || ConnectOutcome::failed("the name does not resolve");
        if server.addresses.is_empty() {
            return nothing(unknown());
        }
        let check = Check::of(backend, server).filter(|check| check.asks_more(backend));
        let addresses = server.addresses.iter();
        let each = addresses.map(|address| Self {
            tried: tried(Some(address.to_string()), unknown()),
            checks: Some((
                Check::connect(backend, &server.name, [address.clone()].into(), timeout),
                check.clone().map(|check| check.at(address)),
            )),
        });
        each.collect()
    }

    async fn run(self, clock: Clock) -> Tried {
        let Self { mut tried, checks } = self;
        if let Some((connect, check)) = checks {
            tried.outcome = match connect.try_connect(clock).await {
                Err(failure) => ConnectOutcome::failed(failure),
                Ok(met) => match check {
                    None => ConnectOutcome::ok(&met),
                    Some(check) => match check.run().await {
                        Ok(()) => ConnectOutcome::ok(&met),
                        Err(failure) => ConnectOutcome::failed(format!("health check: {failure}")),
                    },
                },
            };
        }
        tried
    }
}

/// Runs all attempts in order, up to [`MOST_AT_ONCE`] at a time.
async fn run(attempts: Vec<ConnectAttempt>) -> Vec<Tried> {
    let clock = Clock::start();
    let mut attempts = attempts.into_iter();
    let mut tried = Vec::new();
    while attempts.len() > 0 {
        let some = attempts.by_ref().take(MOST_AT_ONCE);
        let running: Vec<_> = some.map(|one| tokio::spawn(one.run(clock))).collect();
        for one in running {
            tried.extend(one.await);
        }
    }
    tried
}

/// Reports all failures of a server as one problem.
fn judge(tried: &[Tried], report: &mut Report) {
    let same =
        |one: &Tried, other: &Tried| (&one.backend, &one.server) == (&other.backend, &other.server);
    for server in tried.chunk_by(same) {
        let faults: Vec<String> = server.iter().filter_map(Tried::fault).collect();
        let (Some(first), false) = (server.first(), faults.is_empty()) else {
            continue;
        };
        let path = format!("backend[{}].server[{}].address", first.backend, first.index);
        let problem = Problem::new(path, faults.join("; ")).text(&first.server);
        if faults.len() == server.len() {
            report.error(problem);
        } else {
            report.warn(problem);
        }
    }
}

/// Reports peers of the cluster whose names do not resolve.
fn look_for_peers(config: &Config, report: &mut Report) {
    let peers = config.cluster.iter().flat_map(|cluster| &cluster.peers);
    for peer in peers.filter(|peer| peer.addresses.is_empty()) {
        let problem = Problem::new("cluster.peers", "the name does not resolve");
        report.error(problem.text(&peer.name));
    }
}

impl Tried {
    fn fault(&self) -> Option<String> {
        match (&self.outcome, &self.address) {
            (ConnectOutcome::Failed { fault }, Some(address)) if *address != self.server => {
                Some(format!("{address}: {fault}"))
            }
            (ConnectOutcome::Failed { fault }, _) => Some(fault.clone()),
            _ => None,
        }
    }
}

impl ConnectOutcome {
    fn failed(fault: impl ToString) -> Self {
        let fault = fault.to_string();
        Self::Failed { fault }
    }

    fn ok(met: &ConnectedServer) -> Self {
        let certificate = met.certificate.as_ref().and_then(Identity::of);
        Self::Ok {
            milliseconds: (met.took.as_secs_f64() * 1e5).round() / 1e2,
            version: met.version.map(names::version),
            certificate: certificate.map(|identity| identity.subject.into()),
        }
    }
}

impl Display for Tried {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.backend, self.server)?;
        match &self.address {
            Some(address) if *address != self.server => write!(f, " -> {address}: ")?,
            _ => write!(f, ": ")?,
        }
        match &self.outcome {
            ConnectOutcome::Failed { fault } => write!(f, "failed: {fault}"),
            ConnectOutcome::Disabled => write!(f, "skipped, because it is disabled"),
            ConnectOutcome::Ok {
                milliseconds,
                version,
                certificate,
            } => {
                write!(f, "ok ({milliseconds} ms")?;
                for part in [*version, certificate.as_deref()].into_iter().flatten() {
                    write!(f, ", {part}")?;
                }
                write!(f, ")")
            }
        }
    }
}

/// Maximum number of concurrent attempts, as for health checks.
const MOST_AT_ONCE: usize = 64;
