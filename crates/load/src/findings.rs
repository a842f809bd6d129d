//! Recognises known stalls in latencies, and names them.

use std::time::Duration;

use becket_stats::Histogram;

use crate::failure::Failure;
use crate::sample::Samples;

/// Returns what is worth saying about a step, each a sentence. `busy` says that the server, or the client, had no time to spare.
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
            "the server did not close {} connections within a second of its last response; the client did",
            samples.lingered
        ));
    }
    if samples.handshakes.nothing_to_offer > 0 {
        found.push(format!(
            "{} handshakes were to be resumed, but the server had given nothing to resume with",
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

/// Nagle's algorithm on one side and delayed acknowledgement on the other make both wait for Linux'
/// 40 ms (`TCP_DELACK_MIN`), and some more on a busy machine: a peak there with little on either side is nothing else, but the queue in front
/// of whoever is busy, in which a closed loop has all of its connections for as long.
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
            "Nagle stall: {peak} of {} times the {phase} took 39 to 60 ms, the delayed acknowledgement of one side \
             waiting for the Nagle algorithm of the other; TCP_NODELAY on the sender, or one write in place of two, ends it",
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
            found.iter().any(|f| f.contains("Nagle stall: 300 of 800")),
            "{found:?}"
        );
    }

    #[test]
    fn a_slow_server_is_not_mistaken_for_it() {
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
    fn a_queue_of_a_closed_loop_is_not_mistaken_for_it() {
        let all = samples(&[(1, 50), (41, 900), (45, 100)]);
        assert!(of(&all, true).is_empty());
        assert_eq!(
            of(&all, false).len(),
            1,
            "nobody had anything to do meanwhile"
        );
    }
}
