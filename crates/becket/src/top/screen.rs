//! State of the screen: the last two samples, their differences, and the user's choices, such as
//! the sort order.

use std::cmp::Reverse;
use std::collections::VecDeque;

use becket_control::status::{ServerStatus, Status};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::sample::Sample;
use crate::admin::NoStatus;
use crate::status::rate;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SortBy {
    Name,
    Open,
    Rate,
    Failures,
}

#[derive(Debug)]
pub(super) struct ServerRow<'a> {
    pub(super) backend: &'a str,
    pub(super) server: &'a ServerStatus,
    /// Connections per second; `None` without an earlier sample.
    pub(super) rate: Option<f64>,
}

#[derive(Debug)]
pub(super) struct Screen {
    pub(super) now: Sample,
    before: Option<Sample>,
    /// Handshakes per second, oldest first.
    pub(super) handshakes: VecDeque<u64>,
    pub(super) fault: Option<String>,
    pub(super) sort: SortBy,
    pub(super) is_reversed: bool,
    pub(super) is_paused: bool,
    /// Number of servers above the visible part of the list.
    pub(super) above: usize,
}

impl Screen {
    pub(super) fn new(first: Sample) -> Self {
        Self {
            now: first,
            before: None,
            handshakes: VecDeque::new(),
            fault: None,
            sort: SortBy::Name,
            is_reversed: false,
            is_paused: false,
            above: 0,
        }
    }

    /// Shows a sample, or the error of a failed request. Ignores both while the display is paused.
    pub(super) fn take(&mut self, sample: Result<Sample, NoStatus>) {
        if self.is_paused {
            return;
        }
        let sample = match sample {
            Ok(sample) => sample,
            Err(fault) => {
                self.fault = Some(fault.to_string());
                return;
            }
        };
        self.fault = None;
        // A new process starts its counters at zero, so both samples must come from the same
        // process.
        let is_same = sample.status.process.started == self.now.status.process.started;
        let before = std::mem::replace(&mut self.now, sample);
        self.before = Some(before).filter(|_| is_same);
        let handshakes = self.rate_of(|status| {
            let totals = &status.traffic.totals;
            totals.handshakes_full + totals.handshakes_resumed
        });
        if let Some(rate) = handshakes {
            if self.handshakes.len() == MOST_MOMENTS {
                self.handshakes.pop_front();
            }
            self.handshakes.push_back(rate.round() as u64);
        }
    }

    /// Handles a key press. Returns `true` if the key ends the program.
    pub(super) fn press(&mut self, key: KeyEvent) -> bool {
        if key.kind == KeyEventKind::Release {
            return false;
        }
        match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return true,
            KeyCode::Char('q') | KeyCode::Esc => return true,
            KeyCode::Char('p') => self.is_paused = !self.is_paused,
            KeyCode::Char('n') => self.sort_by(SortBy::Name),
            KeyCode::Char('o') => self.sort_by(SortBy::Open),
            KeyCode::Char('r') => self.sort_by(SortBy::Rate),
            KeyCode::Char('f') => self.sort_by(SortBy::Failures),
            KeyCode::Down => self.above += 1,
            KeyCode::Up => self.above = self.above.saturating_sub(1),
            KeyCode::PageDown => self.above += A_PAGE,
            KeyCode::PageUp => self.above = self.above.saturating_sub(A_PAGE),
            KeyCode::Home => self.above = 0,
            _ => {}
        }
        false
    }

    /// Sorts by a column. Reverses the order if the list is already sorted by this column.
    fn sort_by(&mut self, sort: SortBy) {
        self.is_reversed = self.sort == sort && !self.is_reversed;
        self.sort = sort;
        self.above = 0;
    }

    /// Returns the increase of a number per second; `None` without an earlier sample.
    pub(super) fn rate_of(&self, of: impl Fn(&Status) -> u64) -> Option<f64> {
        rate(&self.now.status, &self.before.as_ref()?.status, of)
    }

    pub(super) fn servers(&self) -> Vec<ServerRow<'_>> {
        let mut rows = Vec::new();
        for (at, backend) in self.now.status.backends.iter().enumerate() {
            for (index, server) in backend.servers.iter().enumerate() {
                // The rate is `None` if a reload changed the server's position between the two
                // samples.
                let find = |status: &'_ Status| {
                    let other = status.backends.get(at)?;
                    let found = other.servers.get(index)?;
                    let is_same = other.name == backend.name && found.name == server.name;
                    is_same.then_some(found.connections)
                };
                let before = self.before.as_ref();
                let was_there = before.is_some_and(|it| find(&it.status).is_some());
                let rate = was_there.then(|| self.rate_of(|it| find(it).unwrap_or_default()));
                rows.push(ServerRow {
                    backend: &backend.name,
                    server,
                    rate: rate.flatten(),
                });
            }
        }
        match self.sort {
            SortBy::Name => {}
            SortBy::Open => rows.sort_by_key(|row| Reverse(row.server.in_use)),
            SortBy::Rate => {
                let rate = |row: &ServerRow<'_>| row.rate.unwrap_or_default();
                rows.sort_by(|a, b| rate(b).total_cmp(&rate(a)));
            }
            SortBy::Failures => rows.sort_by_key(|row| Reverse(row.server.failures)),
        }
        if self.is_reversed {
            rows.reverse();
        }
        rows
    }
}

/// Maximum number of samples in the plot. It exceeds the width of most terminals.
const MOST_MOMENTS: usize = 300;
/// Number of rows that a page key scrolls.
const A_PAGE: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::fixture::{key, sample};

    fn first_names(screen: &Screen) -> Vec<String> {
        let rows = screen.servers().into_iter();
        rows.map(|row| row.server.name.replace("10.0.0.", ""))
            .collect()
    }

    #[test]
    fn rates_are_differences_between_samples_of_one_process() {
        let mut screen = Screen::new(sample(10));
        let accepted = |screen: &Screen| screen.rate_of(|it| it.traffic.totals.accepted);
        assert_eq!(accepted(&screen), None);
        screen.take(Ok(sample(12)));
        assert_eq!(accepted(&screen), Some(30.0));
        assert_eq!(screen.servers()[0].rate, Some(20.0));
        assert_eq!(screen.handshakes, [30]);
        screen.take(Err(NoStatus::Foreign("gone".to_owned())));
        assert_eq!(
            (screen.fault.as_deref(), accepted(&screen)),
            (Some("gone: the answer is not from becket"), Some(30.0))
        );
        let mut other = sample(1);
        other.status.process.started = other.status.process.now;
        screen.take(Ok(other));
        assert_eq!((screen.fault.take(), accepted(&screen)), (None, None));
    }

    #[test]
    fn a_key_sorts_and_a_second_press_reverses_the_order() {
        let mut screen = Screen::new(sample(10));
        screen.take(Ok(sample(11)));
        for (char, order) in [
            ('n', ["3:80", "2:80", "1:80"]),
            ('o', ["2:80", "1:80", "3:80"]),
            ('o', ["3:80", "1:80", "2:80"]),
            ('r', ["1:80", "2:80", "3:80"]),
            ('f', ["3:80", "2:80", "1:80"]),
            ('n', ["1:80", "2:80", "3:80"]),
        ] {
            assert!(!screen.press(key(char)));
            assert_eq!(first_names(&screen), order, "{char}");
        }
        assert!(screen.press(key('q')));
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert!(screen.press(interrupt));
    }
}
