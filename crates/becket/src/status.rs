//! Formats the text of `becket status`: problems, traffic, certificates, listeners, servers,
//! PKCS#11 tokens and peers.
//!
//! Rates are differences between two statuses. Control characters are escaped.

use std::cmp::Reverse;
use std::fmt::{Display, Write};
use std::time::Duration;

use becket_config::choices::ServerMode;
use becket_control::certificates::CertificateStatus;
use becket_control::status::{
    ClusterReport, ListenerStatus, PeerReport, ServerStatus, ServingState, Status, StoreStatus,
};
use becket_control::totals::Totals;
use becket_control::web::span;

/// Formats a status, with rates if an earlier status is given. The text ends with a line feed.
pub fn page(status: &Status, before: Option<&Status>) -> String {
    let process = &status.process;
    let (version, state) = (escaped(&process.version), process.state.label());
    let uptime = span(Duration::from_secs(process.uptime_seconds));
    let workers = counted(process.workers as u64, "worker");
    let restarts = match process.restarts {
        0 => String::new(),
        count => format!(", {}", counted(count, "restart")),
    };
    let mut page = Page(format!(
        "becket {version}, {state}, up {uptime}, {workers}{restarts}\n"
    ));
    let changes = &status.changes;
    page.lines("problem", &status.problems);
    if let Some(reload) = &changes.reload
        && reload.errors.is_empty()
    {
        page.line("reload", format_args!("{} done", reload.time));
    }
    if let Some(time) = changes.watch.time {
        let count = counted(changes.watch.renewals, "time");
        page.line("renewed", format_args!("{time}, {count}"));
    }
    page.lines("temporary", &changes.temporary);
    traffic(&mut page, status, before);
    certificates(&mut page, status);
    sessions(&mut page, status);
    for it in &status.listeners {
        listener(&mut page, it);
    }
    backends(&mut page, status);
    for token in &status.signing.tokens {
        let (name, module) = (escaped(&token.token), escaped(&token.module));
        let (signatures, failures) = (token.signatures, token.failures);
        let in_flight = token.in_flight;
        page.line(
            "token",
            format_args!(
                "{name}, {signatures} signatures, {failures} failures, {in_flight} in flight; {module}"
            ),
        );
    }
    match &status.sessions.cluster {
        Some(of) => cluster(&mut page, of),
        // A draining process has left the cluster. Omit the line, because "off" would be
        // misleading.
        None if process.state == ServingState::Draining => {}
        None => page.line("cluster", "off"),
    }
    if let Some(store) = &status.sessions.store {
        page.line("store", store_line(store));
    }
    page.0
}

pub fn ended(changes: &[String]) -> String {
    let each = changes.iter();
    each.map(|change| format!("ended: {}\n", escaped(change)))
        .collect()
}

/// Returns the increase of a counter per second between two statuses, measured with becket's clock.
pub fn rate(now: &Status, before: &Status, of: impl Fn(&Status) -> u64) -> Option<f64> {
    let seconds = now.process.now.since(before.process.now).as_secs_f64();
    let more = of(now).saturating_sub(of(before));
    (seconds > 0.0).then(|| more as f64 / seconds)
}

fn traffic(page: &mut Page, status: &Status, before: Option<&Status>) {
    let totals = &status.traffic.totals;
    let counted = |of: &dyn Fn(&Totals) -> u64| {
        let rate = before.and_then(|it| rate(status, it, |it| of(&it.traffic.totals)));
        let rate = rate.map_or_else(String::new, |rate| format!(" ({rate:.1}/s)"));
        (of(totals), rate)
    };
    let of = |of: fn(&Totals) -> u64| {
        let (count, rate) = counted(&of);
        format!("{count}{rate}")
    };
    let (open, accepted) = (totals.connections, of(|it| it.accepted));
    page.line(
        "connections",
        format_args!("{open} open, {accepted} accepted"),
    );
    let share = share(
        totals.handshakes_resumed,
        totals.handshakes_full + totals.handshakes_resumed,
    );
    page.line(
        "handshakes",
        format_args!(
            "{} full, {} resumed ({share}), {} failed, {} in flight",
            of(|it| it.handshakes_full),
            of(|it| it.handshakes_resumed),
            of(|it| it.handshakes_failed),
            totals.handshakes_in_flight,
        ),
    );
    if let Some(batches) = status.signing.rsa_batches {
        let (signatures, made) = (batches.signatures, batches.made);
        page.line(
            "RSA",
            format_args!("{signatures} signatures in {made} batches"),
        );
    }
    let mut ends: Vec<_> = totals.closed.keys().collect();
    ends.sort_by_key(|reason| Reverse(totals.closed[*reason]));
    for (index, reason) in ends.into_iter().enumerate() {
        let (count, rate) = counted(&|it| it.closed.get(reason).copied().unwrap_or(0));
        let name = if index == 0 { "ended" } else { "" };
        page.line(name, format_args!("{count} {}{rate}", escaped(reason)));
    }
}

/// Writes only the certificates that expire first, because there may be thousands.
fn certificates(page: &mut Page, status: &Status) {
    let mut all: Vec<&CertificateStatus> = status.certificates.iter().collect();
    all.sort_by_key(|it| it.not_after);
    for it in all.iter().take(MOST_CERTIFICATES) {
        let mut expiry = it.expiry(status.process.now);
        if !it.temporary {
            let day: String = it.not_after.to_string().chars().take(10).collect();
            expiry += &format!(", on {day}");
        }
        let (name, key, listener) = (escaped(&it.name), &it.key, escaped(&it.listener));
        page.line(
            "certificate",
            format_args!("{expiry}: {name} ({key}) at listener {listener}"),
        );
    }
    let more = all.len().saturating_sub(MOST_CERTIFICATES) + status.certificates_omitted;
    if more > 0 {
        page.line("", format_args!("and {more} more: becket ctl certificates"));
    }
}

fn sessions(page: &mut Page, status: &Status) {
    let (table, tickets) = (status.sessions.table, &status.sessions.tickets);
    let (entries, capacity) = (table.entries as u64, table.capacity as u64);
    let share = share(entries, capacity);
    page.line(
        "sessions",
        format_args!("{entries} of {capacity} ({share})"),
    );
    let next = span(Duration::from_secs(tickets.next_rotation_seconds));
    let epoch = tickets.epoch;
    page.line("ticket key", format_args!("epoch {epoch}, next in {next}"));
    if tickets.node.is_some() {
        page.line("secrets", tickets.secrets.join(", "));
    }
}

fn listener(page: &mut Page, listener: &ListenerStatus) {
    let bind: Vec<String> = listener.bind.iter().map(ToString::to_string).collect();
    let (name, bind) = (escaped(&listener.name), bind.join(", "));
    page.line("listener", format_args!("{name} on {bind}"));
    for route in &listener.routes {
        let backend = escaped(route.backend.as_deref().unwrap_or("?"));
        let names = match &route.names[..] {
            [] => "any name".to_owned(),
            names => escaped(&names.join(", ")),
        };
        let how = match &route.policy {
            Some(policy) => {
                let digest: String = policy.digest.chars().take(16).collect();
                format!("policy {} ({digest})", escaped(&policy.name))
            }
            None => "without TLS termination".to_owned(),
        };
        page.line("", format_args!("{names} to {backend}, {how}"));
    }
}

fn backends(page: &mut Page, status: &Status) {
    for backend in &status.backends {
        let name = escaped(&backend.name);
        if let Some(folder) = &backend.files {
            let folder = escaped(&folder.to_string_lossy());
            page.line("backend", format_args!("{name}, files of {folder}"));
            continue;
        }
        let servers = counted(backend.servers.len() as u64, "server");
        let waiting = match backend.waiting {
            0 => String::new(),
            count => format!(", {count} waiting for a slot"),
        };
        page.line("backend", format_args!("{name}, {servers}{waiting}"));
        for server in &backend.servers {
            page.line("", server_line(server));
        }
        if !backend.removed.is_empty() {
            let removed = escaped(&backend.removed.join(", "));
            page.line("", format_args!("removed until the next reload: {removed}"));
        }
    }
}

fn server_line(server: &ServerStatus) -> String {
    let (health, open) = (&server.health, server.in_use);
    let mut line = match server.maxconn {
        Some(limit) => format!("{}, {open} of {limit} connections", escaped(&server.name)),
        None => format!("{}, {open} open", escaped(&server.name)),
    };
    if server.added {
        line += ", not in the file";
    }
    if server.backup {
        line += ", backup";
    }
    if server.mode != ServerMode::Ready {
        line += &format!(", {}", server.mode.label());
    }
    if !matches!(&*health.condition, "" | "unchecked") {
        line += &format!(", {}", escaped(&health.condition));
    }
    if let Some(why) = &health.condition_reason
        && health.is_out_of_service()
    {
        line += &format!(": {}", escaped(why));
    }
    if health.dns_stale {
        line += if health.state == "unresolved" {
            ", not used: name does not resolve yet"
        } else {
            ", name no longer resolves"
        };
    }
    line
}

fn cluster(page: &mut Page, cluster: &ClusterReport) {
    let (node, listen) = (cluster.node, escaped(&cluster.listen));
    page.line("cluster", format_args!("node {node} on {listen}"));
    for peer in &cluster.peers {
        page.line("  peer", peer_line(peer));
    }
    for name in &cluster.names {
        if let Some(problem) = &name.problem {
            let (name, problem) = (escaped(&name.name), escaped(problem));
            page.line("  name", format_args!("{name}: {problem}"));
        }
    }
}

fn store_line(store: &StoreStatus) -> String {
    let (address, counts) = (escaped(&store.address), &store.counts);
    let state = match &store.error {
        _ if store.available => "available".to_owned(),
        Some(error) => format!("not available: {}", escaped(error)),
        None => "not connected yet".to_owned(),
    };
    format!(
        "{address} {state}, {} written, {} not written, {} found, {} not found, {} rejected, {} failed",
        counts.written,
        counts.dropped + counts.overflowed + counts.refused,
        counts.found,
        counts.missing + counts.skipped,
        counts.rejected,
        counts.failed
    )
}

fn peer_line(peer: &PeerReport) -> String {
    let (address, state) = (escaped(&peer.address), escaped(&peer.state));
    format!(
        "{address} {state}, node {}, heard {:.1} s ago, {} sent, {} received, {} lost, {} replayed, {} dropped",
        peer.node,
        peer.heard_seconds_ago,
        peer.sent,
        peer.received,
        peer.lost,
        peer.replayed,
        peer.dropped
    )
}

struct Page(String);

impl Page {
    fn line(&mut self, name: &str, what: impl Display) {
        // Writing to a `String` does not fail.
        writeln!(self.0, "{name:<13}{what}").ok();
    }

    fn lines(&mut self, name: &str, each: &[String]) {
        for text in each {
            self.line(name, escaped(text));
        }
    }
}

/// Escapes control characters.
pub fn escaped(text: &str) -> String {
    let each = text.chars().map(|char| {
        if char.is_control() {
            char.escape_unicode().to_string()
        } else {
            char.to_string()
        }
    });
    each.collect()
}

pub(crate) fn counted(count: u64, what: &str) -> String {
    let s = if count == 1 { "" } else { "s" };
    format!("{count} {what}{s}")
}

fn share(part: u64, whole: u64) -> String {
    match whole {
        0 => "none".to_owned(),
        whole => format!("{:.1} %", part as f64 * 100.0 / whole as f64),
    }
}

const MOST_CERTIFICATES: usize = 20;

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn status(object: Value) -> Status {
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn a_status_is_formatted_as_lines() {
        let status = status(json!({
            "version": "1.2.3", "state": "serving", "uptime_seconds": 3700, "workers": 2, "restarts": 1,
            "problems": ["a\u{1b}[31mb"], "now": "2026-11-22T10:00:00.000000Z",
            "totals": {"connections": 3, "accepted": 9, "handshakes_full": 1,
                "handshakes_resumed": 3, "handshakes_in_flight": 0,
                "closed": {"finished": 5, "not-tls": 1}},
            "rsa_batches": {"made": 3, "signatures": 23, "repeated": 1},
            "sessions": {"entries": 5, "capacity": 10},
            "tickets": {"epoch": 4, "next_rotation_seconds": 61, "node": 7,
                "secrets": ["0a0b0c0d", "00000001"]},
            "certificates": [{"listener": "web", "name": "a.test", "key": "rsa",
                "not_after": "2026-11-26T11:00:00.000000Z"}],
            "listeners": [{"name": "web", "bind": ["[::]:1", "[::]:2"], "routes": [
                {"names": ["in.test"], "backend": "farm", "policy": null},
                {"names": [], "backend": "app", "policy": {"name": "p", "digest": "ab".repeat(32)}}
            ]}],
            "backends": [{"name": "app", "waiting": 4, "servers": [
                {"name": "a:1", "in_use": 2, "maxconn": 2, "mode": "drain", "condition": "in-service"},
                {"name": "b:1", "in_use": 0, "maxconn": null, "condition": "out-of-service",
                    "condition_reason": "refused", "dns_stale": true},
                {"name": "c:1", "backup": true, "mode": "maintenance", "state": "disabled", "condition": "unchecked"},
                {"name": "d:1", "in_use": 0, "state": "unresolved", "condition": "on-trial",
                    "dns_stale": true}
            ]}],
            "cluster": {"node": 7, "listen": "10.0.0.1:1", "peers": [
                {"address": "10.0.0.2:1", "state": "live", "node": 8, "heard_seconds_ago": 0.25,
                    "lost": 2}
            ], "names": [{"name": "b:1", "problem": "no such host"}]},
            "store": {"address": "redis://a:1", "error": "refused", "written": 3, "dropped": 1, "missing": 2}
        }));
        let page = page(&status, None);
        for line in [
            "becket 1.2.3, serving, up 1 h 1 min, 2 workers, 1 restart",
            "problem      a\\u{1b}[31mb",
            "handshakes   1 full, 3 resumed (75.0 %), 0 failed, 0 in flight",
            "RSA          23 signatures in 3 batches",
            "ended        5 finished",
            "             1 not-tls",
            "certificate  expires in 4 days, on 2026-11-26: a.test (rsa) at listener web",
            "sessions     5 of 10 (50.0 %)",
            "ticket key   epoch 4, next in 1 min 1 s",
            "secrets      0a0b0c0d, 00000001",
            "listener     web on [::]:1, [::]:2",
            "             in.test to farm, without TLS termination",
            "             any name to app, policy p (abababababababab)",
            "backend      app, 4 servers, 4 waiting for a slot",
            "             a:1, 2 of 2 connections, drain, in-service",
            "             b:1, 0 open, out-of-service: refused, name no longer resolves",
            "             d:1, 0 open, on-trial, not used: name does not resolve yet",
            "             c:1, 0 open, backup, maintenance",
            "cluster      node 7 on 10.0.0.1:1",
            "  peer       10.0.0.2:1 live, node 8, heard 0.2 s ago, 0 sent, 0 received, 2 lost, 0 replayed, 0 dropped",
            "  name       b:1: no such host",
            "store        redis://a:1 not available: refused, 3 written, 1 not written, 0 found, 2 not found, 0 rejected, 0 failed",
        ] {
            assert!(page.lines().any(|l| l == line), "{line} is not in\n{page}");
        }
    }

    #[test]
    fn rates_are_differences_of_two_statuses() {
        let at = |second: u64, full: u64, failed: u64| {
            status(
                json!({"now": format!("2026-11-22T10:00:{second:02}.000000Z"),
                "totals": {"handshakes_full": full, "handshakes_failed": failed,
                    "closed": {"handshake-failed": failed}}}),
            )
        };
        let page = page(&at(2, 14, 45), Some(&at(0, 10, 5)));
        for line in [
            "handshakes   14 (2.0/s) full, 0 (0.0/s) resumed (0.0 %), 45 (20.0/s) failed, 0 in flight",
            "ended        45 handshake-failed (20.0/s)",
        ] {
            assert!(page.lines().any(|l| l == line), "{line} is not in\n{page}");
        }
    }

    #[test]
    fn a_status_without_fields_is_shown() {
        let text = page(&Status::default(), None);
        assert!(text.ends_with("cluster      off\n"), "{text}");
        let text = page(&status(json!({"state": "draining"})), None);
        assert!(!text.contains("cluster"), "it was left: {text}");
    }
}
