//! Writes the report of a simulation, and the tables of `docs/scale.md`.

use super::fan_out::{NEW_PER_S, STORE_COMMANDS};
use super::lines;
use super::returns::{Change, Returns, Sharing};
use super::simulation::Simulation;
use crate::table::Rows;

/// Returns the tables of the page: resumption of ten hosts and after a lost host, and the traffic between hosts.
pub(super) fn section(simulation: &Simulation) -> String {
    let is_shown = |it: &&Returns| {
        it.fleet.hosts == 10 && matches!(it.fleet.change, Change::Leaves | Change::Rollout)
    };
    let ten = simulation.returns.iter().filter(is_shown);
    let lost = simulation.after_a_loss().filter(|it| it.fleet.hosts > 10);
    let (returns, traffic) = (table(ten.chain(lost)), traffic(simulation));
    format!(
        "Resumed, in %:\n\n{returns}\nShared at {NEW_PER_S} new sessions/s per host:\n\n{traffic}"
    )
}

pub(super) fn report(simulation: &Simulation) -> String {
    let Simulation { seed, clients, .. } = simulation;
    let plots = lines::plots(simulation);
    let plots = plots.map(|(file, title, _)| format!("![{title}]({file})\n\n"));
    format!(
        "# Simulation of a fleet\n\n`becket-bench simulate --seed {seed}`: {clients} clients. Nothing is measured; \
         [docs/scale.md](../../../docs/scale.md) has the model, its assumptions and sources.\n\n{}Resumed, in %:\n\n{}\n{}",
        plots.concat(),
        table(simulation.returns.iter()),
        traffic(simulation)
    )
}

fn table<'a>(fleets: impl Iterator<Item = &'a Returns>) -> String {
    let head = ["hosts", "change", "hash"].into_iter();
    let head = head.chain(Sharing::ALL.map(|(_, name)| name));
    let mut rows = Rows::new(head.map(str::to_owned));
    for Returns { fleet, resumed, .. } in fleets {
        let (hosts, change, hash) = (fleet.hosts, fleet.change, fleet.hash);
        let first = format!("{hosts} {change:?} {hash:?}").to_lowercase();
        let shares = resumed.map(|share| format!("{:.0}", share * 100.0));
        rows.add(first.split(' ').map(str::to_owned).chain(shares));
    }
    rows.text()
}

fn traffic(simulation: &Simulation) -> String {
    let head =
        "hosts|UDP: MB/s|cores|within limits|store: MB/s|cores|commands/s of all|Redis processes";
    let mut rows = Rows::new(head.split('|').map(str::to_owned));
    for it in &simulation.fan_out {
        rows.add([
            it.hosts.to_string(),
            format!("{:.1}", it.udp_bytes / 1e6),
            format!("{:.3}", it.udp_cores),
            (if it.udp_is_possible { "yes" } else { "no" }).to_owned(),
            format!("{:.2}", it.store_bytes / 1e6),
            format!("{:.3}", it.store_cores),
            format!("{:.0}", it.store_commands),
            format!("{:.0}", (it.store_commands / STORE_COMMANDS).ceil()),
        ]);
    }
    rows.text()
}
