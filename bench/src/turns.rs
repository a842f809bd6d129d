//! Rounds in turns: the servers of a case are measured a quarter of a second each, one after the other, until each has had its round.
//!
//! What a machine does changes within seconds, and then moves one server's round and not the next's. Turns are short beside that, so it moves
//! both, and their ratio stays. A turn begins with connections that nobody has begun to serve, so it must be long beside a transaction:
//! servers that are slow have fewer turns of more time.

use std::time::Duration;

use crate::figures;
use crate::result::Sample;

/// Returns the turns of a round of so much time in which the slowest server completes so many transactions, over connections that are all
/// busy.
pub fn of_round(time: Duration, slowest_per_s: f64, connections: usize) -> u32 {
    let transactions = time.as_secs_f64() * slowest_per_s;
    let most = (time.as_secs_f64() / SHORTEST.as_secs_f64()).max(1.0);
    let turns = transactions / (PER_CONNECTION * connections.max(1) as f64);
    turns.clamp(1.0, most) as u32
}

/// Returns a round's figures from those of its turns: sums over sums where a figure is a ratio, the longest where it is the longest; a quantile
/// is the mean of its turns'.
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
        // The library in memory has none.
        let rate = of(figures::RATE).unwrap_or(1.0);
        let weight = match name {
            figures::RATE | figures::CPUS_USED | figures::CLIENT_BUSY => 1.0,
            // Its seconds of CPU.
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

/// Short beside the seconds in which a machine changes its speed, and 25 of the 10 ms in which the kernel counts CPU time.
const SHORTEST: Duration = Duration::from_millis(250);
/// Transactions of each connection in a turn: those that are cut at its ends weigh a tenth.
const PER_CONNECTION: f64 = 10.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_slow_has_fewer_turns_and_who_has_no_time_has_one() {
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
    fn a_round_is_what_one_turn_of_all_its_time_would_have_been() {
        // 100 transactions of 30 us and 300 of 10: 6 ms for 400.
        let joined = join(7, &[turn(100.0, 30.0), turn(300.0, 10.0)]).unwrap();
        let of = |name: &str| joined.figures[name];
        assert_eq!(joined.round, 7);
        assert!((of(figures::CPU) - 15.0).abs() < 1e-9);
        assert!((of(figures::RATE) - 200.0).abs() < 1e-9);
        assert!((of(figures::MAX) - 60.0).abs() < 1e-9);
        assert!((of(figures::TURNS) - 2.0).abs() < 1e-9);
        // A megabyte each: 400 in 6 ms.
        assert!((of(figures::MB_PER_CPU_S) - 400.0 / 0.006).abs() < 1.0);
    }

    #[test]
    fn what_has_no_rate_weighs_the_same_in_each_turn() {
        let turns = [10.0, 20.0].map(|cpu| {
            let mut turn = Sample::default();
            turn.put(figures::CPU, cpu);
            turn
        });
        let joined = join(0, &turns).unwrap();
        assert!((joined.figures[figures::CPU] - 15.0).abs() < 1e-9);
    }

    #[test]
    fn a_round_of_one_turn_is_that_turn_and_none_is_none() {
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
