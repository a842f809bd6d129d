//! What a run is going to do: its cases, and how long each takes.
//!
//! The times are those that the measures spend on purpose, with what starting and waiting adds. A case has its rounds at
//! least; where nobody can be told from becket it goes on, to the last look or until patience is over.

use crate::measure::scraped;
use crate::order::{LARGE, Order};
use crate::place::Place;
use crate::scenario::{Measure, Scenario, Settings};
use crate::{Error, figure};

/// A case that is to be measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Planned {
    pub scenario: String,
    pub label: String,
    /// How many servers.
    pub servers: usize,
    /// Seconds that it takes with the least of rounds.
    pub least: f64,
    /// Seconds that it takes when its rounds tell nobody apart.
    pub most: f64,
}

/// Returns all cases of a run in order.
pub fn of(order: &Order) -> Result<Vec<Planned>, Error> {
    let place = Place::here()?;
    let mut all = Vec::new();
    for scenario in order.scenarios.iter().filter(|s| s.not_available.is_none()) {
        for (label, settings) in order.effort.cases(scenario)? {
            all.push(planned(scenario, label, &settings, (order, &place)));
        }
    }
    Ok(all)
}

fn planned(
    scenario: &Scenario,
    label: String,
    settings: &Settings,
    (order, place): (&Order, &Place),
) -> Planned {
    let effort = &order.effort;
    let servers = order.asked(scenario).into_iter().filter(|peer| {
        let reason = scenario.reason(peer.kind.name(), settings);
        reason.is_none() && place.has_room(settings)
    });
    let servers = servers.count();
    let planned = |least: f64, most: f64| Planned {
        scenario: scenario.id.clone(),
        label,
        servers,
        least,
        most,
    };
    if servers == 0 {
        return planned(0.0, 0.0);
    }
    let (once, round) = seconds(scenario.measure, settings, order, servers as f64);
    let once = once + servers as f64 * 0.1 + 0.5;
    let least = once + f64::from(effort.rounds) * round;
    // Who is alone is told from nobody.
    let is_alone = servers == 1 && scenario.measure != Measure::Scraped;
    if is_alone || figure::deciding(scenario.measure).is_empty() {
        return planned(least, least);
    }
    let last = once + f64::from(effort.most_rounds()) * round;
    let patient = once + effort.patience.as_secs_f64() + round;
    planned(least, last.min(patient).max(least))
}

/// Seconds that a case takes once, and for each round.
fn seconds(measure: Measure, settings: &Settings, order: &Order, servers: f64) -> (f64, f64) {
    let effort = &order.effort;
    let (time, idle) = (effort.time.as_secs_f64(), effort.idle as f64);
    // A closed loop, nine steps, and one or two confirmations.
    let capacity = time * 13.0 + 0.5;
    let control = time * 1.1;
    let (once, round) = match measure {
        Measure::Transactions => {
            let each = match settings.body {
                0..LARGE => time * 1.2 + 0.2,
                // A core encrypts some half a GiB in a second.
                _ => time * 4.0 + 0.1,
            };
            // Before it, everybody takes a turn once.
            let trial = (servers + 2.0) * time * 0.2;
            (0.2 + trial, (servers + 2.0) * each + time / 4.0)
        }
        Measure::Capacity => (servers * capacity, servers * (time * 26.0 + 9.0)),
        Measure::AddedLatency => (servers * capacity, servers * (time * 10.0 + 2.0)),
        Measure::Storm if settings.full_handshakes > 0 => (0.0, servers * (time * 6.0 + 3.0)),
        Measure::Storm => (servers * capacity, servers * (time * 6.0 + 3.0)),
        // Measured once, without rounds.
        Measure::Idle => return (servers * (0.5 + idle / 1500.0), 0.0),
        Measure::Queued => return (servers * (1.0 + time * 45.0 + idle / 1000.0), 0.0),
        Measure::Scraped => {
            let each = time * f64::from(scraped::LONG) + 0.3;
            let connections = settings.connections.min(effort.most_idle()) as f64;
            (
                servers * (capacity + connections / 1500.0),
                servers * 2.0 * each,
            )
        }
        Measure::Burst => (0.0, servers * 1.5),
        Measure::Generators => (0.0, time * 2.0 + 0.2),
        Measure::Failover => (0.0, 2.0 + idle / 500.0),
    };
    (once, round + control)
}

/// Says what a run is going to do.
pub fn show(order: &Order) -> Result<String, Error> {
    let all = of(order)?;
    let wide = all.iter().map(|case| case.label.chars().count()).max();
    let mut text = String::new();
    for case in &all {
        text += &format!(
            "{:<16} {:<wide$}  {:<10} {}\n",
            case.scenario,
            case.label,
            match case.servers {
                1 => "1 server".to_owned(),
                servers => format!("{servers} servers"),
            },
            between(case.least, case.most),
            wide = wide.unwrap_or(0)
        );
    }
    let sum = |of: fn(&Planned) -> f64| all.iter().map(of).sum::<f64>();
    text += &format!(
        "\n{} cases, rounds of {:.2} s, at least {} of each: {}\n",
        all.len(),
        order.effort.time.as_secs_f64(),
        order.effort.rounds,
        between(sum(|case| case.least), sum(|case| case.most))
    );
    Ok(text)
}

fn between(least: f64, most: f64) -> String {
    match (duration(least), duration(most)) {
        (least, most) if least == most => least,
        (least, most) => format!("{least} to {most}"),
    }
}

/// Shows seconds as a reader wants them.
pub fn duration(seconds: f64) -> String {
    let seconds = seconds.max(0.0).round() as u64;
    match (seconds / 3600, seconds / 60 % 60) {
        (0, 0) => format!("{seconds} s"),
        (0, minutes) => format!("{minutes} min {:02} s", seconds % 60),
        (hours, minutes) => format!("{hours} h {minutes:02} min"),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::order::Effort;
    use crate::peer::{Kind, Peer};

    fn order(id: &str, effort: Effort) -> Order {
        let peer = |kind: Kind| Peer {
            name: kind.name().to_owned(),
            kind,
            program: PathBuf::new(),
        };
        Order {
            scenarios: crate::catalog::find(&[id.to_owned()]).unwrap(),
            peers: Kind::ALL.map(peer).to_vec(),
            effort,
            busy_ok: false,
            out: PathBuf::new(),
            command: Vec::new(),
        }
    }

    #[test]
    fn who_has_no_figure_takes_no_time() {
        let plan = of(&order("storm", Effort::full())).unwrap();
        let servers: Vec<usize> = plan.iter().map(|case| case.servers).collect();
        assert_eq!(servers, [5, 1, 1, 1, 5, 1, 1, 1, 5, 1, 1, 1]);
        assert!(plan[0].least > plan[1].least * 3.0);
    }
}
