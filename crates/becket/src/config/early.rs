//! The part of `prepare` that makes sure that early data (0-RTT) is asked for where it can be had,
//! and where the servers are told of it.
//!
//! Early data may be a replay: only a server can know which requests may be made twice, so it has
//! to be told, and the PROXY header of version 2 is what can tell it.

use std::collections::HashSet;
use std::sync::Arc;

use super::error::Problem;
use super::file::Scalar;
use super::prepare::Draft;
use super::{Backend, Face, Listener, ProxyVersion, Route, Sessions, Versions};

impl Draft<'_> {
    /// How much early data a policy takes; 0 is none.
    pub(super) fn early_data(&mut self, path: &str, value: &Scalar, versions: Versions) -> u32 {
        if value.0 == "off" {
            return 0;
        }
        let path = format!("{path}.early-data");
        if versions.tls12 {
            let fault = "early data belongs to TLS 1.3, and this policy allows TLS 1.2";
            let problem = Problem::new(&path, fault).text(&value.0);
            self.report
                .error(problem.accepted("versions = [\"1.3\"] with it, or \"off\""));
        }
        let bytes = self.size(&path, value, EARLY_BYTES);
        u32::try_from(bytes).unwrap_or_default()
    }

    /// Checks what early data needs elsewhere: servers that are told, and a place for sessions.
    pub(super) fn check_early_data(
        &mut self,
        listeners: &[Arc<Listener>],
        backends: &[Arc<Backend>],
        sessions: &Sessions,
    ) {
        let routes = listeners
            .iter()
            .flat_map(|listener| listener.routes.iter().map(move |route| (listener, route)));
        let routes = routes.filter(|(_, route)| route.policy.early_data > 0);
        let mut seen = HashSet::new();
        for (listener, route) in routes {
            self.check_early_listener(listener, route);
            let path = format!("policy[{}].early-data", route.policy.name);
            let bytes = route.policy.early_data.to_string();
            if sessions.table_entries == 0 && seen.insert((&route.policy.name, None)) {
                let fault =
                    "sessions.table-entries is 0, and without a session there is no early data";
                let problem = Problem::new(&path, fault).value(&bytes);
                self.report
                    .error(problem.accepted("sessions.table-entries above 0 with it, or \"off\""));
            }
            let Some(backend) = backends.get(route.backend) else {
                continue;
            };
            let is_told = backend.proxy_header == Some(ProxyVersion::V2);
            if !is_told && seen.insert((&route.policy.name, Some(route.backend))) {
                let key = format!("backend[{}].proxy-header", backend.name);
                let fault = format!(
                    "early data may be a replay, and without {key} = \"v2\" the servers cannot tell"
                );
                let accepted = format!("{key} = \"v2\" with it, or \"off\"");
                self.report
                    .error(Problem::new(&path, fault).value(&bytes).accepted(accepted));
            }
        }
    }

    /// With STARTTLS the server is connected, and introduced to its client, before TLS begins.
    fn check_early_listener(&mut self, listener: &Listener, route: &Route) {
        if matches!(listener.face, Face::StartTls(_)) {
            let path = format!("policy[{}].early-data", route.policy.name);
            let key = format!("listener[{}].starttls", listener.name);
            let fault = format!("with {key} the servers are connected before they could be told");
            let problem = Problem::new(path, fault).value(route.policy.early_data.to_string());
            let accepted = format!(
                "a policy without early data for listener[{}]",
                listener.name
            );
            self.report.error(problem.accepted(accepted));
        }
    }
}

/// A whole record and its seal, which a client may send at once and rustls counts where a session resumes without early
/// data; more than 64 KiB is an upload, which gains nothing.
const EARLY_BYTES: std::ops::RangeInclusive<u64> = 17 * 1024..=64 * 1024;
