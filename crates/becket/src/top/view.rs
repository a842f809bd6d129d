//! Draws a [`Screen`]: problems, rates, servers, and the sources and names with most connections.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Sparkline, Table};
use std::time::Duration;

use super::sample::TopRefused;
use super::screen::{Screen, ServerRow, SortBy};
use crate::status::escaped;
use becket_control::history::Moment;
use becket_control::replies::TopConnections;
use becket_control::totals::Totals;
use becket_control::web::span;

pub(super) fn draw(frame: &mut Frame<'_>, screen: &mut Screen) {
    let head = head(screen);
    let [above, plot, servers, most, keys] = Layout::vertical([
        Constraint::Length(head.len() as u16),
        Constraint::Length(3),
        Constraint::Fill(3),
        Constraint::Fill(2),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(Paragraph::new(head), above);
    // The newest value is at the right edge.
    let mut latest: Vec<u64> = screen.handshakes().rev().take(plot.width.into()).collect();
    latest.reverse();
    frame.render_widget(Sparkline::default().data(latest).cyan(), plot);
    draw_servers(frame, screen, servers);
    draw_most(frame, screen.most(), most);
    let help =
        "q quit   n name  o open  r rate  f failures (again: reverse)   p pause   arrows scroll";
    frame.render_widget(Line::from(help).dim(), keys);
}

fn head(screen: &Screen) -> Vec<Line<'static>> {
    let process = &screen.status().process;
    let uptime = span(Duration::from_secs(process.uptime_seconds));
    let (version, state) = (escaped(&process.version), process.state.label());
    let (workers, pid) = (process.workers, process.pid);
    let title = format!("becket {version}  {state} for {uptime}  {workers} workers  process {pid}");
    let mut title = vec![Span::from(title).bold()];
    if screen.is_paused {
        title.push(Span::from("  paused").yellow());
    }
    let mut lines = vec![Line::from(title)];
    if let Some(fault) = &screen.fault {
        lines.push(Line::from(format!("no answer: {}", escaped(fault))).red());
    }
    let problems = &screen.status().problems;
    let more = problems.len().saturating_sub(MOST_PROBLEMS);
    for problem in problems.iter().take(MOST_PROBLEMS) {
        lines.push(Line::from(format!("problem: {}", escaped(problem))).red());
    }
    if more > 0 {
        lines.push(Line::from(format!("{more} more: becket status")).red());
    }
    lines.extend(traffic(screen).map(Line::from));
    lines
}

fn traffic(screen: &Screen) -> [String; 3] {
    let traffic = &screen.status().traffic;
    let of = |of: fn(&Totals) -> u64| screen.rate_of(|status| of(&status.traffic.totals));
    let each = |count: fn(&Totals) -> u64| per_second(of(count));
    let backends = screen.status().backends.iter();
    let waiting: usize = backends.map(|backend| backend.waiting).sum();
    let time = |of: fn(&Moment) -> Option<u64>| {
        let us = traffic.recent.as_ref().and_then(of);
        us.map_or_else(
            || "-".to_owned(),
            |us| format!("{:.1} ms", us as f64 / 1000.0),
        )
    };
    let (p50, p99) = (
        time(|it| it.handshake_p50_us),
        time(|it| it.handshake_p99_us),
    );
    [
        format!(
            "connections  {} open  {waiting} waiting for a server  accepted {}  bytes in {}  out {}",
            traffic.totals.connections,
            each(|it| it.accepted),
            bytes_per_second(of(|it| it.client_bytes_in)),
            bytes_per_second(of(|it| it.client_bytes_out)),
        ),
        format!(
            "handshakes   full {}  resumed {}  failed {}  {} in flight",
            each(|it| it.handshakes_full),
            each(|it| it.handshakes_resumed),
            each(|it| it.handshakes_failed),
            traffic.totals.handshakes_in_flight,
        ),
        format!("             p50 {p50}  p99 {p99} over the last 10 s; handshakes per second:"),
    ]
}

fn draw_servers(frame: &mut Frame<'_>, screen: &mut Screen, area: Rect) {
    let rows = screen.servers();
    screen.above = screen.above.min(rows.len().saturating_sub(1));
    let columns = [
        ("BACKEND/SERVER", Some(SortBy::Name)),
        ("MODE", None),
        ("CONDITION", None),
        ("WEIGHT", None),
        ("OPEN", Some(SortBy::Open)),
        ("MAXCONN", None),
        ("RATE", Some(SortBy::Rate)),
        ("FAILURES", Some(SortBy::Failures)),
    ];
    let head = columns.map(|(name, sort)| {
        if sort == Some(screen.sort) {
            Cell::from(format!(
                "{name}{}",
                if screen.is_reversed { "-" } else { "+" }
            ))
        } else {
            Cell::from(name)
        }
    });
    let widths = [
        Constraint::Fill(1),
        Constraint::Length(11),
        Constraint::Length(14),
        Constraint::Length(6),
        Constraint::Length(9),
        Constraint::Length(9),
        Constraint::Length(10),
        Constraint::Length(9),
    ];
    let shown = rows.iter().skip(screen.above).map(server_row);
    let table = Table::new(shown, widths).header(Row::new(head).style(HEAD));
    frame.render_widget(table, area);
}

fn server_row(server: &ServerRow) -> Row<'static> {
    let maxconn = server
        .maxconn
        .map_or_else(|| "-".to_owned(), |most| most.to_string());
    let row = Row::new([
        server.name.clone(),
        server.mode.to_owned(),
        server.condition.clone(),
        server.weight.to_string(),
        server.open.to_string(),
        maxconn,
        per_second(server.rate),
        server.failures.to_string(),
    ]);
    if server.is_out { row.red() } else { row }
}

fn draw_most(frame: &mut Frame<'_>, most: &Result<TopConnections, TopRefused>, area: Rect) {
    let most = match most {
        Ok(most) => most,
        Err(why) => {
            let text = format!("sources and names are not shown: {}", escaped(&why.error));
            frame.render_widget(Line::from(text).dim(), area);
            return;
        }
    };
    let halves: [Rect; 2] = Layout::horizontal([Constraint::Fill(1); 2])
        .spacing(2)
        .areas(area);
    for (half, (rows, name)) in halves
        .into_iter()
        .zip([(&most.sources, "SOURCE"), (&most.names, "NAME")])
    {
        let rows = rows.iter().map(|row| {
            Row::new([
                escaped(&row.of),
                row.connections.to_string(),
                bytes_of(row.bytes as f64),
            ])
        });
        let widths = [
            Constraint::Fill(1),
            Constraint::Length(11),
            Constraint::Length(9),
        ];
        let head = Row::new([name, "CONNECTIONS", "BYTES"]).style(HEAD);
        frame.render_widget(Table::new(rows, widths).header(head), half);
    }
}

fn per_second(rate: Option<f64>) -> String {
    rate.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.1}/s"))
}

fn bytes_per_second(rate: Option<f64>) -> String {
    rate.map_or_else(|| "-".to_owned(), |rate| bytes_of(rate) + "/s")
}

/// Formats a byte count, such as `1.5 MB`.
fn bytes_of(count: f64) -> String {
    let units = ["B", "kB", "MB", "GB", "TB"];
    let mut count = count;
    let mut unit = 0;
    while count >= 1000.0 && unit + 1 < units.len() {
        (count, unit) = (count / 1000.0, unit + 1);
    }
    let digits = usize::from(unit > 0);
    format!("{count:.digits$} {}", units[unit])
}

/// Maximum number of problems shown; further problems are only counted.
const MOST_PROBLEMS: usize = 3;
const HEAD: Style = Style::new().bold().underlined();

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::top::fixture::{key, sample};

    fn drawn(screen: &mut Screen, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, screen)).unwrap();
        terminal.backend().to_string()
    }

    fn screen() -> Screen {
        let mut screen = Screen::new(sample(10));
        screen.take(Ok(sample(12)));
        screen
    }

    #[test]
    fn a_screen_has_what_is_wrong_rates_servers_and_who_has_most() {
        let text = drawn(&mut screen(), 110, 30);
        for part in [
            "becket 1.2.3  serving for 1 h 0 min  4 workers  process 77",
            "problem: backend app: server 10.0.0.3:80 is out of service: refused",
            "42 open  5 waiting for a server  accepted 30.0/s  bytes in 1.5 MB/s  out 3.0 kB/s",
            "full 10.0/s  resumed 20.0/s  failed 0.5/s  3 in flight",
            "p50 1.2 ms  p99 8.1 ms",
            "BACKEND/SERVER+",
            "app/10.0.0.2:80",
            "192.0.2.0/24",
            "www.example.org",
            "q quit",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
    }

    #[test]
    fn a_screen_is_drawn_at_any_size_and_scrolls_to_the_last_server() {
        let mut screen = screen();
        for (width, height) in [(1, 1), (20, 3), (40, 10), (300, 100)] {
            drawn(&mut screen, width, height);
        }
        screen.above = 1000;
        let text = drawn(&mut screen, 110, 30);
        assert!(
            text.contains("app/10.0.0.3:80") && !text.contains("app/10.0.0.2:80"),
            "{text}"
        );
    }

    #[test]
    fn what_is_not_told_is_said_and_texts_drive_no_terminal() {
        let mut told = sample(12);
        let error = "this address only shows pages".to_owned();
        told.most = Err(TopRefused { error });
        told.status.backends[0].servers[0].name = "a\u{1b}[2J".to_owned();
        let mut screen = Screen::new(told);
        screen.press(key('p'));
        let text = drawn(&mut screen, 110, 30);
        assert!(
            text.contains("not shown: this address only shows pages"),
            "{text}"
        );
        assert!(
            text.contains("paused") && text.contains("a\\u{1b}[2J"),
            "{text}"
        );
        assert!(text.contains("accepted -"), "no rate of one sample\n{text}");
    }
}
