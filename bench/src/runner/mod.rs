//! Runs an order: measures its cases one after another, starts and stops servers, reports progress, and stores the
//! result.

mod parts;

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use becket_load::clock;

pub(crate) use self::parts::{LOOPBACK, backend};
use self::parts::{OPEN_LOOP, Parts};
use crate::conditions::MOST_FILES;
use crate::control::Control;
use crate::measure::{self, Capacities, Stage, certificates};
use crate::network::{self, Network};
use crate::order::Order;
use crate::others::{self, Others};
use crate::peer::{Peer, Site};
use crate::place::{Place, Shares};
use crate::result::{Case, Column, Conditions, Outcome, Run, SCHEMA_VERSION, rounded};
use crate::scenario::{Front, Measure, Scenario, Settings};
use crate::{Error, conditions, guard, keys, plan, store};

pub fn run(order: Order, stop: &Arc<AtomicBool>) -> Result<Run, Error> {
    store::prepare(&order.out)?;
    let mut runner = Runner::new(order, stop)?;
    let result = runner.work();
    match result {
        Ok(()) => {
            store::run(&runner.parts.order.out, &runner.run)?;
            Ok(runner.run)
        }
        Err(Error::Stopped) if !runner.run.scenarios.is_empty() => Err(Error::Interrupted(
            store::run(&runner.parts.order.out, &runner.run)?,
        )),
        Err(error) => Err(error),
    }
}

struct Runner<'a> {
    parts: Parts,
    stop: &'a Arc<AtomicBool>,
    run: Run,
    capacities: Capacities,
    planned: usize,
    control: Control,
    others: Others,
}

impl<'a> Runner<'a> {
    fn new(mut order: Order, stop: &'a Arc<AtomicBool>) -> Result<Self, Error> {
        let place = Place::here()?;
        let is_crowd = order
            .scenarios
            .iter()
            .any(|it| it.measure == Measure::Crowd);
        let most = if is_crowd { 1 << 20 } else { MOST_FILES };
        order.effort.open_files = conditions::raise_open_files(most)?;
        let directory = tempfile::Builder::new()
            .prefix("becket-bench-")
            .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .tempdir()
            .map_err(|e| Error::os("cannot create a directory for the run", e))?;
        guard::start(directory.path())?;
        others::adopt().map_err(|e| Error::os("cannot adopt orphaned processes", e))?;
        let mut others = Others::watch(&place.all());
        std::thread::sleep(order.effort.time.min(LOOK));
        let before = rounded(others.share());
        if before > others::LIMIT && !order.busy_ok {
            return Err(Error::Busy {
                share: before * 100.0,
            });
        }
        let control = parts::control(&place, directory.path())?;
        let run = Run {
            schema: SCHEMA_VERSION,
            tool: concat!("becket-bench ", env!("CARGO_PKG_VERSION")).to_owned(),
            effort: order.effort.name.to_owned(),
            rounds: order.effort.rounds,
            looks: order.effort.looks(),
            seconds: order.effort.time.as_secs_f64(),
            command: order.command.clone(),
            conditions: Conditions {
                others_before: Some(before),
                ..conditions::now(&place, order.effort.open_files)
            },
            agents: (order.effort.agents.iter())
                .flat_map(|it| it.fleet.agents.clone())
                .collect(),
            busy: before > others::LIMIT,
            peers: order.peers.iter().map(Peer::describe).collect(),
            ..Run::default()
        };
        let planned = plan::of(&order)?.len();
        Ok(Self {
            parts: Parts {
                order,
                place,
                directory,
            },
            stop,
            run,
            capacities: Capacities::default(),
            planned,
            control,
            others,
        })
    }

    fn work(&mut self) -> Result<(), Error> {
        let begin = clock::now();
        let mut numbers = 1..;
        for scenario in self.parts.order.scenarios.clone() {
            let started = clock::now();
            let mut outcome = Outcome {
                id: scenario.id.clone(),
                measure: scenario.measure,
                not_available: scenario.not_available.clone(),
                ..Outcome::default()
            };
            let cases = match scenario.not_available {
                Some(_) => Vec::new(),
                None => self.parts.order.effort.cases(&scenario)?,
            };
            for ((label, settings), number) in cases.iter().zip(numbers.by_ref()) {
                let (id, planned) = (&scenario.id, self.planned);
                drop(writeln!(
                    io::stderr(),
                    "[{number:>3}/{planned}] {id} {label}"
                ));
                let mut repeats = REPEATS * u32::from(!self.parts.order.busy_ok);
                let case = loop {
                    self.others.worst();
                    let columns = self.columns(&scenario, settings)?;
                    let others = rounded(self.others.worst());
                    if others <= others::LIMIT || repeats == 0 {
                        break Case {
                            label: label.clone(),
                            settings: settings.text.clone(),
                            others: Some(others),
                            columns,
                        };
                    }
                    repeats -= 1;
                    drop(writeln!(
                        io::stderr(),
                        "  other processes ran; measuring again"
                    ));
                };
                self.run.busy |= case.others > Some(others::LIMIT);
                self.run.control.clone_from(&self.control.samples);
                outcome.cases.push(case);
            }
            outcome.took_s = (clock::now() - started).as_secs_f64();
            self.run.scenarios.push(outcome);
            self.run.took_s = (clock::now() - begin).as_secs_f64();
            store::run(&self.parts.order.out, &self.run)?;
        }
        self.run.conditions.load_after = conditions::load();
        self.run.complete = true;
        Ok(())
    }

    /// Measures all servers in a case.
    fn columns(&mut self, scenario: &Scenario, settings: &Settings) -> Result<Vec<Column>, Error> {
        let directory = self.parts.directory.path();
        let certificate = keys::file(directory, &settings.key)?;
        let Shares { server, client } = self.parts.place.of(settings);
        let network = match Network::of(scenario.measure, &client) {
            Ok(network) => network,
            Err(machine) => {
                let peers = self.parts.order.asked(scenario).into_iter();
                let column = |peer: Peer| Column::not_measured(&peer.name, &machine);
                return Ok(peers.map(column).collect());
            }
        };
        let network = network.as_ref();
        let backend = network::at_server(network, || {
            self.parts.backend((scenario.measure, settings), &client)
        })?;
        let mut site = Site {
            address: backend.address,
            backend: backend.address,
            certificate: &certificate,
            settings,
            directory,
            connections: OPEN_LOOP as u64,
            cpus: &server,
            extra: "",
        };
        let terminator = settings.front == Front::Passthrough;
        let terminator = terminator.then(|| self.parts.terminator(&site));
        let terminator = terminator.transpose()?;
        if let Some(terminator) = &terminator {
            site.backend = terminator.address;
        }
        // These measures start new farms in each round.
        let is_farm = matches!(scenario.measure, Measure::Failover | Measure::Store);
        let (mut servers, reasons) = if is_farm {
            (Vec::new(), Vec::new())
        } else {
            let peers = &self.run.peers;
            network::at_server(network, || self.parts.servers(scenario, &site, peers))?
        };
        for server in &servers {
            let peers = self.run.peers.iter_mut();
            for peer in peers.filter(|peer| peer.name == server.name) {
                if peer.configuration.is_empty() {
                    peer.configuration.clone_from(&server.configuration);
                }
            }
        }
        // Omit floors for scenarios that repeat an article, because the articles' tables have no columns for them.
        let has_floor = scenario.measure == Measure::Transactions
            && !servers.is_empty()
            && !scenario.is_classic()
            && self.parts.order.effort.agents.is_none();
        let floors = has_floor.then(|| self.parts.floors(&site));
        let floors = floors.transpose()?;
        let farm = self.parts.becket().filter(|_| is_farm);
        let mut starts = Vec::new();
        if scenario.measure == Measure::Certificates {
            let missing = |index| reasons.iter().any(|(missing, _)| *missing == index);
            let asked = self.parts.order.asked(scenario).into_iter().enumerate();
            starts.extend(asked.filter(|(index, _)| !missing(*index)).map(|it| it.1));
        }
        let sections = certificates::sections(&site);
        let starts_at = Site {
            extra: &sections,
            ..site.clone()
        };
        let mut columns = if servers.is_empty() && farm.is_none() && starts.is_empty() {
            Vec::new()
        } else {
            measure::run(&mut Stage {
                measure: scenario.measure,
                settings,
                servers: &mut servers,
                farm: farm.map(|peer| (peer, &site)),
                starts: (&starts, &starts_at),
                floors,
                network,
                control: &mut self.control,
                others: &mut self.others,
                backend: backend.address,
                directory,
                client: &client,
                effort: &self.parts.order.effort,
                capacities: &mut self.capacities,
                stop: self.stop,
            })?
        };
        drop(servers);
        for (index, reason) in reasons {
            columns.insert(index.min(columns.len()), reason);
        }
        Ok(columns)
    }
}

/// Maximum number of times that a case is repeated because other processes disturbed it.
const REPEATS: u32 = 2;
/// Duration for which the CPU use of other processes is measured before a run.
const LOOK: Duration = Duration::from_secs(1);
