//! `/`: the status on one small page for a person with a browser.
//!
//! One HTML page without scripts or anything to fetch. Every text in it that is not ours goes
//! through [`Safe`].

use std::fmt::{self, Display, Write};

use super::backends::BackendStatus;
use super::status::{ListenerStatus, Status};
use crate::cluster::status::ClusterStatus;

/// Writes the page.
///
/// # Errors
/// Only if a value cannot be formatted, which is a fault of ours.
pub fn index(status: &Status) -> Result<String, fmt::Error> {
    let mut page = String::from(HEAD);
    let totals = &status.totals;
    write!(
        page,
        "<h1>becket {} is {}</h1>\n<p>since {}, {} s. <a href=\"/metrics\">/metrics</a> \
         <a href=\"/status\">/status</a> <a href=\"/healthz\">/healthz</a></p>\n",
        status.version, status.state, status.started, status.uptime_seconds
    )?;
    let rows: &[(&str, &dyn Display)] = &[
        ("workers", &status.workers),
        ("connections open", &totals.connections),
        ("connections accepted", &totals.accepted),
        ("handshakes in flight", &totals.handshakes_in_flight),
        ("full handshakes", &totals.handshakes_full),
        ("resumed handshakes", &totals.handshakes_resumed),
        ("bytes from clients", &totals.client_bytes_in),
        ("bytes to clients", &totals.client_bytes_out),
        ("sessions in the table", &status.sessions.entries),
        (
            "ticket key changes in (s)",
            &status.tickets.next_rotation_seconds,
        ),
    ];
    page.push_str("<table>\n");
    for (name, value) in rows {
        writeln!(page, "<tr><th>{name}<td>{value}")?;
    }
    page.push_str("</table>\n");
    reload(&mut page, status)?;
    listeners(&mut page, &status.listeners)?;
    backends(&mut page, &status.backends)?;
    if let Some(of) = &status.cluster {
        cluster(&mut page, of)?;
    }
    certificates(&mut page, status)?;
    Ok(page)
}

fn reload(page: &mut String, status: &Status) -> fmt::Result {
    let Some(reload) = &status.reload else {
        return Ok(());
    };
    if reload.errors.is_empty() {
        return writeln!(page, "<p>reloaded at {}</p>", reload.time);
    }
    writeln!(
        page,
        "<p class=bad>reload failed at {}, nothing was changed:</p>\n<ul>",
        reload.time
    )?;
    for error in &reload.errors {
        writeln!(page, "<li>{}", Safe(error))?;
    }
    page.write_str("</ul>\n")
}

fn listeners(page: &mut String, listeners: &[ListenerStatus]) -> fmt::Result {
    page.write_str(
        "<h2>listeners</h2>\n<table>\n<tr><th>name<th>bind<th>names<th>alpn<th>policy<th>backend\n",
    )?;
    for listener in listeners {
        for route in &listener.routes {
            writeln!(
                page,
                "<tr><td>{}<td>{}<td>{}<td>{}<td>{}<td>{}",
                Safe(&listener.name),
                Safe(&listener.bind.join(" ")),
                Safe(&route.names.join(" ")),
                Safe(&route.alpn.join(" ")),
                Safe(&route.policy.name),
                Safe(&route.backend)
            )?;
        }
    }
    page.write_str("</table>\n")
}

fn backends(page: &mut String, backends: &[BackendStatus]) -> fmt::Result {
    page.write_str("<h2>backends</h2>\n<table>\n<tr><th>name<th>waiting<th>server<th>state<th>connections<th>addresses\n")?;
    for backend in backends {
        for server in &backend.servers {
            let (name, addresses) = (Safe(&server.name), server.addresses.join(" "));
            writeln!(
                page,
                "<tr><td>{}<td>{}<td>{name}<td>{}<td>{}<td>{}",
                Safe(&backend.name),
                backend.waiting,
                server.state,
                server.in_use,
                Safe(&addresses)
            )?;
        }
    }
    page.write_str("</table>\n")
}

fn cluster(page: &mut String, cluster: &ClusterStatus) -> fmt::Result {
    writeln!(page, "<h2>cluster</h2>\n<p>node {}</p>", cluster.node)?;
    for fault in &cluster.faults {
        writeln!(page, "<p class=bad>{}</p>", Safe(fault))?;
    }
    page.write_str(
        "<table>\n<tr><th>peer<th>address<th>state<th>heard<th>sent<th>received<th>lost<th>dropped\n",
    )?;
    for peer in &cluster.peers {
        let exchanged = &peer.exchanged;
        writeln!(
            page,
            "<tr><td>{}<td>{}<td>{}<td>{:.1} s<td>{}<td>{}<td>{}<td>{}",
            peer.node,
            peer.address,
            peer.state,
            peer.heard_seconds_ago,
            exchanged.sent,
            exchanged.received,
            exchanged.lost,
            exchanged.dropped
        )?;
    }
    page.write_str("</table>\n")
}

fn certificates(page: &mut String, status: &Status) -> fmt::Result {
    page.write_str(
        "<h2>certificates</h2>\n<table>\n<tr><th>listener<th>name<th>key<th>expires<th>days left\n",
    )?;
    for certificate in &status.certificates {
        let left = certificate.not_after.unix_seconds();
        let days = left.saturating_sub(status.now.unix_seconds()) / (24 * 60 * 60);
        let class = if days < SOON_DAYS { " class=bad" } else { "" };
        writeln!(
            page,
            "<tr{class}><td>{}<td>{}<td>{}<td>{}<td>{days}",
            Safe(&certificate.listener),
            Safe(&certificate.name),
            certificate.key,
            certificate.not_after
        )?;
    }
    page.write_str("</table>\n")
}

/// Text as HTML text: `<`, `>`, `&` and quotes as entities.
struct Safe<'a>(&'a str);

impl Display for Safe<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '&' => f.write_str("&amp;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

const HEAD: &str = "<!doctype html>\n<meta charset=utf-8>\n<title>becket</title>\n<style>\
    body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:60em;padding:0 1em}\
    table{border-collapse:collapse}td,th{text-align:left;padding:.1em 1.5em .1em 0}\
    .bad{color:#b00020}</style>\n";

/// A certificate with fewer days left is shown in red: most are renewed a month ahead.
const SOON_DAYS: u64 = 14;

#[cfg(test)]
mod tests {
    use super::super::sample::Sample;
    use super::*;

    #[test]
    fn texts_from_the_configuration_are_escaped() {
        let page = index(&Status::of(&Sample::new(Vec::new()))).unwrap();
        assert!(
            page.contains("&quot;&lt;b&gt;&quot; is not an address"),
            "{page}"
        );
        assert!(!page.contains("<b>"));
        assert_eq!(Safe("a&'b'").to_string(), "a&amp;&#39;b&#39;");
    }

    #[test]
    fn the_page_names_what_is_configured() {
        let page = index(&Status::of(&Sample::new(Vec::new()))).unwrap();
        for text in [
            "*.example.net",
            "127.0.0.1:8443",
            "localhost:8080",
            "2040-01-01",
            "192.0.2.1:7443",
        ] {
            assert!(page.contains(text), "{text} is not in {page}");
        }
    }
}
