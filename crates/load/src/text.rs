//! Formats a report as text for a terminal: the result first, then the details.
//!
//! Columns are aligned with spaces, not with tabs, and nothing is coloured, so that the text can be pasted anywhere.

use std::fmt::Write;

use crate::report::{AgentRecord, Handshakes, LoadReport, LoadStep, Summary};
use becket_stats::units::{show_bytes, show_count, show_rate, show_us};

pub fn page(report: &LoadReport) -> String {
    let mut out = String::new();
    heading(&mut out, report);
    match report.steps.as_slice() {
        [step] => step_page(&mut out, step),
        steps => ramp_table(&mut out, steps),
    }
    if !report.agents.is_empty() {
        line(&mut out, "");
        agents(&mut out, &report.agents);
    }
    line(&mut out, &format!("\n{}", report.verdict));
    out
}

/// Writes one line per agent: its part of all steps, and the worst of its own figures.
fn agents(out: &mut String, agents: &[AgentRecord]) {
    for AgentRecord {
        agent,
        start_within_us,
        steps,
        ..
    } in agents
    {
        let succeeded = show_count(steps.iter().map(|step| step.succeeded).sum());
        let within = show_us(*start_within_us);
        let clients = || steps.iter().map(|step| &step.generator);
        let late = clients().filter_map(|it| it.late_start_p99_us);
        let late = show_us(late.fold(0.0, f64::max));
        let busiest = clients().map(|it| it.busiest_thread).fold(0.0, f64::max) * 100.0;
        let bound = if clients().any(|it| it.bound) {
            ", bound"
        } else {
            ""
        };
        line(
            out,
            &format!(
                "agent {agent}: {succeeded} succeeded, start within {within}, late starts p99 {late}, busiest thread {busiest:.0} %{bound}"
            ),
        );
    }
}

fn heading(out: &mut String, report: &LoadReport) {
    let plan = &report.plan;
    line(
        out,
        &format!(
            "{}: {} loop, {} connections, {} threads",
            report.target, plan.load_loop, plan.connections, plan.threads
        ),
    );
    if let Some(tls) = &report.negotiated {
        let mut words = vec![tls.version.clone(), tls.suite.clone()];
        words.extend(tls.group.clone());
        words.extend(tls.signature.clone());
        words.extend(tls.alpn.as_ref().map(|alpn| format!("ALPN {alpn}")));
        words.extend(
            tls.tickets_per_full
                .map(|n| format!("{n:.1} tickets per full handshake")),
        );
        line(out, &format!("negotiated: {}", words.join(", ")));
    }
    if report.interrupted {
        line(out, "interrupted: the figures cover the time until then");
    }
    line(out, "");
}

fn step_page(out: &mut String, step: &LoadStep) {
    let traffic = &step.traffic;
    let seconds = step.seconds.max(1e-9);
    let bytes = |count: u64| {
        let count = count as f64;
        format!("{} ({}/s)", show_bytes(count), show_bytes(count / seconds))
    };
    let mut rows: Vec<(&str, String)> = Vec::new();
    rows.extend(
        step.rate_asked_per_s
            .map(|asked| ("asked", show_rate(asked))),
    );
    let attempted = show_count(step.attempted);
    let rate = show_rate(step.rate_attempted_per_s());
    rows.push(("attempted", format!("{attempted} ({rate})")));
    let succeeded = show_count(step.succeeded);
    let rate = show_rate(step.rate_succeeded_per_s);
    rows.push(("succeeded", format!("{succeeded} ({rate})")));
    rows.push(("failed", failures(step)));
    if step.unfinished > 0 {
        let unfinished = show_count(step.unfinished);
        rows.push((
            "unfinished",
            format!("{unfinished} still on their way at the end"),
        ));
    }
    rows.push(("connections", show_count(traffic.connections)));
    if traffic.closed_while_idle > 0 {
        let closed = show_count(traffic.closed_while_idle);
        rows.push((
            "closed idle",
            format!("{closed} by the server between requests"),
        ));
    }
    handshakes(&mut rows, &step.handshakes);
    rows.push(("received", bytes(traffic.bytes_in)));
    rows.push(("sent", bytes(traffic.bytes_out)));
    let each =
        |us: Option<f64>| us.map_or(String::new(), |us| format!(", {us:.1} us per transaction"));
    let client = &step.generator;
    let busiest = client.busiest_thread * 100.0;
    let client = format!(
        "busiest thread {busiest:.0} %{}",
        each(client.cpu_us_per_transaction)
    );
    rows.push(("client CPU", client));
    if let Some(server) = &step.server {
        let each = each(server.cpu_us_per_transaction);
        rows.push(("server CPU", format!("{:.2} CPUs{each}", server.cpus_used)));
    }
    for (name, value) in rows {
        line(out, format!("{name:<12} {value}").trim_end());
    }
    latencies(out, step);
    for finding in &step.findings {
        line(out, &format!("\nfound: {finding}"));
    }
}

fn failures(step: &LoadStep) -> String {
    if step.failed == 0 {
        return "0".to_owned();
    }
    format!("{} ({})", show_count(step.failed), step.failure_kinds())
}

fn handshakes(rows: &mut Vec<(&str, String)>, h: &Handshakes) {
    let done = h.full + h.resumed();
    if done == 0 {
        return;
    }
    let share = 100.0 * h.resumed() as f64 / done as f64;
    let counts = [
        (h.full, "full"),
        (h.resumed_by_id, "resumed by session ID"),
        (h.resumed_by_ticket, "resumed by ticket"),
        (h.resumed_by_psk, "resumed by PSK"),
    ];
    let counts = counts.iter().filter(|(n, what)| *n > 0 || *what == "full");
    let counts = counts.map(|(n, what)| format!("{} {what}", show_count(*n)));
    let counts = counts.collect::<Vec<_>>().join(", ");
    rows.push(("handshakes", format!("{counts} ({share:.1} % resumed)")));
    let (full, resumed) = (show_count(h.asked_full), show_count(h.asked_resumed));
    rows.push(("asked for", format!("{full} full, {resumed} resumed")));
    let oddities = [
        ("had nothing to resume with", h.nothing_to_offer),
        ("declined by the server", h.declined),
        ("took a HelloRetryRequest", h.full_with_retry),
        ("sent early data that was accepted", h.early_data_accepted),
        ("sent early data that was refused", h.early_data_rejected),
    ];
    let oddities = oddities.iter().filter(|(_, n)| *n > 0);
    rows.extend(oddities.map(|(what, n)| ("", format!("{} {what}", show_count(*n)))));
}

fn latencies(out: &mut String, step: &LoadStep) {
    let header = ["latency", "count", "p50", "p90", "p99", "p99.9", "max"].map(str::to_owned);
    let phases = [
        ("connect", Some(&step.latency.connect)),
        ("handshake, full", Some(&step.latency.handshake_full)),
        ("handshake, resumed", Some(&step.latency.handshake_resumed)),
        ("first byte", Some(&step.latency.first_byte)),
        ("first byte, from start", Some(&step.latency.answered)),
        ("whole, uncorrected", Some(&step.latency.whole)),
        ("whole, corrected", step.latency.whole_corrected.as_ref()),
    ];
    let shown = phases
        .into_iter()
        .filter_map(|(name, s)| s.filter(|s| s.count > 0).map(|s| (name, s)));
    line(out, "");
    columns(out, &header);
    for (name, s) in shown {
        columns(out, &summary_cells(name, s));
    }
}

fn summary_cells(name: &str, s: &Summary) -> [String; 7] {
    let [p50, p90, p99, p999, max] =
        [s.p50_us, s.p90_us, s.p99_us, s.p999_us, s.max_us].map(show_us);
    [
        name.to_owned(),
        show_count(s.count),
        p50,
        p90,
        p99,
        p999,
        max,
    ]
}

fn ramp_table(out: &mut String, steps: &[LoadStep]) {
    let header = [
        "asked",
        "attempted",
        "succeeded",
        "failed",
        "p50",
        "p99",
        "client",
    ];
    columns(out, &header.map(str::to_owned));
    for step in steps {
        let whole = step.latency.from_intended();
        let bound = if step.generator.bound { " bound" } else { "" };
        let cells = [
            show_rate(step.rate_asked_per_s.unwrap_or_default()),
            show_rate(step.rate_attempted_per_s()),
            show_rate(step.rate_succeeded_per_s),
            show_count(step.failed),
            show_us(whole.p50_us),
            show_us(whole.p99_us),
            format!("{:.0} %{bound}", step.generator.busiest_thread * 100.0),
        ];
        columns(out, &cells);
        if step.failed > 0 {
            line(out, &format!("  failed: {}", failures(step)));
        }
    }
}

fn columns(out: &mut String, cells: &[String; 7]) {
    let [first, rest @ ..] = cells;
    let rest: String = rest.iter().map(|cell| format!(" {cell:>11}")).collect();
    line(out, format!("{first:<19}{rest}").trim_end());
}

fn line(out: &mut String, text: &str) {
    let written = writeln!(out, "{text}");
    debug_assert!(written.is_ok(), "writing to a string does not fail");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Latencies, Negotiated};

    #[test]
    fn the_page_shows_resumptions_and_failure_causes() {
        let step = LoadStep {
            attempted: 1_010,
            succeeded: 1_000,
            failed: 10,
            failures: [("refused".to_owned(), 10)].into(),
            handshakes: Handshakes {
                full: 250,
                resumed_by_psk: 750,
                asked_full: 250,
                asked_resumed: 750,
                ..Handshakes::default()
            },
            latency: Latencies {
                whole: Summary {
                    count: 1_000,
                    p50_us: 120.0,
                    ..Summary::default()
                },
                ..Latencies::default()
            },
            ..LoadStep::default()
        };
        let report = LoadReport {
            steps: vec![step],
            negotiated: Some(Negotiated {
                version: "TLSv1.3".to_owned(),
                ..Negotiated::default()
            }),
            verdict: "fine".to_owned(),
            ..LoadReport::default()
        };
        let page = page(&report);
        for expected in [
            "refused: 10",
            "750 resumed by PSK (75.0 % resumed)",
            "120.0 us",
            "TLSv1.3",
            "fine",
        ] {
            assert!(page.contains(expected), "{expected} is missing in\n{page}");
        }
    }
}
