//! Snapshot of a running becket: its [`Status`], and additional data for single pages.

use std::collections::BTreeMap;
use std::sync::Arc;

use becket_cluster::ClusterStatus;
use becket_config::notation::Text;
use becket_log::Timestamp;
use becket_proxy::backend::server_state::{ServerSettings, ServerState};
use becket_proxy::metrics::Counters;
use becket_sys::kernel_tls::Support;
use becket_tls::config::{Config, Listener, Route, Server};
use becket_tls::names;
use serde_json::{Value, json};

use super::history::{Mark, Moment};
use super::page_refusals::PageRefusal;
use super::status::{
    BackendStatus, ClusterReport, ListenerStatus, PolicyStatus, RouteStatus, ServerHealth,
    ServerStatus, Status,
};
use super::temporary::RunningBackend;

#[derive(Debug)]
pub struct Snapshot {
    pub status: Status,
    pub cluster: Option<ClusterStatus>,
    /// `None` if kernel TLS is not enabled.
    pub kernel_tls: Option<&'static Support>,
    /// PostgreSQL cancel requests: the number sent to a server, and the number that failed.
    pub cancels: (u64, u64),
    /// Rejected connections to the admin pages, in the order of [`PageRefusal::ALL`].
    pub admin_refused: [u64; PageRefusal::ALL.len()],
    /// Measurements of the last hour, one per interval of about ten seconds.
    pub history: Vec<Moment>,
    pub counters: Vec<Arc<Counters>>,
}

pub(super) fn backend(running: &RunningBackend, mark: &Mark) -> BackendStatus {
    let (config, state) = (&running.config, &running.state);
    let states = state.servers();
    let servers = config.servers.iter().filter_map(|config| {
        let state = states.iter().find(|state| *state.name() == config.name)?;
        let minute = Some(mark.server(state));
        Some(ServerStatus {
            minute,
            ..server(config, state)
        })
    });
    let files = config.docroot.as_ref();
    BackendStatus {
        name: config.keys.name.to_string(),
        files: files.map(|docroot| docroot.path.clone()),
        balance: config.keys.balance,
        waiting: state.waiting(),
        queue_length: config.keys.queue_length,
        hand_overs: state.hand_overs(),
        idle_reclaims: state.idle_reclaims(),
        stick_entries: state.sticks(),
        servers: servers.collect(),
        removed: config.removed.iter().map(ToString::to_string).collect(),
    }
}

pub fn server(config: &Server, state: &ServerState) -> ServerStatus {
    let settings = state.settings();
    let watched = state.watched();
    let (since, why) = watched.change.unzip();
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
    ServerStatus {
        name: config.name.to_string(),
        addresses: addresses.iter().map(ToString::to_string).collect(),
        backup: config.keys.backup,
        mode: settings.mode(),
        weight: settings.weight(),
        in_use: state.in_use(),
        maxconn: state.maxconn(),
        connections: state.connections(),
        failures: state.failures(),
        minute: None,
        node: config.keys.node,
        health: ServerHealth {
            state: word.into(),
            condition: watched.condition.label().into(),
            condition_since: since.map(Timestamp::from_unix),
            condition_reason: why.map(|why| why.to_string()),
            checks: watched.checks,
            check_failures: watched.check_failures,
            check_error: watched.check_error.map(|why| why.to_string()),
            outages: watched.outages,
            dns_stale: state.dns_stale(),
        },
        in_file: in_file(config, &settings),
        added: config.added,
    }
}

/// Returns the configured values of keys that an operator has overridden; `None` if there are none.
fn in_file(config: &Server, settings: &ServerSettings) -> Option<BTreeMap<String, Value>> {
    let (changed, file) = (&settings.overrides, &settings.file);
    let mode = json!(settings.mode_in_file());
    let values = [
        ("mode", changed.mode.is_some(), mode),
        ("weight", changed.weight.is_some(), json!(file.weight)),
        ("maxconn", changed.maxconn.is_some(), json!(file.maxconn)),
        (
            "addresses",
            changed.addresses.is_some(),
            json!([config.name]),
        ),
    ];
    let values = values.into_iter().filter(|(_, is_changed, _)| *is_changed);
    let values: BTreeMap<_, _> = values
        .map(|(key, _, value)| (key.to_owned(), value))
        .collect();
    Some(values).filter(|values| !values.is_empty())
}

pub(super) fn listener(config: &Config, listener: &Listener) -> ListenerStatus {
    let routes = listener.routes.iter();
    ListenerStatus {
        name: listener.keys.name.to_string(),
        bind: listener.bind.clone(),
        routes: routes.map(|it| route(config, it)).collect(),
    }
}

fn route(config: &Config, route: &Route) -> RouteStatus {
    let policy = route.policy.as_ref().map(|policy| {
        let (keys, suites) = (&policy.keys, policy.suites.iter());
        PolicyStatus {
            name: keys.name.to_string(),
            digest: policy.digest_in_hex(),
            versions: keys.versions.iter().map(Text::write).collect(),
            suites: suites
                .map(|suite| names::suite(suite.suite()).to_owned())
                .collect(),
            groups: keys.groups.iter().map(Text::write).collect(),
            client_auth: keys.client_certificates,
        }
    });
    let backend = config.backends.get(route.backend);
    RouteStatus {
        names: route.keys.names.iter().map(Text::write).collect(),
        alpn: route.alpn.iter().map(Text::write).collect(),
        backend: backend.map(|backend| backend.keys.name.to_string()),
        policy,
    }
}

pub(super) fn cluster(status: &ClusterStatus) -> Option<ClusterReport> {
    let report = serde_json::to_value(status).and_then(serde_json::from_value);
    report.ok()
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::super::totals::Totals;
    use super::*;
    use becket_proto::close_reason::CloseReason;

    #[test]
    fn a_status_is_the_same_after_it_was_sent() {
        let state = sample::state();
        state.shared().counters[0].accepted.add(3);
        let mut status = state.snapshot().status;
        status.sessions.cluster = cluster(&sample::cluster());
        let sent = serde_json::to_value(&status).unwrap();
        let received: Status = serde_json::from_value(sent.clone()).unwrap();
        assert_eq!(serde_json::to_value(received).unwrap(), sent);
        assert_eq!(sent["cluster"]["peers"][0]["state"], "live");
        assert_eq!(sent["cluster"]["names"][0]["problem"], "no such host");
        let whole = serde_json::to_value(sample::cluster()).unwrap();
        assert_eq!(sent["cluster"], whole);
    }

    #[test]
    fn the_object_has_listeners_policies_backends_and_certificates() {
        let state = sample::state();
        state.shared().counters[0].accepted.add(3);
        let status = serde_json::to_value(state.snapshot().status).unwrap();
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
        let server = &status["backends"][0]["servers"][0];
        assert_eq!(server["addresses"][0], "127.0.0.1:8080");
        assert_eq!(
            (&server["state"], &server["in_use"]),
            (&"passing".into(), &0.into())
        );
        assert_eq!(status["backends"][0]["balance"], "round-robin");
        let not_after = &status["certificates"][0]["not_after"];
        assert_eq!(not_after, "2040-01-01T00:00:00.000000Z");
        assert_eq!(status["reload"]["errors"].as_array().unwrap().len(), 1);
        assert_eq!(status["problems"].as_array().unwrap().len(), 1);
        let tickets = &status["tickets"];
        assert!(tickets["next_rotation_seconds"].as_u64() > Some(0));
        assert!(tickets["node"].is_null());
        assert_eq!(tickets["secrets"][0].as_str().unwrap().len(), 8);
    }

    #[test]
    fn totals_sum_the_workers_and_never_fall_below_zero() {
        let workers: [Arc<Counters>; 2] = Default::default();
        workers[0].handshakes[0][0].add(1);
        workers[1].handshakes[0][1].add(2);
        workers[1].handshakes[1][0].add(4);
        workers[0].handshakes_ended.add(1);
        workers[1].handshakes_ended.add(9);
        for worker in &workers {
            worker.closed.of(CloseReason::NotTls).add(2);
            // A health check from outside is not a failed handshake.
            worker.closed.of(CloseReason::HealthCheck).add(1);
            worker.handshakes_failed_by_name.add(3);
        }
        let totals = Totals::of(&workers);
        assert_eq!((totals.handshakes_full, totals.handshakes_resumed), (5, 2));
        assert_eq!(totals.handshakes_in_flight, 0);
        assert_eq!(totals.handshakes_failed, 4);
        assert_eq!(totals.handshakes_failed_by_name, 6);
        let closed = totals.closed.iter().map(|(why, count)| (&**why, *count));
        assert!(closed.eq([("health-check", 2), ("not-tls", 4)]));
    }
}
