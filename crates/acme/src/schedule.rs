//! Decides when each certificate is ordered, and from which authority. Pure: the caller passes the
//! times and the random numbers.
//!
//! A missing certificate is due at once. A present one is due at a point of the window that its
//! authority suggests (ARI, RFC 9773), otherwise at two thirds of its lifetime, or at half of a
//! lifetime below ten days. Only dates of certificates are compared with the wall clock, and always
//! with its present value, so a step of the clock leaves no wrong deadline behind. All waits are
//! counted on the monotonic clock.
//!
//! In a cluster, the node of rank 0 orders a certificate. A node of a higher rank waits longer, by a
//! [`RANK_PART`] of the lifetime for each rank, so that it orders only if the others cannot. No
//! certificate is ordered before its rank is known.
//!
//! After a failure, a certificate waits for [`FIRST_WAIT`], doubled with each failure. After three
//! failures with one authority, or if an authority limits the rate, the next authority is used. At
//! most [`MOST_ORDERS`] orders per day are begun, so that a fault cannot use up the limits of an
//! authority.
//!
//! On-demand certificates follow the configured ones, also in urgency. Their orders have a limit per
//! hour instead. A certificate that cannot be ordered, or has expired, is removed
//! ([`Schedule::poll_release`]).
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

#[derive(Clone, Debug)]
pub struct Schedule {
    entries: Vec<Entry>,
    /// Number of configured certificates.
    configured: usize,
    authorities: usize,
    budgets: Budgets,
    /// Maximum number of on-demand certificates.
    most_on_demand: usize,
}

#[derive(Clone, Debug)]
struct Budgets {
    configured: Budget,
    on_demand: Budget,
}

/// Limit of the orders that are begun in a period.
#[derive(Clone, Debug)]
struct Budget {
    most: usize,
    period: Duration,
    /// Monotonic times at which orders no longer count, the earliest first.
    begun: VecDeque<Duration>,
}

impl Budget {
    /// `begun` has the ages of earlier orders.
    fn new(
        (most, period): (usize, Duration),
        begun: impl IntoIterator<Item = Duration>,
        now: Moment,
    ) -> Self {
        let begun = begun.into_iter();
        let mut begun: Vec<Duration> = begun
            .map(|age| now.mono + period.saturating_sub(age))
            .collect();
        begun.sort_unstable();
        Self {
            most,
            period,
            begun: begun.into(),
        }
    }

    fn push(&mut self, now: Moment) {
        self.begun.push_back(now.mono + self.period);
    }

    /// Returns how many orders may be begun now.
    fn left(&mut self, now: Moment) -> usize {
        while self.begun.front().is_some_and(|until| *until <= now.mono) {
            self.begun.pop_front();
        }
        self.most.saturating_sub(self.begun.len())
    }

    /// Returns the number of reserved orders.
    fn reserve(&self) -> usize {
        self.most / RESERVE
    }
}

#[derive(Clone, Debug)]
struct Entry {
    /// `false` for the index of a released on-demand certificate.
    is_used: bool,
    held: Option<Held>,
    /// Rank of this node, and the monotonic time since which ranks are known.
    rank: Option<(u16, Duration)>,
    window: Option<Window>,
    /// Monotonic time of the next request for the window.
    window_at: Duration,
    /// Monotonic time at which the on-demand certificate was first seen to be expired.
    expired_at: Option<Duration>,
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
        let entries = held.into_iter();
        let entries: Vec<_> = entries
            .map(|held| Entry::new(held, authorities, now))
            .collect();
        Self {
            configured: entries.len(),
            entries,
            authorities,
            budgets: Budgets {
                configured: Budget::new((MOST_ORDERS, DAY), begun, now),
                on_demand: Budget::new((0, HOUR), [], now),
            },
            most_on_demand: 0,
        }
    }

    /// Permits on-demand certificates. `begun` has the ages of their orders of the last hour.
    pub fn permit_on_demand(
        &mut self,
        (most, per_hour): (usize, usize),
        begun: impl IntoIterator<Item = Duration>,
        now: Moment,
    ) {
        self.most_on_demand = most;
        self.budgets.on_demand = Budget::new((per_hour, HOUR), begun, now);
    }

    /// Adds an on-demand certificate, and returns its index. Returns `None` at the limits of all
    /// of them, and of those without a bundle.
    pub fn add(&mut self, now: Moment) -> Option<usize> {
        let used = self.entries.iter().skip(self.configured);
        let used = used.filter(|entry| entry.is_used);
        let is_new = |entry: &&Entry| entry.held.is_none() && entry.failures == 0;
        let new = used.clone().filter(is_new).count();
        if new >= self.budgets.on_demand.most || used.count() >= self.most_on_demand {
            return None;
        }
        let mut entry = Entry::new(None, self.authorities, now);
        // Other nodes may have the certificate.
        entry.rests_until = now.mono + FIRST_LOOK;
        let unused = self.entries.iter().position(|entry| !entry.is_used);
        let index = unused.unwrap_or(self.entries.len());
        if unused.is_none() {
            self.entries.push(entry);
        } else {
            self.entries[index] = entry;
        }
        Some(index)
    }

    /// Removes an on-demand certificate.
    pub fn release(&mut self, certificate: usize) {
        if let Some(entry) = self.entries.get_mut(certificate)
            && certificate >= self.configured
        {
            entry.is_used = false;
            entry.held = None;
            entry.is_forced = false;
        }
    }

    /// Removes an on-demand certificate that no authority issues, or that has been expired for
    /// [`EXPIRED_TIME`], and returns its index. A wall clock that is wrong for a shorter time removes
    /// none.
    pub fn poll_release(&mut self, now: Moment) -> Option<usize> {
        let entries = self.entries.iter_mut().enumerate().skip(self.configured);
        let mut used = entries.filter(|(_, entry)| entry.is_used);
        let index = used.find_map(|(index, entry)| {
            let is_expired = entry.held.is_some_and(|held| held.not_after <= now.unix);
            entry.expired_at = is_expired.then(|| entry.expired_at.unwrap_or(now.mono));
            let is_old = |at: Duration| now.mono >= at + EXPIRED_TIME;
            let is_refused = entry.held.is_none() && entry.failures >= MOST_FAILURES;
            (is_refused || entry.expired_at.is_some_and(is_old)).then_some(index)
        })?;
        self.release(index);
        Some(index)
    }

    pub fn held(&self, certificate: usize) -> Option<Held> {
        self.entries.get(certificate)?.held
    }

    pub fn failures(&self, certificate: usize) -> u32 {
        self.entries.get(certificate).map_or(0, |it| it.failures)
    }

    /// Returns the time since 1970 of the next attempt for a certificate.
    pub fn next_attempt(&self, certificate: usize, now: Moment) -> Option<Duration> {
        let entry = self.entries.get(certificate).filter(|it| it.is_used)?;
        let rest = entry.may_at().saturating_sub(now.mono);
        Some(now.unix.saturating_add(rest).max(entry.renews_at()))
    }

    /// Makes a certificate due at once. Returns `false` if the orders of this period are used up.
    pub fn force(&mut self, certificate: usize, now: Moment) -> bool {
        let may = self.budget(certificate).left(now) > 0;
        if let Some(entry) = self.entries.get_mut(certificate) {
            entry.is_forced = may;
        }
        may
    }

    /// Returns the most urgent certificate that is due.
    pub fn poll_order(&mut self, now: Moment) -> Option<Attempt> {
        let (left, configured) = (self.left(now), self.configured);
        let due = self.entries.iter_mut().enumerate();
        let due = due.filter(|(index, it)| {
            it.may_order(left, *index >= configured) && it.due_in(now).is_zero()
        });
        let (certificate, entry) = due.min_by_key(|(index, entry)| {
            let is_on_demand = *index >= configured;
            let is_new = is_on_demand && entry.held.is_none();
            let later = (!entry.is_forced, is_on_demand, is_new);
            (later, entry.failures, entry.renews_at())
        })?;
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
        let left = self.left(now);
        let waits = self.entries.iter().enumerate().flat_map(|(index, entry)| {
            let may_order = entry.may_order(left, index >= self.configured);
            let order = Some(entry.due_in(now)).filter(|_| may_order);
            let window = entry.window_at.saturating_sub(now.mono);
            [order, Some(window).filter(|_| entry.wants_window())]
        });
        let waits = waits.flatten();
        waits.min().unwrap_or(LONGEST_PAUSE).min(LONGEST_PAUSE)
    }

    /// Notes that an authority has accepted a new order.
    pub fn handle_begun(&mut self, certificate: usize, now: Moment) {
        self.budget(certificate).push(now);
    }

    /// Notes a new certificate.
    pub fn handle_certificate(&mut self, certificate: usize, held: Held, now: Moment) {
        let Some(entry) = self.entries.get_mut(certificate) else {
            return;
        };
        let authorities = entry.blocked.len();
        *entry = Entry {
            rank: entry.rank,
            // A certificate that is due again at once would be ordered in a loop.
            rests_until: now.mono + (held.lifetime() / 4).min(LEAST_INTERVAL),
            ..Entry::new(Some(held), authorities, now)
        };
    }

    /// Notes a certificate of another node. A request for another one remains.
    pub fn handle_shared(&mut self, certificate: usize, held: Held, now: Moment) {
        let is_forced = self.entries.get(certificate).is_some_and(|it| it.is_forced);
        self.handle_certificate(certificate, held, now);
        if let Some(entry) = self.entries.get_mut(certificate) {
            entry.is_forced = is_forced;
        }
    }

    /// Notes the ranks of this node.
    pub fn handle_ranks(&mut self, ranks: &[u16], now: Moment) {
        for (entry, rank) in self.entries.iter_mut().zip(ranks) {
            let since = entry.rank.map_or(now.mono, |(_, since)| since);
            entry.rank = Some((*rank, since));
        }
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

    /// Notes that the operator does not allow an on-demand certificate now.
    pub fn handle_refusal(&mut self, certificate: usize, now: Moment) {
        if let Some(entry) = self.entries.get_mut(certificate) {
            entry.rests_until = now.mono + DAY;
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

    fn budget(&mut self, certificate: usize) -> &mut Budget {
        if certificate < self.configured {
            &mut self.budgets.configured
        } else {
            &mut self.budgets.on_demand
        }
    }

    /// Returns the orders that may be begun, and the reserved part: of configured and of on-demand
    /// certificates.
    fn left(&mut self, now: Moment) -> [(usize, usize); 2] {
        let Budgets {
            configured,
            on_demand,
        } = &mut self.budgets;
        [configured, on_demand].map(|budget| (budget.left(now), budget.reserve()))
    }
}

impl Held {
    fn lifetime(&self) -> Duration {
        self.not_after.saturating_sub(self.not_before)
    }
}

impl Entry {
    fn new(held: Option<Held>, authorities: usize, now: Moment) -> Self {
        Self {
            is_used: true,
            held,
            rank: None,
            window: None,
            window_at: now.mono,
            expired_at: None,
            is_forced: false,
            failures: 0,
            tries: 0,
            authority: 0,
            rests_until: Duration::ZERO,
            blocked: vec![Duration::ZERO; authorities.max(1)],
        }
    }

    /// Returns the time since 1970 at which the certificate needs renewal; 0 without a certificate.
    fn renews_at(&self) -> Duration {
        let Some(held) = &self.held else {
            return Duration::ZERO;
        };
        let lifetime = held.lifetime();
        let rank = self.rank.map_or(0, |(rank, _)| rank);
        let wait = (lifetime / RANK_PART).saturating_mul(rank.into());
        // A wrong window must not let the certificate expire.
        self.first_renews_at(held)
            .saturating_add(wait)
            .min(held.not_after.saturating_sub(lifetime / 10))
    }

    /// Returns the time since 1970 at which the node of rank 0 renews the certificate.
    fn first_renews_at(&self, held: &Held) -> Duration {
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
        window
            .start
            .saturating_add(length.mul_f64(held.position.clamp(0.0, 1.0)))
    }

    /// Returns the monotonic time from which an attempt may be made.
    fn may_at(&self) -> Duration {
        let blocked = self.blocked.get(self.authority);
        let rank = self.rank.filter(|_| self.held.is_none());
        let turn = rank.map(|(rank, since)| since.saturating_add(RANK_WAIT * u32::from(rank)));
        let waits = [blocked.copied(), turn].into_iter().flatten();
        waits.fold(self.rests_until, Duration::max)
    }

    /// Returns whether the rank is known and the orders that are left suffice. New on-demand
    /// certificates leave a part to renewals, and failing other ones to first attempts.
    fn may_order(&self, left: [(usize, usize); 2], is_on_demand: bool) -> bool {
        let (left, reserve) = left[usize::from(is_on_demand)];
        let is_known = self.is_used && (self.rank.is_some() || self.is_forced);
        let is_preferred = if is_on_demand {
            self.held.is_some()
        } else {
            self.failures == 0
        };
        is_known && left > 0 && (is_preferred || self.is_forced || left > reserve)
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
/// Part of the orders of a period that is reserved: a fifth.
const RESERVE: usize = 5;
/// Wait before an on-demand certificate is ordered.
const FIRST_LOOK: Duration = Duration::from_secs(3);
/// Time for which an expired on-demand certificate is kept.
const EXPIRED_TIME: Duration = DAY;
/// Failures after which an on-demand certificate that was never issued is removed: almost a day.
const MOST_FAILURES: u32 = 10;
const HOUR: Duration = Duration::from_secs(3600);
/// Wait of a node for each rank, for a certificate that is missing.
const RANK_WAIT: Duration = Duration::from_secs(600);
/// Wait for each rank, for a certificate to renew, as a part of its lifetime.
const RANK_PART: u32 = 24;
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use std::collections::BTreeSet;

    use super::*;

    const HOUR: u64 = 3600;
    /// 2026-06-01 in seconds since 1970.
    const START: u64 = 1_780_272_000;

    fn at(mono: u64) -> Moment {
        Moment {
            mono: Duration::from_secs(mono),
            unix: Duration::from_secs(START + mono),
        }
    }

    /// Returns a certificate that is valid from `START + from` for `days` days.
    fn held(from: u64, days: u64) -> Held {
        Held {
            not_before: Duration::from_secs(START + from),
            not_after: Duration::from_secs(START + from + days * 24 * HOUR),
            position: 0.25,
        }
    }

    fn schedule(held: &[Option<Held>]) -> Schedule {
        ranked(Schedule::new(2, held.to_vec(), [], at(0)))
    }

    /// Returns the schedule of a node without other nodes.
    fn ranked(mut schedule: Schedule) -> Schedule {
        let ranks = vec![0; schedule.entries.len()];
        schedule.handle_ranks(&ranks, at(0));
        schedule
    }

    fn window(start: u64, end: u64) -> Option<Window> {
        Some(Window {
            start: Duration::from_secs(START + start),
            end: Duration::from_secs(START + end),
        })
    }

    /// Returns the seconds from `START` to the next attempt for the first certificate.
    fn next(schedule: &Schedule, now: Moment) -> u64 {
        schedule.next_attempt(0, now).unwrap().as_secs() - START
    }

    #[test]
    fn a_node_of_a_higher_rank_orders_only_if_the_others_do_not() {
        const DAYS: u64 = 24 * HOUR;
        let mut schedule = Schedule::new(1, vec![None, Some(held(0, 90))], [], at(0));
        assert_eq!(schedule.poll_order(at(100 * DAYS)), None);
        let mut schedule = Schedule::new(1, vec![None, Some(held(0, 90))], [], at(0));
        schedule.handle_ranks(&[2, 2], at(10));
        assert_eq!(next(&schedule, at(10)), 10 + 2 * 600);
        assert_eq!(schedule.poll_order(at(10 + 2 * 600 - 1)), None);
        let second = |schedule: &Schedule| {
            let next = schedule.next_attempt(1, at(10)).unwrap().as_secs() - START;
            next / DAYS
        };
        assert_eq!(second(&schedule), 60 + 2 * 90 / 24);
        // The other nodes have left.
        schedule.handle_ranks(&[1, 0], at(30));
        assert_eq!(next(&schedule, at(30)), 10 + 600);
        assert_eq!(second(&schedule), 60);
        schedule.handle_ranks(&[0, 30_000], at(40));
        assert_eq!(schedule.poll_order(at(40)).unwrap().certificate, 0);
        // No rank lets a certificate expire.
        assert_eq!(second(&schedule), 81);
    }

    #[test]
    fn a_missing_certificate_is_due_at_once_and_first() {
        let mut schedule = schedule(&[Some(held(0, 90)), None]);
        let attempt = schedule.poll_order(at(0)).unwrap();
        let expected = Attempt {
            certificate: 1,
            authority: 0,
            is_fresh: false,
            replaces: true,
        };
        assert_eq!(attempt, expected);
        schedule.handle_certificate(1, held(0, 90), at(0));
        assert_eq!(schedule.poll_order(at(0)), None);
    }

    #[test]
    fn without_a_window_a_certificate_is_renewed_at_a_part_of_its_lifetime() {
        for (days, due) in [(90, 60 * 24), (10, 160), (9, 108), (6, 72)] {
            let schedule = schedule(&[Some(held(0, days))]);
            assert_eq!(next(&schedule, at(0)), due * HOUR, "{days}");
        }
    }

    #[test]
    fn a_window_decides_unless_it_is_wrong() {
        let mut schedule = schedule(&[Some(held(0, 90))]);
        let day = 24 * HOUR;
        for (answer, due) in [
            (window(10 * day, 14 * day), 11 * day),
            // Keeps the last valid window.
            (None, 11 * day),
            (window(14 * day, 10 * day), 11 * day),
            // In the past: now.
            (window(0, 4), 1000),
            // At most nine tenths of the lifetime.
            (window(200 * day, 300 * day), 81 * day),
        ] {
            schedule.handle_window(0, answer, None, at(1000));
            assert_eq!(next(&schedule, at(1000)), due, "{answer:?}");
        }
        schedule.handle_window(0, window(0, 4), None, at(1000));
        assert!(schedule.poll_order(at(1000)).is_some());
    }

    #[test]
    fn windows_are_requested_as_the_authority_asks_within_limits() {
        let mut schedule = schedule(&[Some(held(0, 90)), None]);
        for (wait, expected) in [
            (Some(0), 60),
            (Some(HOUR), HOUR),
            (Some(1000 * HOUR), 24 * HOUR),
            (None, 6 * HOUR),
        ] {
            let wait = wait.map(Duration::from_secs);
            schedule.handle_window(0, None, wait, at(5));
            assert_eq!(schedule.poll_window(at(5 + expected - 1)), None);
            assert_eq!(schedule.poll_window(at(5 + expected)), Some(0));
        }
    }

    #[test]
    fn failures_wait_longer_each_time_and_move_to_the_next_authority() {
        let mut schedule = schedule(&[None]);
        let mut now = 0;
        let mut tried = Vec::new();
        for expected in [
            60, 120, 60, 480, 960, 1920, 3840, 7680, 15_360, 30_720, 61_440, 86_400,
        ] {
            let attempt = schedule.poll_order(at(now)).unwrap();
            tried.push((attempt.authority, attempt.is_fresh));
            schedule.handle_failure(0, Setback::default(), at(now), 0.5);
            assert_eq!(next(&schedule, at(now)) - now, expected);
            assert_eq!(schedule.poll_order(at(now + expected - 1)), None);
            now += expected;
        }
        let of = |authority| [(authority, true), (authority, false), (authority, false)];
        let mut expected = [of(0), of(1), of(0), of(1)].concat();
        expected[0].1 = false;
        assert_eq!(tried, expected);
        schedule.handle_failure(0, Setback::default(), at(now), 0.0);
        assert_eq!(next(&schedule, at(now)) - now, 12 * HOUR);
        schedule.handle_failure(0, Setback::default(), at(now), 1.0);
        assert_eq!(next(&schedule, at(now)) - now, 36 * HOUR);
    }

    #[test]
    fn a_rate_limit_lasts_an_hour_or_as_the_authority_says() {
        let limit = |retry_after: Option<u64>| Setback {
            retry_after: retry_after.map(Duration::from_secs),
            is_rate_limit: true,
        };
        for (retry_after, expected) in
            [(None, HOUR), (Some(300), 300), (Some(99 * HOUR), 99 * HOUR)]
        {
            let mut alone = ranked(Schedule::new(1, vec![None], [], at(0)));
            alone.handle_failure(0, limit(retry_after), at(0), 0.5);
            assert_eq!(next(&alone, at(0)), expected);
        }
        // Another authority is tried soon; then the one whose limit ends first.
        let mut schedule = schedule(&[None]);
        schedule.handle_failure(0, limit(Some(10 * HOUR)), at(0), 0.5);
        assert_eq!(next(&schedule, at(0)), 60);
        schedule.handle_failure(0, limit(Some(20 * HOUR)), at(60), 0.5);
        assert_eq!(next(&schedule, at(60)), 10 * HOUR);
        assert_eq!(schedule.poll_order(at(10 * HOUR)).unwrap().authority, 0);
    }

    #[test]
    fn orders_of_a_day_are_limited_across_a_restart() {
        let ages = (0..MOST_ORDERS as u64).map(|age| Duration::from_secs(HOUR + 60 * age));
        let mut schedule = ranked(Schedule::new(1, vec![None], ages, at(0)));
        assert!(!schedule.force(0, at(0)));
        assert_eq!(schedule.poll_order(at(0)), None);
        assert_eq!(schedule.pause(at(0)), LONGEST_PAUSE);
        let freed = 23 * HOUR - 60 * (MOST_ORDERS as u64 - 1);
        assert_eq!(schedule.poll_order(at(freed - 1)), None);
        assert!(schedule.poll_order(at(freed)).is_some());
        // Retries leave a part of the orders to first attempts.
        schedule.handle_failure(0, Setback::default(), at(freed), 0.0);
        assert_eq!(schedule.poll_order(at(freed + 30)), None);
        assert!(schedule.pause(at(freed + 30)) > Duration::ZERO);
        assert!(schedule.force(0, at(freed + 30)));
        assert!(schedule.poll_order(at(freed + 30)).is_some());
    }

    #[test]
    fn certificates_on_demand_are_limited_and_released() {
        let mut schedule = ranked(Schedule::new(1, vec![Some(held(0, 90))], [], at(0)));
        assert_eq!(schedule.add(at(0)), None);
        schedule.permit_on_demand((3, 2), [Duration::from_secs(HOUR - 10)], at(0));
        assert_eq!(schedule.add(at(0)), Some(1));
        schedule.handle_certificate(1, held(0, 9), at(0));
        assert_eq!(schedule.add(at(0)), Some(2));
        assert_eq!(schedule.add(at(0)), Some(3));
        assert_eq!(schedule.add(at(0)), None, "at most three");
        // Another node may answer first, and no rank is known yet.
        assert_eq!(schedule.poll_order(at(5)), None);
        schedule.handle_ranks(&[0; 4], at(0));
        assert_eq!(schedule.poll_order(at(2)), None);
        assert_eq!(schedule.poll_order(at(3)).unwrap().certificate, 2);
        schedule.handle_begun(2, at(3));
        assert_eq!(schedule.poll_order(at(4)), None, "two in an hour");
        assert_eq!(schedule.poll_order(at(10)).unwrap().certificate, 2);
        let mut now = 10;
        for _ in 0..10 {
            assert_eq!(schedule.poll_release(at(now)), None);
            schedule.handle_failure(2, Setback::default(), at(now), 0.0);
            now += HOUR;
        }
        assert_eq!(schedule.poll_release(at(now)), Some(2));
        assert_eq!(schedule.next_attempt(2, at(now)), None);
        assert_eq!(schedule.add(at(now)), Some(2), "the index is used again");
    }

    #[test]
    fn a_certificate_on_demand_is_removed_a_day_after_its_expiry() {
        let day = 24 * HOUR;
        let mut schedule = ranked(Schedule::new(1, vec![Some(held(0, 90))], [], at(0)));
        schedule.permit_on_demand((3, 2), [], at(0));
        assert_eq!(schedule.add(at(0)), Some(1));
        schedule.handle_certificate(1, held(0, 9), at(0));
        let wrong = Moment {
            unix: Duration::from_secs(START + 1000 * day),
            ..at(10)
        };
        assert_eq!(schedule.poll_release(wrong), None);
        assert_eq!(schedule.poll_release(at(8 * day)), None);
        assert_eq!(schedule.poll_release(at(9 * day)), None);
        assert_eq!(schedule.poll_release(at(10 * day - 1)), None);
        assert_eq!(schedule.poll_release(at(10 * day)), Some(1));
        schedule.release(0);
        assert!(schedule.held(0).is_some(), "a configured certificate stays");
    }

    #[test]
    fn a_step_of_the_wall_clock_renews_once_and_does_not_stop_renewals() {
        let mut schedule = schedule(&[Some(held(0, 90))]);
        let wrong = |mono| Moment {
            unix: Duration::from_secs(START + 1000 * 24 * HOUR),
            ..at(mono)
        };
        assert!(schedule.poll_order(wrong(10)).is_some());
        // The new certificate is expired by the wrong clock, too.
        schedule.handle_certificate(0, held(10, 90), wrong(10));
        assert_eq!(schedule.poll_order(wrong(HOUR)), None);
        assert_eq!(next(&schedule, at(HOUR)), 60 * 24 * HOUR + 10);
        let early = Moment {
            unix: Duration::from_secs(START - 1000 * 24 * HOUR),
            ..at(10)
        };
        assert_eq!(schedule.poll_order(early), None);
        assert!(schedule.poll_order(at(61 * 24 * HOUR)).is_some());
    }

    #[derive(Clone, Debug)]
    enum Step {
        Wait(u64),
        /// Sets the wall clock to this many seconds from its start.
        Clock(i64),
        Force(usize),
        /// A client asks for a name.
        Demand,
        /// Outcome of the next attempt: the lifetime in hours, or a failure.
        Succeed(u64),
        Fail(Option<u64>, bool),
        Window(u64, u64, Option<u64>),
    }

    fn step() -> impl Strategy<Value = Step> {
        let year = 365 * 24 * HOUR;
        prop_oneof![
            4 => (1..3 * 24 * HOUR).prop_map(Step::Wait),
            1 => (-(year as i64)..year as i64).prop_map(Step::Clock),
            1 => (0..ALL).prop_map(Step::Force),
            1 => Just(Step::Demand),
            2 => (1..2200_u64).prop_map(Step::Succeed),
            4 => (prop::option::of(0..2 * year), any::<bool>()).prop_map(|(a, b)| Step::Fail(a, b)),
            1 => (0..year, 0..year, prop::option::of(0..year)).prop_map(|(a, b, c)| Step::Window(a, b, c)),
        ]
    }

    /// The naive model: all attempts with their outcomes, checked against the rules.
    #[derive(Default)]
    struct Log {
        now: u64,
        /// Seconds from the monotonic clock to the wall clock.
        offset: i64,
        /// Times of orders: of configured certificates, and on demand.
        begun: [Vec<u64>; 2],
        /// Earliest time of the next attempt, for each certificate.
        rests: [u64; ALL],
        is_forced: [bool; ALL],
        /// Attempts since the last certificate.
        tries: [u32; ALL],
        /// Used indices of on-demand certificates.
        on_demand: BTreeSet<usize>,
    }

    const CONFIGURED: usize = 3;
    const ON_DEMAND: usize = 4;
    const PER_HOUR: usize = 5;
    const ALL: usize = CONFIGURED + ON_DEMAND;

    impl Log {
        fn moment(&self) -> Moment {
            Moment {
                mono: Duration::from_secs(self.now),
                unix: Duration::from_secs((START as i64 + self.now as i64 + self.offset) as u64),
            }
        }

        fn check_attempt(&mut self, attempt: Attempt) {
            let index = attempt.certificate;
            let is_on_demand = index >= CONFIGURED;
            assert!(!is_on_demand || self.on_demand.contains(&index));
            let (period, most) =
                [(24 * HOUR, MOST_ORDERS), (HOUR, PER_HOUR)][usize::from(is_on_demand)];
            let begun = &mut self.begun[usize::from(is_on_demand)];
            assert!(begun.iter().filter(|at| **at + period > self.now).count() < most);
            begun.push(self.now);
            assert!(self.is_forced[index] || self.rests[index] <= self.now);
            self.is_forced[index] = false;
            let tries = &mut self.tries[index];
            assert_eq!(attempt.replaces, *tries == 0);
            *tries += 1;
            assert!(attempt.authority < 2);
        }
    }

    proptest! {
        #[test]
        fn the_rules_hold_in_any_sequence_of_events(steps in prop::collection::vec(step(), 1..300)) {
            let mut log = Log::default();
            let mut schedule = ranked(Schedule::new(2, vec![None; CONFIGURED], [], log.moment()));
            schedule.permit_on_demand((ON_DEMAND, PER_HOUR), [], log.moment());
            for step in steps {
                match step {
                    Step::Wait(seconds) => log.now += seconds,
                    Step::Clock(offset) => log.offset = offset,
                    Step::Force(index) if index < CONFIGURED || log.on_demand.contains(&index) => {
                        log.is_forced[index] |= schedule.force(index, log.moment());
                    }
                    Step::Force(_) => {}
                    Step::Demand => match schedule.add(log.moment()) {
                        Some(index) => {
                            prop_assert!(log.on_demand.insert(index) && index >= CONFIGURED);
                            prop_assert!(log.on_demand.len() <= ON_DEMAND);
                            (log.rests[index], log.tries[index]) = (log.now + 3, 0);
                            log.is_forced[index] = false;
                            schedule.handle_ranks(&[0; ALL], log.moment());
                        }
                        None => prop_assert_eq!(log.on_demand.len(), ON_DEMAND),
                    },
                    Step::Window(start, end, wait) => {
                        let now = log.moment();
                        if let Some(index) = schedule.poll_window(now) {
                            let wait = wait.map(Duration::from_secs);
                            schedule.handle_window(index, window(start, end), wait, now);
                            prop_assert_ne!(schedule.poll_window(now), Some(index));
                        }
                    }
                    Step::Succeed(hours) => {
                        let now = log.moment();
                        if let Some(attempt) = schedule.poll_order(now) {
                            log.check_attempt(attempt);
                            schedule.handle_begun(attempt.certificate, now);
                            let lifetime = Duration::from_secs(hours * HOUR);
                            let held = Held {
                                not_before: now.unix,
                                not_after: now.unix + lifetime,
                                position: 0.5,
                            };
                            schedule.handle_certificate(attempt.certificate, held, now);
                            log.rests[attempt.certificate] = log.now + (hours * HOUR / 4).min(HOUR);
                            log.tries[attempt.certificate] = 0;
                        }
                    }
                    Step::Fail(retry_after, is_rate_limit) => {
                        let now = log.moment();
                        if let Some(attempt) = schedule.poll_order(now) {
                            log.check_attempt(attempt);
                            schedule.handle_begun(attempt.certificate, now);
                            let retry_after = retry_after.map(Duration::from_secs);
                            let setback = Setback { retry_after, is_rate_limit };
                            schedule.handle_failure(attempt.certificate, setback, now, 0.0);
                            log.rests[attempt.certificate] = log.now + 30;
                            let next = schedule.next_attempt(attempt.certificate, now).unwrap();
                            let by_date = schedule.entries[attempt.certificate].renews_at();
                            prop_assert!(next <= (now.unix + LONGEST_BLOCK).max(by_date));
                        }
                    }
                }
                let now = log.moment();
                while let Some(index) = schedule.poll_release(now) {
                    prop_assert!(log.on_demand.remove(&index));
                    prop_assert_eq!(schedule.next_attempt(index, now), None);
                }
                if schedule.clone_poll(now) {
                    prop_assert_eq!(schedule.pause(now), Duration::ZERO);
                } else {
                    prop_assert!(schedule.pause(now) > Duration::ZERO);
                }
            }
        }

    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn certificates_are_renewed_before_they_expire(
            hours in 1..400_u64,
            failures in 0..3_u32,
            random in 0.0..1.0_f64,
        ) {
            let mut log = Log::default();
            let lifetime = Duration::from_secs(hours * HOUR);
            let held = |now: Moment| Held {
                not_before: now.unix,
                not_after: now.unix + lifetime,
                position: random,
            };
            let first = held(log.moment());
            let mut schedule = ranked(Schedule::new(1, vec![Some(first)], [], log.moment()));
            let (mut expires, mut failed, mut renewals) = (first.not_after, 0, 0);
            while renewals < 3 {
                let now = log.moment();
                prop_assert!(now.unix < expires, "expired after {} renewals", renewals);
                if let Some(index) = schedule.poll_window(now) {
                    schedule.handle_window(index, None, None, now);
                } else if schedule.poll_order(now).is_none() {
                    log.now += schedule.pause(now).as_secs().max(1);
                } else if failed < failures {
                    failed += 1;
                    schedule.handle_failure(0, Setback::default(), now, random);
                } else {
                    (failed, renewals) = (0, renewals + 1);
                    schedule.handle_certificate(0, held(now), now);
                    expires = held(now).not_after;
                }
            }
        }
    }

    impl Schedule {
        /// Returns whether anything is due, without a change.
        fn clone_poll(&self, now: Moment) -> bool {
            let mut copy = self.clone();
            copy.poll_order(now).is_some() || copy.poll_window(now).is_some()
        }
    }
}
