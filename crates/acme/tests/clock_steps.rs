//! Model of a host whose wall clock is set to wrong times and back: the authority gets few orders,
//! and a certificate is renewed as soon as the clock is right.

use std::time::Duration;

use becket_acme::schedule::{Held, LONGEST_PAUSE, Moment, Schedule, Setback};
use proptest::prelude::*;

const HOUR: u64 = 3600;
const DAY: u64 = 24 * HOUR;
/// 2026-06-01 in seconds since 1970.
const START: u64 = 1_780_272_000;
/// Time between two turns of the loop. The program's are shorter.
const TURN: u64 = 600;
/// Longest wait after a failure.
const RETRY: u64 = 36 * HOUR;

/// Returns a certificate that the authority, whose clock is right, issues at a time since `START`.
fn issued(at: u64, lifetime: u64, position: f64) -> Held {
    Held {
        not_before: Duration::from_secs(START + at),
        not_after: Duration::from_secs(START + at + lifetime),
        position,
    }
}

/// Periods with a constant error of the clock: their lengths and errors in seconds.
fn periods() -> impl Strategy<Value = Vec<(u64, i64)>> {
    let wrong = 2 * HOUR as i64..400 * DAY as i64;
    let error = prop_oneof![Just(0), wrong.clone(), wrong.prop_map(|it| -it)];
    prop::collection::vec((TURN..20 * DAY, error), 1..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn steps_of_the_clock_cause_few_orders_and_no_lasting_expiry(
        periods in periods(),
        lifetime in DAY..100 * DAY,
        random in 0.0..1.0_f64,
    ) {
        let mut held = issued(0, lifetime, random);
        let at = |now: u64, error: i64| Moment {
            mono: Duration::from_secs(now),
            unix: Duration::from_secs((START + now).saturating_add_signed(error)),
        };
        let mut schedule = Schedule::new(1, vec![Some(held)], [], at(0, periods[0].1));
        schedule.handle_ranks(&[0], at(0, periods[0].1));
        let (mut now, mut right_since, mut ordered) = (0, None, 0);
        let mut attempts: Vec<u64> = Vec::new();
        for (length, error) in periods.into_iter().chain([(100 * DAY, 0)]) {
            let end = now + length;
            right_since = right_since.filter(|_| error == 0).or((error == 0).then_some(now));
            while now < end {
                let moment = at(now, error);
                if schedule.poll_window(moment).is_some() {
                    schedule.handle_window(0, None, None, moment);
                } else if schedule.poll_order(moment).is_none() {
                    let pause = schedule.pause(moment);
                    prop_assert!(!pause.is_zero() && pause <= LONGEST_PAUSE);
                    now += TURN;
                } else {
                    attempts.push(now);
                    let of_day = attempts.iter().filter(|it| **it + DAY > now).count();
                    prop_assert!(of_day <= 20, "{of_day} attempts in a day");
                    if error == 0 {
                        prop_assert!(now - ordered >= lifetime / 2, "ordered too soon");
                        (held, ordered) = (issued(now, lifetime, random), now);
                        schedule.handle_certificate(0, held, moment);
                    } else {
                        // The companion compares its clock with the authority's before an order.
                        schedule.handle_failure(0, Setback::default(), moment, random);
                    }
                }
                let is_long_right = right_since.is_some_and(|it| now >= it + RETRY + TURN);
                let is_expired = Duration::from_secs(START + now) >= held.not_after;
                prop_assert!(!(is_long_right && is_expired), "expired");
            }
        }
        prop_assert!(ordered > 0);
    }
}
