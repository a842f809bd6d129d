//! What runs, read at one moment: the one model behind every page.
//!
//! `/status` is a [`Snapshot`] as JSON, so its fields are the names in the JSON; they are added to, never renamed. `/metrics` is
//! its numbers ([`exposition`](super::exposition)); `/` and `becket status` are that JSON as text ([`page`](super::page)). What
//! runs serialises itself; what is configured and what is counted of a backend or a server is one object. Secrets are not in it: of a
//! policy it shows the digest.

use std::collections::BTreeMap;
use std::sync::Arc;

use becket_cluster::ClusterStatus;
use becket_cluster::stud::StudStatus;
use becket_config::notation::Text;
use becket_sys::kernel_tls::Support;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};

use super::certificates::Certificate;
use super::history::Moment;
use super::process::ProcessUsage;
use super::refusals::Refusal;
use super::rotation::Standing;
use super::totals::Totals;
use crate::sandbox::Sandbox;
use becket_keys::signing::batches::BatchCounts;
use becket_keys::signing::token::TokenStatus;
use becket_log::Timestamp;
use becket_proxy::backend::backend_state::BackendState;
use becket_proxy::backend::server_state::{ServerState, Settings};
use becket_proxy::memory::MemoryStatus;
use becket_proxy::metrics::Counters;
use becket_tls::admission::SharedAdmission;
use becket_tls::config::overrides::Overrides;
use becket_tls::config::{Backend, Config, Lasts, Listener, Server};
use becket_tls::names;

/// Everything that pages show.
#[derive(Debug, serde::Serialize)]
pub struct Snapshot {
    /// Version of becket.
    pub version: &'static str,
    /// `serving` or `draining`.
    pub state: &'static str,
    /// The time of this reading.
    pub now: Timestamp,
    /// The main process: the one to signal.
    pub pid: u32,
    /// Serving processes of this supervisor that died.
    pub restarts: u64,
    /// When the process started.
    pub started: Timestamp,
    /// The level of the log.
    pub log: Value,
    /// Kept edits, and changes that the next reload ends.
    pub edits: Value,
    /// Since then, by the monotonic clock.
    pub uptime_seconds: u64,
    /// Worker threads.
    pub workers: usize,
    /// Threads that sign for them.
    pub crypto_threads: usize,
    /// What they have signed in batches; `null` when each signature is made by itself.
    pub rsa_batches: Option<BatchCounts>,
    /// Sums over all workers.
    pub totals: Totals,
    /// The last ten seconds of which all is known; `null` in the first.
    pub recent: Option<Moment>,
    /// Listeners, as configured.
    pub listeners: Vec<Value>,
    /// Pools, and how their servers are.
    pub backends: Vec<RunningBackend>,
    /// Certificates by listener and name.
    pub certificates: Arc<[Certificate]>,
    /// The last reload; `null` before the first.
    pub reload: Option<Reload>,
    /// How many there were.
    pub reloads: Reloads,
    /// The last upgrade that was refused; `null` before the first.
    pub upgrade: Option<Reload>,
    /// How many upgrades there were under this supervisor, and how many this process refused.
    pub upgrades: Reloads,
    /// Files of certificates that change.
    pub watch: WatchStatus,
    /// Handshakes since the last reload that was done, or since the start.
    pub since_reload: Handshakes,
    /// The table of TLS 1.2 sessions.
    pub sessions: Occupancy,
    /// TLS 1.3 sessions that admit early data.
    pub early_sessions: usize,
    /// The ticket keys.
    pub tickets: TicketKeys,
    /// Peers and what was exchanged with them; `null` when sessions are not replicated.
    pub cluster: Option<ClusterStatus>,
    /// Sessions of stud and hitch; `null` where they are not received.
    pub stud: Option<StudStatus>,
    /// Tokens that have keys of certificates.
    pub tokens: Vec<TokenStatus>,
    /// Handshakes by policy that has a trial, and by result.
    pub trials: BTreeMap<String, BTreeMap<&'static str, u64>>,
    /// Who is let in when more want to than can be served.
    pub admission: AdmissionCounts,
    /// How much memory is in use, and how short it is; `null` where it is not limited.
    pub memory: Option<MemoryStatus>,
    /// What this process is confined to.
    pub sandbox: Sandbox,
    /// System calls that the sandbox refused, or would have.
    pub refused_calls: BTreeMap<String, u64>,
    /// What the kernel can take over of TLS; `null` where it is not asked to.
    #[serde(serialize_with = "as_text")]
    pub kernel_tls: Option<&'static Support>,
    /// Lines of the log that were dropped.
    pub log_lines_dropped: u64,
    /// Lines that the syslog daemon did not take.
    pub syslog_lines_dropped: u64,
    /// Lines of the access log that were dropped.
    pub access_lines_dropped: u64,
    /// Cancels of PostgreSQL clients that a server took, and those that could not be brought to one.
    #[serde(skip)]
    pub cancels: (u64, u64),
    /// Connections to the admin pages that were not served, in the order of [`Refusal::ALL`].
    #[serde(skip)]
    pub admin_refused: [u64; Refusal::ALL.len()],
    /// What the kernel says.
    #[serde(skip)]
    pub process: ProcessUsage,
    /// The last hour.
    #[serde(skip)]
    pub history: Vec<Moment>,
    /// One per worker.
    #[serde(skip)]
    pub counters: Vec<Arc<Counters>>,
}

fn as_text<S: Serializer>(support: &Option<&'static Support>, to: S) -> Result<S::Ok, S::Error> {
    support.map(ToString::to_string).serialize(to)
}

/// How a reload went, or an upgrade.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Reload {
    /// When it was tried.
    pub time: Timestamp,
    /// Why nothing was changed; empty if it succeeded.
    pub errors: Vec<String>,
}

/// What came of files of certificates that changed.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct WatchStatus {
    /// When something was taken; `null` before the first time.
    pub time: Option<Timestamp>,
    /// How often something was taken.
    pub renewals: u64,
    /// How often something did not fit.
    pub failures: u64,
    /// What does not fit, and why; what was in use before it still is.
    pub rejected: Vec<String>,
}

/// Reloads or upgrades since the start.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct Reloads {
    /// Those that were done.
    pub done: u64,
    /// Those that were refused and changed nothing.
    pub refused: u64,
    /// One is under way, or asked for.
    pub running: bool,
}

/// Whether clients that know our names get in.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct Handshakes {
    /// Handshakes completed.
    pub completed: u64,
    /// Handshakes that failed with clients that asked for a name of a certificate.
    pub failed_by_name: u64,
}

impl Handshakes {
    /// Those of these totals.
    pub fn of(totals: &Totals) -> Self {
        Self {
            completed: totals.handshakes_full + totals.handshakes_resumed,
            failed_by_name: totals.handshakes_failed_by_name,
        }
    }

    /// Those that came after these.
    pub fn since(self, before: Self) -> Self {
        Self {
            completed: self.completed.saturating_sub(before.completed),
            failed_by_name: self.failed_by_name.saturating_sub(before.failed_by_name),
        }
    }
}

/// How full a table is.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct Occupancy {
    /// Entries in it.
    pub entries: usize,
    /// Entries it may hold; 0 is off.
    pub capacity: usize,
}

/// What admission counts, beside the reasons of connections that it ended.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct AdmissionCounts {
    /// Full handshakes that have begun and not ended, where they are limited.
    pub full_handshakes_in_flight: u32,
    /// Sources that are tracked.
    pub sources: usize,
    /// Times that a client was not counted for its source, because the table was full.
    pub untracked: u64,
}

/// Where the rotation of ticket keys stands.
#[derive(Debug, serde::Serialize)]
pub struct TicketKeys {
    /// Epoch, node and secrets.
    #[serde(flatten)]
    pub standing: Standing,
    /// Until the next epoch.
    pub next_rotation_seconds: u64,
}

/// A backend as it is configured and as it is now.
#[derive(Debug)]
pub struct RunningBackend {
    /// What was configured.
    pub config: Arc<Backend>,
    /// What workers and control share.
    pub state: Arc<BackendState>,
}

impl Serialize for RunningBackend {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let (keys, state) = (&self.config.keys, &self.state);
        let states = state.servers();
        let servers = self.config.servers.iter().filter_map(|config| {
            let state = states.iter().find(|state| *state.name() == config.name)?;
            Some(server(config, state))
        });
        let object = json!({
            "name": keys.name,
            "files": self.config.docroot.as_ref().map(|docroot| &docroot.path),
            "balance": keys.balance,
            "waiting": state.waiting(),
            "queue_length": keys.queue_length,
            "hand_overs": state.hand_overs(),
            "stick_entries": state.sticks(),
            "servers": servers.collect::<Vec<_>>(),
            "removed": self.config.removed.iter().map(|(name, _)| name).collect::<Vec<_>>(),
        });
        object.serialize(to)
    }
}

/// A server as it is configured and as it is now.
pub fn server(config: &Server, state: &ServerState) -> Value {
    let settings = state.settings();
    let watched = state.watched();
    let (since, why) = watched.change.clone().unzip();
    let addresses = state.addresses();
    let word = if state.is_disabled() {
        "disabled"
    } else if !state.has_address() {
        "unresolved"
    } else if state.is_failing() {
        "failing"
    } else {
        "passing"
    };
    json!({
        "name": config.name,
        "addresses": addresses.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "state": word,
        "backup": config.keys.backup,
        "mode": settings.mode(),
        "weight": settings.weight(),
        "in_use": state.in_use(),
        "maxconn": state.maxconn(),
        "connections": state.connections(),
        "failures": state.failures(),
        "node": config.keys.node,
        "condition": watched.condition.label(),
        "condition_since": since.map(Timestamp::from_unix),
        "condition_reason": why,
        "checks": watched.checks,
        "check_failures": watched.check_failures,
        "outages": watched.outages,
        "dns_stale": state.dns_stale(),
        "in_file": in_file(config, &settings),
        "added": config.added.is_some(),
        "kept": is_kept(config, &settings),
    })
}

/// Returns whether there are changes and all of them are kept edits.
fn is_kept(config: &Server, settings: &Settings) -> bool {
    let is_changed = config.added.is_some() || settings.overrides != Overrides::default();
    is_changed && config.added != Some(Lasts::Reload) && settings.temporary().is_empty()
}

/// What the file says of what was changed since; nothing where nothing was.
fn in_file(config: &Server, settings: &Settings) -> Value {
    let (changed, file) = (&settings.overrides, &settings.file);
    let keys = [
        (
            "mode",
            changed.mode.is_some(),
            json!(settings.mode_in_file()),
        ),
        ("weight", changed.weight.is_some(), json!(file.weight)),
        ("maxconn", changed.maxconn.is_some(), json!(file.maxconn)),
        (
            "addresses",
            changed.addresses.is_some(),
            json!([config.name]),
        ),
    ];
    let changed = keys.into_iter().filter(|(_, is_changed, _)| *is_changed);
    let object: Map<String, Value> = changed.map(|(key, _, was)| (key.to_owned(), was)).collect();
    if object.is_empty() {
        Value::Null
    } else {
        object.into()
    }
}

/// A listener as it is configured, with what was built of its routes.
pub(super) fn listener(config: &Config, listener: &Listener) -> Value {
    let routes = listener.routes.iter().map(|route| {
        let policy = route.policy.as_ref().map(|policy| {
            let suites = policy
                .suites
                .iter()
                .map(|suite| names::suite(suite.suite()));
            json!({
                "name": policy.keys.name,
                "digest": policy.digest_in_hex(),
                "versions": policy.keys.versions,
                "suites": suites.collect::<Vec<_>>(),
                "groups": policy.keys.groups,
                "client_auth": policy.keys.client_certificates,
            })
        });
        let alpn = route.alpn.iter().map(Text::write);
        json!({
            "names": route.keys.names,
            "alpn": alpn.collect::<Vec<_>>(),
            "backend": config.backends.get(route.backend).map(|backend| &backend.keys.name),
            "policy": policy,
        })
    });
    json!({
        "name": listener.keys.name,
        "bind": listener.bind,
        "routes": routes.collect::<Vec<_>>(),
    })
}

impl AdmissionCounts {
    pub(super) fn of(admission: &SharedAdmission) -> Self {
        Self {
            full_handshakes_in_flight: admission.in_flight(),
            sources: admission.sources(),
            untracked: admission.untracked(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;
    use becket_proto::close_reason::CloseReason;

    #[test]
    fn the_object_tells_of_listeners_policies_backends_and_certificates() {
        let state = sample::state();
        state.shared().counters[0].accepted.add(3);
        let status = serde_json::to_value(state.snapshot()).unwrap();
        assert_eq!(status["state"], "serving");
        assert_eq!(status["workers"], 1);
        assert_eq!(status["totals"]["connections"], 3);
        assert_eq!(status["listeners"][0]["name"], "web");
        let route = &status["listeners"][0]["routes"][0];
        assert_eq!(route["alpn"][0], "h2");
        assert_eq!(route["names"][0], "*.example.net");
        assert_eq!(route["backend"], "app");
        assert_eq!(route["policy"]["digest"], "ab".repeat(32));
        assert_eq!(route["policy"]["versions"][0], "TLSv1.2");
        assert_eq!(
            status["backends"][0]["servers"][0]["addresses"][0],
            "127.0.0.1:8080"
        );
        let server = &status["backends"][0]["servers"][0];
        assert_eq!(
            (&server["state"], &server["in_use"]),
            (&"passing".into(), &0.into())
        );
        assert_eq!(status["backends"][0]["balance"], "round-robin");
        assert_eq!(
            status["certificates"][0]["not_after"],
            "2040-01-01T00:00:00.000000Z"
        );
        assert_eq!(status["reload"]["errors"].as_array().unwrap().len(), 1);
        let tickets = &status["tickets"];
        assert!(tickets["next_rotation_seconds"].as_u64() > Some(0));
        assert!(tickets["node"].is_null());
        assert_eq!(tickets["secrets"][0].as_str().unwrap().len(), 8);
    }

    #[test]
    fn totals_sum_the_workers_and_never_fall_below_zero() {
        let workers: [Arc<Counters>; 2] = Default::default();
        workers[0].handshakes[0].add(1);
        workers[1].handshakes[1].add(2);
        workers[1].handshakes[2].add(4);
        workers[0].handshakes_ended.add(1);
        workers[1].handshakes_ended.add(9);
        for worker in &workers {
            worker.closed.of(CloseReason::NotTls).add(2);
            // A look whether becket is there has failed in nothing.
            worker.closed.of(CloseReason::HealthCheck).add(1);
            worker.handshakes_failed_by_name.add(3);
        }
        let totals = Totals::of(&workers);
        assert_eq!((totals.handshakes_full, totals.handshakes_resumed), (5, 2));
        assert_eq!(totals.handshakes_in_flight, 0);
        assert_eq!(totals.handshakes_failed, 4);
        assert_eq!(totals.handshakes_failed_by_name, 6);
        assert_eq!(totals.closed, [("health-check", 2), ("not-tls", 4)].into());
    }
}
