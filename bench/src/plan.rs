//! Lists the cases of a run without measuring them.

use crate::Error;
use crate::order::Order;
use crate::place::Place;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    pub scenario: String,
    pub label: String,
    /// Number of servers that can be measured in this case.
    pub servers: usize,
}

pub fn of(order: &Order) -> Result<Vec<Planned>, Error> {
    let place = Place::here()?;
    let mut all = Vec::new();
    for scenario in order.scenarios.iter().filter(|s| s.not_available.is_none()) {
        let peers = order.asked(scenario);
        for (label, settings) in order.effort.cases(scenario)? {
            let servers = peers.iter().filter(|peer| {
                let reason = scenario.reason(peer.kind.name(), &settings);
                reason.is_none() && place.needs(&settings).is_none()
            });
            all.push(Planned {
                scenario: scenario.id.clone(),
                label,
                servers: servers.count(),
            });
        }
    }
    Ok(all)
}

pub fn show(order: &Order) -> Result<String, Error> {
    let all = of(order)?;
    let wide = all.iter().map(|case| case.label.chars().count()).max();
    let mut text = String::new();
    for case in &all {
        text += &format!(
            "{:<16} {:<wide$}  {} {}\n",
            case.scenario,
            case.label,
            case.servers,
            if case.servers == 1 {
                "server"
            } else {
                "servers"
            },
            wide = wide.unwrap_or(0)
        );
    }
    Ok(text
        + &format!(
            "\n{} cases, rounds of {:.2} s, at least {} of each\n",
            all.len(),
            order.effort.time.as_secs_f64(),
            order.effort.rounds
        ))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::order::Effort;
    use crate::peer::{Kind, Peer};

    #[test]
    fn an_unavailable_server_is_not_counted() {
        let peer = |kind: Kind| Peer {
            name: kind.name().to_owned(),
            kind,
            program: PathBuf::new(),
        };
        let order = Order {
            scenarios: crate::catalog::find(&["storm".to_owned()]).unwrap(),
            peers: Kind::ALL.map(peer).to_vec(),
            effort: Effort::full(),
            busy_ok: false,
            out: PathBuf::new(),
            command: Vec::new(),
        };
        let plan = of(&order).unwrap();
        let servers: Vec<usize> = plan.iter().map(|case| case.servers).collect();
        assert_eq!(servers, [5, 1, 1, 1, 5, 1, 1, 1, 5, 1, 1, 1]);
    }
}
