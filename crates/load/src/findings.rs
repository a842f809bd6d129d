//! Detects known causes of high latencies, and describes them.

use std::time::Duration;

use crate::histogram::Histogram;

use crate::failure::Failure;
use crate::sample::Samples;

/// Returns remarks about a step, one sentence each. `busy` means that the server or the client used all of its CPU
/// time.
pub fn of(samples: &Samples, busy: bool) -> Vec<String> {
    let phases = [
        ("handshake", &samples.latency.handshake_full),
        ("resumed handshake", &samples.latency.handshake_resumed),
        ("first byte", &samples.latency.first_byte),
    ];
    let mut found: Vec<String> = phases
        .iter()
        .filter_map(|(phase, h)| nagle(phase, h, busy))
        .collect();
    if samples.lingered > 0 {
        found.push(format!(
            "the server did not close {} connections within a second after the last response; the client closed them",
            samples.lingered
        ));
    }
    if samples.handshakes.nothing_to_offer > 0 {
        found.push(format!(
            "{} handshakes should have been resumed, but the server had sent no session of the requested kind",
            samples.handshakes.nothing_to_offer
        ));
    }
    found.extend(
        samples
            .failures
            .keys()
            .filter_map(|f: &Failure| f.hint().map(str::to_owned)),
    );
    found
}

/// Detects stalls that Nagle's algorithm on one side and delayed acknowledgements on the other side cause. On Linux,
/// such a stall lasts 40 ms (`TCP_DELACK_MIN`), or a little longer on a busy machine.
///
/// A narrow latency peak at 40 ms is a stall unless the server or client is `busy`: in a closed loop, a queue in a busy
/// process can delay all connections by the same time.
fn nagle(phase: &str, histogram: &Histogram, busy: bool) -> Option<String> {
    let ms = Duration::from_millis;
    let peak = histogram.count_between(ms(39), ms(60));
    let beside = histogram.count_between(ms(25), ms(38)) + histogram.count_between(ms(62), ms(80));
    if busy && peak * 2 > histogram.count() {
        return None;
    }
    let enough = peak >= 3 && peak * 100 >= histogram.count() && peak > 3 * beside;
    enough.then(|| {
        format!(
            "Nagle stall: in {peak} of {} cases the {phase} took 39 to 60 ms, because Nagle's algorithm on one side waited for the \
             delayed acknowledgement of the other; set TCP_NODELAY on the sender, or send with one write instead of two",
            histogram.count()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(with: &[(u64, u64)]) -> Samples {
        let mut samples = Samples::default();
        for (millis, count) in with {
            (0..*count).for_each(|_| {
                samples
                    .latency
                    .first_byte
                    .record(Duration::from_millis(*millis))
            });
        }
        samples
    }

    #[test]
    fn a_peak_at_forty_milliseconds_is_named() {
        let found = of(&samples(&[(1, 500), (41, 300)]), true);
        assert!(
            found
                .iter()
                .any(|f| f.contains("Nagle stall: in 300 of 800 cases")),
            "{found:?}"
        );
    }

    #[test]
    fn a_slow_server_is_not_reported_as_a_nagle_stall() {
        assert!(
            of(
                &samples(&[(1, 500), (35, 200), (41, 200), (65, 200)]),
                false
            )
            .is_empty()
        );
        assert!(of(&samples(&[(1, 50_000), (41, 3)]), false).is_empty());
    }

    #[test]
    fn a_queue_of_a_closed_loop_is_not_reported_as_a_nagle_stall() {
        let all = samples(&[(1, 50), (41, 900), (45, 100)]);
        assert!(of(&all, true).is_empty());
        assert_eq!(
            of(&all, false).len(),
            1,
            "with idle CPUs, the same latencies are a stall"
        );
    }
}
