//! From flags to the plan of a run; what contradicts itself is refused.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::time::Duration;

use rustls_pki_types::ServerName;

use super::Cli;
use crate::Error;
use crate::options::CpuList;
use crate::plan::{Load, Plan};
use crate::request::{RequestBytes, RequestHead};
use crate::resume::Resume;
use crate::schedule::Stretch;
use crate::target::{Scheme, Target};
use crate::tls::{self, ResumeKind, TlsPlan, TlsVersion};

impl Cli {
    /// Makes the plan.
    ///
    /// # Errors
    /// [`Error::Plan`] with what is wrong and what would be accepted.
    pub fn plan(&self, command: Vec<String>) -> Result<Plan, Error> {
        let url = self
            .url
            .as_deref()
            .ok_or_else(|| Error::Plan("no target is given".to_owned()))?;
        let target = Target::parse(url)?;
        let addresses = self.addresses(&target)?;
        self.check(&target)?;
        let allowed = becket_sys::affinity::allowed_cpus().unwrap_or_default();
        let threads = self
            .load
            .threads
            .map_or((allowed.len() / 2).max(1), NonZeroUsize::get);
        let load = self.load();
        let open = matches!(load, Load::Open { .. });
        let default = if open { default_limit() } else { 50 };
        let connections = self.load.connections.map_or(default, NonZeroUsize::get);
        Ok(Plan {
            addresses,
            connections,
            threads: threads.min(connections),
            cpus: self.cpus(&allowed)?,
            warm_up: self.load.warm_up.unwrap_or_else(|| warm_up(&load)),
            load,
            time_out: self.load.time_out,
            tls: (target.scheme == Scheme::Https)
                .then(|| self.tls_plan(&target))
                .transpose()?,
            resume: self.tls.resume,
            request: self.request(&target),
            options: self.request.clone(),
            network: self.network.clone(),
            measuring: self.measuring.clone(),
            command,
            target,
        })
    }

    fn check(&self, target: &Target) -> Result<(), Error> {
        let wrong = |text: &str| Err(Error::Plan(text.to_owned()));
        let tls = target.scheme == Scheme::Https;
        match (self.tls.tls, self.tls.resume_kind) {
            (Some(TlsVersion::Tls13), ResumeKind::Id | ResumeKind::Ticket) => {
                return wrong(
                    "--resume-kind id and ticket are of TLS 1.2: leave --tls 1.3 out, or say psk",
                );
            }
            (Some(TlsVersion::Tls12), ResumeKind::Psk) => {
                return wrong(
                    "--resume-kind psk is of TLS 1.3: leave --tls 1.2 out, or say id or ticket",
                );
            }
            _ => {}
        }
        let resumes = self.tls.resume != Resume::Never;
        if !tls && (resumes || self.tls.early_data || self.tls.tls.is_some()) {
            return wrong("--resume, --early-data and --tls need an https:// target");
        }
        if self.load.time_out.is_zero()
            || self.load.duration.is_some_and(|d| d.is_zero())
            || self.load.transactions == Some(0)
        {
            return wrong("-d, -n and --time-out must not be zero");
        }
        if self
            .request
            .header
            .iter()
            .any(|line| line.contains(['\r', '\n']) || !line.contains(':'))
        {
            return wrong("-H wants one line, NAME: VALUE");
        }
        Ok(())
    }

    /// The target's addresses of the family that the sources have.
    fn addresses(&self, target: &Target) -> Result<Vec<SocketAddr>, Error> {
        let mut addresses = target.resolve(self.network.i_own_this_target)?;
        if let Some(source) = self.network.source {
            addresses.retain(|address| address.is_ipv4() == source.pick(0).is_ipv4());
        }
        if addresses.is_empty() {
            return Err(Error::Plan(format!(
                "{target} has no address, or none of the family of --source"
            )));
        }
        Ok(addresses)
    }

    fn load(&self) -> Load {
        if let Some(count) = self.load.transactions {
            return Load::ClosedCount(count);
        }
        let length = |default: u64| self.load.duration.unwrap_or(Duration::from_secs(default));
        let stretches = match (self.load.rate, self.load.ramp) {
            (Some(rate), _) => vec![Stretch {
                rate,
                length: length(10),
            }],
            (None, Some(ramp)) => ramp
                .rates()
                .map(|rate| Stretch {
                    rate,
                    length: length(3),
                })
                .collect(),
            (None, None) => return Load::ClosedFor(length(10)),
        };
        Load::Open {
            stretches,
            arrivals: self.load.arrivals,
            seed: self.load.seed,
        }
    }

    fn tls_plan(&self, target: &Target) -> Result<TlsPlan, Error> {
        let name = self.tls.sni.as_deref().unwrap_or(&target.host);
        let server_name = ServerName::try_from(name.to_owned()).map_err(|_| {
            Error::Plan(format!("`{name}` is not a server name that SNI can carry"))
        })?;
        let key = self
            .tls
            .client_key
            .as_ref()
            .or(self.tls.client_cert.as_ref());
        Ok(TlsPlan {
            version: self.tls.tls,
            suites: self
                .tls
                .suite
                .as_deref()
                .map(tls::suites)
                .transpose()?
                .unwrap_or_default(),
            groups: tls::groups(&self.tls.group)?,
            server_name,
            alpn: self
                .tls
                .alpn
                .iter()
                .map(|name| name.clone().into_bytes())
                .collect(),
            early_data: self.tls.early_data,
            client_cert: self.tls.client_cert.clone().zip(key.cloned()),
            resume_kind: self.tls.resume_kind,
        })
    }

    fn request(&self, target: &Target) -> RequestBytes {
        RequestBytes::http(&RequestHead {
            path: &target.path,
            authority: &target.authority(),
            http10: self.request.http10,
            headers: &self.request.header,
        })
    }

    /// The CPUs to pin to. The last ones, since servers are commonly pinned from the first.
    fn cpus(&self, allowed: &[usize]) -> Result<Vec<usize>, Error> {
        let Some(CpuList(asked)) = &self.measuring.cpus else {
            return Ok(allowed.iter().rev().copied().collect());
        };
        match asked.iter().find(|cpu| !allowed.contains(cpu)) {
            Some(cpu) => Err(Error::Plan(format!(
                "--cpus: CPU {cpu} may not be used (accepted: none, or some of {allowed:?})"
            ))),
            None => Ok(asked.clone()),
        }
    }
}

/// An open loop takes what the system gives: ten thousand connections, or 900 where descriptors
/// are scarce.
fn default_limit() -> usize {
    if becket_sys::rlimit::raise_open_files(10_100).is_ok() {
        10_000
    } else {
        900
    }
}

fn warm_up(load: &Load) -> Duration {
    let tenth = |length: Duration| (length / 10).min(Duration::from_secs(1));
    match load {
        Load::ClosedCount(_) => Duration::ZERO,
        Load::ClosedFor(length) => tenth(*length),
        Load::Open { stretches, .. } => stretches
            .first()
            .map_or(Duration::ZERO, |s| tenth(s.length)),
    }
}
