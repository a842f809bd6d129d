//! Options of the command line, in groups. A plan keeps those that threads look at.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use becket_proto::proxy_header::Format;
use becket_stats::units::{UnitError, parse_duration, parse_rate, parse_size};
use clap::{Args, ValueEnum};

use crate::preface::Preface;
use crate::resume::Resume;
use crate::schedule::Arrivals;
use crate::source::Sources;
use crate::tls::{ResumeKind, TlsVersion};

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Load")]
pub struct LoadOptions {
    /// Connections in parallel; with -R the most that may be in parallel [default: 50; with -R 10000, as far as descriptors go]
    #[arg(short = 'c', long, value_name = "N")]
    pub connections: Option<NonZeroUsize>,
    /// Client threads [default: half of the CPUs]
    #[arg(short = 't', long, value_name = "N")]
    pub threads: Option<NonZeroUsize>,
    /// How long to measure, or each step of a ramp [default: 10s, for a step 3s]
    #[arg(short = 'd', long, value_name = "TIME", value_parser = parse_duration)]
    pub duration: Option<Duration>,
    /// Measure this many transactions in place of a time
    #[arg(short = 'n', long, value_name = "N", conflicts_with_all = ["duration", "rate", "ramp"])]
    pub transactions: Option<u64>,
    /// Open loop: start this many transactions per second, whatever the server does
    #[arg(short = 'R', long, value_name = "RATE", value_parser = parse_rate, conflicts_with = "ramp")]
    pub rate: Option<f64>,
    /// Open loop in steps, for example 1000..10000/500; -d is the length of a step
    #[arg(long, value_name = "FROM..TO/STEP", value_parser = parse_ramp)]
    pub ramp: Option<Ramp>,
    /// How starts of an open loop are spaced
    #[arg(long, value_name = "KIND", value_enum, default_value = "constant")]
    pub arrivals: Arrivals,
    /// Seed of Poisson arrivals
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Time before measuring whose results are thrown away [default: a tenth of -d, at most 1s; none with -n]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub warm_up: Option<Duration>,
    /// Give a transaction up after this time
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "5s")]
    pub time_out: Duration,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "TLS")]
pub struct TlsOptions {
    /// never, always, every=N (one full handshake, N-1 resumed) or ratio=R
    #[arg(long, value_name = "PLAN", default_value = "never")]
    pub resume: Resume,
    /// How sessions may be resumed: id and ticket mean TLS 1.2, psk means TLS 1.3
    #[arg(long, value_name = "KIND", value_enum, default_value = "any")]
    pub resume_kind: ResumeKind,
    /// Offer only this version
    #[arg(long, value_name = "VERSION", value_enum)]
    pub tls: Option<TlsVersion>,
    /// Suites to offer: aes128, aes256, chacha20, or names of IANA or OpenSSL, comma separated
    #[arg(long, value_name = "NAMES")]
    pub suite: Option<String>,
    /// Groups to offer, the first with its key share: x25519, p256, p384, x25519mlkem768
    #[arg(long, value_name = "NAMES", default_value = "x25519,p256,p384")]
    pub group: String,
    /// Server name to send in place of the URL's host
    #[arg(long, value_name = "NAME")]
    pub sni: Option<String>,
    /// ALPN protocols to offer, comma separated
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub alpn: Vec<String>,
    /// Send requests as TLS 1.3 early data when a session allows it
    #[arg(long)]
    pub early_data: bool,
    /// Client certificate chain (PEM), with its key unless --client-key is given
    #[arg(long, value_name = "FILE")]
    pub client_cert: Option<PathBuf>,
    /// Key of the client certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "client_cert")]
    pub client_key: Option<PathBuf>,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Request")]
pub struct RequestOptions {
    /// Requests per connection
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub keepalive: u64,
    /// Measure also from when the server's kernel took the first bytes of a connection (SO_TIMESTAMPING): where its accept
    /// queue is full, that is later than the client is connected. Three system calls more for each connection
    #[arg(long, conflicts_with = "keepalive")]
    pub since_queued: bool,
    /// Ask in HTTP/1.0
    #[arg(long)]
    pub http10: bool,
    /// A further header line; may be repeated
    #[arg(short = 'H', long, value_name = "LINE")]
    pub header: Vec<String>,
    /// A body of another length is a failure
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    pub expect_body: Option<u64>,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Network")]
pub struct NetworkOptions {
    /// Leave Nagle's algorithm on, and send the request apart from the last handshake message
    #[arg(long)]
    pub nagle: bool,
    /// What is said before a plain request, in the shape of a full and of a resumed handshake: for a relay that answers.
    #[arg(skip)]
    pub preface: Option<Preface>,
    /// Send a PROXY protocol header first
    #[arg(long, value_name = "VERSION", value_enum)]
    pub proxy_header: Option<ProxyVersion>,
    /// Connect from these addresses in turn, for example 127.0.0.2-127.0.0.50
    #[arg(long, value_name = "RANGE")]
    pub source: Option<Sources>,
    /// Say that a target elsewhere than on this machine is yours
    #[arg(long)]
    pub i_own_this_target: bool,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Measuring")]
pub struct MeasuringOptions {
    /// Sample the CPU time of this server process, its threads and children; may be repeated
    #[arg(long, value_name = "PID")]
    pub pid: Vec<u32>,
    /// CPUs to pin the threads to, comma separated, or `none` [default: the last ones that are allowed]
    #[arg(long, value_name = "LIST")]
    pub cpus: Option<CpuList>,
    /// Store the report as JSON; `-` is standard output, and the text then goes to standard error
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// No line a second
    #[arg(short = 'q', long)]
    pub quiet: bool,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Responder")]
pub struct ResponderOptions {
    /// Answer HTTP on this address in place of putting load on one
    #[arg(long, value_name = "ADDR", conflicts_with = "url")]
    pub serve: Option<String>,
    /// Bytes of each response's body; a path /bytes/N asks for another size
    #[arg(long, value_name = "BYTES", value_parser = parse_size, default_value = "1k")]
    pub body: u64,
    /// Time that each response takes
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "0s")]
    pub service_time: Duration,
    /// From this many requests at once on, the service time grows: TIME * (n / KNEE)^2
    #[arg(long, value_name = "KNEE")]
    pub service_knee: Option<NonZeroUsize>,
}

/// CPUs to pin to; none for `none`.
#[derive(Clone, Debug)]
pub struct CpuList(pub Vec<usize>);

impl FromStr for CpuList {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        if text == "none" {
            return Ok(Self(Vec::new()));
        }
        let numbers = text.split(',').map(|n| {
            let wrong = |_| UnitError::new(n, "a CPU (accepted: none, or numbers such as 0,1)");
            n.trim().parse().map_err(wrong)
        });
        numbers.collect::<Result<_, _>>().map(Self)
    }
}

/// Versions of the PROXY protocol.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum ProxyVersion {
    V1,
    V2,
}

impl ProxyVersion {
    /// Returns how its header is written.
    pub fn format(self) -> Format {
        match self {
            Self::V1 => Format::V1,
            Self::V2 => Format::V2 { checksum: false },
        }
    }
}

/// The steps of a ramp.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ramp {
    from: f64,
    to: f64,
    step: f64,
}

impl Ramp {
    /// Returns the rate of each step.
    pub fn rates(self) -> impl Iterator<Item = f64> {
        let steps = ((self.to - self.from) / self.step + 1e-9).floor() as u32;
        (0..=steps).map(move |n| self.from + f64::from(n) * self.step)
    }
}

fn parse_ramp(text: &str) -> Result<Ramp, UnitError> {
    let accepted =
        "a ramp (accepted: FROM..TO/STEP, for example 1000..10000/500, at most 200 steps)";
    let wrong = || UnitError::new(text, accepted);
    let (range, step) = text.split_once('/').ok_or_else(wrong)?;
    let (from, to) = range.split_once("..").ok_or_else(wrong)?;
    let rate = |text: &str| parse_rate(text).map_err(|_| wrong());
    let ramp = Ramp {
        from: rate(from)?,
        to: rate(to)?,
        step: rate(step)?,
    };
    let sane = ramp.to >= ramp.from && (ramp.to - ramp.from) / ramp.step <= MOST_STEPS;
    if sane { Ok(ramp) } else { Err(wrong()) }
}

/// Each step has its own histograms in each thread.
const MOST_STEPS: f64 = 200.0;
