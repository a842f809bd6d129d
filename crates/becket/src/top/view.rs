//! Draws a [`Screen`]: problems, rates, servers, and the sources and names with most connections.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, RenderDirection, Row, Sparkline, Table};
use std::cmp::Reverse;
use std::time::Duration;

use super::sample::TopRefused;
use super::screen::{Screen, ServerRow, SortBy};
use crate::status::escaped;
use becket_config::choices::ServerMode;
use becket_control::history::Moment;
use becket_control::replies::TopConnections;
use becket_control::status::Status;
use becket_control::totals::Totals;
use becket_control::web::span;
use becket_stats::units::show_bytes;

pub(super) fn draw(frame: &mut Frame<'_>, screen: &mut Screen) {
    let head = head(screen);
    let [above, plot, servers, mut most, keys] = Layout::vertical([
        Constraint::Length(head.len() as u16),
        Constraint::Length(3),
        Constraint::Fill(3),
        Constraint::Fill(2),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(Paragraph::new(head), above);
    draw_plot(frame, screen, plot);
    draw_servers(frame, screen, servers);
    if most.width >= CLOSED_SINCE {
        let parts = Layout::horizontal([Constraint::Fill(2), Constraint::Fill(1)]).spacing(2);
        let [left, right] = parts.areas(most);
        draw_closed(frame, screen, right);
        most = left;
    }
    draw_most(frame, &screen.now.most, most);
    let help = "q quit  sort: n name o open r rate f failures (again: reverse)  p pause  arrows";
    frame.render_widget(Line::from(help).dim(), keys);
}

fn head(screen: &Screen) -> Vec<Line<'static>> {
    let process = &screen.now.status.process;
    let uptime = span(Duration::from_secs(process.uptime_seconds));
    let (version, state) = (escaped(&process.version), process.state.label());
    let (workers, pid) = (process.workers, process.pid);
    let title = format!("becket {version}  {state}, up {uptime}  {workers} workers  process {pid}");
    let mut title = vec![Span::from(title).bold()];
    if screen.is_paused {
        title.push(Span::from("  paused").yellow());
    }
    let mut lines = vec![Line::from(title)];
    if let Some(fault) = &screen.fault {
        lines.push(Line::from(format!("no answer: {}", escaped(fault))).red());
    }
    let problems = &screen.now.status.problems;
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

/// Draws handshakes per second with a scale. The newest value is at the right edge.
fn draw_plot(frame: &mut Frame<'_>, screen: &Screen, area: Rect) {
    let columns = [Constraint::Length(SCALE_WIDTH), Constraint::Fill(1)];
    let [scale, plot] = Layout::horizontal(columns).areas(area);
    let latest: Vec<u64> = screen
        .handshakes
        .iter()
        .rev()
        .take(plot.width.into())
        .copied()
        .collect();
    let most = latest.iter().copied().max().unwrap_or_default().max(1);
    let marks = [format!("{most}/s "), String::new(), "0/s ".to_owned()];
    let marks: Vec<_> = marks.map(|mark| Line::from(mark).right_aligned()).into();
    frame.render_widget(Paragraph::new(marks).dim(), scale);
    let bars = Sparkline::default().data(latest).max(most).cyan();
    frame.render_widget(bars.direction(RenderDirection::RightToLeft), plot);
}

fn traffic(screen: &Screen) -> [String; 4] {
    let traffic = &screen.now.status.traffic;
    let of = |of: fn(&Totals) -> u64| screen.rate_of(|status| of(&status.traffic.totals));
    let each = |count: fn(&Totals) -> u64| per_second(of(count));
    let backends = screen.now.status.backends.iter();
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
            "connections  {} open  {waiting} waiting for a server  accepted {}",
            traffic.totals.connections,
            each(|it| it.accepted),
        ),
        format!(
            "bytes        in {}  out {}",
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
        format!("             p50 {p50}  p99 {p99} over the last 10 s; plot: handshakes/s"),
    ]
}

fn draw_servers(frame: &mut Frame<'_>, screen: &mut Screen, area: Rect) {
    let count = screen.servers().len();
    screen.above = screen.above.min(count.saturating_sub(1));
    let rows = screen.servers();
    let columns = server_columns(area.width);
    let head = columns.iter().map(|column| {
        let name = column.name;
        if column.sort == Some(screen.sort) {
            let order = if screen.is_reversed { "-" } else { "+" };
            Cell::from(format!("{name}{order}"))
        } else {
            Cell::from(name)
        }
    });
    let widths = columns.iter().map(|column| match column.width {
        0 => Constraint::Fill(1),
        width => Constraint::Length(width),
    });
    let shown = rows.iter().skip(screen.above).map(|one| {
        let row = Row::new(columns.iter().map(|column| (column.text)(one)));
        if one.server.health.is_usable() {
            row
        } else {
            row.red()
        }
    });
    let table = Table::new(shown, widths).header(Row::new(head).style(HEAD));
    frame.render_widget(table, area);
}

/// Returns the columns that fit, with at least [`NAME_WIDTH`] characters for the name column.
fn server_columns(width: u16) -> Vec<&'static ServerColumn> {
    let mut columns: Vec<_> = SERVER_COLUMNS.iter().collect();
    for dropped in LEAST_USEFUL {
        let taken: u16 = columns[1..].iter().map(|it| it.width + 1).sum();
        if taken + NAME_WIDTH <= width {
            break;
        }
        columns.retain(|it| it.name != dropped);
    }
    columns
}

/// Draws the close reasons of connections, the most frequent first.
fn draw_closed(frame: &mut Frame<'_>, screen: &Screen, area: Rect) {
    let closed = &screen.now.status.traffic.totals.closed;
    let mut closed: Vec<_> = closed.iter().collect();
    closed.sort_by_key(|(_, count)| Reverse(**count));
    let rows = closed.into_iter().map(|(reason, count)| {
        let of = |status: &Status| status.traffic.totals.closed.get(reason).copied();
        let rate = screen.rate_of(|status| of(status).unwrap_or_default());
        Row::new([escaped(reason), count.to_string(), per_second(rate)])
    });
    let widths = [
        Constraint::Fill(1),
        Constraint::Length(11),
        Constraint::Length(10),
    ];
    let head = Row::new(["CLOSE REASON", "CONNECTIONS", "RATE"]).style(HEAD);
    frame.render_widget(Table::new(rows, widths).header(head), area);
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
                show_bytes(row.bytes as f64),
            ])
        });
        let widths = [
            Constraint::Fill(1),
            Constraint::Length(6),
            Constraint::Length(8),
        ];
        let head = Row::new([name, "OPEN", "BYTES"]).style(HEAD);
        frame.render_widget(Table::new(rows, widths).header(head), half);
    }
}

fn per_second(rate: Option<f64>) -> String {
    rate.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.1}/s"))
}

fn bytes_per_second(rate: Option<f64>) -> String {
    rate.map_or_else(|| "-".to_owned(), |rate| show_bytes(rate) + "/s")
}

struct ServerColumn {
    name: &'static str,
    /// Width in characters, or 0 for the name column, which fills the available width.
    width: u16,
    sort: Option<SortBy>,
    text: fn(&ServerRow<'_>) -> String,
}

const fn column(
    name: &'static str,
    width: u16,
    sort: Option<SortBy>,
    text: fn(&ServerRow<'_>) -> String,
) -> ServerColumn {
    ServerColumn {
        name,
        width,
        sort,
        text,
    }
}

static SERVER_COLUMNS: [ServerColumn; 8] = [
    column("BACKEND/SERVER", 0, Some(SortBy::Name), |it| {
        format!("{}/{}", escaped(it.backend), escaped(&it.server.name))
    }),
    column("MODE", 11, None, |it| {
        match (it.server.mode, it.server.backup) {
            (ServerMode::Ready, true) => "backup".to_owned(),
            (mode, _) => mode.label().to_owned(),
        }
    }),
    column("CONDITION", 14, None, |it| {
        escaped(it.server.health.label())
    }),
    column("WEIGHT", 6, None, |it| it.server.weight.to_string()),
    column("OPEN", 9, Some(SortBy::Open), |it| {
        it.server.in_use.to_string()
    }),
    column("MAXCONN", 9, None, |it| {
        let most = it.server.maxconn;
        most.map_or_else(|| "-".to_owned(), |most| most.to_string())
    }),
    column("RATE", 10, Some(SortBy::Rate), |it| per_second(it.rate)),
    column("FAILURES", 9, Some(SortBy::Failures), |it| {
        it.server.failures.to_string()
    }),
];
/// Columns that a narrow terminal omits, the first one first. A terminal of 80 characters omits two of them.
const LEAST_USEFUL: [&str; 6] = ["WEIGHT", "MAXCONN", "MODE", "FAILURES", "RATE", "OPEN"];
/// Minimum width of the name column in characters. A short backend name and an IPv4 address with a
/// port fit.
const NAME_WIDTH: u16 = 20;
/// Width of the scale in characters. It equals the first column of the lines above the plot.
const SCALE_WIDTH: u16 = 13;
/// Minimum width in characters of a terminal that shows close reasons.
const CLOSED_SINCE: u16 = 120;
/// Maximum number of problems shown. Further problems are only counted.
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
    fn a_screen_shows_problems_rates_servers_and_top_sources() {
        let text = drawn(&mut screen(), 110, 30);
        for part in [
            "becket 1.2.3  serving, up 1 h 0 min  4 workers  process 77",
            "problem: backend app: server 10.0.0.3:80 is out of service: refused",
            "42 open  5 waiting for a server  accepted 30.0/s",
            "in 1.4 MiB/s  out 2.9 KiB/s",
            "full 10.0/s  resumed 20.0/s  failed 0.5/s  3 in flight",
            "p50 1.2 ms  p99 8.1 ms",
            " 30/s ",
            " 0/s ",
            "█\"",
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
    fn a_small_terminal_omits_columns_and_keeps_full_names() {
        let name = format!("app/{}", "s".repeat(16));
        let mut sample = sample(12);
        sample.status.backends[0].servers[0].name = name[4..].to_owned();
        let mut screen = Screen::new(sample);
        let text = drawn(&mut screen, 80, 24);
        for part in [
            &*name,
            "MODE",
            "CONDITION",
            "RATE",
            "FAILURES",
            "192.0.2.0/24",
            "p pause  arrows",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        for part in ["WEIGHT", "MAXCONN", "CLOSE REASON"] {
            assert!(!text.contains(part), "{part} is in\n{text}");
        }
        let names = |width| server_columns(width).len();
        assert_eq!([1, 40, 80, 200].map(names), [2, 2, 6, 8]);
    }

    #[test]
    fn a_large_terminal_shows_close_reasons() {
        let text = drawn(&mut screen(), 200, 50);
        let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("{part}\n{text}"));
        assert!(at("CLOSE REASON") < at("finished"));
        assert!(at("finished") < at("hello-timeout"));
        assert!(
            text.contains("25.0/s") && text.contains("MAXCONN"),
            "{text}"
        );
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
    fn missing_values_are_marked_and_control_characters_are_escaped() {
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
