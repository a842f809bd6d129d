//! The plan of a run: built from the command line, checked, and shared by all threads.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::ops::RangeInclusive;
use std::time::Duration;

use crate::report::PlanRecord;
use rustls_pki_types::ServerName;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::cli::Cli;
use crate::preface::Preface;
use crate::resume::Resume;
use crate::schedule::{MOST_STEPS, Portion, Stretch};
use crate::target::Target;

#[derive(Clone, Debug)]
pub struct Plan {
    /// Command-line options. The other fields take precedence.
    pub options: Cli,
    pub target: Target,
    /// Addresses of the target. The first address that accepts a connection is used.
    pub addresses: Vec<SocketAddr>,
    /// Server name for SNI; `None` for plain HTTP targets.
    pub server_name: Option<ServerName<'static>>,
    /// Number of parallel connections: constant in a closed loop, the maximum in an open loop.
    pub connections: usize,
    pub threads: usize,
    /// CPUs for pinning; the first thread runs on the first CPU, and so on.
    pub cpus: Vec<usize>,
    pub load: Load,
    /// Time before the first step. Results in this time are discarded.
    pub warm_up: Duration,
    /// Bytes exchanged before a plaintext request to simulate a handshake. The target must be a relay that answers
    /// them.
    pub preface: Option<Preface>,
    /// Part of the schedule, if this machine is one of several.
    pub share: Portion,
    pub command: Vec<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Load {
    /// Closed loop for a period: each connection starts a transaction when its previous transaction
    /// ends.
    ClosedFor(Duration),
    /// Closed loop for a number of transactions.
    ClosedCount(u64),
    /// Open loop: transactions start on a schedule of consecutive stretches, each with a constant
    /// rate.
    Open(Vec<Stretch>),
}

impl Load {
    /// Checks rates, lengths and counts. The bounds keep the work for starts that never happen within seconds, and their
    /// times representable.
    ///
    /// # Errors
    /// [`Error::Plan`] with the accepted values.
    pub fn check(&self) -> Result<(), Error> {
        let wrong = |text: String| Err(Error::Plan(text));
        let (lengths, rates): (Vec<Duration>, Vec<f64>) = match self {
            Self::ClosedCount(0) => {
                return wrong("no transactions (accepted: -n from 1)".to_owned());
            }
            Self::ClosedCount(_) => return Ok(()),
            Self::ClosedFor(length) => (vec![*length], vec![]),
            Self::Open(steps) => steps.iter().map(|step| (step.length, step.rate)).unzip(),
        };
        if !(1..=MOST_STEPS).contains(&lengths.len()) {
            return wrong(format!(
                "{} steps (accepted: 1 to {MOST_STEPS})",
                lengths.len()
            ));
        }
        if let Some(rate) = rates.iter().find(|rate| !RATES.contains(rate)) {
            return wrong(format!(
                "{rate:e} transactions per second (accepted: 0.001 to 10M)"
            ));
        }
        let is_wrong = |length: &&Duration| length.is_zero() || **length > LONGEST_STEP;
        match lengths.iter().find(is_wrong) {
            None => Ok(()),
            Some(length) => wrong(format!(
                "-d or a step of {length:?} (accepted: above zero, up to {LONGEST_STEP:?})"
            )),
        }
    }
}

/// Accepted transactions per second.
const RATES: RangeInclusive<f64> = 1e-3..=1e7;
const LONGEST_STEP: Duration = Duration::from_secs(30 * 24 * 60 * 60);

impl Cli {
    /// Checks the options and creates the plan.
    ///
    /// # Errors
    /// [`Error::Plan`] with the invalid option and the accepted values.
    pub fn plan(&self, command: Vec<String>) -> Result<Plan, Error> {
        let wrong = |text: String| Err(Error::Plan(text));
        let url = self.url.as_deref().unwrap_or_default();
        let target = Target::parse(url)?;
        let mut addresses = target.resolve(self.connection.i_own_this_target)?;
        if let Some(source) = self.connection.source {
            addresses.retain(|address| address.is_ipv4() == source.pick(0).is_ipv4());
        }
        if addresses.is_empty() {
            return wrong(format!(
                "{target} has no address, or none of the same family as --source"
            ));
        }
        let server_name = if target.is_tls {
            self.tls.versions()?;
            let name = self.tls.sni.as_deref().unwrap_or(&target.host);
            let Ok(name) = ServerName::try_from(name.to_owned()) else {
                return wrong(format!("`{name}` is not a valid server name for SNI"));
            };
            Some(name)
        } else if self.tls.resume != Resume::Never || self.tls.tls.is_some() {
            return wrong("--resume, --early-data and --tls require an https:// target".to_owned());
        } else {
            None
        };
        let ramp = self.load.ramp;
        let length = ramp.and_then(|ramp| ramp.length).or(self.load.duration);
        let length = length.unwrap_or(if ramp.is_some() { STEP } else { WHOLE });
        if self.load.time_out.is_zero() {
            return wrong("--time-out must not be zero".to_owned());
        }
        let stretch = |rate| Stretch { rate, length };
        let load = match (self.load.transactions, self.load.rate, ramp) {
            (Some(count), ..) => Load::ClosedCount(count),
            (None, Some(rate), _) => Load::Open(vec![stretch(rate)]),
            (None, None, Some(ramp)) => Load::Open(ramp.rates().map(stretch).collect()),
            (None, None, None) => Load::ClosedFor(length),
        };
        load.check()?;
        let warm_up = match load {
            Load::ClosedCount(_) => Duration::ZERO,
            _ => (length / 10).min(Duration::from_secs(1)),
        };
        let allowed = becket_sys::affinity::allowed_cpus().unwrap_or_default();
        if let Some(cpu) = self
            .measuring
            .cpus
            .iter()
            .find(|cpu| !allowed.contains(cpu))
        {
            return wrong(format!(
                "--cpus: CPU {cpu} is not allowed (accepted: {allowed:?})"
            ));
        }
        let threads = self.load.threads;
        let threads = threads.map_or((allowed.len() / 2).max(1), NonZeroUsize::get);
        let connections = match self.load.connections {
            Some(connections) => connections.get(),
            None if matches!(load, Load::Open(_)) => most_connections(),
            None => 50,
        };
        Ok(Plan {
            options: self.clone(),
            target,
            addresses,
            server_name,
            connections,
            threads: threads.min(connections),
            // Uses the last CPUs by default, because servers are usually pinned to the first CPUs.
            cpus: if self.measuring.cpus.is_empty() {
                allowed.iter().rev().copied().collect()
            } else {
                self.measuring.cpus.clone()
            },
            load,
            warm_up: self.load.warm_up.unwrap_or(warm_up),
            preface: None,
            share: Portion::WHOLE,
            command,
        })
    }
}

const WHOLE: Duration = Duration::from_secs(10);
const STEP: Duration = Duration::from_secs(3);

/// Returns the maximum number of connections of an open loop: 10 000, or 900 if the limit on file
/// descriptors cannot be raised.
fn most_connections() -> usize {
    if becket_sys::rlimit::raise_open_files(10_100).is_ok() {
        10_000
    } else {
        900
    }
}

impl Plan {
    /// Reduces the plan to the share of one of several machines. The rates stay those of all machines together, because
    /// the schedule of each takes every `of`-th start.
    ///
    /// # Errors
    /// [`Error::Plan`] if the share has no connection or no transaction.
    pub fn divided(mut self, share: Portion) -> Result<Self, Error> {
        let few = |what: &str| Error::Plan(format!("fewer {what} than agents ({})", share.of));
        self.connections = share.part(self.connections as u64) as usize;
        if self.connections == 0 {
            return Err(few("connections (-c)"));
        }
        if let Load::ClosedCount(count) = &mut self.load {
            *count = share.part(*count);
            if *count == 0 {
                return Err(few("transactions (-n)"));
            }
        }
        self.threads = self.threads.min(self.connections);
        self.share = share;
        Ok(self)
    }

    /// Returns the time of warm-up and all steps; `None` if the run ends after a number of transactions instead.
    pub fn length(&self) -> Option<Duration> {
        let steps = self.steps();
        (!steps.is_empty()).then(|| self.warm_up + steps.iter().sum::<Duration>())
    }

    /// Returns the length of each measured step. Empty if the run ends after a number of
    /// transactions instead.
    pub fn steps(&self) -> Vec<Duration> {
        match &self.load {
            Load::ClosedFor(length) => vec![*length],
            Load::ClosedCount(_) => vec![],
            Load::Open(stretches) => stretches.iter().map(|s| s.length).collect(),
        }
    }

    pub fn address(&self) -> SocketAddr {
        // `Cli::plan` rejects an empty list, so the fallback is never used.
        let first = self.addresses.first().copied();
        first.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], self.target.port)))
    }

    pub fn cpu(&self, thread: usize) -> Option<usize> {
        self.cpus.get(thread % self.cpus.len().max(1)).copied()
    }

    /// Returns the HTTP request. For the last request on an HTTP/1.1 connection, adds `Connection: close`; HTTP/1.0
    /// needs no such header.
    pub fn request(&self, last: bool) -> String {
        let (path, host) = (&self.target.path, self.target.authority());
        let options = &self.options.connection;
        let (version, close) = match (options.http10, last) {
            (true, _) => ("1.0", ""),
            (false, true) => ("1.1", "Connection: close\r\n"),
            (false, false) => ("1.1", ""),
        };
        let own = options.header.iter().map(|line| format!("{line}\r\n"));
        let own = own.collect::<String>();
        format!("GET {path} HTTP/{version}\r\nHost: {host}\r\n{own}{close}\r\n")
    }

    pub fn describe(&self) -> PlanRecord {
        let options = &self.options;
        let is_open = matches!(self.load, Load::Open(_));
        PlanRecord {
            load_loop: if is_open { "open" } else { "closed" }.to_owned(),
            connections: self.connections,
            threads: self.threads,
            warm_up_s: self.warm_up.as_secs_f64(),
            resume: options.tls.resume.to_string(),
            resume_kind: format!("{:?}", options.tls.resume_kind).to_lowercase(),
            keepalive: options.connection.keepalive,
            time_out_s: options.load.time_out.as_secs_f64(),
            command: self.command.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn plan(args: &str) -> Result<Plan, Error> {
        let args = format!("becket-load {args}");
        Cli::try_parse_from(args.split(' '))
            .map_err(|e| Error::Plan(e.to_string()))?
            .plan(vec![])
    }

    #[test]
    fn defaults_make_a_useful_plan() {
        let plan = plan("https://127.0.0.1:1/").unwrap();
        assert_eq!(plan.connections, 50);
        assert!(matches!(plan.load, Load::ClosedFor(d) if d == Duration::from_secs(10)));
        assert_eq!(plan.warm_up, Duration::from_secs(1));
    }

    #[test]
    fn a_ramp_includes_both_rates_and_uses_the_step_length() {
        for (args, seconds) in [
            ("1k..3k/500", 3),
            ("1k..3k/500,5s", 5),
            ("1k..3k/500 -d 7s", 7),
        ] {
            let plan = plan(&format!("https://127.0.0.1:1/ --ramp {args}")).unwrap();
            let Load::Open(stretches) = &plan.load else {
                panic!("a ramp is an open loop")
            };
            let rates: Vec<f64> = stretches.iter().map(|s| s.rate).collect();
            assert_eq!(rates, [1000.0, 1500.0, 2000.0, 2500.0, 3000.0]);
            assert_eq!(plan.steps(), [Duration::from_secs(seconds); 5]);
        }
    }

    #[test]
    fn contradictory_options_are_rejected_with_a_message() {
        for args in [
            "https://127.0.0.1:1/ --tls 1.3 --resume-kind id",
            "https://127.0.0.1:1/ --tls 1.2 --resume-kind psk",
            "http://127.0.0.1:1/ --resume always",
            "https://127.0.0.1:1/ --early-data",
            "https://127.0.0.1:1/ --resume always --early-data --tls 1.2",
            "https://127.0.0.1:1/ --ramp 5..1/1",
            "https://127.0.0.1:1/ --ramp 1..1k/1",
            "https://127.0.0.1:1/ --ramp 1..5/1,0s",
            "https://127.0.0.1:1/ -d 0s",
            "https://127.0.0.1:1/ -R 11M",
            "https://127.0.0.1:1/ -R 0.0000001",
            "https://127.0.0.1:1/ -H X-Test",
            "https://127.0.0.1:1/ -H a\r\nb:c",
            "https://192.0.2.1/",
            "https://127.0.0.1:1/ --suite RC4",
            "https://127.0.0.1:1/ --cpus 99999",
            "https://127.0.0.1:1/ --source ::1",
        ] {
            let error = plan(args).unwrap_err().to_string();
            assert!(error.len() > 20, "{args:?}: {error}");
        }
    }
}
