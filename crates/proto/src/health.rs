//! Health of one server, derived from health checks, failed connects and elapsed time.
//!
//! A [`Health`] is the state of one server and uses no sockets: `crates/control/src/health/prober.rs`
//! runs the checks, counts connects, and reports both here. Call `handle_check` after every check,
//! `handle_connects` periodically with the number of consecutive failed connects, and `handle_time`
//! periodically as time passes. Each returns a [`Change`] if the condition changed; log it once.
//! `until_next_check` returns the delay before the next check.
//! ```text
//!              first outcome good                    `fall` bad ones in a row,
//!  OnTrial ─────────────────────────► InService ─────────────────────────────► OutOfService
//!     │                                   ▲     or `failures` connects in a row    │   │
//!     │ first outcome bad                 └────────── `rise` good ones in a row ───┘   │
//!     └──────────────────────────────────────────────────────────► OutOfService       │
//!     ▲                                              without checks: after `pause`     │
//!     └────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! A server on trial receives clients. Otherwise every start of a process would refuse clients until the first check is
//! done. One bad outcome takes a server on trial out of service.
//!
//! Invariants: a server in service has had fewer than `fall` bad checks in a row; a server out of
//! service has had fewer than `rise` good ones.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::labelled;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Active checks; `None` if only connects count.
    pub checks: Option<Checks>,
    /// Rules for failed connects; `None` if failed connects are ignored.
    pub passive: Option<Passive>,
    /// Time after a return to service until the server has its full weight; zero disables the ramp.
    pub slow_start: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checks {
    /// Interval between checks while outcomes confirm the condition.
    pub interval: Duration,
    /// Interval between checks before the first outcome, and while outcomes contradict the
    /// condition.
    pub fast_interval: Duration,
    /// Number of consecutive good checks that return a server to service; at least 1.
    pub rise: u32,
    /// Number of consecutive bad checks that take a server out of service; at least 1.
    pub fall: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passive {
    /// Number of consecutive failed connects that take a server out of service; at least 1.
    pub failures: u32,
    /// Time after which a server without active checks leaves `OutOfService` and enters `OnTrial`.
    pub pause: Duration,
}

labelled! {
#[derive(Default, Serialize, Deserialize)]
pub enum Condition {
    /// Checks and failed connects are both disabled, so the server always receives clients.
    #[default]
    Unchecked = "unchecked",
    /// Clients are sent to the server. The next outcome puts it in service or out of service.
    OnTrial = "on-trial",
    InService = "in-service",
    OutOfService = "out-of-service",
}
}

impl Condition {
    pub const fn is_usable(self) -> bool {
        !matches!(self, Self::OutOfService)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    pub from: Condition,
    pub to: Condition,
}

/// Health state that the old process sends to the new one. Times are relative, since the clocks of
/// the two processes differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Known {
    pub condition: Condition,
    /// Number of consecutive checks whose outcomes contradict the condition.
    pub against: u32,
    /// Remaining time until the server enters `OnTrial`; `None` if no pause is running.
    pub paused: Option<Duration>,
    /// Number of consecutive failed connects that have already taken effect. Only additional
    /// failures count.
    pub failures_before: u32,
    /// Time since the server's return to service.
    pub returned: Option<Duration>,
}

#[derive(Clone, Debug)]
pub struct Health {
    condition: Condition,
    against: u32,
    /// Time at which the pause ends and the server enters `OnTrial`; `None` if no pause is running.
    paused_until: Option<Duration>,
    /// Number of consecutive failed connects that have already taken effect. Only additional
    /// failures count.
    failures_before: u32,
    /// A clock reading, and the time that had passed since the return to service at that reading.
    /// The second value is zero unless the old process sent this state.
    returned: Option<(Duration, Duration)>,
}

impl Health {
    pub fn new(rules: &Rules) -> Self {
        let condition = match (rules.checks, rules.passive) {
            (Some(_), _) => Condition::OnTrial,
            (None, Some(_)) => Condition::InService,
            (None, None) => Condition::Unchecked,
        };
        Self {
            condition,
            against: 0,
            paused_until: None,
            failures_before: 0,
            returned: None,
        }
    }

    /// Returns the state to send to the new process.
    pub fn known(&self, now: Duration) -> Known {
        let since = |(at, had)| now.saturating_sub(at).saturating_add(had);
        Known {
            condition: self.condition,
            against: self.against,
            paused: self.paused_until.map(|until| until.saturating_sub(now)),
            failures_before: self.failures_before,
            returned: self.returned.map(since),
        }
    }

    /// Restores the state that the old process sent. Returns `None` if, under the new rules, no
    /// event could ever change this state.
    pub fn of(known: Known, rules: &Rules, now: Duration) -> Option<Self> {
        let enough = rules.checks.map(|checks| match known.condition {
            Condition::InService => checks.fall,
            Condition::OutOfService => checks.rise,
            Condition::OnTrial | Condition::Unchecked => 1,
        });
        let paused = known.paused.zip(rules.passive);
        let paused = paused.map(|(left, passive)| left.min(passive.pause));
        let paused = paused.filter(|_| rules.checks.is_none());
        let ends = match known.condition {
            Condition::Unchecked => false,
            Condition::OnTrial | Condition::InService => {
                enough.is_some() || rules.passive.is_some()
            }
            Condition::OutOfService => enough.is_some() || paused.is_some(),
        };
        ends.then(|| Self {
            condition: known.condition,
            // The count stays below the threshold of the new rules, so that the restored state does
            // not change before the next check.
            against: known.against.min(enough.unwrap_or(1).saturating_sub(1)),
            paused_until: paused.map(|left| now.saturating_add(left)),
            failures_before: known.failures_before,
            returned: known.returned.map(|since| (now, since)),
        })
    }

    pub fn condition(&self) -> Condition {
        self.condition
    }

    pub fn handle_check(&mut self, good: bool, rules: &Rules, now: Duration) -> Option<Change> {
        let checks = rules.checks?;
        match (self.condition, good) {
            (Condition::InService, true) | (Condition::OutOfService, false) => {
                self.against = 0;
                None
            }
            (Condition::InService, false) => {
                self.against += 1;
                (self.against >= checks.fall).then(|| self.leave(None))
            }
            (Condition::OutOfService, true) => {
                self.against += 1;
                (self.against >= checks.rise).then(|| self.come_back(Condition::InService, now))
            }
            (Condition::OnTrial | Condition::Unchecked, true) => {
                Some(self.change(Condition::InService))
            }
            (Condition::OnTrial | Condition::Unchecked, false) => Some(self.leave(None)),
        }
    }

    /// Evaluates the number of consecutive failed connects, counted over all workers.
    pub fn handle_connects(
        &mut self,
        failures: u32,
        rules: &Rules,
        now: Duration,
    ) -> Option<Change> {
        let passive = rules.passive?;
        let checked = rules.checks.is_some();
        let before = self.failures_before;
        self.failures_before = before.min(failures);
        match self.condition {
            Condition::OnTrial if !checked && failures == 0 => {
                Some(self.change(Condition::InService))
            }
            Condition::OnTrial if !checked && failures > before => Some(self.pause(passive, now)),
            Condition::InService | Condition::OnTrial
                if failures.saturating_sub(before) >= passive.failures =>
            {
                // A good check may return the server to service. The failures so far must not take
                // it out of service again.
                self.failures_before = failures;
                Some(if checked {
                    self.leave(None)
                } else {
                    self.pause(passive, now)
                })
            }
            _ => None,
        }
    }

    /// Puts a server on trial when its pause has ended. For `failures`, see
    /// [`Self::handle_connects`].
    pub fn handle_time(&mut self, failures: u32, now: Duration) -> Option<Change> {
        if self.paused_until.is_none_or(|until| now < until) {
            return None;
        }
        self.failures_before = failures;
        Some(self.come_back(Condition::OnTrial, now))
    }

    /// Returns the delay before the next check.
    ///
    /// The delay is between 90 % (`random` is 0) and 110 % (`random` is `u32::MAX`) of the interval, which spreads the
    /// checks of many servers and processes.
    pub fn until_next_check(&self, checks: &Checks, random: u32) -> Duration {
        let unsure = self.condition == Condition::OnTrial || self.against > 0;
        let interval = if unsure {
            checks.fast_interval
        } else {
            checks.interval
        };
        let spread = f64::from(random) / f64::from(u32::MAX);
        interval.mul_f64(0.9 + 0.2 * spread)
    }

    /// Returns the server's current weight as a percentage of its configured weight, 1 to 100. It
    /// is below 100 only during `slow_start` after a return to service.
    pub fn weight_percent(&self, rules: &Rules, now: Duration) -> u8 {
        let Some((at, had)) = self.returned.filter(|_| !rules.slow_start.is_zero()) else {
            return 100;
        };
        let elapsed = now.saturating_sub(at).saturating_add(had).as_secs_f64();
        let share = 100.0 * elapsed / rules.slow_start.as_secs_f64();
        // The cast saturates at both ends.
        (share as u8).clamp(1, 100)
    }

    fn leave(&mut self, paused_until: Option<Duration>) -> Change {
        self.paused_until = paused_until;
        self.returned = None;
        self.change(Condition::OutOfService)
    }

    fn pause(&mut self, passive: Passive, now: Duration) -> Change {
        self.leave(Some(now.saturating_add(passive.pause)))
    }

    fn come_back(&mut self, to: Condition, now: Duration) -> Change {
        self.paused_until = None;
        self.returned = Some((now, Duration::ZERO));
        self.change(to)
    }

    fn change(&mut self, to: Condition) -> Change {
        self.against = 0;
        Change {
            from: std::mem::replace(&mut self.condition, to),
            to,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CHECKS: Checks = Checks {
        interval: Duration::from_secs(10),
        fast_interval: Duration::from_secs(1),
        rise: 2,
        fall: 3,
    };
    const CHECKED: Rules = Rules {
        checks: Some(CHECKS),
        passive: None,
        slow_start: Duration::ZERO,
    };
    const WATCHED: Rules = Rules {
        checks: None,
        passive: Some(Passive {
            failures: 3,
            pause: Duration::from_secs(5),
        }),
        slow_start: Duration::ZERO,
    };

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn each_change_is_reported_once() {
        let mut health = Health::new(&CHECKED);
        let mut told = Vec::new();
        for good in [true, true, false, false, false, false, true, true, true] {
            told.extend(
                health
                    .handle_check(good, &CHECKED, at(1))
                    .map(|change| change.to),
            );
        }
        let expected = [
            Condition::InService,
            Condition::OutOfService,
            Condition::InService,
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn results_are_ignored_and_a_server_is_usable_without_rules() {
        let none = Rules {
            checks: None,
            passive: None,
            slow_start: Duration::ZERO,
        };
        let mut health = Health::new(&none);
        assert_eq!(health.handle_connects(1000, &none, at(1)), None);
        assert_eq!(health.handle_check(false, &none, at(1)), None);
        assert_eq!(health.handle_time(0, at(1000)), None);
        assert_eq!(health.condition(), Condition::Unchecked);
        assert!(health.condition().is_usable());
    }

    #[test]
    fn checks_are_fast_during_transitions_and_spread_by_jitter() {
        let mut health = Health::new(&CHECKED);
        assert_eq!(
            health.until_next_check(&CHECKS, 0),
            Duration::from_millis(900)
        );
        health.handle_check(true, &CHECKED, at(1));
        assert_eq!(health.until_next_check(&CHECKS, 0), at(9));
        assert_eq!(health.until_next_check(&CHECKS, u32::MAX), at(11));
        health.handle_check(false, &CHECKED, at(2));
        assert!(health.until_next_check(&CHECKS, u32::MAX) < at(2));
        health.handle_check(true, &CHECKED, at(3));
        assert!(health.until_next_check(&CHECKS, 0) >= at(9));
    }

    #[test]
    fn failed_connects_pause_a_server_until_a_trial_connect() {
        let mut health = Health::new(&WATCHED);
        assert_eq!(health.handle_connects(2, &WATCHED, at(1)), None);
        let out = health
            .handle_connects(3, &WATCHED, at(1))
            .map(|change| change.to);
        assert_eq!(out, Some(Condition::OutOfService));
        assert_eq!(health.handle_time(4, at(5)), None);
        let trial = health.handle_time(4, at(6)).map(|change| change.to);
        assert_eq!(trial, Some(Condition::OnTrial));
        assert_eq!(
            health.handle_connects(4, &WATCHED, at(7)),
            None,
            "nobody has tried"
        );
        let again = health
            .handle_connects(5, &WATCHED, at(7))
            .map(|change| change.to);
        assert_eq!(again, Some(Condition::OutOfService));
        health.handle_time(5, at(12));
        let back = health
            .handle_connects(0, &WATCHED, at(13))
            .map(|change| change.to);
        assert_eq!(back, Some(Condition::InService));
        assert_eq!(
            health.handle_connects(2, &WATCHED, at(14)),
            None,
            "it counts anew"
        );
    }

    #[test]
    fn failed_connects_remove_a_checked_server_and_checks_restore_it() {
        let rules = Rules {
            passive: WATCHED.passive,
            ..CHECKED
        };
        let mut health = Health::new(&rules);
        health.handle_check(true, &rules, at(1));
        let out = health
            .handle_connects(3, &rules, at(2))
            .map(|change| change.to);
        assert_eq!(out, Some(Condition::OutOfService));
        assert_eq!(health.handle_time(3, at(1000)), None);
        health.handle_check(true, &rules, at(3));
        health.handle_check(true, &rules, at(4));
        assert_eq!(health.condition(), Condition::InService);
        assert_eq!(
            health.handle_connects(3, &rules, at(5)),
            None,
            "those are told already"
        );
        assert_eq!(health.handle_connects(5, &rules, at(5)), None);
        assert!(health.handle_connects(6, &rules, at(5)).is_some());
    }

    #[test]
    fn a_new_process_inherits_the_health_state() {
        let mut paused = Health::new(&WATCHED);
        paused.handle_connects(3, &WATCHED, at(10));
        let known = paused.known(at(12));
        assert_eq!(known.paused, Some(at(3)));
        let mut next = Health::of(known, &WATCHED, at(1)).unwrap();
        assert_eq!(next.handle_time(3, at(3)), None);
        let to = |change: Option<Change>| change.map(|change| change.to);
        assert_eq!(to(next.handle_time(3, at(4))), Some(Condition::OnTrial));
        let mut next = Health::of(next.known(at(5)), &WATCHED, at(0)).unwrap();
        assert_eq!(
            next.handle_connects(3, &WATCHED, at(1)),
            None,
            "nobody has tried"
        );
        let out = next.handle_connects(4, &WATCHED, at(1));
        assert_eq!(to(out), Some(Condition::OutOfService));
        // With checks, time does not bring it back, and one good check of two is not enough.
        let mut checked = Health::of(known, &CHECKED, at(1)).unwrap();
        assert_eq!(checked.handle_time(0, at(1000)), None);
        checked.handle_check(true, &CHECKED, at(2));
        let mut checked = Health::of(checked.known(at(2)), &CHECKED, at(0)).unwrap();
        let back = checked.handle_check(true, &CHECKED, at(1));
        assert_eq!(to(back), Some(Condition::InService));
    }

    #[test]
    fn a_state_that_no_rule_can_end_is_not_inherited() {
        let mut failed = Health::new(&CHECKED);
        failed.handle_check(false, &CHECKED, at(1));
        let known = failed.known(at(2));
        assert!(Health::of(known, &CHECKED, at(1)).is_some());
        assert!(Health::of(known, &WATCHED, at(1)).is_none());
        let none = Rules {
            checks: None,
            passive: None,
            slow_start: Duration::ZERO,
        };
        assert!(Health::of(Health::new(&WATCHED).known(at(1)), &none, at(1)).is_none());
        // A pause longer than in the rules is shortened, and a count above the threshold is lowered.
        let long = Known {
            condition: Condition::OutOfService,
            against: u32::MAX,
            paused: Some(Duration::MAX),
            ..Known::default()
        };
        let mut next = Health::of(long, &WATCHED, at(1)).unwrap();
        assert!(next.handle_time(0, at(6)).is_some());
        let mut next = Health::of(long, &CHECKED, at(1)).unwrap();
        assert!(next.handle_check(true, &CHECKED, at(1)).is_some());
    }

    #[test]
    fn slow_start_applies_only_after_a_recovery() {
        let rules = Rules {
            slow_start: at(20),
            ..CHECKED
        };
        let mut health = Health::new(&rules);
        health.handle_check(true, &rules, at(1));
        assert_eq!(
            health.weight_percent(&rules, at(1)),
            100,
            "the process has just started"
        );
        for good in [false, false, false, true, true] {
            health.handle_check(good, &rules, at(100));
        }
        let percent = |seconds| health.weight_percent(&rules, at(seconds));
        assert_eq!(
            [100, 105, 110, 120, 500].map(percent),
            [1, 25, 50, 100, 100]
        );
        // Another process, started a second ago, continues the increase.
        let next = Health::of(health.known(at(105)), &rules, at(1)).unwrap();
        assert_eq!(
            [1, 6, 16].map(|now| next.weight_percent(&rules, at(now))),
            [25, 50, 100]
        );
    }

    proptest! {
        /// A server is in service unless it has had `fall` bad checks in a row since `rise` good ones.
        #[test]
        fn the_condition_follows_the_last_run_that_reached_rise_or_fall(
            outcomes in proptest::collection::vec(any::<bool>(), 1..100),
            rise in 1_u32..5,
            fall in 1_u32..5,
        ) {
            let rules = Rules {
                checks: Some(Checks { rise, fall, ..CHECKS }),
                ..CHECKED
            };
            let mut health = Health::new(&rules);
            let mut naive = outcomes[0];
            for end in 1..=outcomes.len() {
                let seen = &outcomes[..end];
                health.handle_check(outcomes[end - 1], &rules, at(1));
                let run = |good, length: u32| {
                    let length = length as usize;
                    end >= length && seen[end - length..].iter().all(|one| *one == good)
                };
                if run(false, fall) {
                    naive = false;
                } else if run(true, rise) {
                    naive = true;
                }
                prop_assert_eq!(health.condition().is_usable(), naive);
            }
        }

        /// A server is out of service for one pause each time, regardless of its connects.
        #[test]
        fn a_paused_server_returns_within_the_pause(
            counts in proptest::collection::vec(0_u32..8, 1..100),
        ) {
            let mut health = Health::new(&WATCHED);
            let mut out_since = None;
            for (second, failures) in counts.into_iter().enumerate() {
                let now = at(second as u64);
                health.handle_time(failures, now);
                health.handle_connects(failures, &WATCHED, now);
                match health.condition() {
                    Condition::OutOfService => {
                        let since = *out_since.get_or_insert(now);
                        prop_assert!(now - since < at(5), "out since {since:?} at {now:?}");
                    }
                    _ => out_since = None,
                }
            }
        }
    }
}
