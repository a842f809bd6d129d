//! Answers as tables for people. Made of the JSON, so what another version does not have is an empty cell.

use std::fmt::Write;

use serde_json::Value;

/// Columns as wide as their widest cell, numbers to the right.
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

/// A text without what could drive a terminal; numbers as they are; nothing for what is not there.
fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => {
            let each = text.chars().map(|char| {
                if char.is_control() {
                    char.escape_unicode().to_string()
                } else {
                    char.to_string()
                }
            });
            each.collect()
        }
        Value::Array(values) => values.iter().map(cell).collect::<Vec<_>>().join(" "),
        other => other.to_string(),
    }
}

fn rows(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

/// Every server of every backend.
pub(super) fn servers(backends: &Value) -> String {
    let head = [
        "BACKEND/SERVER",
        "MODE",
        "STATE",
        "CONDITION",
        "WEIGHT",
        "OPEN",
        "MAXCONN",
        "SERVED",
        "CHANGED (IN THE FILE)",
    ];
    let each = rows(backends).flat_map(|backend| {
        rows(&backend["servers"]).map(|server| {
            vec![
                format!("{}/{}", cell(&backend["name"]), cell(&server["name"])),
                cell(&server["mode"]),
                cell(&server["state"]),
                cell(&server["condition"]),
                cell(&server["weight"]),
                cell(&server["in_use"]),
                cell(&server["maxconn"]),
                cell(&server["connections"]),
                changes(server),
            ]
        })
    });
    let mut text = table(&head, &each.collect::<Vec<_>>());
    for backend in rows(backends) {
        for removed in rows(&backend["removed"]) {
            text += &format!(
                "of the file and removed: {}/{}\n",
                cell(&backend["name"]),
                cell(removed)
            );
        }
    }
    text
}

/// What is not as the file has it.
fn changes(server: &Value) -> String {
    let keys = server["in_file"].as_object().into_iter().flatten();
    let each = keys.map(|(key, was)| match was {
        Value::Null => format!("{key} (none)"),
        was => format!("{key} ({})", cell(was)),
    });
    let added = (server["added"] == true).then(|| "added".to_owned());
    let changes: Vec<String> = added.into_iter().chain(each).collect();
    match &server["kept"] {
        Value::Bool(true) if !changes.is_empty() => changes.join(" ") + ", kept",
        _ => changes.join(" "),
    }
}

/// A server that was taken away.
pub(super) fn removed_server(removed: &Value) -> String {
    let (name, open) = (cell(&removed["removed"]), cell(&removed["open"]));
    format!("{name}: removed, {open} connections go on\n")
}

fn until(is_kept: bool) -> &'static str {
    if is_kept {
        "until removed"
    } else {
        "until the next reload"
    }
}

/// A certificate that was set.
pub(super) fn set_certificate(set: &Value) -> String {
    let (names, listener) = (cell(&set["names"]), cell(&set["listener"]));
    let until = until(set["kept"] == true);
    let mut text = format!("{names}: set at {listener} {until}\n");
    for warning in rows(&set["warnings"]) {
        text += &format!("warning: {}\n", cell(warning));
    }
    text
}

/// One server after a change.
pub(super) fn changed_server(server: &Value) -> String {
    let (name, mode, weight) = (
        cell(&server["name"]),
        cell(&server["mode"]),
        cell(&server["weight"]),
    );
    let limit = match cell(&server["maxconn"]) {
        none if none.is_empty() => "no limit".to_owned(),
        most => format!("maxconn {most}"),
    };
    let at = cell(&server["addresses"]);
    let changed = match changes(server) {
        none if none.is_empty() => "as in the file".to_owned(),
        changes => format!("changed (in the file): {changes}"),
    };
    format!("{name}: {mode}, weight {weight}, {limit}, at {at}; {changed}\n")
}

/// Every certificate by listener and name, the first to expire on top.
pub(super) fn certificates(status: &Value) -> String {
    let mut each: Vec<Vec<String>> = rows(&status["certificates"])
        .map(|it| {
            let mut row: Vec<String> = ["not_after", "listener", "name", "key"]
                .map(|field| cell(&it[field]))
                .into();
            row.push(match it["set_until"].as_str() {
                Some(lasts) => until(lasts != "reload").to_owned(),
                None => String::new(),
            });
            row
        })
        .collect();
    // Times of one form sort as text.
    each.sort();
    table(&["EXPIRES", "LISTENER", "NAME", "KEY", "SET"], &each)
}

/// Connections, and whether there are more.
pub(super) fn connections(list: &Value) -> String {
    let head = [
        "ID", "CLIENT", "LISTENER", "NAME", "PHASE", "TLS", "RESUMED", "BACKEND", "SERVER",
        "SECONDS", "IN", "OUT",
    ];
    let fields = [
        "id",
        "client",
        "listener",
        "name",
        "phase",
        "version",
        "resumed",
        "backend",
        "server",
        "age_seconds",
        "client_bytes_in",
        "client_bytes_out",
    ];
    let each: Vec<Vec<String>> = rows(&list["connections"])
        .map(|row| fields.map(|field| cell(&row[field])).into())
        .collect();
    let mut text = table(&head, &each);
    if !list["next"].is_null() {
        text += "there are more: --limit\n";
    }
    text
}

/// Who has most connections.
pub(super) fn top(top: &Value) -> String {
    let mut text = String::new();
    for (field, head) in [
        ("sources", "SOURCE"),
        ("names", "NAME"),
        ("servers", "SERVER"),
    ] {
        let each: Vec<Vec<String>> = rows(&top[field])
            .map(|row| {
                ["of", "connections", "bytes"]
                    .map(|field| cell(&row[field]))
                    .into()
            })
            .collect();
        text += &table(&[head, "CONNECTIONS", "BYTES"], &each);
        text.push('\n');
    }
    let part = match &top["complete"] {
        Value::Bool(false) => ", and there are more",
        _ => "",
    };
    text + &format!("{} connections{part}\n", cell(&top["counted"]))
}

/// Handshakes by policy that has a trial, and by result.
pub(super) fn trials(trials: &Value) -> String {
    let mut each = Vec::new();
    for (policy, counts) in trials.as_object().into_iter().flatten() {
        for (result, count) in counts.as_object().into_iter().flatten() {
            each.push(vec![policy.clone(), result.clone(), cell(count)]);
        }
    }
    if each.is_empty() {
        return "no such policy has a trial\n".to_owned();
    }
    table(&["POLICY", "RESULT", "HANDSHAKES"], &each)
}

/// How many sessions are kept.
pub(super) fn sessions(object: &Value) -> String {
    let (table, early) = (&object["sessions"], cell(&object["early_sessions"]));
    let (entries, capacity) = (cell(&table["entries"]), cell(&table["capacity"]));
    format!(
        "{entries} sessions of TLS 1.2 by ID, room for {capacity}; {early} sessions with early data\n"
    )
}

/// Sources that are tracked.
pub(super) fn sources(list: &Value) -> String {
    if list["limits"] == false {
        return "no limit of a source is configured: see [admission]\n".to_owned();
    }
    let fields = [
        "source",
        "connections",
        "full_handshakes_in_flight",
        "limited",
    ];
    let each: Vec<Vec<String>> = rows(&list["sources"])
        .map(|row| fields.map(|field| cell(&row[field])).into())
        .collect();
    let head = ["SOURCE", "CONNECTIONS", "FULL HANDSHAKES", "LIMITED"];
    table(&head, &each) + &format!("{} sources\n", cell(&list["tracked"]))
}

/// The level of the log.
pub(super) fn log(log: &Value) -> String {
    let level = cell(&log["level"]);
    match &log["in_file"] {
        Value::Null => format!("{level}, as in the file\n"),
        in_file => {
            let until = until(log["kept"] == true);
            format!("{level} {until}; {} in the file\n", cell(in_file))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn cells_stand_below_their_heads_and_numbers_to_the_right() {
        let rows = [
            vec!["a\u{e9}".to_owned(), "7".to_owned()],
            vec!["longer".to_owned(), "1234567".to_owned()],
        ];
        let expected = "NAME    COUNT\na\u{e9}            7\nlonger  1234567\n";
        assert_eq!(table(&["NAME", "COUNT"], &rows), expected);
    }

    #[test]
    fn a_server_is_shown_with_what_the_file_says() {
        let backends = json!([{"name": "app", "servers": [
            {"name": "a:1", "mode": "drain", "state": "passing", "condition": "in-service", "weight": 5,
                "in_use": 2, "maxconn": 9, "connections": 7, "kept": true,
                "in_file": {"mode": "ready", "maxconn": null}},
            {"name": "b\u{1b}[2J:1", "mode": "ready", "in_file": null}
        ]}]);
        let text = servers(&backends);
        let lines: Vec<&str> = text.lines().collect();
        assert!(
            lines[1].ends_with("maxconn (none) mode (ready), kept"),
            "{text}"
        );
        assert!(lines[2].starts_with("app/b\\u{1b}[2J:1"), "{text}");
        let one = changed_server(&backends[0]["servers"][1]);
        assert!(one.ends_with("as in the file\n"), "{one}");
    }

    #[test]
    fn lists_say_that_there_is_more_and_tables_may_be_empty() {
        assert!(connections(&json!({"connections": [], "next": "0.5"})).ends_with("--limit\n"));
        assert_eq!(connections(&json!({})).lines().count(), 1);
        assert!(sources(&json!({"limits": false})).contains("[admission]"));
        assert!(top(&json!({"counted": 3, "complete": true})).ends_with("\n3 connections\n"));
        assert_eq!(log(&json!({"level": "info"})), "info, as in the file\n");
    }
}
