//! The status as text for a person: `becket status`, and the page `/`.
//!
//! Made of the JSON object, not of our structs: what another version does not have is left out,
//! and what it has besides is in `--json`. What somebody has to look at stands on top
//! ([`problems`]). Rates are differences of two statuses. Text is escaped where it could drive a terminal.

use std::fmt::{Display, Write};
use std::time::Duration;

use serde_json::Value;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Writes a status, ready to be printed; with rates if there is one of a moment before. Ends with a line feed.
pub fn page(status: &Value, before: Option<&Value>) -> String {
    let mut page = Page(String::new());
    let uptime = Duration::from_secs(number(&status["uptime_seconds"]));
    let workers = number(&status["workers"]);
    let (version, state) = (text(&status["version"]), text(&status["state"]));
    let (uptime, s) = (span(uptime), plural(workers));
    let restarts = match number(&status["restarts"]) {
        0 => String::new(),
        count => format!(", {count} restart{}", plural(count)),
    };
    // No row like the others: the title.
    page.0 = format!("becket {version}, {state} for {uptime}, {workers} worker{s}{restarts}\n");
    for problem in problems(status) {
        page.line("problem", problem);
    }
    let reload = &status["reload"];
    if !reload.is_null() && list(&reload["errors"]).is_empty() {
        page.line("reload", format_args!("{} done", text(&reload["time"])));
    }
    let watch = &status["watch"];
    if !watch["time"].is_null() {
        let (time, count) = (text(&watch["time"]), number(&watch["renewals"]));
        let s = plural(count);
        page.line("renewed", format_args!("{time}, {count} time{s}"));
    }
    edits(&mut page, &status["edits"]);
    traffic(&mut page, status, before);
    certificates(&mut page, status);
    sessions(&mut page, status);
    listeners(&mut page, status);
    backends(&mut page, status);
    tokens(&mut page, status);
    cluster(&mut page, status);
    stud(&mut page, &status["stud"]);
    page.0
}

/// Kept edits, and changes that the next reload ends.
fn edits(page: &mut Page, edits: &Value) {
    for edit in list(&edits["kept"]) {
        page.line("kept", text(edit));
    }
    for change in list(&edits["temporary"]) {
        page.line("temporary", text(change));
    }
}

/// What somebody has to look at: certificates that end, handshakes that fail, signatures that did not verify, a reload that was refused, servers that are out of
/// service, peers that cannot join.
pub fn problems(status: &Value) -> Vec<String> {
    let mut problems = Vec::new();
    for ending in endings(status) {
        match ending.days {
            days if days < 0 => problems.push(format!("certificate of {ending} has expired")),
            0 => problems.push(format!("certificate of {ending} ends within a day")),
            1..ENDS_SOON_DAYS => problems.push(format!(
                "certificate of {ending} ends in {} days",
                ending.days
            )),
            _ => {}
        }
    }
    problems.extend(failing(status));
    let repeated = number(&status["rsa_batches"]["repeated"]);
    if repeated > 0 {
        problems.push(format!(
            "RSA: {repeated} signatures of batches did not verify and were made again: a fault of this machine or of becket; process.rsa-batch = \"off\" does without batches"
        ));
    }
    let memory = &status["memory"];
    if !memory.is_null() && memory["shortage"] != "none" {
        let (used, watermark) = (number(&memory["used"]), number(&memory["watermark"]));
        problems.push(format!(
            "memory: {used} bytes in use, above limits.memory ({watermark}): {}",
            text(&memory["shortage"])
        ));
    }
    for (call, count) in status["refused_calls"].as_object().into_iter().flatten() {
        if status["sandbox"]["mode"] == "on" {
            problems.push(format!(
                "process.sandbox refused the system call {call}, {count} times: an attack, or a call that becket's list lacks"
            ));
        }
    }
    let reload = &status["reload"];
    for error in list(&reload["errors"]) {
        let (time, error) = (text(&reload["time"]), text(error));
        problems.push(format!(
            "reload at {time} refused, nothing changed: {error}"
        ));
    }
    for fault in list(&status["watch"]["rejected"]) {
        let fault = text(fault);
        problems.push(format!("kept out, what was in use stays: {fault}"));
    }
    out_of_service(status, &mut problems);
    let tokens = list(&status["tokens"]).iter();
    for token in tokens.filter(|token| token["available"] == false) {
        let (name, why) = (text(&token["token"]), text(&token["fault"]));
        problems.push(format!("token {name}: not available: {why}"));
    }
    problems.extend(
        list(&status["cluster"]["faults"])
            .iter()
            .map(|fault| format!("cluster: {}", text(fault))),
    );
    problems
}

/// Backends whose servers are not there.
fn out_of_service(status: &Value, problems: &mut Vec<String>) {
    for backend in list(&status["backends"]) {
        let servers = list(&backend["servers"]).iter();
        let out = servers.filter(|server| server["condition"] == "out-of-service");
        for server in out {
            let (name, why) = (text(&server["name"]), text(&server["condition_reason"]));
            let backend = text(&backend["name"]);
            problems.push(format!(
                "backend {backend}: server {name} is out of service: {why}"
            ));
        }
        let usable = |server: &Value| {
            server["state"] == "passing" && server["condition"] != "out-of-service"
        };
        let servers = list(&backend["servers"]);
        if !servers.is_empty() && !servers.iter().any(usable) {
            problems.push(format!(
                "backend {}: no server is in service",
                text(&backend["name"])
            ));
        }
    }
}

/// Whether most clients that know our names cannot get in. Whoever only tries addresses asks for no name, or for another.
fn failing(status: &Value) -> Option<String> {
    let since = &status["since_reload"];
    let (failed, completed) = (
        number(&since["failed_by_name"]),
        number(&since["completed"]),
    );
    (failed >= MANY_FAILED && failed > completed).then(|| {
        format!(
            "handshakes: {failed} failed and {completed} did not since the last reload, of clients that asked for a name of ours; the log says why"
        )
    })
}

fn tokens(page: &mut Page, status: &Value) {
    for token in list(&status["tokens"]) {
        page.line(
            "token",
            format_args!(
                "{}, {} signatures, {} failures, {} in flight; {}",
                text(&token["token"]),
                number(&token["signatures"]),
                number(&token["failures"]),
                number(&token["in_flight"]),
                text(&token["module"]),
            ),
        );
    }
}

fn traffic(page: &mut Page, status: &Value, before: Option<&Value>) {
    let (totals, rates) = (&status["totals"], Rates::of(status, before));
    let of = |name: &str| format!("{}{}", number(&totals[name]), rates.of_total(name));
    page.line(
        "connections",
        format_args!(
            "{} open, {} accepted",
            number(&totals["connections"]),
            of("accepted")
        ),
    );
    let (full, resumed) = (
        number(&totals["handshakes_full"]),
        number(&totals["handshakes_resumed"]),
    );
    page.line(
        "handshakes",
        format_args!(
            "{} full, {} resumed ({}), {} failed, {} in flight",
            of("handshakes_full"),
            of("handshakes_resumed"),
            share(resumed, full + resumed),
            of("handshakes_failed"),
            number(&totals["handshakes_in_flight"]),
        ),
    );
    let batches = &status["rsa_batches"];
    if !batches.is_null() {
        let [made, signatures] = ["made", "signatures"].map(|name| number(&batches[name]));
        page.line(
            "RSA",
            format_args!("{signatures} signatures in {made} batches"),
        );
    }
    let ends = totals["closed"].as_object().into_iter().flatten();
    let mut ends: Vec<(&String, u64)> = ends
        .map(|(reason, count)| (reason, number(count)))
        .collect();
    ends.sort_by_key(|(reason, count)| (std::cmp::Reverse(*count), *reason));
    for (index, (reason, count)) in ends.into_iter().enumerate() {
        let rate = rates.of_reason(reason);
        let name = if index == 0 { "ended" } else { "" };
        page.line(name, format_args!("{count} {}{rate}", escaped(reason)));
    }
}

/// What has changed since the status before, by the clock of the becket that was asked.
struct Rates<'a> {
    now: &'a Value,
    before: Option<(&'a Value, f64)>,
}

impl<'a> Rates<'a> {
    fn of(status: &'a Value, before: Option<&'a Value>) -> Self {
        let before =
            before.and_then(|before| Some((&before["totals"], seconds_between(before, status)?)));
        Self {
            now: &status["totals"],
            before,
        }
    }

    fn of_total(&self, name: &str) -> String {
        self.show(&self.now[name], |before| &before[name])
    }

    fn of_reason(&self, reason: &str) -> String {
        self.show(&self.now["closed"][reason], |before| {
            &before["closed"][reason]
        })
    }

    /// Such as ` (2.0/s)`; nothing without a status before.
    fn show(&self, now: &Value, then: impl Fn(&'a Value) -> &'a Value) -> String {
        self.before.map_or_else(String::new, |(before, seconds)| {
            let more = number(now).saturating_sub(number(then(before)));
            format!(" ({:.1}/s)", more as f64 / seconds)
        })
    }
}

/// Names of one listener whose certificates end at the same moment.
struct Ending<'a> {
    days: i64,
    until: &'a Value,
    listener: &'a Value,
    names: Vec<&'a Value>,
    /// By an operator, not by the file.
    is_set: bool,
}

impl Display for Ending<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut names: Vec<String> = self
            .names
            .iter()
            .take(MOST_NAMES)
            .map(|name| text(name))
            .collect();
        names.dedup();
        let more = match self.names.len().saturating_sub(MOST_NAMES) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let listener = text(self.listener);
        write!(f, "{}{more} at listener {listener}", names.join(", "))?;
        if self.is_set {
            f.write_str(", not of the file")
        } else {
            Ok(())
        }
    }
}

/// Days until a certificate ends, rounded down: what has expired has less than none.
pub(super) fn days_left(status: &Value, certificate: &Value) -> Option<i64> {
    let left = moment(&certificate["not_after"])? - moment(&status["now"])?;
    Some(left.whole_seconds().div_euclid(24 * 60 * 60))
}

/// Soonest first.
fn endings(status: &Value) -> Vec<Ending<'_>> {
    let mut endings: Vec<Ending<'_>> = Vec::new();
    for certificate in list(&status["certificates"]) {
        let (until, listener) = (&certificate["not_after"], &certificate["listener"]);
        let Some(days) = days_left(status, certificate) else {
            continue;
        };
        let is_set = certificate["set_until"].is_string();
        let same = |one: &&mut Ending<'_>| {
            one.until == until && one.listener == listener && one.is_set == is_set
        };
        match endings.iter_mut().find(same) {
            Some(one) => one.names.push(&certificate["name"]),
            None => endings.push(Ending {
                days,
                until,
                listener,
                names: vec![&certificate["name"]],
                is_set,
            }),
        }
    }
    endings.sort_by_key(|one| one.days);
    endings
}

fn certificates(page: &mut Page, status: &Value) {
    for ending in endings(status) {
        let (days, s) = (ending.days, plural(ending.days.unsigned_abs()));
        let until = text(ending.until);
        let day = until.split('T').next().unwrap_or_default();
        page.line(
            "certificate",
            format_args!("{days} day{s} left, until {day}: {ending}"),
        );
    }
}

fn sessions(page: &mut Page, status: &Value) {
    let (table, tickets) = (&status["sessions"], &status["tickets"]);
    let (entries, capacity) = (number(&table["entries"]), number(&table["capacity"]));
    let share = share(entries, capacity);
    page.line(
        "sessions",
        format_args!("{entries} of {capacity} ({share})"),
    );
    let next = span(Duration::from_secs(number(
        &tickets["next_rotation_seconds"],
    )));
    let epoch = number(&tickets["epoch"]);
    page.line("ticket key", format_args!("epoch {epoch}, next in {next}"));
    if !tickets["node"].is_null() {
        page.line("secrets", joined(&tickets["secrets"]));
    }
}

fn listeners(page: &mut Page, status: &Value) {
    for listener in list(&status["listeners"]) {
        let (name, bind) = (text(&listener["name"]), joined(&listener["bind"]));
        page.line("listener", format_args!("{name} on {bind}"));
        for route in list(&listener["routes"]) {
            let (backend, policy) = (text(&route["backend"]), &route["policy"]);
            let digest: String = text(&policy["digest"]).chars().take(16).collect();
            let names = match list(&route["names"]) {
                [] => "any name".to_owned(),
                _ => joined(&route["names"]),
            };
            let how = match policy["name"].as_str() {
                Some(name) => format!("policy {} ({digest})", escaped(name)),
                None => "no TLS ends here".to_owned(),
            };
            page.line("", format_args!("{names} to {backend}, {how}"));
        }
    }
}

fn backends(page: &mut Page, status: &Value) {
    for backend in list(&status["backends"]) {
        let servers = list(&backend["servers"]);
        let (name, count) = (text(&backend["name"]), servers.len() as u64);
        let waiting = match number(&backend["waiting"]) {
            0 => String::new(),
            count => format!(", {count} waiting for a slot"),
        };
        if let Some(folder) = backend["files"].as_str() {
            page.line(
                "backend",
                format_args!("{name}, files of {}", escaped(folder)),
            );
            continue;
        }
        let s = plural(count);
        page.line(
            "backend",
            format_args!("{name}, {count} server{s}{waiting}"),
        );
        for server in servers {
            page.line("", server_line(server));
        }
        if !list(&backend["removed"]).is_empty() {
            let removed = joined(&backend["removed"]);
            page.line("", format_args!("of the file and removed: {removed}"));
        }
    }
}

/// One server: what it has, and what is thought of it if that is known.
fn server_line(server: &Value) -> String {
    let mut line = text(&server["name"]);
    line += &match (server["in_use"].as_u64(), server["maxconn"].as_u64()) {
        (Some(count), Some(most)) => format!(", {count} of {most} connections"),
        (Some(count), None) => format!(", {count} open"),
        (None, _) => String::new(),
    };
    if server["added"] == true {
        line += ", not of the file";
    }
    if server["state"] == "disabled" {
        line += ", disabled";
    }
    line += &match server["condition"].as_str() {
        None | Some("unchecked") => String::new(),
        Some("out-of-service") => {
            format!(", out-of-service: {}", text(&server["condition_reason"]))
        }
        Some(_) => format!(", {}", text(&server["condition"])),
    };
    if server["dns_stale"] == true {
        line += if server["state"] == "unresolved" {
            ", not used: its name does not resolve yet"
        } else {
            ", its name does not resolve any more"
        };
    }
    line
}

fn cluster(page: &mut Page, status: &Value) {
    let cluster = &status["cluster"];
    if cluster.is_null() {
        // A drain has left it, if there was one.
        if status["state"] != "draining" {
            page.line("cluster", "off");
        }
        return;
    }
    let (node, listen) = (number(&cluster["node"]), text(&cluster["listen"]));
    page.line("cluster", format_args!("node {node} on {listen}"));
    for peer in list(&cluster["peers"]) {
        page.line("  peer", peer_line(peer));
    }
    for name in list(&cluster["names"]) {
        if !name["problem"].is_null() {
            let (name, problem) = (text(&name["name"]), text(&name["problem"]));
            page.line("  name", format_args!("{name}: {problem}"));
        }
    }
}

fn peer_line(peer: &Value) -> String {
    let mut line = format!("{} {}", text(&peer["address"]), text(&peer["state"]));
    if let Some(node) = peer["node"].as_u64() {
        line += &format!(", node {node}");
    }
    if let Some(seconds) = peer["heard_seconds_ago"].as_f64() {
        line += &format!(", heard {seconds:.1} s ago");
    }
    for key in ["sent", "received", "lost", "replayed", "dropped"] {
        if let Some(count) = peer[key].as_u64() {
            line += &format!(", {count} {key}");
        }
    }
    line
}

/// Where sessions of stud and hitch are received, and what became of them.
fn stud(page: &mut Page, stud: &Value) {
    if stud.is_null() {
        return;
    }
    let mut line = match stud["receiving"].as_bool() {
        Some(true) => format!("on {}", text(&stud["listen"])),
        _ => "switched off".to_owned(),
    };
    for (outcome, count) in stud["datagrams"].as_object().into_iter().flatten() {
        if number(count) > 0 {
            line += &format!(", {count} {}", escaped(outcome));
        }
    }
    page.line("stud", line);
}

/// The page while it is written.
struct Page(String);

impl Page {
    fn line(&mut self, name: &str, what: impl Display) {
        // Writing to a `String` does not fail.
        writeln!(self.0, "{name:<13}{what}").ok();
    }
}

/// A text without what could drive a terminal; `?` for what is not there.
pub fn text(value: &Value) -> String {
    escaped(value.as_str().unwrap_or("?"))
}

fn escaped(text: &str) -> String {
    let each = text.chars().map(|char| {
        if char.is_control() {
            char.escape_unicode().to_string()
        } else {
            char.to_string()
        }
    });
    each.collect()
}

/// The time from one status to a later one, by the clock of the becket that was asked.
pub fn seconds_between(before: &Value, status: &Value) -> Option<f64> {
    let seconds = (moment(&status["now"])? - moment(&before["now"])?).as_seconds_f64();
    (seconds > 0.0).then_some(seconds)
}

fn moment(value: &Value) -> Option<OffsetDateTime> {
    OffsetDateTime::parse(value.as_str()?, &Rfc3339).ok()
}

pub fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

pub fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn joined(value: &Value) -> String {
    let texts: Vec<String> = list(value).iter().map(text).collect();
    texts.join(", ")
}

fn plural(count: u64) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// A part of a whole in percent.
fn share(part: u64, whole: u64) -> String {
    match whole {
        0 => "none".to_owned(),
        whole => format!("{:.1} %", part as f64 * 100.0 / whole as f64),
    }
}

/// A time in its two largest units.
pub fn span(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3600 % 24),
    }
}

/// A certificate with fewer days left is a problem: most are renewed a month ahead.
pub(super) const ENDS_SOON_DAYS: i64 = 14;
/// Fewer failed handshakes are somebody's trouble, or a scanner that knows the name. More, and more than succeed, are ours.
const MANY_FAILED: u64 = 10;
/// Names that a line shows; a certificate may have hundreds.
const MOST_NAMES: usize = 3;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_status_becomes_lines_and_what_is_missing_is_passed_over() {
        let status = json!({
            "version": "1.2.3", "state": "serving", "uptime_seconds": 3700, "workers": 2, "restarts": 1,
            "totals": {"connections": 3, "accepted": 9, "handshakes_full": 1,
                "handshakes_resumed": 3, "handshakes_in_flight": 0,
                "closed": {"finished": 5, "not-tls": 1}},
            "rsa_batches": {"made": 3, "signatures": 23, "repeated": 1},
            "sessions": {"entries": 5, "capacity": 10},
            "tickets": {"epoch": 4, "next_rotation_seconds": 61, "node": 7,
                "secrets": ["0a0b0c0d", "00000001"]},
            "listeners": [{"name": "web", "bind": [":1", ":2"], "routes": [
                {"names": ["in.test"], "backend": "farm", "policy": null},
                {"names": [], "backend": "app", "policy": {"name": "p", "digest": "ab".repeat(32)}}
            ]}],
            "backends": [{"name": "app", "waiting": 4, "servers": [
                {"name": "a:1", "in_use": 2, "maxconn": 2, "condition": "in-service"},
                {"name": "b:1", "in_use": 0, "maxconn": null, "condition": "out-of-service",
                    "condition_reason": "refused", "dns_stale": true},
                {"name": "c:1", "state": "disabled", "condition": "unchecked"},
                {"name": "d:1", "in_use": 0, "state": "unresolved", "condition": "on-trial",
                    "dns_stale": true}
            ]}],
            "reload": {"time": "t", "errors": ["a\u{1b}[31mb"]},
            "cluster": {"node": 7, "listen": "10.0.0.1:1", "peers": [
                {"address": "10.0.0.2:1", "state": "live", "node": 8, "heard_seconds_ago": 0.25,
                    "lost": 2}
            ], "names": [{"name": "b:1", "problem": "no such host"}], "faults": ["two of 8"]},
            "stud": {"listen": "10.0.0.1:8890", "receiving": true,
                "datagrams": {"bad-seal": 2, "stored": 5, "version": 0}}
        });
        let page = page(&status, None);
        for line in [
            "becket 1.2.3, serving for 1 h 1 min, 2 workers, 1 restart",
            "problem      reload at t refused, nothing changed: a\\u{1b}[31mb",
            "problem      backend app: server b:1 is out of service: refused",
            "problem      cluster: two of 8",
            "handshakes   1 full, 3 resumed (75.0 %), 0 failed, 0 in flight",
            "RSA          23 signatures in 3 batches",
            "problem      RSA: 1 signatures of batches did not verify and were made again: a fault of this machine or of becket; process.rsa-batch = \"off\" does without batches",
            "ended        5 finished",
            "             1 not-tls",
            "sessions     5 of 10 (50.0 %)",
            "ticket key   epoch 4, next in 1 min 1 s",
            "secrets      0a0b0c0d, 00000001",
            "listener     web on :1, :2",
            "             in.test to farm, no TLS ends here",
            "             any name to app, policy p (abababababababab)",
            "backend      app, 4 servers, 4 waiting for a slot",
            "             a:1, 2 of 2 connections, in-service",
            "             b:1, 0 open, out-of-service: refused, its name does not resolve any more",
            "             d:1, 0 open, on-trial, not used: its name does not resolve yet",
            "             c:1, disabled",
            "cluster      node 7 on 10.0.0.1:1",
            "stud         on 10.0.0.1:8890, 2 bad-seal, 5 stored",
            "  peer       10.0.0.2:1 live, node 8, heard 0.2 s ago, 2 lost",
            "  name       b:1: no such host",
        ] {
            assert!(page.lines().any(|l| l == line), "{line} is not in\n{page}");
        }
    }

    #[test]
    fn a_certificate_that_ends_soon_is_a_problem_and_each_has_its_days() {
        let certificate = |name: &str, not_after: &str| json!({"listener": "web", "name": name, "key": "rsa", "not_after": not_after});
        let status = json!({"now": "2026-11-22T10:00:00.000000Z", "certificates": [
            certificate("late.test", "2027-11-22T10:00:00.000000Z"),
            certificate("a.test", "2026-11-26T11:00:00.000000Z"),
            certificate("*.a.test", "2026-11-26T11:00:00.000000Z"),
            certificate("gone.test", "2026-11-22T09:59:59.000000Z"),
        ]});
        let expected = [
            "certificate of gone.test at listener web has expired",
            "certificate of a.test, *.a.test at listener web ends in 4 days",
        ];
        assert_eq!(problems(&status), expected);
        let page = page(&status, None);
        for line in [
            "certificate  4 days left, until 2026-11-26: a.test, *.a.test at listener web",
            "certificate  365 days left, until 2027-11-22: late.test at listener web",
        ] {
            assert!(page.lines().any(|l| l == line), "{line} is not in\n{page}");
        }
    }

    #[test]
    fn clients_that_know_our_names_and_cannot_get_in_are_a_problem() {
        let status = |second: u64, completed: u64, failed: u64, by_name: u64| {
            json!({"now": format!("2026-11-22T10:00:{second:02}.000000Z"),
                "totals": {"accepted": completed + failed, "handshakes_full": completed,
                    "handshakes_resumed": 0, "handshakes_failed": failed,
                    "closed": {"handshake-failed": failed}},
                "since_reload": {"completed": completed, "failed_by_name": by_name}})
        };
        // Those who try every address; a few of those who know the name; many, but more get in.
        for none in [
            status(0, 0, 1000, 0),
            status(0, 0, 9, 9),
            status(0, 50, 50, 50),
        ] {
            assert_eq!(problems(&none), [""; 0]);
        }
        let (before, after) = (status(0, 10, 5, 5), status(2, 14, 45, 40));
        assert_eq!(
            problems(&after),
            [
                "handshakes: 40 failed and 14 did not since the last reload, of clients that asked for a name of ours; the log says why"
            ]
        );
        let page = page(&after, Some(&before));
        for line in [
            "handshakes   14 (2.0/s) full, 0 (0.0/s) resumed (0.0 %), 45 (20.0/s) failed, 0 in flight",
            "ended        45 handshake-failed (20.0/s)",
        ] {
            assert!(page.lines().any(|l| l == line), "{line} is not in\n{page}");
        }
    }

    #[test]
    fn an_empty_object_is_no_fault() {
        let page = page(&json!({}), None);
        assert!(page.starts_with("becket ?, ? for 0 s"), "{page}");
        assert!(page.ends_with("cluster      off\n"), "{page}");
        let page = super::page(&json!({"state": "draining"}), None);
        assert!(!page.contains("cluster"), "it was left: {page}");
    }
}
