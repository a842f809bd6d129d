//! Problems that an operator must solve, each as one line of text: certificates that expire soon,
//! failing handshakes, a rejected reload, servers out of service, and other faults.

use std::collections::BTreeMap;

use becket_log::Timestamp;
use becket_proxy::memory::Shortage;

use self::Severity::{Failure, Warning};
use super::status::{BackendStatus, Status};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// All clients are served.
    Warning,
    /// Some clients are rejected, or will be.
    Failure,
}

pub fn problems(status: &Status) -> Vec<(Severity, String)> {
    let (process, changes) = (&status.process, &status.changes);
    let mut problems = expiring(status);
    let temporary = status.certificates.iter().filter(|it| it.temporary);
    problems.extend(temporary.map(|it| {
        let (name, listener) = (&it.name, &it.listener);
        let text = format!("certificate of {name} at listener {listener} is temporary: the ACME authority has not issued one; see the log");
        (Failure, text)
    }));
    let since = &changes.since_reload;
    let (failed, completed) = (since.failed_by_name, since.completed);
    // Count only handshakes with a configured name, because scanners rarely send one.
    if failed >= MANY_FAILED && failed > completed {
        problems.push((Failure, format!(
            "handshakes: {failed} failed and {completed} succeeded since the last reload, of clients that sent a configured name; see the log"
        )));
    }
    let repeated = status.signing.rsa_batches.map_or(0, |it| it.repeated);
    if repeated > 0 {
        problems.push((Warning, format!(
            "RSA: {repeated} batch signatures were invalid and were made again: a fault of this machine or of becket; set process.rsa-batch = \"off\" to disable batches"
        )));
    }
    if let Some(memory) = &process.memory
        && memory.shortage != Shortage::None
    {
        let (used, watermark) = (memory.used, memory.watermark);
        let text = format!(
            "memory: {used} bytes in use, above limits.memory ({watermark}): {}",
            memory.shortage.label()
        );
        let rejects = memory.shortage == Shortage::Refusing;
        problems.push((if rejects { Failure } else { Warning }, text));
    }
    let mut warn = |text: String| problems.push((Warning, text));
    for (call, count) in &process.refused_calls {
        warn(format!(
            "process.sandbox refused the system call {call}, {count} times: an attack, or a call missing in becket's list"
        ));
    }
    if let Some(reload) = &changes.reload {
        let time = reload.time;
        for error in &reload.errors {
            warn(format!(
                "reload at {time} refused, nothing changed: {error}"
            ));
        }
    }
    for file in &changes.watch.rejected {
        warn(format!(
            "changed file rejected: {file}; the loaded version stays in use"
        ));
    }
    problems.extend(status.backends.iter().flat_map(out_of_service));
    for it in status.signing.tokens.iter().filter(|it| !it.available) {
        let text = format!("token {}: not available: {}", it.token, it.fault);
        problems.push((Failure, text));
    }
    let cluster = status.sessions.cluster.iter();
    let faults = cluster.flat_map(|it| &it.faults);
    problems.extend(faults.map(|fault| (Warning, format!("cluster: {fault}"))));
    let store = status.sessions.store.iter().filter(|it| !it.available);
    problems.extend(store.map(|it| {
        let error = it.error.as_deref().unwrap_or("not connected yet");
        (Warning, format!("store {}: {error}", it.address))
    }));
    problems
}

/// Returns one problem per listener and expiry time. Each lists the names of the certificates that
/// expire soon.
fn expiring(status: &Status) -> Vec<(Severity, String)> {
    let now = status.process.now;
    let mut soon: BTreeMap<(Timestamp, &str), (String, Vec<&str>)> = BTreeMap::new();
    let all = status.certificates.iter();
    for it in all.filter(|it| it.renew_by <= now) {
        let entry = soon.entry((it.not_after, &*it.listener));
        let (_, names) = entry.or_insert_with(|| (it.expiry(now), Vec::new()));
        names.push(&it.name);
    }
    let each = soon.into_iter();
    each.map(|((not_after, listener), (expiry, mut names))| {
        names.dedup();
        let more = match names.len().saturating_sub(MOST_NAMES) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        names.truncate(MOST_NAMES);
        let names = names.join(", ");
        let severity = if not_after <= now { Failure } else { Warning };
        let text = format!("certificate of {names}{more} at listener {listener} {expiry}");
        (severity, text)
    })
    .collect()
}

fn out_of_service(backend: &BackendStatus) -> Vec<(Severity, String)> {
    let (name, servers) = (&backend.name, &backend.servers);
    let out = servers.iter().filter(|it| it.health.is_out_of_service());
    let mut problems: Vec<_> = out
        .map(|it| {
            let why = it.health.condition_reason.as_deref().unwrap_or("?");
            let server = &it.name;
            let text = format!("backend {name}: server {server} is out of service: {why}");
            (Warning, text)
        })
        .collect();
    if !servers.is_empty() && !servers.iter().any(|it| it.health.is_usable()) {
        problems.push((Failure, format!("backend {name}: no server is in service")));
    }
    problems
}

/// Minimum number of failed handshakes that counts as a problem. A few broken clients or a scanner
/// cause fewer.
const MANY_FAILED: u64 = 10;
/// Maximum number of names listed in a problem; a certificate may have hundreds.
const MOST_NAMES: usize = 3;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn found(status: serde_json::Value) -> Vec<String> {
        let found = problems(&serde_json::from_value(status).unwrap()).into_iter();
        found
            .map(|(severity, text)| match severity {
                Failure => format!("failure: {text}"),
                Warning => text,
            })
            .collect()
    }

    #[test]
    fn certificates_that_expire_soon_are_problems_grouped_by_time_and_listener() {
        let certificate = |name: &str, not_after: &str, renew_by: &str| json!({"listener": "web", "name": name, "key": "rsa", "not_after": not_after, "renew_by": renew_by});
        let status = json!({"now": "2026-11-22T10:00:00.000000Z", "certificates": [
            certificate("late.test", "2027-11-22T10:00:00.000000Z", "2027-11-08T10:00:00.000000Z"),
            certificate("short.test", "2026-11-24T11:00:00.000000Z", "2026-11-22T11:00:00.000000Z"),
            certificate("a.test", "2026-11-26T11:00:00.000000Z", "2026-11-12T11:00:00.000000Z"),
            certificate("*.a.test", "2026-11-26T11:00:00.000000Z", "2026-11-12T11:00:00.000000Z"),
            certificate("gone.test", "2026-11-20T09:59:59.000000Z", "2026-11-06T09:59:59.000000Z"),
        ]});
        let expected = [
            "failure: certificate of gone.test at listener web expired 2 days ago",
            "certificate of a.test, *.a.test at listener web expires in 4 days",
        ];
        assert_eq!(found(status), expected);
    }

    #[test]
    fn many_failed_handshakes_of_clients_that_know_a_name_are_a_problem() {
        let since = |completed: u64, by_name: u64| {
            found(json!({"since_reload": {"completed": completed, "failed_by_name": by_name}}))
        };
        for (completed, by_name) in [(0, 0), (0, 9), (50, 50)] {
            assert_eq!(since(completed, by_name), [""; 0]);
        }
        let found = since(14, 40);
        assert!(found[0].starts_with("failure: handshakes: 40 failed and 14 succeeded"));
    }

    #[test]
    fn servers_reloads_and_the_cluster_have_problems_of_their_own() {
        let status = json!({
            "reload": {"time": "2026-11-22T10:00:00.000000Z", "errors": ["bad"]},
            "backends": [{"name": "app", "servers": [
                {"name": "b:1", "condition": "out-of-service", "condition_reason": "refused"}]}],
            "cluster": {"faults": ["two of 8"]},
        });
        let expected = [
            "reload at 2026-11-22T10:00:00.000000Z refused, nothing changed: bad",
            "backend app: server b:1 is out of service: refused",
            "failure: backend app: no server is in service",
            "cluster: two of 8",
        ];
        assert_eq!(found(status), expected);
    }
}
