//! Divides a round into turns: the servers of a case are measured in rotation, for a quarter of a second each, until
//! each has been measured for a whole round.
//!
//! The speed of a machine changes within seconds, which could affect only one of two servers measured in sequence.
//! Turns are shorter than these changes, so the changes affect all servers equally, and the ratio of two servers is
//! stable.
//!
//! A turn begins with new connections, so it must be long compared with a transaction. Rounds with slow servers
//! therefore have fewer and longer turns.

use std::time::Duration;

use crate::figures;
use crate::result::Sample;

/// Returns the number of turns for a round of duration `time`. Each turn is long enough for `PER_CONNECTION`
/// transactions per connection with the slowest server.
pub fn of_round(time: Duration, slowest_per_s: f64, connections: usize) -> u32 {
    let transactions = time.as_secs_f64() * slowest_per_s;
    let most = (time.as_secs_f64() / SHORTEST.as_secs_f64()).max(1.0);
    let turns = transactions / (PER_CONNECTION * connections.max(1) as f64);
    turns.clamp(1.0, most) as u32
}

/// Combines the figures of several turns into those of a round. Takes the largest maximum latency, and a weighted mean
/// of every other figure.
pub fn join(round: u32, turns: &[Sample]) -> Option<Sample> {
    let mut joined = Sample {
        round,
        ..turns.first()?.clone()
    };
    for (name, value) in &mut joined.figures {
        let values = turns.iter().filter_map(|turn| turn.figures.get(name));
        *value = if name == figures::MAX {
            values.copied().fold(0.0, f64::max)
        } else {
            mean(name, turns)
        };
    }
    joined.put(figures::TURNS, turns.len() as f64);
    Some(joined)
}

fn mean(name: &str, turns: &[Sample]) -> f64 {
    let (mut sum, mut weights) = (0.0, 0.0);
    for turn in turns {
        let of = |name: &str| turn.figures.get(name).copied();
        // The `library` floor has no rate, so all of its turns have equal weight.
        let rate = of(figures::RATE).unwrap_or(1.0);
        let weight = match name {
            figures::RATE | figures::CPUS_USED | figures::CLIENT_BUSY => 1.0,
            // Bytes per CPU second are weighted by CPU time.
            figures::MB_PER_CPU_S => of(figures::CPU).unwrap_or(0.0) * rate,
            _ => rate,
        };
        if let Some(value) = of(name).filter(|_| weight > 0.0) {
            sum += value * weight;
            weights += weight;
        }
    }
    sum / weights.max(f64::MIN_POSITIVE)
}

/// Minimum duration of a turn. It is shorter than the changes of a machine's speed, and long enough for 25 of the
/// kernel's ticks of 10 ms.
const SHORTEST: Duration = Duration::from_millis(250);
/// Minimum number of transactions per connection in a turn. At most about a tenth of them are then cut off at the end
/// of the turn.
const PER_CONNECTION: f64 = 10.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_servers_have_fewer_turns_and_short_rounds_have_one() {
        let second = Duration::from_secs(1);
        assert_eq!(of_round(2 * second, 5_000.0, 50), 8);
        assert_eq!(of_round(2 * second, 1_000.0, 50), 4);
        assert_eq!(of_round(2 * second, 200.0, 50), 1);
        assert_eq!(of_round(2 * second, 0.0, 0), 1);
        assert_eq!(of_round(second / 20, 50_000.0, 1), 1);
    }

    fn turn(rate: f64, cpu: f64) -> Sample {
        let mut turn = Sample::default();
        turn.put(figures::RATE, rate);
        turn.put(figures::CPU, cpu);
        turn.put(figures::MB_PER_CPU_S, 1e6 / cpu);
        turn.put(figures::MAX, cpu * 2.0);
        turn.put(figures::P50, cpu);
        turn
    }

    #[test]
    fn joined_turns_equal_one_long_turn() {
        // 100 transactions of 30 us and 300 of 10: 6 ms for 400.
        let joined = join(7, &[turn(100.0, 30.0), turn(300.0, 10.0)]).unwrap();
        let of = |name: &str| joined.figures[name];
        assert_eq!(joined.round, 7);
        assert!((of(figures::CPU) - 15.0).abs() < 1e-9);
        assert!((of(figures::RATE) - 200.0).abs() < 1e-9);
        assert!((of(figures::MAX) - 60.0).abs() < 1e-9);
        assert!((of(figures::TURNS) - 2.0).abs() < 1e-9);
        // Bodies of 1 MB: 400 in 6 ms.
        assert!((of(figures::MB_PER_CPU_S) - 400.0 / 0.006).abs() < 1.0);
    }

    #[test]
    fn figures_without_a_rate_have_equal_weight_in_each_turn() {
        let turns = [10.0, 20.0].map(|cpu| {
            let mut turn = Sample::default();
            turn.put(figures::CPU, cpu);
            turn
        });
        let joined = join(0, &turns).unwrap();
        assert!((joined.figures[figures::CPU] - 15.0).abs() < 1e-9);
    }

    #[test]
    fn a_round_of_one_turn_is_unchanged_and_no_turns_give_no_round() {
        let one = turn(100.0, 30.0);
        let joined = join(0, std::slice::from_ref(&one)).unwrap();
        assert!(
            one.figures
                .iter()
                .all(|(name, value)| (joined.figures[name] - value).abs() < 1e-9)
        );
        assert!(join(0, &[]).is_none());
    }
}
