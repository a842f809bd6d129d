//! The status page for browsers: problems, plots of the last hour, failures, servers, certificates
//! and peers.
//!
//! The page loads no other file. Its script fetches the page every ten seconds and replaces the
//! content of `<main>`; without scripts, the browser reloads the page. All text of peers and of the
//! configuration is escaped, and the Content-Security-Policy allows only the script with the nonce.
//! The page fits a width of 420 pixels.

mod plots;
mod tables;
mod text;

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::fmt::{self, Write};
use std::time::Duration;

use self::text::{Escape, first};
use super::history::Moment;
use super::problems::{Severity, problems};
use super::status::{ListenerStatus, Status};

pub use self::text::span;

/// Renders the page. The Content-Security-Policy of the response must contain the same `nonce`.
pub(super) fn web(status: &Status, hour: &[Moment], nonce: &str) -> Result<String, fmt::Error> {
    let mut page = String::new();
    let mut found = problems(status);
    found.sort_by_key(|(severity, _)| Reverse(*severity));
    let title = match found.len() {
        0 => "becket".to_owned(),
        count => format!("({count}) becket"),
    };
    let host = Escape(&status.process.host);
    write!(
        page,
        "{START}<title>{title} on {host}</title>\n<style>{STYLE}</style>\n{HEADER}"
    )?;
    head(&mut page, status)?;
    problem_list(&mut page, &found)?;
    plots::plots(&mut page, status, hour)?;
    tables::failures(&mut page, status)?;
    tables::servers(&mut page, status)?;
    tables::certificates(&mut page, status)?;
    if let Some(cluster) = &status.sessions.cluster {
        tables::peers(&mut page, cluster)?;
    }
    write!(page, "</main>\n<script nonce={nonce}>{SCRIPT}</script>\n")?;
    Ok(page)
}

fn head(page: &mut String, status: &Status) -> fmt::Result {
    let (process, totals) = (&status.process, &status.traffic.totals);
    let (version, host) = (Escape(&process.version), Escape(&process.host));
    let uptime = span(Duration::from_secs(process.uptime_seconds));
    let (state, workers, open) = (process.state.label(), process.workers, totals.connections);
    writeln!(
        page,
        "<h1>becket {version} on {host}</h1>\n<p>{state}, up {uptime}, {workers} workers, {open} connections open, {} accepted</p>",
        totals.accepted
    )?;
    let listeners = status.listeners.iter().map(|it| {
        let bind = it.bind.iter().map(ToString::to_string);
        format!("{} on {}", it.name, first(bind, "becket status"))
    });
    let listeners = first(listeners, "becket status");
    let policies: BTreeSet<String> = status.listeners.iter().flat_map(policies).collect();
    let policies = first(policies, "becket status");
    let (listeners, policies) = (Escape(&listeners), Escape(&policies));
    writeln!(
        page,
        "<dl><dt>Listeners<dd>{listeners}<dt>Policies<dd>{policies}</dl>"
    )
}

fn policies(listener: &ListenerStatus) -> impl Iterator<Item = String> {
    let policies = listener.routes.iter().filter_map(|it| it.policy.as_ref());
    policies.map(|it| format!("{} ({})", it.name, it.versions.join(", ")))
}

fn problem_list(page: &mut String, found: &[(Severity, String)]) -> fmt::Result {
    if found.is_empty() {
        return Ok(());
    }
    page.write_str("<ul class=problems aria-label=Problems>\n")?;
    for (severity, text) in found.iter().take(tables::MOST_ROWS) {
        let (class, word) = match severity {
            Severity::Failure => ("red", "Failure"),
            Severity::Warning => ("amber", "Warning"),
        };
        writeln!(page, "<li class={class}>{word}: {}", Escape(text))?;
    }
    match found.len().saturating_sub(tables::MOST_ROWS) {
        0 => page.write_str("</ul>\n"),
        more => writeln!(page, "<li>{more} more: <code>becket status</code></ul>"),
    }
}

const STYLE: &str = include_str!("web/page.css");
const SCRIPT: &str = include_str!("web/page.js");
const START: &str = "<!doctype html>
<html lang=en>
<meta charset=utf-8>
<meta name=viewport content=\"width=device-width,initial-scale=1\">
<meta name=color-scheme content=\"light dark\">
<noscript><meta http-equiv=refresh content=10></noscript>
<link rel=icon href=\"data:,\">
";
const HEADER: &str = "<header><a class=skip href=\"#main\">Skip to the status</a><nav aria-label=Pages><a href=\"/\">Reload</a><a href=\"/status\">/status</a><a href=\"/metrics\">/metrics</a><a href=\"/healthz\">/healthz</a></nav>
<p id=notice class=red role=status></p></header>
<main id=main tabindex=-1>
";

#[cfg(test)]
mod tests {
    use becket_log::Timestamp;
    use serde_json::{Value, json};

    use super::*;

    fn status(status: Value) -> Status {
        serde_json::from_value(status).unwrap()
    }

    #[track_caller]
    fn has(page: &str, parts: &[&str]) {
        for part in parts {
            assert!(page.contains(part), "{part} is not in\n{page}");
        }
    }

    #[test]
    fn the_time_axis_begins_at_the_start_and_times_are_on_a_logarithmic_axis() {
        let time = |text: &str| -> Timestamp { serde_json::from_value(text.into()).unwrap() };
        let moment = |number: u64| Moment {
            time: time(&format!("2026-11-22T10:00:{number}0Z")),
            seconds: 10.0,
            connections: number,
            handshakes_full: 10 * number,
            handshake_p99_us: Some(2500).filter(|_| number != 3),
            ..Moment::default()
        };
        let hour: Vec<Moment> = (0..=4).map(moment).collect();
        let mut status = Status::default();
        status.process.started = time("2026-11-22T10:00:00Z");
        status.process.now = time("2026-11-22T10:00:40Z");
        let page = web(&status, &hour, "").unwrap();
        let full = "data-n=\"full\" data-v=\"0/s,1/s,2/s,3/s,4/s\" d=\"M50.0 128.0h1L125.5 104.0L201.0 80.0L276.5 56.0L352.0 32.0\"/>";
        let times = "d=\"M50.0 80.2h1L125.5 80.2L201.0 80.2M352.0 80.2h1\"/>";
        has(
            &page,
            &[
                full,
                times,
                "data-x=\"50.0,125.5,201.0,276.5,352.0\" data-t=\"10:00:00,10:00:10,",
                "text-anchor=end>1 ms</text>",
                "text-anchor=end>10 ms</text>",
                "text-anchor=start>10:00:00</text>",
                "text-anchor=end>10:00:40 UTC</text>",
                "<span class=a>full 4/s</span>",
                "<span class=d>p99 2.5 ms</span>",
                "aria-label=\"Handshake time over 40 s; p50: last none, highest none; p99: last 2.5 ms, highest 2.5 ms\"",
            ],
        );
        // After an hour, the axis ends at the present.
        status.process.now = time("2026-11-22T11:00:30Z");
        let page = web(&status, &hour, "").unwrap();
        has(&page, &["data-x=\"50.0,50.8\"", "start>10:00:30</text>"]);
        // Nothing is known at the start, nothing is divided by 0, and the clock may be set back.
        status.process.now = Timestamp::default();
        let page = web(&status, &[], "").unwrap();
        has(&page, &["data-x=\"\"", "d=\"\""]);
        assert!(!page.contains("NaN") && !page.contains("inf"), "{page}");
    }

    #[test]
    fn problems_are_marked_and_all_text_is_escaped() {
        let status = status(json!({
            "version": "<b>\"'&\u{1b}", "host": "<h>", "now": "2026-11-22T10:00:00.000000Z",
            "listeners": [{"name": "<l>", "bind": ["[::1]:443"], "routes": [
                {"policy": {"name": "<p>", "versions": ["TLSv1.3"]}}]}],
            "minute": {"seconds": 60.0, "closed": {"not-tls": 30, "connect-failed": 6, "finished": 9}, "names": {"<soon>": 90, "late.test": 3}},
            "totals": {"closed": {"not-tls": 40, "connect-failed": 8, "finished": 90, "queue-full": 1}},
            "backends": [{"name": "<app>", "waiting": 3, "queue_length": 5, "servers": [
                {"name": "a:1", "condition": "out-of-service", "condition_since": "2026-11-22T09:57:00.000000Z",
                    "condition_reason": "<why>", "checks": 9, "check_error": "<error>", "mode": "ready", "in_file": null,
                    "connections": 700, "failures": 20, "minute": {"connections": 90, "failures": 2}},
                {"name": "<i>", "condition": "unchecked", "state": "disabled", "mode": "maintenance",
                    "in_file": {"mode": "ready"}, "maxconn": 9, "in_use": 2, "weight": 1},
                {"name": "c:1", "condition": "in-service", "checks": 1},
            ]}],
            "certificates": [
                {"name": "late.test", "not_after": "2027-11-22T10:00:00.000000Z", "renew_by": "2027-11-08T10:00:00.000000Z"},
                {"name": "<soon>", "not_after": "2026-11-26T11:00:00.000000Z", "renew_by": "2026-11-12T11:00:00.000000Z"},
                {"name": "old.test", "not_after": "2026-11-20T10:00:00.000000Z", "renew_by": "2026-11-12T11:00:00.000000Z"},
            ],
            "cluster": {"peers": [{"address": "<peer>", "state": "live", "node": 2}]},
        }));
        let page = web(&status, &[], "").unwrap();
        has(
            &page,
            &[
                "<title>(4) becket on &lt;h&gt;</title>",
                "becket &lt;b&gt;&quot;&#39;&amp;\\u{1b} on &lt;h&gt;</h1>",
                "<dt>Listeners<dd>&lt;l&gt; on [::1]:443<dt>Policies<dd>&lt;p&gt; (TLSv1.3)",
                "<li class=red>Failure: certificate of old.test",
                "<li class=amber>Warning: certificate of &lt;soon&gt;",
                "<tr><th scope=row>not-tls<td class=n>30<td class=n>40\n<tr class=red><th scope=row>connect-failed<td class=n>6<td class=n>8\n<tr><th scope=row>queue-full<td class=n>0<td class=n>1",
                "<tr class=amber><th scope=rowgroup colspan=6>&lt;app&gt;: 3 of 5 in the queue",
                "<tr class=red><th scope=row>a:1<td>out-of-service for 3 min 0 s: &lt;why&gt;; last check failed: &lt;error&gt;<td class=n>1.5<td class=n>0<td class=n>20 (2 in the last minute)",
                "<tr class=amber><th scope=row>&lt;i&gt;<td>maintenance (changed); not checked<td class=n>0<td class=n>2 of 9<td class=n>0<td class=n>1\n",
                "<tr><th scope=row>c:1<td>in-service; last check passed",
                "<tr class=red><th scope=row>old.test<td>expired 2 days ago",
                "<tr class=amber><th scope=row>&lt;soon&gt;<td>expires in 4 days<td class=n>1.5",
                "<tr><th scope=row>late.test<td>expires in 365 days<td class=n>0.05",
                "<tr><th scope=row>&lt;peer&gt;<td>live<td class=n>2",
            ],
        );
        assert!(!page.contains("finished"), "{page}");
    }

    #[test]
    fn a_large_configuration_has_a_small_page_that_names_the_commands() {
        let now = "2026-11-22T10:00:00.000000Z";
        let certificate = |number: u64| json!({"name": format!("{number}.test"), "listener": number.to_string(), "not_after": now, "renew_by": now});
        let certificates: Vec<Value> = (0..5000).map(certificate).collect();
        let servers: Vec<Value> = (0..5000)
            .map(|it| json!({"name": it.to_string()}))
            .collect();
        let listeners: Vec<Value> = (0..5000)
            .map(|it| json!({"name": it.to_string()}))
            .collect();
        let status = status(
            json!({"now": now, "certificates": certificates, "listeners": listeners,
            "backends": [{"name": "app", "servers": servers}], "cluster": {"peers": listeners}}),
        );
        let moment = Moment {
            time: status.process.now,
            handshake_p50_us: Some(123_456),
            ..Moment::default()
        };
        let page = web(&status, &[moment; 360], "").unwrap();
        has(
            &page,
            &[
                "<li>4901 more: <code>becket status</code>",
                "<p>4901 more: <code>becket ctl servers</code>",
                "<p>4900 more: <code>becket ctl certificates</code>",
                "<p>4900 more: <code>becket status</code>",
                ", 4992 more: becket status<dt>",
            ],
        );
        assert_eq!(page.matches("<tr><th scope=row>").count(), 99);
        assert!(page.len() < 200_000, "{} bytes", page.len());
    }

    #[test]
    fn only_the_script_of_the_page_has_the_nonce() {
        let page = web(&Status::default(), &[], "abc").unwrap();
        has(&page, &[&format!("<script nonce=abc>{SCRIPT}</script>")]);
        assert_eq!(page.matches("<script").count(), 1);
        assert_eq!(
            (STYLE.matches("</").count(), SCRIPT.matches("</").count()),
            (0, 0)
        );
    }
}
