//! The status as text for a person at a terminal.
//!
//! Made of the JSON object, not of our structs: what another version does not have is left out,
//! and what it has besides is in `--json`. Text that a peer chose is escaped by JSON's rules.

use std::fmt::{self, Display, Write};
use std::time::Duration;

use serde_json::Value;

/// A status, ready to be printed; ends with a line feed.
#[derive(Clone, Copy, Debug)]
pub struct Page<'a>(pub &'a Value);

impl Display for Page<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let status = self.0;
        head(f, status)?;
        traffic(f, status)?;
        sessions(f, status)?;
        listeners(f, status)?;
        backends(f, status)?;
        cluster(f, &status["cluster"])?;
        stud(f, &status["stud"])
    }
}

fn head(f: &mut fmt::Formatter<'_>, status: &Value) -> fmt::Result {
    let uptime = Duration::from_secs(number(&status["uptime_seconds"]));
    let workers = number(&status["workers"]);
    writeln!(
        f,
        "becket {}, {} for {}, {workers} worker{}",
        text(&status["version"]),
        text(&status["state"]),
        Span(uptime),
        plural(workers)
    )?;
    let reload = &status["reload"];
    let errors = list(&reload["errors"]);
    match errors {
        _ if reload.is_null() => Ok(()),
        [] => line(f, "reload", format_args!("{} done", text(&reload["time"]))),
        errors => {
            let time = text(&reload["time"]);
            line(f, "reload", format_args!("{time} refused, nothing changed"))?;
            errors
                .iter()
                .try_for_each(|error| line(f, "", format_args!("{}", text(error))))
        }
    }
}

fn traffic(f: &mut fmt::Formatter<'_>, status: &Value) -> fmt::Result {
    let totals = &status["totals"];
    let of = |name: &str| number(&totals[name]);
    line(
        f,
        "connections",
        format_args!("{} open, {} accepted", of("connections"), of("accepted")),
    )?;
    let (full, resumed) = (of("handshakes_full"), of("handshakes_resumed"));
    line(
        f,
        "handshakes",
        format_args!(
            "{full} full, {resumed} resumed ({}), {} in flight",
            Share(resumed, full + resumed),
            of("handshakes_in_flight")
        ),
    )
}

fn sessions(f: &mut fmt::Formatter<'_>, status: &Value) -> fmt::Result {
    let (table, tickets) = (&status["sessions"], &status["tickets"]);
    let (entries, capacity) = (number(&table["entries"]), number(&table["capacity"]));
    let share = Share(entries, capacity);
    line(
        f,
        "sessions",
        format_args!("{entries} of {capacity} ({share})"),
    )?;
    let next = Duration::from_secs(number(&tickets["next_rotation_seconds"]));
    let epoch = number(&tickets["epoch"]);
    line(
        f,
        "ticket key",
        format_args!("epoch {epoch}, next in {}", Span(next)),
    )?;
    match tickets["node"].is_null() {
        true => Ok(()),
        false => line(
            f,
            "secrets",
            format_args!("{}", Joined(&tickets["secrets"])),
        ),
    }
}

fn listeners(f: &mut fmt::Formatter<'_>, status: &Value) -> fmt::Result {
    for listener in list(&status["listeners"]) {
        let name = text(&listener["name"]);
        line(
            f,
            "listener",
            format_args!("{name} on {}", Joined(&listener["bind"])),
        )?;
        for route in list(&listener["routes"]) {
            let policy = &route["policy"];
            let digest: String = text(&policy["digest"]).chars().take(16).collect();
            let names = match list(&route["names"]) {
                [] => "any name".to_owned(),
                _ => Joined(&route["names"]).to_string(),
            };
            line(
                f,
                "",
                format_args!(
                    "{names} to {}, policy {} ({digest})",
                    text(&route["backend"]),
                    text(&policy["name"])
                ),
            )?;
        }
    }
    Ok(())
}

fn backends(f: &mut fmt::Formatter<'_>, status: &Value) -> fmt::Result {
    for backend in list(&status["backends"]) {
        let servers = list(&backend["servers"]);
        let name = text(&backend["name"]);
        let count = servers.len() as u64;
        let waiting = match number(&backend["waiting"]) {
            0 => String::new(),
            count => format!(", {count} waiting for a slot"),
        };
        line(
            f,
            "backend",
            format_args!("{name}, {count} server{}{waiting}", plural(count)),
        )?;
        for server in servers {
            line(f, "", format_args!("{}", Member(server)))?;
        }
    }
    Ok(())
}

fn cluster(f: &mut fmt::Formatter<'_>, cluster: &Value) -> fmt::Result {
    if cluster.is_null() {
        return line(f, "cluster", format_args!("off"));
    }
    let node = number(&cluster["node"]);
    let listen = text(&cluster["listen"]);
    line(f, "cluster", format_args!("node {node} on {listen}"))?;
    for peer in list(&cluster["peers"]) {
        line(f, "  peer", format_args!("{}", Peer(peer)))?;
    }
    for name in list(&cluster["names"]) {
        if let Some(problem) = name["problem"].as_str() {
            let name = text(&name["name"]);
            line(f, "  name", format_args!("{name}: {problem}"))?;
        }
    }
    for fault in list(&cluster["faults"]) {
        line(f, "  fault", format_args!("{}", text(fault)))?;
    }
    Ok(())
}

/// One server on one line: what it has, and what is thought of it if that is known.
struct Member<'a>(&'a Value);

impl Display for Member<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let server = self.0;
        write!(f, "{}", text(&server["name"]))?;
        match (server["in_use"].as_u64(), server["maxconn"].as_u64()) {
            (Some(count), Some(most)) => write!(f, ", {count} of {most} connections")?,
            (Some(count), None) => write!(f, ", {count} open")?,
            (None, _) => {}
        }
        if server["state"] == "disabled" {
            f.write_str(", disabled")?;
        }
        match server["condition"].as_str() {
            None | Some("unchecked") => {}
            Some("out-of-service") => {
                let reason = text(&server["condition_reason"]);
                write!(f, ", out-of-service: {reason}")?;
            }
            Some(_) => write!(f, ", {}", text(&server["condition"]))?,
        }
        match (server["lost_its_name"] == true, &server["state"]) {
            (true, state) if state == "unresolved" => {
                f.write_str(", not used: its name does not resolve yet")
            }
            (true, _) => f.write_str(", its name does not resolve any more"),
            (false, _) => Ok(()),
        }
    }
}

/// Where sessions of stud and hitch are received, and how many were stored and refused.
fn stud(f: &mut fmt::Formatter<'_>, stud: &Value) -> fmt::Result {
    if stud.is_null() {
        return Ok(());
    }
    let listen = text(&stud["listen"]);
    line(f, "stud", format_args!("{}", Received(&listen, stud)))
}

struct Received<'a>(&'a Text<'a>, &'a Value);

impl Display for Received<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(listen, stud) = self;
        match stud["receiving"].as_bool() {
            Some(true) => write!(f, "on {listen}")?,
            _ => f.write_str("switched off")?,
        }
        let datagrams = stud["datagrams"].as_object();
        for (outcome, count) in datagrams.into_iter().flatten() {
            if let Some(count @ 1..) = count.as_u64() {
                write!(f, ", {count} {outcome}")?;
            }
        }
        Ok(())
    }
}

/// One peer on one line.
struct Peer<'a>(&'a Value);

impl Display for Peer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let peer = self.0;
        write!(f, "{} {}", text(&peer["address"]), text(&peer["state"]))?;
        if let Some(node) = peer["node"].as_u64() {
            write!(f, ", node {node}")?;
        }
        if let Some(seconds) = peer["heard_seconds_ago"].as_f64() {
            write!(f, ", heard {seconds:.1} s ago")?;
        }
        if let Some(ms) = peer["round_trip_ms"].as_f64() {
            write!(f, ", round trip {ms:.1} ms")?;
        }
        for key in ["sent", "received", "lost", "replayed", "rejected"] {
            if let Some(count) = peer[key].as_u64() {
                write!(f, ", {count} {key}")?;
            }
        }
        Ok(())
    }
}

fn line(f: &mut fmt::Formatter<'_>, name: &str, what: fmt::Arguments<'_>) -> fmt::Result {
    writeln!(f, "{name:<13}{what}")
}

fn text(value: &Value) -> Text<'_> {
    Text(value)
}

/// A text without what could drive a terminal; `?` for what is not there.
#[derive(Clone, Copy)]
struct Text<'a>(&'a Value);

impl Text<'_> {
    fn chars(&self) -> impl Iterator<Item = char> + '_ {
        self.0.as_str().unwrap_or("?").chars()
    }
}

impl Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.chars().try_for_each(|char| match char.is_control() {
            true => write!(f, "{}", char.escape_unicode()),
            false => f.write_char(char),
        })
    }
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn plural(count: u64) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// Texts with commas between them.
struct Joined<'a>(&'a Value);

impl Display for Joined<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, value) in list(self.0).iter().enumerate() {
            let comma = if index > 0 { ", " } else { "" };
            write!(f, "{comma}{}", text(value))?;
        }
        Ok(())
    }
}

/// A part of a whole in percent.
struct Share(u64, u64);

impl Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.1 {
            0 => f.write_str("none"),
            whole => write!(f, "{:.1} %", self.0 as f64 * 100.0 / whole as f64),
        }
    }
}

/// A time in its two largest units.
struct Span(Duration);

impl Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        match seconds {
            0..60 => write!(f, "{seconds} s"),
            60..3600 => write!(f, "{} min {} s", seconds / 60, seconds % 60),
            3600..86_400 => write!(f, "{} h {} min", seconds / 3600, seconds / 60 % 60),
            _ => write!(f, "{} d {} h", seconds / 86_400, seconds / 3600 % 24),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_status_becomes_lines_and_what_is_missing_is_passed_over() {
        let status = json!({
            "version": "1.2.3", "state": "serving", "uptime_seconds": 3700, "workers": 2,
            "totals": {"connections": 3, "accepted": 9, "handshakes_full": 1,
                "handshakes_resumed": 3, "handshakes_in_flight": 0},
            "sessions": {"entries": 5, "capacity": 10},
            "tickets": {"epoch": 4, "next_rotation_seconds": 61, "node": 7,
                "secrets": ["0a0b0c0d", "00000001"]},
            "listeners": [{"name": "web", "bind": [":1", ":2"], "routes": [
                {"names": [], "backend": "app", "policy": {"name": "p", "digest": "ab".repeat(32)}}
            ]}],
            "backends": [{"name": "app", "waiting": 4, "servers": [
                {"name": "a:1", "in_use": 2, "maxconn": 2, "condition": "in-service"},
                {"name": "b:1", "in_use": 0, "maxconn": null, "condition": "out-of-service",
                    "condition_reason": "refused", "lost_its_name": true},
                {"name": "c:1", "state": "disabled", "condition": "unchecked"},
                {"name": "d:1", "in_use": 0, "state": "unresolved", "condition": "on-trial",
                    "lost_its_name": true}
            ]}],
            "reload": {"time": "t", "errors": ["a\u{1b}[31mb"]},
            "cluster": {"node": 7, "listen": "10.0.0.1:1", "peers": [
                {"address": "10.0.0.2:1", "state": "live", "node": 8, "heard_seconds_ago": 0.25,
                    "lost": 2}
            ], "names": [{"name": "b:1", "problem": "no such host"}], "faults": ["two of 8"]},
            "stud": {"listen": "10.0.0.1:8890", "receiving": true,
                "datagrams": {"bad-seal": 2, "stored": 5, "version": 0}}
        });
        let page = Page(&status).to_string();
        for line in [
            "becket 1.2.3, serving for 1 h 1 min, 2 workers",
            "reload       t refused, nothing changed",
            "             a\\u{1b}[31mb",
            "handshakes   1 full, 3 resumed (75.0 %), 0 in flight",
            "sessions     5 of 10 (50.0 %)",
            "ticket key   epoch 4, next in 1 min 1 s",
            "secrets      0a0b0c0d, 00000001",
            "listener     web on :1, :2",
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
            "  fault      two of 8",
        ] {
            assert!(page.lines().any(|l| l == line), "{line} is not in\n{page}");
        }
    }

    #[test]
    fn an_empty_object_is_no_fault() {
        let page = Page(&json!({})).to_string();
        assert!(page.starts_with("becket ?, ? for 0 s"), "{page}");
        assert!(page.ends_with("cluster      off\n"), "{page}");
    }
}
