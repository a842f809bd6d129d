//! Formats answers as the tables that `becket ctl` prints.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write;

use becket_config::choices::ServerMode;
use becket_control::certificates::CertificateStatus;
use becket_control::replies::{ConnectionList, RemovedServer, SourceList, TopConnections};
use becket_control::status::{BackendStatus, LogStatus, ServerStatus};
use serde_json::{Map, Value};

use crate::status::escaped;

pub(super) type Row = Map<String, Value>;

/// Formats a table. Each column is as wide as its widest cell, and numbers are right-aligned.
fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        let cells = cells.map(|cell| cell.chars().count());
        cells.chain([head[column].len()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let mut text = String::new();
    let head = head.iter().map(|cell| (*cell).to_owned()).collect();
    for row in [&head].into_iter().chain(rows) {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let is_number = cell.starts_with(|first: char| first.is_ascii_digit())
                && cell.chars().all(|c| c.is_ascii_digit());
            // Writing to a `String` does not fail.
            if is_number {
                write!(line, "{cell:>width$}  ").ok()
            } else {
                write!(line, "{cell:<width$}  ").ok()
            };
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

/// Formats a value as a table cell. `null` becomes an empty cell.
fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => escaped(text),
        Value::Array(values) => values.iter().map(cell).collect::<Vec<_>>().join(" "),
        other => other.to_string(),
    }
}

pub(super) fn servers(backends: &Vec<BackendStatus>) -> String {
    let head = [
        "BACKEND/SERVER",
        "STATE",
        "WEIGHT",
        "OPEN",
        "MAXCONN",
        "SERVED",
        "CHANGED (IN THE FILE)",
    ];
    let mut rows = Vec::new();
    let mut removed = String::new();
    for backend in backends {
        let name = escaped(&backend.name);
        for server in &backend.servers {
            rows.push(vec![
                format!("{name}/{}", escaped(&server.name)),
                state(server).to_owned() + if server.backup { " (backup)" } else { "" },
                server.weight.to_string(),
                server.in_use.to_string(),
                server.maxconn.map_or_else(String::new, |it| it.to_string()),
                server.connections.to_string(),
                changes(server),
            ]);
        }
        for server in &backend.removed {
            removed += &format!(
                "removed until the next reload: {name}/{}\n",
                escaped(server)
            );
        }
    }
    table(&head, &rows) + &removed
}

/// Returns the state of a server in HAProxy's terms.
fn state(server: &ServerStatus) -> &'static str {
    let health = &server.health;
    match (&*health.state, server.mode) {
        ("disabled", _) | (_, ServerMode::Maintenance) => "MAINT",
        ("unresolved", _) => "DOWN (no address)",
        _ if !health.is_usable() => "DOWN",
        (_, ServerMode::Drain) => "DRAIN",
        _ if server.weight == 0 => "DRAIN",
        _ if health.condition == "unchecked" => "no check",
        _ => "UP",
    }
}

/// Returns the changed keys of a server, each with its value in the configuration file.
fn changes(server: &ServerStatus) -> String {
    let mut changes = Vec::new();
    if server.added {
        changes.push("added".to_owned());
    }
    for (key, was) in server.in_file.iter().flatten() {
        changes.push(match was {
            Value::Null => format!("{key} (none)"),
            was => format!("{key} ({})", cell(was)),
        });
    }
    changes.join(" ")
}

pub(super) fn removed_server(server: &RemovedServer) -> String {
    let (name, open) = (escaped(&server.removed), server.open);
    format!("{name}: removed, {open} connections continue\n")
}

pub(super) fn changed_server(server: &ServerStatus) -> String {
    let (name, mode) = (escaped(&server.name), server.mode.label());
    let limit = match server.maxconn {
        None => "no limit".to_owned(),
        Some(limit) => format!("maxconn {limit}"),
    };
    let changed = match changes(server) {
        none if none.is_empty() => "as in the file".to_owned(),
        changes => format!("changed (in the file): {changes}"),
    };
    let (weight, at) = (server.weight, escaped(&server.addresses.join(" ")));
    format!("{name}: {mode}, weight {weight}, {limit}, at {at}; {changed}\n")
}

/// Formats certificates in order of expiry. `omitted` others expire later.
pub(super) fn certificates(certificates: &[CertificateStatus], omitted: usize) -> String {
    let mut rows: Vec<Vec<String>> = certificates
        .iter()
        .map(|it| {
            let expiry = if it.temporary {
                "temporary".to_owned()
            } else {
                it.not_after.to_string()
            };
            vec![
                expiry,
                escaped(&it.listener),
                escaped(&it.name),
                escaped(&it.key),
                escaped(&it.serial),
            ]
        })
        .collect();
    // Timestamps sort as strings, because all have one format.
    rows.sort();
    let mut text = table(&["EXPIRES", "LISTENER", "NAME", "KEY", "SERIAL"], &rows);
    if omitted > 0 {
        text += &format!("and {omitted} more, which expire later\n");
    }
    text
}

/// Formats connections. The last line shows whether the list is incomplete.
pub(super) fn connections(list: &ConnectionList<Row>) -> String {
    let columns = [
        ("ID", "id"),
        ("CLIENT", "client"),
        ("LISTENER", "listener"),
        ("SNI", "sni"),
        ("PHASE", "phase"),
        ("TLS", "version"),
        ("HANDSHAKE", "handshake"),
        ("BACKEND", "backend"),
        ("SERVER", "server"),
        ("SECONDS", "age_seconds"),
        ("IN", "client_bytes_in"),
        ("OUT", "client_bytes_out"),
    ];
    let rows = list.connections.iter().map(|row| {
        let cells = columns.iter();
        let cells = cells.map(|(_, field)| row.get(*field).map(cell).unwrap_or_default());
        cells.collect()
    });
    let mut text = table(&columns.map(|(head, _)| head), &rows.collect::<Vec<_>>());
    if !list.complete {
        text += "more connections are open: raise --limit\n";
    }
    text
}

pub(super) fn top(top: &TopConnections) -> String {
    let mut text = String::new();
    for (rows, head) in [
        (&top.sources, "SOURCE"),
        (&top.names, "NAME"),
        (&top.servers, "SERVER"),
    ] {
        let rows = rows.iter().map(|it| {
            vec![
                escaped(&it.of),
                it.connections.to_string(),
                it.bytes.to_string(),
            ]
        });
        text += &table(&[head, "CONNECTIONS", "BYTES"], &rows.collect::<Vec<_>>());
        text.push('\n');
    }
    let more = if top.complete {
        ""
    } else {
        ", and there are more"
    };
    text + &format!("{} connections{more}\n", top.counted)
}

/// Formats the number of handshakes by policy and trial result. Omits policies without a trial.
pub(super) fn trials(trials: &BTreeMap<String, BTreeMap<Cow<'static, str>, u64>>) -> String {
    let rows: Vec<_> = trials
        .iter()
        .flat_map(|(policy, counts)| {
            let row = |(result, count): (&Cow<'_, str>, &u64)| {
                vec![escaped(policy), escaped(result), count.to_string()]
            };
            counts.iter().map(row)
        })
        .collect();
    if rows.is_empty() {
        return "no policy has a trial\n".to_owned();
    }
    table(&["POLICY", "RESULT", "HANDSHAKES"], &rows)
}

/// Formats the sources, names and fingerprints that admission control tracks.
pub(super) fn sources(list: &SourceList) -> String {
    if !list.limits {
        return "no limit per source, name or JA4 is configured: see [admission]\n".to_owned();
    }
    let rows = list.sources.iter().map(|it| {
        let of = match (&*it.kind, it.source.as_deref()) {
            ("name", Some("")) => "(others)",
            (_, of) => of.unwrap_or_default(),
        };
        vec![
            escaped(&it.kind),
            escaped(of),
            it.connections.to_string(),
            it.full_handshakes_in_flight.to_string(),
            it.refused.to_string(),
            escaped(&it.limited.join(" ")),
        ]
    });
    let head = [
        "KIND",
        "KEY",
        "CONNECTIONS",
        "FULL HANDSHAKES",
        "REFUSED",
        "LIMITED",
    ];
    table(&head, &rows.collect::<Vec<_>>()) + &format!("{} tracked\n", list.tracked)
}

pub(super) fn log(log: &LogStatus) -> String {
    let level = escaped(&log.level);
    match &log.in_file {
        None => format!("{level}, as in the file\n"),
        Some(in_file) => {
            let in_file = escaped(in_file);
            format!("{level} until the next reload; {in_file} in the file\n")
        }
    }
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use serde_json::json;

    use super::*;

    fn of<T: DeserializeOwned>(object: Value) -> T {
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn text_cells_align_left_and_numbers_align_right() {
        let rows = [
            vec!["a\u{e9}".to_owned(), "7".to_owned()],
            vec!["longer".to_owned(), "1234567".to_owned()],
        ];
        let expected = "NAME    COUNT\na\u{e9}            7\nlonger  1234567\n";
        assert_eq!(table(&["NAME", "COUNT"], &rows), expected);
    }

    #[test]
    fn certificates_are_sorted_by_expiry_with_serial_numbers() {
        let at = |day: u8, serial: &str| {
            json!({"listener": "web", "name": "a.test", "key": "rsa",
            "not_after": format!("2026-11-{day}T11:00:00.000000Z"), "serial": serial})
        };
        let mut waiting = at(24, "0ABC02");
        waiting["temporary"] = true.into();
        let all = of::<Vec<_>>(json!([waiting, at(26, "0ABC01"), at(25, "7F")]));
        assert!(certificates(&all, 2).ends_with("and 2 more, which expire later\n"));
        let text = certificates(&all, 0);
        let rows = ["KEY  SERIAL", "rsa  7F", "rsa  0ABC01", "rsa  0ABC02"];
        assert!(
            text.lines()
                .zip(rows)
                .all(|(line, end)| line.ends_with(end)),
            "{text}"
        );
        assert!(text.lines().last().unwrap().starts_with("temporary "));
    }

    #[test]
    fn changed_server_values_are_shown_with_those_of_the_file() {
        let backends: Vec<BackendStatus> = of(json!([{"name": "app", "servers": [
            {"name": "a:1", "mode": "drain", "state": "passing", "condition": "in-service", "weight": 5,
                "in_use": 2, "maxconn": 9, "connections": 7,
                "in_file": {"mode": "ready", "maxconn": null}},
            {"name": "b\u{1b}[2J:1", "mode": "ready", "in_file": null}
        ]}]));
        let text = servers(&backends);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].ends_with("maxconn (none) mode (ready)"), "{text}");
        assert!(lines[2].starts_with("app/b\\u{1b}[2J:1"), "{text}");
        assert!(lines[1].contains("  DRAIN  "), "{text}");
        let one = changed_server(&backends[0].servers[1]);
        assert!(one.ends_with("as in the file\n"), "{one}");
    }

    #[test]
    fn a_server_has_one_state() {
        for (mode, health, condition, expected) in [
            ("ready", "passing", "in-service", "UP"),
            ("ready", "passing", "unchecked", "no check"),
            ("ready", "passing", "out-of-service", "DOWN"),
            ("ready", "failing", "unchecked", "DOWN"),
            ("ready", "unresolved", "unchecked", "DOWN (no address)"),
            ("drain", "passing", "in-service", "DRAIN"),
            ("maintenance", "disabled", "unchecked", "MAINT"),
        ] {
            let server = of(json!({"name": "a:1", "mode": mode, "state": health,
                "condition": condition, "weight": 1}));
            assert_eq!(state(&server), expected);
        }
    }

    #[test]
    fn an_incomplete_list_mentions_limit_and_empty_tables_are_valid() {
        let list = of(json!({"connections": [], "complete": false}));
        assert!(connections(&list).ends_with("--limit\n"));
        let list = of(json!({"tracked": 0, "limits": false, "sources": []}));
        assert!(sources(&list).contains("[admission]"));
        let log_status = of(json!({"level": "info"}));
        assert_eq!(log(&log_status), "info, as in the file\n");
    }
}
