//! Lists the cases of a run without measuring them.

use crate::Error;
use crate::order::Order;
use crate::place::Place;

/// Returns the scenario, the label and the number of measurable servers of each case.
pub fn of(order: &Order) -> Result<Vec<(&str, String, usize)>, Error> {
    let place = Place::here()?;
    let mut all = Vec::new();
    for scenario in order.scenarios.iter().filter(|s| s.not_available.is_none()) {
        let peers = order.asked(scenario);
        for (label, settings) in order.effort.cases(scenario)? {
            let servers = peers.iter().filter(|peer| {
                let reason = scenario.reason(peer.kind.name(), &settings);
                reason.is_none() && place.needs(&settings).is_none()
            });
            all.push((scenario.id.as_str(), label, servers.count()));
        }
    }
    Ok(all)
}

pub fn show(order: &Order) -> Result<String, Error> {
    let all = of(order)?;
    let widths = all.iter().map(|(_, label, _)| label.chars().count());
    let wide = widths.max().unwrap_or(0);
    let mut text = String::new();
    for (scenario, label, servers) in &all {
        let word = if *servers == 1 { "server" } else { "servers" };
        text += &format!("{scenario:<16} {label:<wide$}  {servers} {word}\n");
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
        let servers: Vec<usize> = plan.iter().map(|(.., servers)| *servers).collect();
        assert_eq!(servers, [5, 1, 1, 1, 5, 1, 1, 1, 5, 5, 1, 1, 1, 1, 1, 1]);
    }
}
