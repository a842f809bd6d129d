//! The status page for browsers: problems, plots of the last hour, servers, certificates, peers.
//!
//! The page has no script, loads nothing, and refreshes itself every ten seconds. It fits on a
//! telephone, and is dark if the browser is. All text from outside is escaped.

use std::fmt::{self, Display, Write};
use std::time::Duration;

use becket_config::choices::ServerMode;

use super::certificates::CertificateStatus;
use super::history::Moment;
use super::status::{ClusterReport, ServerStatus, Status};

/// Writes the page of a status and of the previous hour.
pub(super) fn web(status: &Status, hour: &[Moment]) -> Result<String, fmt::Error> {
    let mut page = String::new();
    let (process, totals) = (&status.process, &status.traffic.totals);
    let (version, state) = (Escape(&process.version), process.state.label());
    let uptime = span(Duration::from_secs(process.uptime_seconds));
    let (open, accepted) = (totals.connections, totals.accepted);
    writeln!(
        page,
        "{HEAD}<h1>becket {version}</h1>\n<p>{state} for {uptime}, {open} connections open, {accepted} accepted</p>"
    )?;
    for problem in &status.problems {
        writeln!(page, "<p class=problem>{}</p>", Escape(problem))?;
    }
    plots(&mut page, hour)?;
    servers(&mut page, status)?;
    certificates(&mut page, status)?;
    if let Some(cluster) = &status.sessions.cluster {
        peers(&mut page, cluster)?;
    }
    page.write_str(LINKS)?;
    Ok(page)
}

/// One line of a plot.
struct PlotLine<'a> {
    name: &'a str,
    class: &'a str,
    values: Vec<f64>,
}

fn plots(page: &mut String, hour: &[Moment]) -> fmt::Result {
    let rate = |of: fn(&Moment) -> u64| -> Vec<f64> {
        let each = hour.iter();
        each.map(|it| of(it) as f64 / it.seconds.max(1.0)).collect()
    };
    let line = |name, class, values| PlotLine {
        name,
        class,
        values,
    };
    let milliseconds = |of: fn(&Moment) -> Option<u64>| -> Vec<f64> {
        let each = hour.iter();
        each.map(|it| of(it).unwrap_or(0) as f64 / 1000.0).collect()
    };
    let open = hour.iter().map(|it| it.connections as f64).collect();
    page.write_str("<div class=plots>\n")?;
    let handshakes = [
        line("full", "a", rate(|it| it.handshakes_full)),
        line("resumed", "b", rate(|it| it.handshakes_resumed)),
        line("failed", "c", rate(|it| it.handshakes_failed)),
    ];
    plot(page, "Handshakes per second", &handshakes)?;
    let times = [
        line("p99", "c", milliseconds(|it| it.handshake_p99_us)),
        line("p50", "a", milliseconds(|it| it.handshake_p50_us)),
    ];
    plot(page, "Handshake time, ms", &times)?;
    plot(page, "Open connections", &[line("open", "b", open)])?;
    page.write_str("</div>\n")
}

/// Draws lines over an hour, with the newest value at the right.
fn plot(page: &mut String, title: &str, lines: &[PlotLine<'_>]) -> fmt::Result {
    let values = lines.iter().flat_map(|line| line.values.iter().copied());
    let most = values.fold(0.0, f64::max);
    let scale = if most > 0.0 { HEIGHT / most } else { 0.0 };
    write!(page, "<figure><figcaption>{title}")?;
    for line in lines {
        let last = line.values.last().copied().unwrap_or(0.0);
        write!(
            page,
            " <b class={}>{} {}</b>",
            line.class,
            line.name,
            short(last)
        )?;
    }
    write!(
        page,
        "</figcaption><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" preserveAspectRatio=none role=img aria-label=\"{title}\">"
    )?;
    for line in lines {
        let begin = WIDTH - line.values.len() as f64;
        write!(page, "<polyline class={} points=\"", line.class)?;
        for (index, value) in line.values.iter().enumerate() {
            let (x, y) = (begin + index as f64, HEIGHT - value * scale);
            write!(page, "{x:.0},{y:.1} ")?;
        }
        page.write_str("\"/>")?;
    }
    writeln!(
        page,
        "</svg><small>an hour, up to {}</small></figure>",
        short(most)
    )
}

fn servers(page: &mut String, status: &Status) -> fmt::Result {
    page.write_str("<h2>Servers</h2>\n<table><tr><th>backend, server<th>state<th class=n>open<th class=n>weight\n")?;
    for backend in &status.backends {
        let waiting = match backend.waiting {
            0 => String::new(),
            count => format!(", {count} waiting"),
        };
        let name = Escape(&backend.name);
        writeln!(page, "<tr><td colspan=4><b>{name}</b>{waiting}")?;
        for server in &backend.servers {
            server_row(page, server)?;
        }
    }
    page.write_str("</table>\n")
}

fn server_row(page: &mut String, server: &ServerStatus) -> fmt::Result {
    let health = &server.health;
    let is_bad = health.is_out_of_service() || health.state == "unresolved";
    let state = match server.mode {
        ServerMode::Ready => health.label(),
        mode => mode.word(),
    };
    let changed = if server.in_file.is_some() {
        " (changed)"
    } else {
        ""
    };
    let limit = server.maxconn.map(|limit| format!(" of {limit}"));
    let (class, name, state) = (class(is_bad), Escape(&server.name), Escape(state));
    let (open, limit, weight) = (server.in_use, limit.unwrap_or_default(), server.weight);
    writeln!(
        page,
        "<tr{class}><td>{name}<td>{state}{changed}<td class=n>{open}{limit}<td class=n>{weight}"
    )
}

fn class(is_bad: bool) -> &'static str {
    if is_bad { " class=bad" } else { "" }
}

/// Writes the certificates that expire first: a host may have thousands.
fn certificates(page: &mut String, status: &Status) -> fmt::Result {
    if status.certificates.is_empty() {
        return Ok(());
    }
    let mut all: Vec<&CertificateStatus> = status.certificates.iter().collect();
    all.sort_by_key(|it| it.not_after);
    page.write_str("<h2>Certificates</h2>\n<table><tr><th>name<th>listener<th>key<th>expiry\n")?;
    for it in all.iter().take(MOST_CERTIFICATES) {
        let now = status.process.now;
        let (class, expiry) = (class(it.renew_by <= now), it.expiry(now));
        let [name, listener, key] = [&it.name, &it.listener, &*it.key].map(Escape);
        writeln!(
            page,
            "<tr{class}><td>{name}<td>{listener}<td>{key}<td>{expiry}"
        )?;
    }
    match all.len().saturating_sub(MOST_CERTIFICATES) {
        0 => page.write_str("</table>\n"),
        more => writeln!(
            page,
            "<tr><td colspan=4>and {more} that expire later</table>"
        ),
    }
}

fn peers(page: &mut String, cluster: &ClusterReport) -> fmt::Result {
    page.write_str(
        "<h2>Cluster</h2>\n<table><tr><th>peer<th>state<th class=n>node<th class=n>last heard, s ago\n",
    )?;
    for peer in &cluster.peers {
        let (address, state) = (Escape(&peer.address), Escape(&peer.state));
        let (node, heard) = (peer.node, peer.heard_seconds_ago);
        writeln!(
            page,
            "<tr><td>{address}<td>{state}<td class=n>{node}<td class=n>{heard:.1}"
        )?;
    }
    page.write_str("</table>\n")
}

/// Writes a time in its two largest units.
pub fn span(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3600 % 24),
    }
}

/// Formats a number for a caption.
fn short(value: f64) -> String {
    match value {
        value if value >= 100.0 || value == 0.0 => format!("{value:.0}"),
        value => format!("{value:.1}"),
    }
}

/// Escapes text for HTML, and for terminals as well, because curl may print the page.
struct Escape<'a>(&'a str);

impl Display for Escape<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|char| match char {
            '&' => f.write_str("&amp;"),
            '<' => f.write_str("&lt;"),
            '>' => f.write_str("&gt;"),
            '"' => f.write_str("&quot;"),
            '\'' => f.write_str("&#39;"),
            char if char.is_control() => write!(f, "{}", char.escape_unicode()),
            char => f.write_char(char),
        })
    }
}

const WIDTH: f64 = 360.0;
const HEIGHT: f64 = 80.0;
const MOST_CERTIFICATES: usize = 20;
const LINKS: &str = "<p><a href=\"/status\">/status</a> <a href=\"/metrics\">/metrics</a> <a href=\"/healthz\">/healthz</a></p>\n";
const HEAD: &str = "<!doctype html>
<html lang=en>
<meta charset=utf-8>
<meta name=viewport content=\"width=device-width\">
<meta name=color-scheme content=\"light dark\">
<meta http-equiv=refresh content=10>
<link rel=icon href=\"data:,\">
<title>becket</title>
<style>
:root{--bg:#fff;--fg:#1b1f24;--dim:#68707a;--line:#d8dce1;--a:#0b62b8;--b:#1c7c54;--c:#b3261e}
@media(prefers-color-scheme:dark){:root{--bg:#14171b;--fg:#e4e7eb;--dim:#98a1ab;--line:#30363d;--a:#6cb0f5;--b:#63c99b;--c:#f2867d}}
*{box-sizing:border-box}
body{margin:0 auto;padding:12px;max-width:1000px;background:var(--bg);color:var(--fg);font:15px/1.4 system-ui,sans-serif}
h1{font-size:20px;margin:0}h2{font-size:16px;margin:20px 0 4px}p{margin:4px 0}
.problem{border-left:4px solid var(--c);padding:2px 8px;overflow-wrap:anywhere}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(280px,1fr));gap:12px;margin:12px 0}
figure{margin:0;border:1px solid var(--line);padding:8px}figcaption{font-size:13px}
small{color:var(--dim)}
svg{display:block;width:100%;height:80px}
polyline{fill:none;stroke-width:1.5;vector-effect:non-scaling-stroke}
polyline.a{stroke:var(--a)}polyline.b{stroke:var(--b)}polyline.c{stroke:var(--c)}
b.a{color:var(--a)}b.b{color:var(--b)}b.c{color:var(--c)}
table{width:100%;border-collapse:collapse}td,th{text-align:left;padding:3px 6px 3px 0;border-bottom:1px solid var(--line);overflow-wrap:anywhere}
th{font-weight:normal;color:var(--dim)}.n{text-align:right;white-space:nowrap}.bad td{color:var(--c)}
a{color:var(--a)}
</style>
";

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::problems::problems;
    use super::*;

    fn hour() -> Vec<Moment> {
        let moment = |number: u64| Moment {
            seconds: 10.0,
            connections: number,
            handshakes_full: 10 * number,
            handshake_p99_us: Some(2500),
            ..Moment::default()
        };
        (0..=4).map(moment).collect()
    }

    #[test]
    fn an_hour_becomes_lines_whose_newest_value_is_to_the_right() {
        let page = web(&Status::default(), &hour()).unwrap();
        let full = "<polyline class=a points=\"355,80.0 356,60.0 357,40.0 358,20.0 359,0.0 \"/>";
        assert!(page.contains(full), "{page}");
        assert!(page.contains("<b class=a>full 4.0</b>"), "{page}");
        assert!(page.contains("<b class=c>p99 2.5</b>"), "{page}");
        // Without data, there is no division by zero.
        let page = web(&Status::default(), &[]).unwrap();
        assert!(
            page.contains("points=\"\"") && !page.contains("NaN"),
            "{page}"
        );
    }

    #[test]
    fn what_somebody_has_to_look_at_is_marked_and_all_text_is_escaped() {
        let status = json!({
            "version": "<b>\"'&\u{1b}", "now": "2026-11-22T10:00:00.000000Z",
            "backends": [{"name": "app", "waiting": 3, "servers": [
                {"name": "a:1", "condition": "out-of-service", "mode": "ready", "in_file": null},
                {"name": "<i>", "condition": "unchecked", "state": "disabled", "mode": "maintenance",
                    "in_file": {"mode": "ready"}, "maxconn": 9, "in_use": 2},
            ]}],
            "certificates": [
                {"name": "late.test", "not_after": "2027-11-22T10:00:00.000000Z", "renew_by": "2027-11-08T10:00:00.000000Z"},
                {"name": "soon.test", "not_after": "2026-11-26T11:00:00.000000Z", "renew_by": "2026-11-12T11:00:00.000000Z"},
            ],
            "cluster": {"peers": [{"address": "192.0.2.1:1", "state": "live", "node": 2}]},
        });
        let mut status: Status = serde_json::from_value(status).unwrap();
        status.problems = problems(&status);
        let page = web(&status, &[]).unwrap();
        for part in [
            "becket &lt;b&gt;&quot;&#39;&amp;\\u{1b}</h1>",
            "<b>app</b>, 3 waiting",
            "<tr class=bad><td>a:1<td>out-of-service<td",
            "<td>&lt;i&gt;<td>maintenance (changed)<td class=n>2 of 9",
            "<tr class=bad><td>soon.test",
            "<tr><td>late.test",
            "<td>192.0.2.1:1<td>live<td class=n>2",
            "<p class=problem>",
        ] {
            assert!(page.contains(part), "{part} is not in\n{page}");
        }
        assert!(page.find("soon.test") < page.rfind("late.test"), "{page}");
    }
}
