//! Decides when each certificate is ordered, and from which authority. Pure: the caller passes the
//! times and the random numbers.
//!
//! A missing certificate is due at once. A present one is due at a point of the window that its
//! authority suggests (ARI, RFC 9773), otherwise at two thirds of its lifetime, or at half of a
//! lifetime below ten days. Only dates of certificates are compared with the wall clock, and always
//! with its present value, so a step of the clock leaves no wrong deadline behind. All waits are
//! counted on the monotonic clock.
//!
//! After a failure, a certificate waits for [`FIRST_WAIT`], doubled with each failure. After three
//! failures with one authority, or if an authority limits the rate, the next authority is used. At
//! most [`MOST_ORDERS`] orders per day are begun, so that a fault cannot use up the limits of an
//! authority.
//!
//! Call [`Schedule::poll_order`] and [`Schedule::poll_window`], report the outcomes with the
//! `handle_*` methods, and call again after [`Schedule::pause`].

use std::collections::VecDeque;
use std::time::Duration;

/// One reading of both clocks.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    pub mono: Duration,
    /// Time since 1970.
    pub unix: Duration,
}

/// A certificate in use. Times are since 1970.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Held {
    pub not_before: Duration,
    pub not_after: Duration,
    /// Position in a renewal window, from 0 to 1. Fixed for a certificate, so that the renewal does
    /// not move when the window is requested again.
    pub position: f64,
}

/// The period in which the authority suggests to renew, in times since 1970.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Window {
    pub start: Duration,
    pub end: Duration,
}

/// A certificate to order now.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attempt {
    pub certificate: usize,
    /// Index of the authority.
    pub authority: usize,
    /// `true` if an unfinished order must be abandoned, because it has failed repeatedly.
    pub is_fresh: bool,
    /// `true` if the order may name the certificate that it replaces. Set for first attempts only,
    /// because some authorities reject such an order.
    pub replaces: bool,
}

/// Facts about a failed attempt.
#[derive(Clone, Copy, Debug, Default)]
pub struct Setback {
    /// Pause that the authority requested.
    pub retry_after: Option<Duration>,
    pub is_rate_limit: bool,
}

#[derive(Debug)]
pub struct Schedule {
    entries: Vec<Entry>,
    /// Monotonic times at which the orders of the last day no longer count, the earliest first.
    begun: VecDeque<Duration>,
}

#[derive(Clone, Debug)]
struct Entry {
    held: Option<Held>,
    window: Option<Window>,
    /// Monotonic time of the next request for the window.
    window_at: Duration,
    is_forced: bool,
    failures: u32,
    /// Failures with the current authority.
    tries: u32,
    authority: usize,
    /// Monotonic time before which no attempt is made.
    rests_until: Duration,
    /// Monotonic times before which an authority accepts no attempt.
    blocked: Vec<Duration>,
}

impl Schedule {
    /// Creates a schedule. `held` has an element for each configured certificate. `begun` has the
    /// ages of the orders that an earlier process began within the last day.
    pub fn new(
        authorities: usize,
        held: Vec<Option<Held>>,
        begun: impl IntoIterator<Item = Duration>,
        now: Moment,
    ) -> Self {
        let entry = |held| Entry {
            held,
            window: None,
            window_at: now.mono,
            is_forced: false,
            failures: 0,
            tries: 0,
            authority: 0,
            rests_until: Duration::ZERO,
            blocked: vec![Duration::ZERO; authorities.max(1)],
        };
        let begun = begun.into_iter().map(|age| now.mono + DAY.saturating_sub(age));
        let mut begun: Vec<Duration> = begun.collect();
        begun.sort_unstable();
        Self {
            entries: held.into_iter().map(entry).collect(),
            begun: begun.into(),
        }
    }

    pub fn held(&self, certificate: usize) -> Option<Held> {
        self.entries.get(certificate)?.held
    }

    pub fn failures(&self, certificate: usize) -> u32 {
        self.entries.get(certificate).map_or(0, |it| it.failures)
    }

    /// Returns the time since 1970 of the next attempt for a certificate.
    pub fn next_attempt(&self, certificate: usize, now: Moment) -> Option<Duration> {
        let entry = self.entries.get(certificate)?;
        let rest = entry.may_at().saturating_sub(now.mono);
        Some(now.unix.saturating_add(rest).max(entry.renews_at()))
    }

    /// Makes a certificate due at once. Returns `false` if today's orders are used up.
    pub fn force(&mut self, certificate: usize, now: Moment) -> bool {
        let may = self.orders_left(now) > 0;
        if let Some(entry) = self.entries.get_mut(certificate) {
            entry.is_forced = may;
        }
        may
    }

    /// Returns the most urgent certificate that is due.
    pub fn poll_order(&mut self, now: Moment) -> Option<Attempt> {
        let left = self.orders_left(now);
        let due = self.entries.iter_mut().enumerate();
        let due = due.filter(|(_, it)| it.may_order(left) && it.due_in(now).is_zero());
        let urgency = |it: &Entry| (!it.is_forced, it.failures, it.renews_at());
        let (certificate, entry) = due.min_by_key(|(_, entry)| urgency(entry))?;
        entry.is_forced = false;
        Some(Attempt {
            certificate,
            authority: entry.authority,
            is_fresh: entry.failures > 0 && entry.tries == 0,
            replaces: entry.failures == 0,
        })
    }

    /// Returns a certificate whose renewal window is to be requested.
    pub fn poll_window(&mut self, now: Moment) -> Option<usize> {
        let mut entries = self.entries.iter();
        entries.position(|it| it.wants_window() && it.window_at <= now.mono)
    }

    /// Returns the time until the next call can have an effect, at most [`LONGEST_PAUSE`].
    pub fn pause(&mut self, now: Moment) -> Duration {
        let left = self.orders_left(now);
        let waits = self.entries.iter().flat_map(|entry| {
            let order = Some(entry.due_in(now)).filter(|_| entry.may_order(left));
            let window = entry.window_at.saturating_sub(now.mono);
            [order, Some(window).filter(|_| entry.wants_window())]
        });
        let waits = waits.flatten();
        waits.min().unwrap_or(LONGEST_PAUSE).min(LONGEST_PAUSE)
    }

    /// Notes that an authority has accepted a new order.
    pub fn handle_begun(&mut self, now: Moment) {
        self.begun.push_back(now.mono + DAY);
    }

    /// Notes a new certificate.
    pub fn handle_certificate(&mut self, certificate: usize, held: Held, now: Moment) {
        let Some(entry) = self.entries.get_mut(certificate) else {
            return;
        };
        let authorities = entry.blocked.len();
        *entry = Entry {
            held: Some(held),
            window: None,
            window_at: now.mono,
            is_forced: false,
            failures: 0,
            tries: 0,
            authority: 0,
            // A certificate that is due again at once would be ordered in a loop.
            rests_until: now.mono + (held.lifetime() / 4).min(LEAST_INTERVAL),
            blocked: vec![Duration::ZERO; authorities],
        };
    }

    /// Notes the answer to a request for a window: `None` if there is none. `retry_after` is the
    /// time until the next request.
    pub fn handle_window(
        &mut self,
        certificate: usize,
        window: Option<Window>,
        retry_after: Option<Duration>,
        now: Moment,
    ) {
        if let Some(entry) = self.entries.get_mut(certificate) {
            let wait = retry_after.unwrap_or(WINDOW_INTERVAL);
            entry.window = window.filter(|it| it.start < it.end).or(entry.window);
            entry.window_at = now.mono + wait.clamp(LEAST_WINDOW_INTERVAL, DAY);
        }
    }

    /// Notes a failed attempt. `random` is a number from 0 to 1.
    pub fn handle_failure(
        &mut self,
        certificate: usize,
        setback: Setback,
        now: Moment,
        random: f64,
    ) {
        let Some(entry) = self.entries.get_mut(certificate) else {
            return;
        };
        let authorities = entry.blocked.len();
        entry.failures = entry.failures.saturating_add(1);
        entry.tries += 1;
        let limit = setback.is_rate_limit.then_some(RATE_LIMIT_WAIT);
        let block = setback.retry_after.or(limit).unwrap_or_default();
        entry.blocked[entry.authority] = now.mono + block.min(LONGEST_BLOCK);
        let mut doublings = (entry.failures - 1).min(MOST_DOUBLINGS);
        if entry.tries >= MOST_TRIES || (setback.is_rate_limit && authorities > 1) {
            let others = (1..=authorities).map(|step| (entry.authority + step) % authorities);
            let next = others.min_by_key(|other| entry.blocked[*other].max(now.mono));
            entry.authority = next.unwrap_or_default();
            entry.tries = 0;
            // Each authority is tried for the first time without a long wait.
            if authorities > 1 && entry.failures < MOST_TRIES * authorities as u32 {
                doublings = 0;
            }
        }
        let wait = (FIRST_WAIT * 2_u32.pow(doublings)).min(DAY);
        entry.rests_until = now.mono + wait.mul_f64(0.5 + random.clamp(0.0, 1.0));
    }

    /// Returns how many orders may be begun today.
    fn orders_left(&mut self, now: Moment) -> usize {
        while self.begun.front().is_some_and(|until| *until <= now.mono) {
            self.begun.pop_front();
        }
        MOST_ORDERS.saturating_sub(self.begun.len())
    }
}

impl Held {
    fn lifetime(&self) -> Duration {
        self.not_after.saturating_sub(self.not_before)
    }
}

impl Entry {
    /// Returns the time since 1970 at which the certificate needs renewal; 0 without a certificate.
    fn renews_at(&self) -> Duration {
        let Some(held) = &self.held else {
            return Duration::ZERO;
        };
        let lifetime = held.lifetime();
        let Some(window) = &self.window else {
            let part = if lifetime < SHORT_LIFETIME {
                lifetime / 2
            } else {
                lifetime / 3 * 2
            };
            return held.not_before.saturating_add(part);
        };
        let length = window.end.saturating_sub(window.start);
        let point = window.start.saturating_add(length.mul_f64(held.position.clamp(0.0, 1.0)));
        // A wrong window must not let the certificate expire.
        point.min(held.not_after.saturating_sub(lifetime / 10))
    }

    /// Returns the monotonic time from which an attempt may be made.
    fn may_at(&self) -> Duration {
        let blocked = self.blocked.get(self.authority);
        self.rests_until.max(blocked.copied().unwrap_or_default())
    }

    /// Returns whether the orders that are left today suffice.
    fn may_order(&self, left: usize) -> bool {
        left > 0 && (self.failures == 0 || self.is_forced || left > RESERVE)
    }

    fn due_in(&self, now: Moment) -> Duration {
        if self.is_forced {
            return Duration::ZERO;
        }
        let by_date = self.renews_at().saturating_sub(now.unix);
        by_date.max(self.may_at().saturating_sub(now.mono))
    }

    /// A failing certificate is due anyway, so no window is requested for it.
    fn wants_window(&self) -> bool {
        self.held.is_some() && self.failures == 0
    }
}

const DAY: Duration = Duration::from_secs(24 * 3600);
/// Maximum number of orders per day. Let's Encrypt allows 300 in three hours, and 50 for the names
/// of one registered domain in a week.
pub const MOST_ORDERS: usize = 50;
/// Orders of a day that are reserved for first attempts.
const RESERVE: usize = 10;
/// Lifetime below which a certificate is renewed at half of it.
const SHORT_LIFETIME: Duration = Duration::from_secs(10 * 24 * 3600);
/// Wait after the first failure.
const FIRST_WAIT: Duration = Duration::from_secs(60);
/// 2^11 minutes are more than a day.
const MOST_DOUBLINGS: u32 = 11;
/// Failures with one authority before the next one is tried.
const MOST_TRIES: u32 = 3;
/// Wait after a rate limit, if the authority names none.
const RATE_LIMIT_WAIT: Duration = Duration::from_secs(3600);
/// Maximum wait that an authority can impose: the longest period of a usual rate limit.
const LONGEST_BLOCK: Duration = Duration::from_secs(7 * 24 * 3600);
/// Minimum time between two certificates for the same names, unless their lifetime is shorter.
const LEAST_INTERVAL: Duration = Duration::from_secs(3600);
/// Time between requests for a window, if the authority names none (RFC 9773, section 4.3).
const WINDOW_INTERVAL: Duration = Duration::from_secs(6 * 3600);
const LEAST_WINDOW_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum pause, so that a step of the wall clock is soon noticed.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(60);
