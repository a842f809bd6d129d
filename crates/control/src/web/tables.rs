//! The tables of the status page: failures, servers, certificates and peers. Each shows at most
//! [`MOST_ROWS`] rows, and escapes every cell.

use std::cmp::Reverse;
use std::fmt::{self, Write};

use becket_config::choices::ServerMode;
use becket_log::Timestamp;
use becket_proto::close_reason::CloseReason;

use super::super::certificates::CertificateStatus;
use super::super::status::{BackendStatus, ClusterReport, ServerStatus, Status};
use super::text::{Escape, short, span};

/// Writes the reasons for failed connections, most frequent in the last minute first.
pub(super) fn failures(page: &mut String, status: &Status) -> fmt::Result {
    let (totals, minute) = (&status.traffic.totals, &status.traffic.minute);
    let failed = CloseReason::ALL.iter().filter(|it| !it.is_expected());
    let failed = failed.filter_map(|reason| {
        let total = totals.closed.get(reason.label())?;
        let recent = minute.closed.get(reason.label()).unwrap_or(&0);
        Some((recent, total, reason))
    });
    let mut failed: Vec<_> = failed.collect();
    failed.sort_by_key(|(recent, total, _)| Reverse((*recent, *total)));
    let columns = ["reason", "#last minute", "#since the start"];
    let heading = ("Failures", "becket status", columns.as_slice());
    table(page, heading, &failed, |&(recent, total, reason)| {
        let class = class(*recent > 0 && reason.is_fault_of_servers(), false);
        let label = reason.label().to_owned();
        (class, vec![label, recent.to_string(), total.to_string()])
    })
}

/// Writes a row with the queue of each backend, followed by a row for each of its servers.
pub(super) fn servers(page: &mut String, status: &Status) -> fmt::Result {
    let rows = status.backends.iter().flat_map(|backend| {
        let servers = backend.servers.iter().map(move |it| (backend, Some(it)));
        [(backend, None)].into_iter().chain(servers)
    });
    let rows: Vec<_> = rows.collect();
    let columns = &[
        "server",
        "state",
        "#connects/s",
        "#open",
        "#failures",
        "#weight",
    ];
    let heading = ("Servers", "becket ctl servers", columns.as_slice());
    table(page, heading, &rows, |(backend, server)| match server {
        None => backend_row(backend),
        Some(server) => server_row(server, status),
    })
}

fn backend_row(backend: &BackendStatus) -> (&'static str, Vec<String>) {
    let (name, waiting, most) = (&backend.name, backend.waiting, backend.queue_length);
    let text = match &backend.files {
        Some(folder) => format!("{name}: files of {}", folder.display()),
        None => format!("{name}: {waiting} of {most} in the queue"),
    };
    (class(false, waiting > 0 && waiting >= most / 2), vec![text])
}

fn server_row(server: &ServerStatus, status: &Status) -> (&'static str, Vec<String>) {
    let (health, minute) = (&server.health, server.minute.unwrap_or_default());
    let is_ready = server.mode == ServerMode::Ready;
    let is_out = health.is_out_of_service() || health.state == "unresolved";
    let is_odd = !is_ready || health.check_error.is_some() || health.dns_stale;
    let limit = server.maxconn.map(|limit| format!(" of {limit}"));
    let recent = match minute.failures {
        0 => String::new(),
        count => format!(" ({count} in the last minute)"),
    };
    let cells = vec![
        server.name.clone(),
        server_state(server, status.process.now),
        per_second(status, minute.connections),
        format!("{}{}", server.in_use, limit.unwrap_or_default()),
        format!("{}{recent}", server.failures),
        server.weight.to_string(),
    ];
    (
        class(is_ready && is_out, is_odd || minute.failures > 0),
        cells,
    )
}

fn server_state(server: &ServerStatus, now: Timestamp) -> String {
    let health = &server.health;
    let mut text = match server.mode {
        ServerMode::Ready => health.label().to_owned(),
        mode => mode.label().to_owned(),
    };
    if server.backup {
        text += " (backup)";
    }
    if server.in_file.is_some() {
        text += " (changed)";
    }
    if let (ServerMode::Ready, Some(since)) = (server.mode, health.condition_since) {
        let reason = health.condition_reason.as_deref().unwrap_or("?");
        text += &format!(" for {}: {reason}", span(now.since(since)));
    }
    if health.dns_stale {
        text += "; name does not resolve";
    }
    match &health.check_error {
        Some(error) if health.condition_reason.as_ref() == Some(error) => text,
        Some(error) => text + "; last check failed: " + error,
        None if health.checks > 0 => text + "; last check passed",
        None => text + "; not checked",
    }
}

/// Writes the certificates in order of expiry, with the handshake rate of each name.
pub(super) fn certificates(page: &mut String, status: &Status) -> fmt::Result {
    let now = status.process.now;
    let mut all: Vec<&CertificateStatus> = status.certificates.iter().collect();
    all.sort_by_key(|it| it.not_after);
    let columns = ["name", "expiry", "#handshakes/s", "listener", "key"];
    let command = "becket ctl certificates";
    let heading = ("Certificates", command, columns.as_slice());
    table(page, heading, &all, |it| {
        let class = class(it.not_after <= now, it.renew_by <= now);
        let count = status.traffic.minute.names.get(&it.name);
        let rate = per_second(status, count.copied().unwrap_or(0));
        let (name, listener, key) = (it.name.clone(), it.listener.clone(), it.key.to_string());
        (class, vec![name, it.expiry(now), rate, listener, key])
    })
}

pub(super) fn peers(page: &mut String, cluster: &ClusterReport) -> fmt::Result {
    let columns = &["peer", "state", "#node", "#heard, s ago"];
    let heading = ("Cluster", "becket status", columns.as_slice());
    table(page, heading, &cluster.peers, |peer| {
        let (address, state) = (peer.address.clone(), peer.state.clone());
        let (class, heard) = (class(false, state != "live"), peer.heard_seconds_ago);
        (
            class,
            vec![address, state, peer.node.to_string(), format!("{heard:.1}")],
        )
    })
}

/// Writes a scrollable table, or nothing if there are no rows. The heading contains a title, a
/// command that lists all rows, and the columns. A column name that begins with `#` marks a numeric
/// column. `row` returns a class attribute and the cells of a row; a single cell spans the whole
/// row.
fn table<T>(
    page: &mut String,
    (title, command, columns): (&str, &str, &[&str]),
    all: &[T],
    row: impl Fn(&T) -> (&'static str, Vec<String>),
) -> fmt::Result {
    if all.is_empty() {
        return Ok(());
    }
    let number = |column: &str| {
        if column.starts_with('#') {
            " class=n"
        } else {
            ""
        }
    };
    write!(
        page,
        "<h2 id={title}>{title}</h2>\n<div class=scroll role=region aria-label={title} tabindex=0><table><thead><tr>"
    )?;
    for column in columns {
        let name = column.trim_start_matches('#');
        write!(page, "<th scope=col{}>{name}", number(column))?;
    }
    page.write_str("<tbody>\n")?;
    for item in all.iter().take(MOST_ROWS) {
        let (class, cells) = row(item);
        write!(page, "<tr{class}>")?;
        for (index, (cell, column)) in cells.iter().zip(columns).enumerate() {
            let (cell, width) = (Escape(cell), columns.len());
            match index {
                0 if cells.len() == 1 => write!(page, "<th scope=rowgroup colspan={width}>{cell}")?,
                0 => write!(page, "<th scope=row>{cell}")?,
                _ => write!(page, "<td{}>{cell}", number(column))?,
            }
        }
        page.push('\n');
    }
    page.write_str("</table></div>\n")?;
    match all.len().saturating_sub(MOST_ROWS) {
        0 => Ok(()),
        more => writeln!(page, "<p>{more} more: <code>{command}</code></p>"),
    }
}

fn class(is_red: bool, is_amber: bool) -> &'static str {
    if is_red {
        " class=red"
    } else if is_amber {
        " class=amber"
    } else {
        ""
    }
}

fn per_second(status: &Status, count: u64) -> String {
    short(count as f64 / status.traffic.minute.seconds.max(1.0))
}

pub(super) const MOST_ROWS: usize = 100;
