//! Starts the processes of a case: the backend, the servers and the floors.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;

use crate::Error;
use crate::control::Control;
use crate::farm;
use crate::figures::{ANSWER, ROUND_TRIP};
use crate::floors::Floors;
use crate::kernel;
use crate::library::Library;
use crate::measure::{WARM_UP, crowd, queued, scraped};
use crate::network;
use crate::order::Order;
use crate::peer::{Kind, Peer, Server, Site};
use crate::place::{Place, Shares};
use crate::process::{Process, free_address};
use crate::result::{Column, PeerFacts};
use crate::scenario::{Files, Front, Measure, Scenario, Settings};

pub(super) struct Parts {
    pub(super) order: Order,
    pub(super) place: Place,
    pub(super) directory: tempfile::TempDir,
}

impl Parts {
    /// Starts the servers of a case. The second list contains the servers that cannot be measured, each with its index
    /// and a column that states the reason.
    #[expect(
        clippy::type_complexity,
        reason = "two lists that are created together and used at once"
    )]
    pub(super) fn servers(
        &self,
        scenario: &Scenario,
        site: &Site<'_>,
        known: &[PeerFacts],
    ) -> Result<(Vec<Server>, Vec<(usize, Column)>), Error> {
        let (mut servers, mut reasons) = (Vec::new(), Vec::new());
        let settings = site.settings;
        let connections = match scenario.measure {
            Measure::Idle | Measure::Queued => {
                settings.connections.min(self.order.effort.most_idle()) + ROOM
            }
            // Each takes two of the server's descriptors, which suffice for no more.
            Measure::Crowd => self.order.effort.crowd(settings).max(WARM_UP),
            Measure::Scraped => {
                let held = settings.connections.min(self.order.effort.most_idle());
                held.max(OPEN_LOOP) + ROOM
            }
            Measure::Capacity => self.order.effort.most_clients().max(OPEN_LOOP) + ROOM,
            _ => settings.connections.max(OPEN_LOOP) + ROOM,
        };
        for (index, peer) in self.order.asked(scenario).iter().enumerate() {
            let settings = &scenario.settings_of(&peer.name, settings)?;
            if let Some(reason) = self.reason(scenario, peer, settings, known) {
                reasons.push((index, reason));
                continue;
            }
            // The measure starts these servers.
            if scenario.measure == Measure::Certificates {
                continue;
            }
            let mut address = free_address()?;
            if let Some(agents) = &self.order.effort.agents {
                address.set_ip(agents.address);
            }
            if scenario.measure == Measure::Delay {
                address.set_ip(network::SERVER.into());
            }
            if scenario.measure == Measure::Crowd {
                address.set_ip(Ipv4Addr::UNSPECIFIED.into());
            }
            let extra = match scenario.measure {
                Measure::Queued => queued::sections(address, site.backend, site.certificate),
                Measure::Crowd => crowd::sections(site.directory, address),
                Measure::Scraped => scraped::sections(site.directory, address),
                _ => String::new(),
            };
            let site = Site {
                address,
                settings,
                connections: connections as u64,
                cpus: &self.place.of(settings).server,
                extra: &extra,
                ..site.clone()
            };
            let has_files = settings.files == Files::Peer;
            if has_files {
                write_file(&site)?;
            }
            servers.push(if settings.cluster {
                self.clustered(peer, &site)?
            } else if has_files && !peer.kind.serves_files() {
                self.before_files(peer, &site)?
            } else {
                peer.start(&site)?
            });
        }
        Ok((servers, reasons))
    }

    /// Starts a server, and a second node of its cluster on the clients' CPUs.
    fn clustered(&self, peer: &Peer, site: &Site<'_>) -> Result<Server, Error> {
        let sections = farm::sections(peer, site.directory, 2)?;
        let [first, second] = sections.as_slice() else {
            return peer.start(site);
        };
        let other = peer.renamed(format!("{}-other", peer.name));
        let companion = other.start(&Site {
            address: free_address()?,
            extra: second,
            cpus: &self.place.of(site.settings).client,
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

    /// Starts a file server, and on the same CPUs a server in front of it that cannot serve files itself.
    fn before_files(&self, peer: &Peer, site: &Site<'_>) -> Result<Server, Error> {
        let nginx = self.program(Kind::Nginx, format!("{}-files", peer.name))?;
        let behind = Settings {
            files: Files::Behind,
            ..site.settings.clone()
        };
        let behind = nginx.start(&Site {
            address: free_address()?,
            settings: &behind,
            ..site.clone()
        })?;
        let server = peer.start(&Site {
            backend: behind.address,
            ..site.clone()
        })?;
        Ok(Server {
            companion: Some(Box::new(behind)),
            ..server
        })
    }

    /// Starts becket on the clients' CPUs. It terminates TLS for servers that pass TLS through.
    pub(super) fn terminator(&self, site: &Site<'_>) -> Result<Server, Error> {
        let settings = Settings {
            front: Front::Terminate,
            servers: 1,
            ..site.settings.clone()
        };
        let peer = self.program(Kind::Becket, "terminator".to_owned())?;
        peer.start(&Site {
            address: free_address()?,
            settings: &settings,
            cpus: &self.place.of(&settings).client,
            ..site.clone()
        })
    }

    /// Returns the current build of becket if it is one of the peers.
    pub(super) fn becket(&self) -> Option<&Peer> {
        self.order
            .peers
            .iter()
            .find(|peer| peer.kind == Kind::Becket)
    }

    /// Returns the program of the peer with this kind under another name. Searches for an installed program if there is
    /// no such peer.
    fn program(&self, kind: Kind, name: String) -> Result<Peer, Error> {
        let peer = self.order.peers.iter().find(|peer| peer.kind == kind);
        let program = peer.map(|peer| peer.program.clone());
        Ok(Peer::find(kind.name(), program)?.renamed(name))
    }

    /// Returns `None` if a peer can be measured in a case, otherwise a column that states the reason.
    fn reason(
        &self,
        scenario: &Scenario,
        peer: &Peer,
        settings: &Settings,
        known: &[PeerFacts],
    ) -> Option<Column> {
        let library = known.iter().find(|p| p.name == peer.name);
        let library = library.map_or("", |p| p.library.as_str());
        let is = |libraries: &[&str]| libraries.iter().any(|l| library.starts_with(l));
        let is_other = peer.kind != Kind::Becket;
        let lacks = if settings.group == "x25519mlkem768" && is_other && is(OLD_OPENSSL) {
            Some("X25519MLKEM768")
        } else if settings.ktls && is_other && is(&["AWS-LC"]) {
            Some("kernel TLS")
        } else {
            None
        };
        let lacks = lacks.map(|what| format!("{library} has no {what}"));
        if let Some(reason) = lacks.or_else(|| scenario.reason(peer.kind.name(), settings)) {
            return Some(Column::without(&peer.name, reason));
        }
        let needs = self.place.needs(settings);
        let needs = needs.or_else(|| kernel::without_tls(settings));
        let effort = &self.order.effort;
        let files = 2 * effort.crowd(settings) as u64 + OTHER_FILES;
        let few = scenario.measure == Measure::Crowd && files > effort.open_files;
        let few = few.then(|| format!("needs {files} open files (`ulimit -Hn`)"));
        let needs = needs.or(few);
        needs.map(|machine| Column::not_measured(&peer.name, machine))
    }

    pub(super) fn backend(
        &self,
        (measure, settings): (Measure, &Settings),
        cpus: &[usize],
    ) -> Result<Server, Error> {
        let service = match measure {
            Measure::Burst => SERVICE,
            // The long service time hides the cost of the generators. The comparison then shows only how they count.
            Measure::Generators if settings.connections == 1 => &["--service-time", "20ms"],
            _ => &[],
        };
        let directory = self.directory.path();
        let agents = self.order.effort.agents.as_ref();
        let host = match settings.servers {
            // Clients also send requests directly to the backend.
            1 => agents.map_or(LOOPBACK, |it| it.address),
            // The backend must listen on every loopback address.
            _ => Ipv4Addr::UNSPECIFIED.into(),
        };
        backend(directory, ("backend", host), service, cpus)
    }

    pub(super) fn floors(&self, site: &Site<'_>) -> Result<Floors, Error> {
        let settings = site.settings;
        let cpus = &self.place.one().server;
        let cpu = cpus.first().copied().unwrap_or(0);
        // The `library` floor supports neither hidden CPU features nor RSA-1024, passthrough, or several requests per
        // connection.
        let alike = settings.mask == "none"
            && settings.key != "rsa1024"
            && settings.front == Front::Terminate
            && settings.requests == 1;
        let library = alike.then(|| Library::new(settings, site.certificate, cpu));
        let library = library.transpose()?;
        let preface = library.as_ref().map(Library::preface).transpose()?;
        let names = Floors::names(settings.files, preface.is_some()).iter();
        let relays = names.map(|name| match *name {
            ANSWER => backend(site.directory, (name, LOOPBACK), &[], cpus),
            name => relay(site.directory, name, site.backend, cpus),
        });
        Ok(Floors {
            relays: relays.collect::<Result<_, _>>()?,
            preface,
            library,
        })
    }
}

/// Starts the control and its backend, on the CPUs that a one-worker server and its clients use.
pub(super) fn control(place: &Place, directory: &Path) -> Result<Control, Error> {
    let Shares { server, client } = place.one();
    let backend = backend(directory, ("backend", LOOPBACK), &[], &client)?;
    let relay = relay(directory, "control", backend.address, &server)?;
    Ok(Control::new(relay, backend, &client))
}

pub(crate) fn backend(
    directory: &Path,
    (name, host): (&str, IpAddr),
    service: &[&str],
    cpus: &[usize],
) -> Result<Server, Error> {
    let mut address = free_address()?;
    let serve = SocketAddr::new(host, address.port()).to_string();
    if !host.is_unspecified() {
        address.set_ip(host);
    }
    let threads = (cpus.len() / 2).max(1).to_string();
    let args = ["backend", "--", "--serve", &serve, "-t", &threads];
    own(directory, name, &[&args, service].concat(), (address, cpus))
}

fn relay(
    directory: &Path,
    name: &str,
    backend: SocketAddr,
    cpus: &[usize],
) -> Result<Server, Error> {
    let address = free_address()?;
    let (listen, connect) = (address.to_string(), backend.to_string());
    let args = ["relay", &listen, &connect, "--answers"];
    let count = if name == ROUND_TRIP { 4 } else { 3 };
    own(directory, name, &args[..count], (address, cpus))
}

fn own(
    directory: &Path,
    name: &str,
    args: &[&str],
    (address, cpus): (SocketAddr, &[usize]),
) -> Result<Server, Error> {
    let program = std::env::current_exe()
        .map_err(|e| Error::os("cannot find the bench's own executable", e))?;
    let mut command = Command::new(program);
    command.arg("part").args(args);
    let log = directory.join(format!("{name}.log"));
    let mut process = Process::start(format!("the bench's {name}"), command, cpus, log)?;
    process.wait_for(address)?;
    Ok(Server {
        name: name.to_owned(),
        address,
        process,
        configuration: String::new(),
        companion: None,
    })
}

/// Creates the sparse file that clients request. Reads it once, so that the page cache contains it.
fn write_file(site: &Site<'_>) -> Result<(), Error> {
    let path = site.files().join(format!("bytes/{}", site.settings.body));
    let failed = |e| Error::os(format!("cannot write {}", path.display()), e);
    if path.is_file() {
        return Ok(());
    }
    std::fs::create_dir_all(site.files().join("bytes")).map_err(failed)?;
    let file = std::fs::File::create(&path).map_err(failed)?;
    file.set_len(site.settings.body).map_err(failed)?;
    let file = std::fs::File::open(&path).map_err(failed)?;
    let mut file = io::BufReader::with_capacity(1024 * 1024, file);
    io::copy(&mut file, &mut io::sink()).map_err(failed)?;
    Ok(())
}

pub(crate) const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// Service time of the backend of a burst: 9 ms for up to 30 concurrent requests, then 9 ms * (n / 30)^2.
const SERVICE: &[&str] = &["--service-time", "9ms", "--service-knee", "30"];
/// Maximum connections of an open loop.
pub(super) const OPEN_LOOP: usize = 4_000;
/// Number of connections to add for the bench itself.
const ROOM: usize = 300;
/// Open files of a server besides those of its connections.
const OTHER_FILES: u64 = 150;
/// OpenSSL versions without X25519MLKEM768, which version 3.5 introduced.
const OLD_OPENSSL: &[&str] = &[
    "OpenSSL 1.",
    "OpenSSL 3.0",
    "OpenSSL 3.1",
    "OpenSSL 3.2",
    "OpenSSL 3.3",
    "OpenSSL 3.4",
];
