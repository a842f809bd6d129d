//! From flags to the plan of a run; what contradicts itself is refused.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::time::Duration;

use becket_proto::proxy_header::Format;
use rustls_pki_types::ServerName;

use super::{ArrivalKind, Cli, Introduction};
use crate::Error;
use crate::plan::{Load, Plan};
use crate::request::{Head, Request};
use crate::resume::Resume;
use crate::schedule::{Arrivals, Stretch};
use crate::target::{Scheme, Target};
use crate::tls::{self, ResumeKind, TlsPlan, Version};

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
            .threads
            .map_or((allowed.len() / 2).max(1), NonZeroUsize::get);
        let load = self.load();
        let open = matches!(load, Load::Open { .. });
        let default = if open { default_limit() } else { 50 };
        let connections = self.connections.map_or(default, NonZeroUsize::get);
        Ok(Plan {
            addresses,
            connections,
            threads: threads.min(connections),
            cpus: self.cpus(&allowed)?,
            warm_up: self.warm_up.unwrap_or_else(|| warm_up(&load)),
            load,
            time_out: self.time_out,
            tls: (target.scheme == Scheme::Https)
                .then(|| self.tls_plan(&target))
                .transpose()?,
            resume: self.resume,
            request: self.request(&target),
            preface: self.preface.clone(),
            keepalive: if target.scheme == Scheme::Tcp {
                1
            } else {
                self.keepalive
            },
            since_queued: self.since_queued,
            handshake_only: self.handshake_only,
            nagle: self.nagle,
            proxy_header: self.proxy_header.map(|version| match version {
                Introduction::V1 => Format::V1,
                Introduction::V2 => Format::V2 {
                    checksum: false,
                    padding: None,
                },
            }),
            sources: self.source,
            expect_body: self.expect_body,
            any_status: self.any_status,
            pids: self.pid.clone(),
            progress: !self.quiet,
            command,
            target,
        })
    }

    fn check(&self, target: &Target) -> Result<(), Error> {
        let wrong = |text: &str| Err(Error::Plan(text.to_owned()));
        let tls = target.scheme == Scheme::Https;
        match (self.tls, self.resume_kind) {
            (Some(Version::Tls13), ResumeKind::Id | ResumeKind::Ticket) => {
                return wrong(
                    "--resume-kind id and ticket are of TLS 1.2: leave --tls 1.3 out, or say psk",
                );
            }
            (Some(Version::Tls12), ResumeKind::Psk) => {
                return wrong(
                    "--resume-kind psk is of TLS 1.3: leave --tls 1.2 out, or say id or ticket",
                );
            }
            _ => {}
        }
        let resumes = self.resume != Resume::Never && self.preface.is_none();
        if !tls && (resumes || self.handshake_only || self.early_data || self.tls.is_some()) {
            return wrong(
                "--resume, --handshake-only, --early-data and --tls need an https:// target",
            );
        }
        if self.preface.is_some() && (target.scheme != Scheme::Http || self.keepalive > 1) {
            return wrong("--preface is for an http:// target and one request per connection");
        }
        if self.time_out.is_zero()
            || self.duration.is_some_and(|d| d.is_zero())
            || self.transactions == Some(0)
        {
            return wrong("-d, -n and --time-out must not be zero");
        }
        if self
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
        let mut addresses = target.resolve(self.i_own_this_target)?;
        if let Some(source) = self.source {
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
        if let Some(count) = self.transactions {
            return Load::ClosedCount(count);
        }
        let length = |default: u64| self.duration.unwrap_or(Duration::from_secs(default));
        let stretches = match (self.rate, self.ramp) {
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
        let arrivals = match self.arrivals {
            ArrivalKind::Constant => Arrivals::Constant,
            ArrivalKind::Poisson => Arrivals::Poisson,
        };
        Load::Open {
            stretches,
            arrivals,
            seed: self.seed,
        }
    }

    fn tls_plan(&self, target: &Target) -> Result<TlsPlan, Error> {
        let name = self.sni.as_deref().unwrap_or(&target.host);
        let server_name = ServerName::try_from(name.to_owned()).map_err(|_| {
            Error::Plan(format!("`{name}` is not a server name that SNI can carry"))
        })?;
        let key = self.client_key.as_ref().or(self.client_cert.as_ref());
        Ok(TlsPlan {
            version: self.tls,
            suites: self
                .suite
                .as_deref()
                .map(tls::suites)
                .transpose()?
                .unwrap_or_default(),
            groups: tls::groups(&self.group)?,
            server_name,
            alpn: self
                .alpn
                .iter()
                .map(|name| name.clone().into_bytes())
                .collect(),
            early_data: self.early_data,
            client_cert: self.client_cert.clone().zip(key.cloned()),
            resume_kind: self.resume_kind,
        })
    }

    fn request(&self, target: &Target) -> Request {
        if target.scheme == Scheme::Tcp {
            return Request::raw(self.size);
        }
        Request::http(&Head {
            path: &target.path,
            authority: &target.authority(),
            http10: self.http10,
            headers: &self.header,
            upload: self.size,
        })
    }

    /// The CPUs to pin to. The last ones, since servers are commonly pinned from the first.
    fn cpus(&self, allowed: &[usize]) -> Result<Vec<usize>, Error> {
        let wrong = |what: &str| {
            Error::Plan(format!(
                "--cpus: {what} (accepted: none, or some of {allowed:?})"
            ))
        };
        match self.cpus.as_deref() {
            None => Ok(allowed.iter().rev().copied().collect()),
            Some("none") => Ok(Vec::new()),
            Some(list) => list
                .split(',')
                .map(|n| {
                    n.trim()
                        .parse()
                        .map_err(|_| wrong(&format!("`{n}` is not a number")))
                })
                .map(|n| {
                    n.and_then(|n| {
                        if allowed.contains(&n) {
                            Ok(n)
                        } else {
                            Err(wrong(&format!("CPU {n} may not be used")))
                        }
                    })
                })
                .collect(),
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
