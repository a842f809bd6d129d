//! A run from beginning to end: cases in order, servers up and down, progress, the stored file.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use becket_load::clock;

use crate::farm::{self, Farm};
use crate::keys::Keyring;
use crate::measure::{self, Capacities, Stage, failover, queued};
use crate::peer::{Kind, Peer, Server, Site};
use crate::place::Place;
use crate::process::{Launch, Process, free_address};
use crate::progress::Progress;
use crate::result::{Case, Column, Outcome, Run, SCHEMA_VERSION};
use crate::scenario::{Measure, Scenario, Settings};
use crate::{Error, conditions, guard, library, store};

/// Runs everything and stores it.
///
/// # Errors
/// [`Error::Interrupted`] or what made the run void; nothing then looks like a whole run.
pub fn run(order: Order, stop: &Arc<AtomicBool>) -> Result<Run, Error> {
    store::prepare(&order.out)?;
    let mut runner = Runner::new(order, stop)?;
    let result = runner.work();
    match result {
        Ok(()) => {
            store::whole(&runner.order.out, &runner.run)?;
            Ok(runner.run)
        }
        Err(Error::Stopped) if !runner.run.scenarios.is_empty() => Err(Error::Interrupted(
            store::partial(&runner.order.out, &runner.run)?,
        )),
        Err(error) => Err(error),
    }
}

struct Runner<'a> {
    order: Order,
    stop: &'a Arc<AtomicBool>,
    place: Place,
    directory: tempfile::TempDir,
    keys: Keyring,
    run: Run,
    capacities: Capacities,
    progress: Progress,
}

impl<'a> Runner<'a> {
    fn new(mut order: Order, stop: &'a Arc<AtomicBool>) -> Result<Self, Error> {
        let place = Place::here()?;
        order.effort.open_files = conditions::raise_open_files()?;
        let directory = tempfile::Builder::new()
            .prefix("becket-bench-")
            .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .tempdir()
            .map_err(|e| Error::os("making a directory for the run", e))?;
        guard::start(directory.path())?;
        let run = Run {
            schema: SCHEMA_VERSION,
            tool: concat!("becket-bench ", env!("CARGO_PKG_VERSION")).to_owned(),
            effort: order.effort.name.to_owned(),
            rounds: order.effort.rounds,
            seconds: order.effort.time.as_secs_f64(),
            command: order.command.clone(),
            conditions: conditions::now(&place, order.effort.open_files),
            peers: order.peers.iter().map(Peer::describe).collect(),
            ..Run::default()
        };
        let progress = Progress::new(&order)?;
        Ok(Self {
            keys: Keyring::new(directory.path()),
            order,
            stop,
            place,
            directory,
            run,
            capacities: Capacities::default(),
            progress,
        })
    }

    fn work(&mut self) -> Result<(), Error> {
        let begin = clock::now();
        for scenario in self.order.scenarios.clone() {
            let started = clock::now();
            let mut outcome = Outcome {
                id: scenario.id.clone(),
                measure: format!("{:?}", scenario.measure),
                not_available: scenario.not_available.clone(),
                ..Outcome::default()
            };
            let cases = match scenario.not_available {
                Some(_) => Vec::new(),
                None => self.order.effort.cases(&scenario)?,
            };
            for (label, settings) in &cases {
                self.progress.begin(&scenario, label);
                let case = self.case(&scenario, label, settings)?;
                outcome.cases.push(case);
                self.progress.end(&scenario, &self.order);
            }
            outcome.took_s = (clock::now() - started).as_secs_f64();
            self.run.scenarios.push(outcome);
            self.run.took_s = (clock::now() - begin).as_secs_f64();
            store::partial(&self.order.out, &self.run)?;
        }
        self.run.conditions.load_after = conditions::load();
        self.run.complete = true;
        Ok(())
    }

    fn case(
        &mut self,
        scenario: &Scenario,
        label: &str,
        settings: &Settings,
    ) -> Result<Case, Error> {
        let certificate = self.keys.file(settings.key)?;
        let client = self.place.client(settings.workers).to_vec();
        let backend = self.backend((scenario.measure, settings), &client)?;
        if scenario.measure == Measure::Failover {
            let columns = self.failover(settings, &certificate, backend.1)?;
            return Ok(Case {
                label: label.to_owned(),
                settings: settings.text.clone(),
                library_us: None,
                columns,
            });
        }
        let terminator = settings.passthrough;
        let terminator = terminator.then(|| self.terminator(settings, &certificate, backend.1));
        let terminator = terminator.transpose()?;
        let behind = terminator
            .as_ref()
            .map_or(backend.1, |server| server.address);
        let (mut servers, reasons) = self.servers(scenario, settings, &certificate, behind)?;
        let has_floor = scenario.measure == Measure::Transactions && !servers.is_empty();
        let mut relay = has_floor.then(|| self.relay(behind)).transpose()?;
        let mut columns = if servers.is_empty() {
            Vec::new()
        } else {
            measure::run(
                scenario.measure,
                &mut Stage {
                    settings,
                    servers: &mut servers,
                    relay: relay.as_mut(),
                    backend: backend.1,
                    client: &client,
                    effort: &self.order.effort,
                    capacities: &mut self.capacities,
                    stop: self.stop,
                },
            )?
        };
        drop((servers, relay));
        for (index, reason) in reasons {
            columns.insert(index.min(columns.len()), reason);
        }
        if !KEEPS_SHAPE.contains(&scenario.id.as_str()) {
            columns
                .iter_mut()
                .for_each(|column| column.histogram.clear());
        }
        let library_us = (has_floor && !settings.passthrough).then(|| {
            let cpu = self.place.server(1).first().copied().unwrap_or(0);
            let time = self.order.effort.time / 4;
            library::transaction_us(settings, &certificate, cpu, time)
        });
        Ok(Case {
            label: label.to_owned(),
            settings: settings.text.clone(),
            library_us: library_us.transpose()?.map(crate::result::rounded),
            columns,
        })
    }

    /// Measures the loss of a node: the servers of a case are farms, started anew in each round.
    fn failover(
        &mut self,
        settings: &Settings,
        certificate: &Path,
        backend: SocketAddr,
    ) -> Result<Vec<Column>, Error> {
        let peer = self.order.peers.iter().find(|p| p.kind == Kind::Becket);
        let Some(peer) = peer else {
            return Ok(Vec::new());
        };
        let start = |clustered| {
            Farm::start(
                peer,
                &Site {
                    address: backend,
                    backend,
                    certificate,
                    settings,
                    directory: self.directory.path(),
                    connections: OPEN_LOOP as u64,
                    cpus: self.place.server(settings.workers),
                    extra: "",
                },
                clustered,
            )
        };
        let client = self.place.client(settings.workers).to_vec();
        failover::run(
            &Stage {
                settings,
                servers: &mut [],
                relay: None,
                backend,
                client: &client,
                effort: &self.order.effort,
                capacities: &mut self.capacities,
                stop: self.stop,
            },
            &start,
        )
    }

    /// Starts the servers of a case; those that have no figure are returned with their places and reasons.
    #[expect(
        clippy::type_complexity,
        reason = "two lists that are made together and used at once"
    )]
    fn servers(
        &mut self,
        scenario: &Scenario,
        settings: &Settings,
        certificate: &Path,
        backend: SocketAddr,
    ) -> Result<(Vec<Server>, Vec<(usize, Column)>), Error> {
        let (mut servers, mut reasons) = (Vec::new(), Vec::new());
        let connections = match scenario.measure {
            Measure::Idle | Measure::Queued => {
                settings.connections.min(self.order.effort.most_idle()) + ROOM
            }
            _ => settings.connections.max(OPEN_LOOP) + ROOM,
        };
        let asked = self.order.peers.iter().filter(|peer| {
            scenario.peers.is_empty() || scenario.peers.iter().any(|name| name == peer.kind.name())
        });
        for (index, peer) in asked.enumerate() {
            if let Some(reason) = self.reason(scenario, peer, settings) {
                reasons.push((index, Column::without(&peer.name, reason)));
                continue;
            }
            let address = free_address()?;
            let aside = match scenario.measure {
                Measure::Queued => queued::sections(address, backend, certificate),
                _ => String::new(),
            };
            let site = Site {
                address,
                backend,
                certificate,
                settings,
                directory: self.directory.path(),
                connections: connections as u64,
                cpus: self.place.server(settings.workers),
                extra: &aside,
            };
            let server = match settings.cluster {
                true => self.clustered(peer, &site)?,
                false => peer.start(&site)?,
            };
            let known = self
                .run
                .peers
                .iter_mut()
                .find(|known| known.name == peer.name);
            if let Some(known) = known.filter(|known| known.configuration.is_empty()) {
                known.configuration.clone_from(&server.configuration);
            }
            servers.push(server);
        }
        Ok((servers, reasons))
    }

    /// Starts a server and, where the clients are, another node of its cluster.
    fn clustered(&self, peer: &Peer, site: &Site<'_>) -> Result<Server, Error> {
        let sections = farm::sections(peer, site.directory, 2)?;
        let [first, second] = sections.as_slice() else {
            return peer.start(site);
        };
        let other = Peer {
            name: format!("{}-other", peer.name),
            ..peer.clone()
        };
        let companion = other.start(&Site {
            address: free_address()?,
            extra: second,
            cpus: self.place.client(site.settings.workers),
            ..site.clone()
        })?;
        let server = peer.start(&Site {
            extra: first,
            ..site.clone()
        })?;
        Ok(Server {
            companion: Some(Box::new(companion)),
            ..server
        })
    }

    /// Starts what ends TLS behind servers that only pass it on: a becket where the clients are.
    fn terminator(
        &self,
        settings: &Settings,
        certificate: &Path,
        backend: SocketAddr,
    ) -> Result<Server, Error> {
        let terminating = Settings {
            passthrough: false,
            servers: 1,
            ..settings.clone()
        };
        let peer = Peer {
            name: "terminator".to_owned(),
            ..Peer::find(Kind::Becket.name(), self.program_of(Kind::Becket))?
        };
        peer.start(&Site {
            address: free_address()?,
            backend,
            certificate,
            settings: &terminating,
            directory: self.directory.path(),
            connections: OPEN_LOOP as u64,
            cpus: self.place.client(settings.workers),
            extra: "",
        })
    }

    fn program_of(&self, kind: Kind) -> Option<PathBuf> {
        let peer = self.order.peers.iter().find(|peer| peer.kind == kind);
        peer.map(|peer| peer.program.clone())
    }

    fn reason(&self, scenario: &Scenario, peer: &Peer, settings: &Settings) -> Option<String> {
        let library = self
            .run
            .peers
            .iter()
            .find(|p| p.name == peer.name)
            .map(|p| p.library.as_str());
        let old = library.is_some_and(|l| OLD_OPENSSL.iter().any(|old| l.starts_with(old)));
        if settings.group == "x25519mlkem768" && peer.kind != Kind::Becket && old {
            return Some(format!(
                "{} has no X25519MLKEM768",
                library.unwrap_or_default()
            ));
        }
        if settings.spread && settings.workers > self.place.most_workers() {
            return Some(format!(
                "needs {} CPUs, here are {}: workers must not share with the client",
                settings.workers * 2,
                self.place.all().len()
            ));
        }
        scenario.reason(peer.kind.name(), settings)
    }

    fn backend(
        &self,
        (measure, settings): (Measure, &Settings),
        cpus: &[usize],
    ) -> Result<(Process, SocketAddr), Error> {
        let address = free_address()?;
        let threads = (cpus.len() / 2).max(1);
        let mut args = vec![
            "--serve".to_owned(),
            match settings.servers {
                1 => address.to_string(),
                // It answers at every address of the loopback network.
                _ => format!("0.0.0.0:{}", address.port()),
            },
            "-t".to_owned(),
            threads.to_string(),
        ];
        let service = match measure {
            Measure::Burst => SERVICE,
            // So that two clients' own costs do not matter, and their counting is compared.
            Measure::Generators if settings.connections == 1 => &["--service-time", "20ms"],
            _ => &[],
        };
        args.extend(service.iter().map(|arg| (*arg).to_owned()));
        let process = self.own("backend", &["backend", "--"], args, (address, cpus))?;
        Ok((process, address))
    }

    fn relay(&self, backend: SocketAddr) -> Result<Server, Error> {
        let address = free_address()?;
        let args = vec![address.to_string(), backend.to_string()];
        let process = self.own("relay", &["relay"], args, (address, self.place.server(1)))?;
        Ok(Server {
            name: "relay".to_owned(),
            address,
            process,
            configuration: String::new(),
            companion: None,
        })
    }

    fn own(
        &self,
        name: &str,
        part: &[&str],
        args: Vec<String>,
        (address, cpus): (SocketAddr, &[usize]),
    ) -> Result<Process, Error> {
        let program =
            std::env::current_exe().map_err(|e| Error::os("finding the own program", e))?;
        let first = std::iter::once("part")
            .chain(part.iter().copied())
            .map(str::to_owned);
        let mut process = Process::start(Launch {
            name: format!("the bench's {name}"),
            program,
            args: first.chain(args).collect(),
            env: Vec::new(),
            cpus: cpus.to_vec(),
            log: self.directory.path().join(format!("{name}.log")),
        })?;
        process.wait_for(address)?;
        Ok(process)
    }
}

/// The service time of the burst's backend: 9 ms for up to 30 at once, then 9 ms * (n / 30)^2.
const SERVICE: &[&str] = &["--service-time", "9ms", "--service-knee", "30"];
/// Connections that an open loop may have.
const OPEN_LOOP: usize = 4_000;
const ROOM: usize = 300;
/// Scenarios whose histograms are kept and drawn.
const KEEPS_SHAPE: &[&str] = &["implementations", "latency", "maxconn"];
/// OpenSSL got X25519MLKEM768 with 3.5.
const OLD_OPENSSL: &[&str] = &[
    "OpenSSL 1.",
    "OpenSSL 3.0",
    "OpenSSL 3.1",
    "OpenSSL 3.2",
    "OpenSSL 3.3",
    "OpenSSL 3.4",
];
