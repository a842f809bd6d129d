//! The measures: each puts one kind of load on all servers of a case, in interleaved rounds.

mod burst;
mod capacity;
pub mod failover;
mod generators;
mod idle;
pub(crate) mod latency;
pub(crate) mod overload;
pub(crate) mod queued;
pub(crate) mod scraped;
pub(crate) mod storm;
mod transactions;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use becket_stats::report::Negotiated;

use crate::Error;
use crate::control::Control;
use crate::floors::Floors;
use crate::load::Ask;
use crate::order::{Effort, LARGE};
use crate::others::Others;
use crate::peer::Server;
use crate::result::{Column, figures};
use crate::rounds::Rounds;
use crate::scenario::{Front, Measure, Settings};

pub use capacity::{Capacities, Capacity};

/// What a measure works with: the servers of a case are up, and the backend.
#[derive(Debug)]
pub struct Stage<'a> {
    /// How it is measured.
    pub measure: Measure,
    pub settings: &'a Settings,
    /// The servers, in the order of the report.
    pub servers: &'a mut [Server],
    /// The floors, for measures that have any.
    pub floors: Option<Floors>,
    /// What nobody's change can move.
    pub control: &'a mut Control,
    /// Who else is at work.
    pub others: &'a mut Others,
    pub backend: SocketAddr,
    /// Where the files of the run are.
    pub directory: &'a Path,
    /// CPUs of the client.
    pub client: &'a [usize],
    /// How long and how often.
    pub effort: &'a Effort,
    /// What is known of capacities in this run.
    pub capacities: &'a mut Capacities,
    /// Set by a signal.
    pub stop: &'a Arc<AtomicBool>,
}

impl Stage<'_> {
    /// Returns the ask for a server of this case.
    pub fn ask(&self, address: SocketAddr, pid: Option<u32>) -> Ask {
        let scheme = match self.settings.front {
            Front::Plain => "http",
            Front::Terminate | Front::Passthrough => "https",
        };
        self.ask_url(format!("{scheme}://{address}{}", self.path()), pid)
    }

    /// Returns the ask for a server with other settings of the client.
    fn ask_as(&self, settings: &Settings, address: SocketAddr) -> Ask {
        let url = format!("https://{address}{}", self.path());
        Ask::of(settings, url)
            .on(self.client)
            .with("--expect-body", self.settings.body)
    }

    /// Returns the ask for a plain server.
    pub fn ask_plain(&self, address: SocketAddr, pid: Option<u32>) -> Ask {
        self.ask_url(format!("http://{address}{}", self.path()), pid)
    }

    fn ask_url(&self, url: String, pid: Option<u32>) -> Ask {
        let ask = Ask::of(self.settings, url)
            .on(self.client)
            .with("--expect-body", self.settings.body);
        let ask = match self.settings.requests {
            1 => ask,
            count => ask.with("--keepalive", count),
        };
        match pid {
            Some(pid) => ask.with("--pid", pid),
            None => ask,
        }
    }

    fn path(&self) -> String {
        format!("/bytes/{}", self.settings.body)
    }

    /// Returns the columns to fill, one per server.
    pub fn columns(&self) -> Vec<Column> {
        let columns = self.servers.iter().map(|server| Column {
            peer: server.name.clone(),
            ..Column::default()
        });
        columns.collect()
    }

    /// Begins to count the rounds of this case.
    pub fn rounds(&self) -> Rounds {
        Rounds::new(self.effort.rounds, self.effort.looks())
    }

    /// Returns an error after a signal.
    pub fn check_signal(&self) -> Result<(), Error> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(Error::Stopped);
        }
        Ok(())
    }

    /// Returns an error with the log when a server has ended by itself.
    pub fn check_alive(&mut self) -> Result<(), Error> {
        for server in self.servers.iter_mut() {
            if server.process.has_ended() {
                return Err(server.process.complain("ended during the run"));
            }
        }
        Ok(())
    }
}

pub fn run(stage: &mut Stage<'_>) -> Result<Vec<Column>, Error> {
    let measured = match stage.measure {
        Measure::Transactions => transactions::run(stage),
        Measure::Capacity => overload::run(stage),
        Measure::AddedLatency => latency::run(stage),
        Measure::Idle => idle::run(stage),
        Measure::Queued => queued::run(stage),
        Measure::Scraped => scraped::run(stage),
        Measure::Storm => storm::run(stage),
        Measure::Burst => burst::run(stage),
        Measure::Generators => generators::run(stage),
        // It starts and loses its servers itself.
        Measure::Failover => Ok(Vec::new()),
    };
    // Nobody connects to a server that has ended, and its log says more than that.
    if !matches!(measured, Err(Error::Stopped)) {
        stage.check_alive()?;
    }
    let mut columns = measured?;
    for column in &mut columns {
        if column.samples.is_empty() && column.not_available.is_none() {
            *column = Column::without(&column.peer, column.notes.join("; "));
        }
        check_alike(stage.settings, column)?;
        check_resumed(stage.settings, column)?;
    }
    note_differences(&mut columns);
    Ok(columns)
}

/// Fails the run when a server negotiated what it could have been configured not to.
fn check_alike(settings: &Settings, column: &Column) -> Result<(), Error> {
    let Some(Negotiated {
        version,
        suite,
        group,
        ..
    }) = &column.negotiated
    else {
        return Ok(());
    };
    let wanted_suite = match settings.suite.as_str() {
        "aes256" => "AES_256_GCM",
        "chacha20" => "CHACHA20_POLY1305",
        _ => "AES_128_GCM",
    };
    let wanted_group = match settings.group.as_str() {
        "p256" => "secp256r1",
        other => other,
    };
    let group_differs = group
        .as_ref()
        .is_some_and(|g| !g.eq_ignore_ascii_case(wanted_group));
    let version_differs = version.strip_prefix("TLSv") != Some(settings.tls.as_str());
    if version_differs || !suite.contains(wanted_suite) || group_differs {
        return Err(Error::Unlike(format!(
            "{} negotiated {version}, {suite}, {} where TLS {}, {wanted_suite}, {wanted_group} was asked: its figures would not be comparable",
            column.peer,
            group.as_deref().unwrap_or("no group"),
            settings.tls
        )));
    }
    Ok(())
}

/// Takes the figures of a server back that did not resume, and says so. With large bodies there are too few handshakes to see it,
/// and what they cost is nothing.
fn check_resumed(settings: &Settings, column: &mut Column) -> Result<(), Error> {
    if settings.body >= LARGE {
        return Ok(());
    }
    let asked = settings.asked_resumed()?;
    let Some(seen) = column.median(figures::RESUMED) else {
        return Ok(());
    };
    if asked > 0.0 && seen < asked / 10.0 {
        let reason = format!(
            "resumed {:.0} % of its connections where {:.0} % were asked: this would be another figure",
            seen * 100.0,
            asked * 100.0
        );
        *column = Column::without(&column.peer, reason);
    } else if (seen - asked).abs() > RESUMPTION_TOLERANCE {
        column.notes.push(format!(
            "resumed {:.1} % where {:.1} % were asked",
            seen * 100.0,
            asked * 100.0
        ));
    }
    Ok(())
}

/// Writes beside the figures what cannot be configured away.
fn note_differences(columns: &mut [Column]) {
    let seen: Vec<Negotiated> = columns
        .iter()
        .filter_map(|c| c.negotiated.clone())
        .collect();
    let Some(first) = seen.first().cloned() else {
        return;
    };
    let rounded = |tickets: Option<f64>| tickets.map(|t| t.round());
    let signatures_differ = seen.iter().any(|n| n.signature != first.signature);
    let mut tickets = seen.iter().filter_map(|n| rounded(n.tickets_per_full));
    let tickets_differ = tickets
        .next()
        .is_some_and(|one| tickets.any(|other| other != one));
    for column in columns.iter_mut() {
        let Some(negotiated) = &column.negotiated else {
            continue;
        };
        if signatures_differ && let Some(signature) = &negotiated.signature {
            column.notes.push(format!("signs with {signature}"));
        }
        if tickets_differ && let Some(tickets) = rounded(negotiated.tickets_per_full) {
            column
                .notes
                .push(format!("{tickets} tickets per full handshake"));
        }
    }
}

/// Returns the order of a round: each begins with another server.
fn order(count: usize, round: u32) -> impl Iterator<Item = usize> {
    let first = round as usize;
    (0..count).map(move |index| (index + first) % count)
}

/// Returns a time-out that suits a case: large bodies take their time.
fn time_out(settings: &Settings) -> Duration {
    Duration::from_secs(5 + settings.body / (16 * 1024 * 1024))
}

/// The first handshakes of each connection are full; short runs show it.
const RESUMPTION_TOLERANCE: f64 = 0.03;
