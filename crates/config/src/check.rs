//! Finds contradictions between keys whose values are individually valid: references to missing
//! sections, and keys that exclude or require each other.
//!
//! Every error contains the key path of its field;
//! [`KeyLocations::place`](crate::read::KeyLocations::place) adds line and value.

mod acme;
mod backend;
mod cluster;
mod listener;

use std::collections::HashSet;

use crate::address::SectionName;
use crate::backend::Backend;
use crate::choices::{Introduction, Mode, RsaBatch};
use crate::error::Report;
use crate::file::File;
use crate::key;
use crate::listener::{ListenMode, ListenerSection, Route};
use crate::notation::{Text, meant};
use crate::policy::Policy;
use crate::process::LogTarget;
use crate::read::labels;

/// One outcome of a listener's routing: the backend and the policy that some of its clients get.
#[derive(Clone, Copy, Debug)]
pub struct Way<'a> {
    /// The route and its index; `None` if no route matched and the listener's settings apply.
    pub route: Option<(usize, &'a Route)>,
    /// Index in `certificates` of the entry that sets the policy.
    pub certificate: Option<usize>,
    /// `true` if TLS is terminated; `false` if TLS is passed through or the clients use none.
    pub ends_tls: bool,
    /// Name of the policy that the route, the certificate or the listener sets, in this order.
    /// Defaults to the name of the listener.
    pub policy: &'a str,
    /// Name of the backend. `None` is a configuration error.
    pub backend: Option<&'a str>,
}

impl ListenerSection {
    /// Returns the listener's ways in order of evaluation. The last way accepts every client. Empty
    /// if the listener redirects all requests.
    pub fn ways(&self) -> Vec<Way<'_>> {
        if self.redirect.is_some() {
            return Vec::new();
        }
        let policy = self.policy.as_deref().unwrap_or(&self.name);
        let ends_tls = |mode| self.tls && mode == Mode::Terminate;
        let own = Way {
            route: None,
            certificate: None,
            ends_tls: ends_tls(self.mode),
            policy,
            backend: self.backend.as_deref(),
        };
        let ways = self.route.iter().enumerate().map(|(index, route)| Way {
            route: Some((index, route)),
            certificate: None,
            ends_tls: ends_tls(route.mode.unwrap_or(self.mode)),
            policy: route.policy.as_deref().unwrap_or(policy),
            backend: route.backend.as_deref().or(own.backend),
        });
        let mut seen = HashSet::new();
        let policies = self.certificates.iter().enumerate();
        let policies = policies.filter_map(|(index, entry)| Some((index, entry.policy()?)));
        let of_certificates =
            policies
                .filter(|(_, policy)| seen.insert(*policy))
                .map(|(index, policy)| Way {
                    certificate: Some(index),
                    policy,
                    ..own
                });
        let mut ways: Vec<Way<'_>> = ways.chain(of_certificates).collect();
        let takes_all = |route: &Route| route.names.is_empty() && !route.is_for_alpn();
        if self.backend.is_some() || !self.route.last().is_some_and(takes_all) {
            ways.push(own);
        }
        ways
    }

    /// Returns whether TLS is terminated for any client of the listener.
    pub fn ends_tls(&self) -> bool {
        self.ways().iter().any(|way| way.ends_tls)
    }
}

impl Route {
    /// Returns whether the route accepts only clients that offer one of its ALPN protocols.
    pub fn is_for_alpn(&self) -> bool {
        self.alpn.as_ref().is_some_and(|alpn| !alpn.is_empty())
    }
}

/// Returns the key paths of the sections of one kind, such as `listener[web]`.
pub fn paths<'n>(kind: &str, names: impl Iterator<Item = &'n SectionName>) -> Vec<String> {
    let labels = labels(names.map(|name| Some(name.clone()))).into_iter();
    labels.map(|label| format!("{kind}[{label}]")).collect()
}

impl File {
    pub fn listener_paths(&self) -> Vec<String> {
        paths("listener", self.listener.iter().map(|it| &it.name))
    }

    pub fn policy_paths(&self) -> Vec<String> {
        paths("policy", self.policy.iter().map(|it| &it.name))
    }

    pub fn backend_paths(&self) -> Vec<String> {
        paths("backend", self.backend.iter().map(|it| &it.name))
    }

    fn policy_named(&self, name: &str) -> Option<&Policy> {
        self.policy.iter().find(|policy| *policy.name == *name)
    }

    fn backend_named(&self, name: &str) -> Option<&Backend> {
        self.backend.iter().find(|backend| *backend.name == *name)
    }

    pub fn check(&self, report: &mut Report) {
        self.check_listeners(report);
        self.check_policies(report);
        self.check_backends(report);
        self.check_received_headers(report);
        self.check_idle_reclaim(report);
        self.check_early_data(report);
        self.check_sessions(report);
        self.check_admission(report);
        self.check_acme(report);
        if let Some(cluster) = &self.cluster {
            cluster.check(report);
        }
        let process = &self.process;
        if process.group.is_some() && process.user.is_none() {
            let fault = "given, but process.user is not set";
            report.refuse(
                key!("process", process.group),
                fault,
                "process.user with it",
            );
        }
        if process.rsa_batch == RsaBatch::Auto && !process.has_crypto_threads() {
            let fault = "batches need crypto threads, and there are none";
            report.refuse(
                key!("process", process.rsa_batch),
                fault,
                "process.crypto-threads above 0 with it",
            );
        }
        let log = &self.log;
        if log.file == LogTarget::Off && log.syslog.is_none() {
            let fault = "the log cannot be off; log.level sets its verbosity";
            report.refuse(key!("log", log.file), fault, LogTarget::ACCEPTED);
        }
        let targets = [
            (key!("log", log.file), &log.file),
            (key!("log", log.access), &log.access),
        ];
        for (path, target) in targets {
            if *target == LogTarget::Syslog && log.syslog.is_none() {
                let accepted = "the address of the daemon in log.syslog";
                report.refuse(path, "log.syslog is not set", accepted);
            }
        }
        if process.key_log {
            let fault = "TLS secrets are written to the file named by SSLKEYLOGFILE";
            report.remark(key!("process", process.key_log), fault);
        }
        self.remark_unused(report);
    }

    fn check_listeners(&self, report: &mut Report) {
        let paths = self.listener_paths();
        check_names(&paths, self.listener.iter().map(|it| &it.name), report);
        if self.listener.is_empty() {
            report.refuse("listener", "missing", "at least one listener");
        }
        for (listener, path) in self.listener.iter().zip(&paths) {
            listener.check(path, report);
            for way in listener.ways() {
                self.check_way(path, listener, way, report);
            }
        }
    }

    fn check_way(&self, path: &str, listener: &ListenerSection, way: Way<'_>, report: &mut Report) {
        let route = way.route.map(|(_, route)| route);
        let at = match (way.route, way.certificate) {
            (Some((index, _)), _) => format!("{path}.route[{index}]"),
            (_, Some(index)) => format!("{}[{index}]", key!(path, listener.certificates)),
            _ => path.to_owned(),
        };
        let has_own = way.certificate.is_some() || route.is_some_and(|it| it.policy.is_some());
        let is_named = has_own || listener.policy.is_some();
        if is_named && self.policy_named(way.policy).is_none() {
            let at = if has_own { &at } else { path };
            let names = self.policy.iter().map(|policy| &*policy.name);
            let problem = unknown("policy", way.policy, names);
            let path = key!(at, listener.policy);
            // Report an unknown policy only once if several routes inherit it.
            if !report.errors.iter().any(|known| known.path == path) {
                report.refuse(path, problem.0, problem.1);
            }
        }
        let own = route.is_none_or(|route| route.backend.is_some()) || way.backend.is_none();
        let names = self.backend.iter().map(|backend| &*backend.name);
        match way.backend {
            None => {
                let fault = "missing: no backend for clients that no route accepts, such as those without a server name";
                report.refuse(key!(at, listener.backend), fault, choices(names));
            }
            Some(name) if own && self.backend_named(name).is_none() => {
                let (fault, accepted) = unknown("backend", name, names);
                report.refuse(key!(at, listener.backend), fault, accepted);
            }
            Some(_) => {}
        }
        let backend = way.backend.and_then(|name| self.backend_named(name));
        if backend.is_some_and(|backend| backend.files.is_some()) {
            check_served(&at, listener, way, report);
        }
    }

    fn check_policies(&self, report: &mut Report) {
        let paths = self.policy_paths();
        check_names(&paths, self.policy.iter().map(|it| &it.name), report);
        for (policy, path) in self.policy.iter().zip(&paths) {
            policy.check(path, report);
        }
    }

    fn check_backends(&self, report: &mut Report) {
        let paths = self.backend_paths();
        check_names(&paths, self.backend.iter().map(|it| &it.name), report);
        let redirects = |listener: &ListenerSection| listener.redirect.is_some();
        if self.backend.is_empty() && !self.listener.iter().all(redirects) {
            report.refuse("backend", "missing", "at least one backend with a server");
        }
        for (backend, path) in self.backend.iter().zip(&paths) {
            backend.check(path, report);
        }
    }

    /// Rejects early data if becket cannot mark it in a PROXY header. Early data may be a replay,
    /// so the server needs the mark.
    fn check_early_data(&self, report: &mut Report) {
        let mut seen = HashSet::new();
        for listener in &self.listener {
            for way in listener.ways().into_iter().filter(|way| way.ends_tls) {
                let Some(policy) = self.policy_named(way.policy) else {
                    continue;
                };
                if policy.early_data.is_none() {
                    continue;
                }
                let path = key!(format!("policy[{}]", &*policy.name), policy.early_data);
                // With these protocols becket sends the PROXY header before TLS begins.
                if listener.speaks().connects_first() {
                    let name = &*listener.name;
                    let fault = format!(
                        "with listener[{name}].starttls the PROXY header is sent before early data can be marked in it"
                    );
                    let accepted = format!("a policy without early data for listener[{name}]");
                    report.refuse(&path, fault, accepted);
                }
                if self.sessions.table_entries == 0 && seen.insert((way.policy, None)) {
                    let fault =
                        "sessions.table-entries is 0, and without a session there is no early data";
                    let accepted = "sessions.table-entries above 0 with it, or \"off\"";
                    report.refuse(&path, fault, accepted);
                }
                let backend = way.backend.and_then(|name| self.backend_named(name));
                // Early data for files needs no mark, because a replayed request changes nothing.
                if let Some(backend) = backend.filter(|backend| backend.files.is_none())
                    && backend.proxy_header != Some(Introduction::V2)
                    && seen.insert((way.policy, way.backend))
                {
                    let key = key!(format!("backend[{}]", &*backend.name), backend.proxy_header);
                    let fault = format!(
                        "early data may be a replay, and without {key} = \"v2\" the servers cannot tell"
                    );
                    report.refuse(&path, fault, format!("{key} = \"v2\" with it, or \"off\""));
                }
            }
        }
    }

    /// Rejects `proxy-header = "received"` if a listener that uses the backend accepts no PROXY
    /// header.
    fn check_received_headers(&self, report: &mut Report) {
        for (backend, path) in self.backend.iter().zip(self.backend_paths()) {
            let is_there = |way: &Way<'_>| way.backend == Some(&*backend.name);
            let takes_none = |listener: &&ListenerSection| {
                listener.accept_proxy.is_none() && listener.ways().iter().any(is_there)
            };
            if backend.proxy_header == Some(Introduction::Received)
                && let Some(listener) = self.listener.iter().find(takes_none)
            {
                let fault = format!("listener[{}] receives no PROXY header", &*listener.name);
                let accepted =
                    "accept-proxy with every listener that leads here, or \"v1\" or \"v2\"";
                report.refuse(key!(path, backend.proxy_header), fault, accepted);
            }
        }
    }

    /// Rejects `idle-reclaim` if becket cannot tell an idle connection from a connection that waits
    /// for a response.
    fn check_idle_reclaim(&self, report: &mut Report) {
        let listeners: Vec<_> = self.listener.iter().map(|it| (it, it.ways())).collect();
        for (backend, path) in self.backend.iter().zip(self.backend_paths()) {
            let path = key!(path, backend.idle_reclaim);
            let is_limited = backend.server.iter().any(|server| server.maxconn.is_some());
            if backend.idle_reclaim.is_none() && !is_limited {
                continue;
            }
            for (listener, ways) in &listeners {
                let here: Vec<_> = ways
                    .iter()
                    .filter(|way| way.backend == Some(&*backend.name))
                    .collect();
                let passes = |way: &&Way<'_>| listener.tls && !way.ends_tls;
                let offers = |protocol: &[u8]| {
                    let offered = |way: &&Way<'_>| {
                        let alpn = way.route.and_then(|(_, route)| route.alpn.as_ref());
                        let mut alpn = alpn.unwrap_or(&listener.alpn).iter();
                        way.ends_tls && alpn.any(|one| one == protocol)
                    };
                    here.iter().any(offered)
                };
                let name = &*listener.name;
                if backend.idle_reclaim.is_none() {
                    if is_limited && offers(HTTP) {
                        let fault = format!(
                            "not set, and listener[{name}] offers http/1.1: idle keep-alive clients hold slots of servers with maxconn while others wait"
                        );
                        report.remark(&path, fault);
                    }
                } else if here.iter().any(passes) {
                    let fault = format!(
                        "listener[{name}] passes TLS through, so becket cannot see whether a request was answered"
                    );
                    report.refuse(&path, fault, "mode = \"terminate\" there, or \"off\"");
                } else if offers(b"h2") {
                    let fault = format!(
                        "listener[{name}] offers h2: a connection may be closed while one of its requests is unanswered"
                    );
                    report.remark(&path, fault);
                }
            }
        }
    }

    fn check_sessions(&self, report: &mut Report) {
        let sessions = &self.sessions;
        let Some(cluster) = &self.cluster else {
            return;
        };
        for (both, path, shared) in [
            (
                sessions.ticket_rotation.is_some(),
                key!("sessions", sessions.ticket_rotation),
                key!("cluster", cluster.rotation),
            ),
            (
                sessions.max_age.is_some() && cluster.session_max_age.is_some(),
                key!("sessions", sessions.max_age),
                key!("cluster", cluster.session_max_age),
            ),
        ] {
            if both {
                let fault = format!("conflicts with {shared}");
                report.refuse(path, fault, "one of the two keys");
            }
        }
    }

    fn check_admission(&self, report: &mut Report) {
        let it = &self.admission;
        let rates = [
            it.full_handshakes_per_second,
            it.source_full_handshakes_per_second,
            it.name.full_handshakes_per_second,
            it.ja4.full_handshakes_per_second,
        ];
        let bursts = [it.burst, it.source_burst, it.name.burst, it.ja4.burst];
        let keys = ["", "source-", "name.", "ja4."].map(|key| format!("admission.{key}"));
        for ((rate, burst), key) in rates.into_iter().zip(bursts).zip(keys) {
            if burst.is_some() && rate.is_none() {
                let fault = format!("given, but {key}full-handshakes-per-second is not set");
                report.refuse(format!("{key}burst"), fault, "both keys, or neither");
            }
        }
    }

    fn remark_unused(&self, report: &mut Report) {
        let ways = self.listener.iter().flat_map(ListenerSection::ways);
        let (mut backends, mut policies) = (HashSet::new(), HashSet::new());
        for way in ways {
            backends.extend(way.backend);
            policies.extend(way.ends_tls.then_some(way.policy));
        }
        for (backend, path) in self.backend.iter().zip(self.backend_paths()) {
            if !backend.name.is_empty() && !backends.contains(&*backend.name) {
                report.remark(path, "no listener uses this backend");
            }
        }
        for (policy, path) in self.policy.iter().zip(self.policy_paths()) {
            if !policy.name.is_empty() && !policies.contains(&*policy.name) {
                report.remark(path, "no listener uses this policy");
            }
        }
    }
}

/// Checks that clients of a backend with files use HTTP/1.1, in a form that becket can parse.
fn check_served(path: &str, listener: &ListenerSection, way: Way<'_>, report: &mut Report) {
    let fault = match listener.speaks() {
        ListenMode::StartTls(_) => "the protocol is not HTTP, and the backend serves files",
        ListenMode::Tls if !way.ends_tls => "TLS is passed through, and the backend serves files",
        _ => "",
    };
    if !fault.is_empty() {
        let accepted = "a backend with servers";
        report.refuse(key!(path, listener.backend), fault, accepted);
    }
    let route = way.route.and_then(|(_, route)| route.alpn.as_ref());
    let written = route.unwrap_or(&listener.alpn);
    if way.ends_tls && !written.is_empty() && written[..] != [HTTP] {
        let fault = "the backend serves files only over HTTP/1.1";
        let accepted = "[\"http/1.1\"], which is the default there";
        report.refuse(key!(path, listener.alpn), fault, accepted);
    }
}

/// Checks that the names of all sections of one kind are unique.
fn check_names<'n>(
    paths: &[String],
    names: impl Iterator<Item = &'n SectionName>,
    report: &mut Report,
) {
    let mut seen = HashSet::new();
    for (path, name) in paths.iter().zip(names) {
        let fault = match name {
            name if name.is_empty() => "missing",
            name if !seen.insert(name) => "an earlier section has this name",
            _ => continue,
        };
        report.refuse(format!("{path}.name"), fault, "a unique name");
    }
}

/// Returns the fault for an unknown name and the accepted names. The fault suggests a similar name
/// if one exists.
fn unknown<'n>(
    kind: &str,
    name: &str,
    names: impl Iterator<Item = &'n str> + Clone,
) -> (String, String) {
    let fault = match meant(name, names.clone()) {
        Some(name) => format!("no {kind} has this name (did you mean {name:?}?)"),
        None => format!("no {kind} has this name"),
    };
    (fault, choices(names))
}

fn choices<'n>(names: impl Iterator<Item = &'n str>) -> String {
    let mut names: Vec<String> = names.map(|name| format!("{name:?}")).collect();
    names.sort();
    if names.is_empty() {
        "the name of a section; there is none yet".to_owned()
    } else {
        names.join(", ")
    }
}

/// ALPN name of HTTP/1.1 (RFC 7301, section 6), the only protocol over which files are served.
pub const HTTP: &[u8] = b"http/1.1";
