//! Runs `becket-load` as a library, in a thread of the bench or on agents.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use becket_load::cli::Cli;
use becket_load::fleet::coordinator;
use becket_load::fleet_options::FleetOptions;
use becket_load::plan::{Load, Plan};
use becket_load::preface::Preface;
use becket_load::report::{LoadReport, LoadStep};
use becket_load::tls::Tls;
use becket_stats::units::UnitError;
use clap::Parser;

use crate::Error;
use crate::figures;
use crate::keys::NAME;
use crate::result::Sample;
use crate::scenario::{EARLY, Settings};

#[derive(Clone, Debug)]
pub struct Ask {
    args: Vec<String>,
    /// Flights that the client exchanges before each request, and the resumption plan that selects those of a full or
    /// of a resumed handshake.
    preface: Option<(Preface, String)>,
    agents: Option<FleetOptions>,
}

impl Ask {
    /// Creates options for a case: TLS version, cipher suite, group, resumption and Nagle's algorithm.
    pub fn of(settings: &Settings, url: String) -> Self {
        let tls = url.starts_with("https:");
        let mut ask = Self::plain(url);
        if tls {
            let groups = match settings.group.as_str() {
                // The groups of a TLS 1.2 client must include the curve of the certificate.
                "x25519" => "x25519,p256,p384".to_owned(),
                "p256" => "p256,p384".to_owned(),
                other => format!("{other},x25519,p256,p384"),
            };
            ask = ask
                .with("--tls", &settings.tls)
                .with("--suite", &settings.suite)
                .with("--group", groups)
                .with("--sni", NAME)
                .with("--resume-kind", &settings.resume_kind);
            ask = match settings.resume.as_str() {
                EARLY => ask.with("--resume", "always").flag("--early-data"),
                plan => ask.with("--resume", plan),
            };
        }
        if settings.nagle {
            ask = ask.flag("--nagle");
        }
        ask
    }

    /// Creates options for a target without TLS settings.
    pub fn plain(url: String) -> Self {
        Self {
            args: vec!["becket-load".to_owned(), url],
            preface: None,
            agents: None,
        }
    }

    #[must_use]
    pub fn with(mut self, flag: &str, value: impl ToString) -> Self {
        self.args.extend([flag.to_owned(), value.to_string()]);
        self
    }

    #[must_use]
    pub fn flag(mut self, flag: &str) -> Self {
        self.args.push(flag.to_owned());
        self
    }

    /// Makes the client exchange bytes in the sizes of handshake flights before each request. `resume` selects the
    /// flights of the full or of the resumed handshake.
    #[must_use]
    pub fn preface(mut self, preface: Preface, resume: &str) -> Self {
        self.preface = Some((preface, resume.to_owned()));
        self
    }

    /// Pins the client to these CPUs, one thread per CPU.
    #[must_use]
    pub fn on(self, cpus: &[usize]) -> Self {
        let list: Vec<String> = cpus.iter().map(ToString::to_string).collect();
        self.with("--cpus", list.join(","))
            .with("-t", cpus.len().max(1))
    }

    /// Makes agents generate the load instead of this process.
    #[must_use]
    pub fn by(self, agents: &FleetOptions) -> Self {
        Self {
            agents: Some(agents.clone()),
            ..self.flag("--i-own-this-target")
        }
    }

    pub fn plan(&self, load: Load) -> Result<Plan, Error> {
        let args = self.args.iter().cloned().chain(["--quiet".to_owned()]);
        let cli = Cli::try_parse_from(args).map_err(|e| Error::Asked(e.to_string()))?;
        let mut plan = cli.plan(self.args.clone())?;
        if let Some((preface, resume)) = &self.preface {
            plan.preface = Some(preface.clone());
            plan.options.tls.resume = resume
                .parse()
                .map_err(|e: UnitError| Error::Asked(e.to_string()))?;
        }
        if matches!(load, Load::ClosedCount(_)) {
            // A run with a fixed number of transactions measures all of them, without a warm-up.
            plan.warm_up = Duration::ZERO;
        }
        plan.load = load;
        Ok(plan)
    }

    /// Runs the load. After a signal, discards the result and returns an error.
    pub fn run(&self, load: Load, stop: &Arc<AtomicBool>) -> Result<LoadReport, Error> {
        let plan = self.plan(load)?;
        let report = match &self.agents {
            None => becket_load::run::run(plan, stop),
            Some(agents) => coordinator::run(&plan, agents, stop),
        };
        if stop.load(Ordering::Relaxed) {
            return Err(match report {
                Err(error) => error.into(),
                Ok(_) => Error::Stopped,
            });
        }
        Ok(report?)
    }

    pub fn one(&self, load: Load, stop: &Arc<AtomicBool>) -> Result<LoadStep, Error> {
        only_step(self.run(load, stop)?)
    }
}

pub fn only_step(report: LoadReport) -> Result<LoadStep, Error> {
    let step = report.steps.into_iter().next();
    step.ok_or_else(|| Error::Asked("becket-load measured no step".to_owned()))
}

pub fn tls(settings: &Settings) -> Result<Tls, Error> {
    let plan = Ask::of(settings, "https://127.0.0.1:1/".to_owned()).plan(Load::ClosedCount(1))?;
    Ok(Tls::new(&plan.options.tls)?)
}

pub fn sample(round: u32, step: &LoadStep, body: u64) -> Sample {
    let whole = step.latency.from_intended();
    let mut sample = Sample::of(round);
    let mut put = |name: &str, value: Option<f64>| sample.put(name, value.unwrap_or(f64::NAN));
    let server = step.server.as_ref();
    let shook = step.handshakes.full + step.handshakes.resumed();
    let enough = server.filter(|s| s.cpu_s >= LEAST_CPU_S);
    put(figures::CPU, enough.and_then(|s| s.cpu_us_per_transaction));
    put(figures::CPUS_USED, server.map(|s| s.cpus_used));
    put(figures::RATE, Some(step.rate_succeeded_per_s));
    put(figures::P50, Some(whole.p50_us));
    put(figures::MEAN, Some(whole.mean_us));
    put(figures::P99, Some(whole.p99_us));
    put(figures::P999, Some(whole.p999_us));
    put(figures::MAX, Some(whole.max_us));
    put(figures::FAILED, Some(share(step.failed, step.attempted)));
    put(
        figures::RESUMED,
        (shook > 0).then(|| share(step.handshakes.resumed(), shook)),
    );
    put(figures::CLIENT_BUSY, Some(step.generator.busiest_thread));
    put(figures::CLIENT_CPU, step.generator.cpu_us_per_transaction);
    if body >= BULK {
        let bytes = step.completed as f64 * body as f64 / 1e6;
        let cpu = enough.map(|s| s.cpu_s);
        put(figures::MB_PER_CPU_S, cpu.map(|cpu| bytes / cpu));
        put(figures::MB_PER_S, Some(bytes / step.seconds));
    }
    sample
}

/// Records the latencies and failures of a step. `name` maps each figure name to the recorded name.
pub fn latencies(sample: &mut Sample, step: &LoadStep, name: impl Fn(&str) -> String) {
    let whole = step.latency.from_intended();
    if whole.count > 0 {
        sample.put(&name(figures::P50), whole.p50_us);
        sample.put(&name(figures::P99), whole.p99_us);
    }
    let failed = share(step.failed, step.attempted);
    sample.put(&name(figures::FAILED), failed);
}

/// Returns `part` / `whole`, or 0 if `whole` is 0.
pub fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}

/// Minimum recorded CPU time in seconds. A shorter time is too imprecise, because the kernel counts in ticks of 10 ms.
const LEAST_CPU_S: f64 = 0.03;
/// Minimum body size in bytes for which throughput is recorded.
const BULK: u64 = 16 * 1024;
