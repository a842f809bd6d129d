//! The command line.

mod planning;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use becket_stats::units::{parse_duration, parse_rate, parse_size};
use clap::{Parser, ValueEnum};

use crate::preface::Preface;
use crate::resume::Resume;
use crate::source::Sources;
use crate::tls::{ResumeKind, Version};

/// Puts load on a TLS front end and reports what it did with it.
///
/// A transaction is: connect, TLS handshake (full or resumed), one HTTP request, the whole response,
/// close. Without flags: 50 connections in a closed loop for 10 seconds, every handshake full.
#[derive(Debug, Parser)]
#[command(name = "becket-load", version, max_term_width = 100, after_long_help = TEACHING)]
pub struct Cli {
    /// https://HOST:PORT/PATH, or http:// and tcp:// for the floor
    #[arg(value_name = "URL", required_unless_present = "serve")]
    pub url: Option<String>,

    /// Connections in parallel; with -R the most that may be in parallel [default: 50; with -R 10000, as far as descriptors go]
    #[arg(short = 'c', long, value_name = "N", help_heading = "Load")]
    pub connections: Option<NonZeroUsize>,
    /// Client threads [default: half of the CPUs]
    #[arg(short = 't', long, value_name = "N", help_heading = "Load")]
    pub threads: Option<NonZeroUsize>,
    /// How long to measure, or each step of a ramp [default: 10s, for a step 3s]
    #[arg(short = 'd', long, value_name = "TIME", value_parser = parse_duration, help_heading = "Load")]
    pub duration: Option<Duration>,
    /// Measure this many transactions in place of a time
    #[arg(short = 'n', long, value_name = "N", conflicts_with_all = ["duration", "rate", "ramp"], help_heading = "Load")]
    pub transactions: Option<u64>,
    /// Open loop: start this many transactions per second, whatever the server does
    #[arg(short = 'R', long, value_name = "RATE", value_parser = parse_rate, conflicts_with = "ramp", help_heading = "Load")]
    pub rate: Option<f64>,
    /// Open loop in steps, for example 1000..10000/500; -d is the length of a step
    #[arg(long, value_name = "FROM..TO/STEP", value_parser = parse_ramp, help_heading = "Load")]
    pub ramp: Option<Ramp>,
    /// How starts of an open loop are spaced
    #[arg(
        long,
        value_name = "KIND",
        value_enum,
        default_value = "constant",
        help_heading = "Load"
    )]
    pub arrivals: ArrivalKind,
    /// Seed of Poisson arrivals
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Load")]
    pub seed: u64,
    /// Time before measuring whose results are thrown away [default: a tenth of -d, at most 1s; none with -n]
    #[arg(long, value_name = "TIME", value_parser = parse_duration, help_heading = "Load")]
    pub warm_up: Option<Duration>,
    /// Give a transaction up after this time
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "5s", help_heading = "Load")]
    pub time_out: Duration,

    /// never, always, every=N (one full handshake, N-1 resumed) or ratio=R
    #[arg(
        long,
        value_name = "PLAN",
        default_value = "never",
        help_heading = "TLS"
    )]
    pub resume: Resume,
    /// How sessions may be resumed: id and ticket mean TLS 1.2, psk means TLS 1.3
    #[arg(
        long,
        value_name = "KIND",
        value_enum,
        default_value = "any",
        help_heading = "TLS"
    )]
    pub resume_kind: ResumeKind,
    /// Offer only this version
    #[arg(long, value_name = "VERSION", value_enum, help_heading = "TLS")]
    pub tls: Option<Version>,
    /// Suites to offer: aes128, aes256, chacha20, or names of IANA or OpenSSL, comma separated
    #[arg(long, value_name = "NAMES", help_heading = "TLS")]
    pub suite: Option<String>,
    /// Groups to offer, the first with its key share: x25519, p256, p384, x25519mlkem768
    #[arg(
        long,
        value_name = "NAMES",
        default_value = "x25519,p256,p384",
        help_heading = "TLS"
    )]
    pub group: String,
    /// Server name to send in place of the URL's host
    #[arg(long, value_name = "NAME", help_heading = "TLS")]
    pub sni: Option<String>,
    /// ALPN protocols to offer, comma separated
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        help_heading = "TLS"
    )]
    pub alpn: Vec<String>,
    /// Send requests as TLS 1.3 early data when a session allows it
    #[arg(long, help_heading = "TLS")]
    pub early_data: bool,
    /// Client certificate chain (PEM), with its key unless --client-key is given
    #[arg(long, value_name = "FILE", help_heading = "TLS")]
    pub client_cert: Option<PathBuf>,
    /// Key of the client certificate (PEM)
    #[arg(
        long,
        value_name = "FILE",
        requires = "client_cert",
        help_heading = "TLS"
    )]
    pub client_key: Option<PathBuf>,
    /// End each transaction when the handshake is done
    #[arg(long, conflicts_with_all = ["keepalive", "size"], help_heading = "TLS")]
    pub handshake_only: bool,

    /// Requests per connection
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..), help_heading = "Request")]
    pub keepalive: u64,
    /// Measure also from when the server's kernel took the first bytes of a connection (SO_TIMESTAMPING): where its accept
    /// queue is full, that is later than the client is connected. Three system calls more for each connection
    #[arg(long, conflicts_with_all = ["keepalive", "handshake_only"], help_heading = "Request")]
    pub since_queued: bool,
    /// Upload this many bytes with each request
    #[arg(long, value_name = "BYTES", value_parser = parse_size, default_value = "0", help_heading = "Request")]
    pub size: u64,
    /// Ask in HTTP/1.0
    #[arg(long, help_heading = "Request")]
    pub http10: bool,
    /// A further header line; may be repeated
    #[arg(short = 'H', long, value_name = "LINE", help_heading = "Request")]
    pub header: Vec<String>,
    /// A body of another length is a failure
    #[arg(long, value_name = "BYTES", value_parser = parse_size, help_heading = "Request")]
    pub expect_body: Option<u64>,
    /// Count every status as success, not only 2xx
    #[arg(long, help_heading = "Request")]
    pub any_status: bool,

    /// Leave Nagle's algorithm on, and send the request apart from the last handshake message
    #[arg(long, help_heading = "Network")]
    pub nagle: bool,
    /// Before a plain request talk in the shape of a full and of a resumed handshake, for a relay that answers
    #[arg(
        long,
        value_name = "FULL:RESUMED",
        hide = true,
        help_heading = "Network"
    )]
    pub preface: Option<Preface>,
    /// Send a PROXY protocol header first
    #[arg(long, value_name = "VERSION", value_enum, help_heading = "Network")]
    pub proxy_header: Option<Introduction>,
    /// Connect from these addresses in turn, for example 127.0.0.2-127.0.0.50
    #[arg(long, value_name = "RANGE", help_heading = "Network")]
    pub source: Option<Sources>,
    /// Say that a target elsewhere than on this machine is yours
    #[arg(long, help_heading = "Network")]
    pub i_own_this_target: bool,

    /// Sample the CPU time of this server process, its threads and children; may be repeated
    #[arg(long, value_name = "PID", help_heading = "Measuring")]
    pub pid: Vec<u32>,
    /// CPUs to pin the threads to, comma separated, or `none` [default: the last ones that are allowed]
    #[arg(long, value_name = "LIST", help_heading = "Measuring")]
    pub cpus: Option<String>,
    /// Store the report as JSON; `-` is standard output, and the text then goes to standard error
    #[arg(long, value_name = "FILE", help_heading = "Measuring")]
    pub json: Option<PathBuf>,
    /// No line a second
    #[arg(short = 'q', long, help_heading = "Measuring")]
    pub quiet: bool,

    /// Answer HTTP on this address in place of putting load on one
    #[arg(
        long,
        value_name = "ADDR",
        conflicts_with = "url",
        help_heading = "Responder"
    )]
    pub serve: Option<String>,
    /// Bytes of each response's body; a path /bytes/N asks for another size
    #[arg(long, value_name = "BYTES", value_parser = parse_size, default_value = "1k", help_heading = "Responder")]
    pub body: u64,
    /// Time that each response takes
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "0s", help_heading = "Responder")]
    pub service_time: Duration,
    /// From this many requests at once on, the service time grows: TIME * (n / KNEE)^2
    #[arg(long, value_name = "KNEE", help_heading = "Responder")]
    pub service_knee: Option<NonZeroUsize>,
}

/// The steps of a ramp.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ramp {
    from: f64,
    to: f64,
    step: f64,
}

/// Names of arrivals.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum ArrivalKind {
    /// Evenly spaced.
    Constant,
    /// A Poisson process: bursts and gaps at the same mean rate.
    Poisson,
}

/// Versions of the PROXY protocol.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Introduction {
    /// One line of text.
    V1,
    /// Binary.
    V2,
}

impl Ramp {
    fn rates(self) -> impl Iterator<Item = f64> {
        let steps = ((self.to - self.from) / self.step + 1e-9).floor() as u32;
        (0..=steps).map(move |n| self.from + f64::from(n) * self.step)
    }
}

fn parse_ramp(text: &str) -> Result<Ramp, String> {
    let wrong = || {
        format!(
            "`{text}` is not a ramp (accepted: FROM..TO/STEP, for example 1000..10000/500, at most 200 steps)"
        )
    };
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

const TEACHING: &str = "\
How to read it:
  A closed loop (-c) shows what the server can do, but its latencies flatter: while the server stalls,
  nothing new is started. An open loop (-R) starts on time whatever happens; `corrected` counts from
  when a transaction was meant to start, `uncorrected` from when it did.
  When the client was what was slow, the result says `generator-bound, at least X`: that X is no
  capacity of the server. Give the client more threads or other CPUs.
  Certificates are not verified and key shares are re-used: this is no client for real traffic.

Examples:
  becket-load https://localhost:8443/                        full handshakes, 50 at a time
  becket-load https://localhost:8443/ --resume every=4       one full, three resumed
  becket-load https://localhost:8443/ -R 2000 -d 30s         2000 per second, latencies corrected
  becket-load https://localhost:8443/ --ramp 500..5000/500   find where it breaks
  becket-load https://localhost:8443/ --pid $(pgrep -o hitch)  with the server's CPU per transaction
  becket-load --serve 127.0.0.1:8080 --body 16k              a backend to stand behind it

Exit codes:
  0 a report was made; 1 one was made, but no transaction succeeded; 2 wrong command line;
  3 target unreachable; 4 the operating system refused (limits, disk); 130 interrupted, report made.";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;
    use crate::plan::{Load, Plan};

    fn plan(args: &[&str]) -> Result<Plan, Error> {
        let args = std::iter::once("becket-load").chain(args.iter().copied());
        Cli::try_parse_from(args)
            .map_err(|e| Error::Plan(e.to_string()))?
            .plan(vec![])
    }

    #[test]
    fn it_is_useful_without_flags() {
        let plan = plan(&["https://127.0.0.1:1/"]).unwrap();
        assert_eq!(plan.connections, 50);
        assert!(matches!(plan.load, Load::ClosedFor(d) if d == Duration::from_secs(10)));
        assert_eq!(plan.warm_up, Duration::from_secs(1));
    }

    #[test]
    fn a_ramp_has_both_ends() {
        let plan = plan(&["https://127.0.0.1:1/", "--ramp", "1k..3k/500"]).unwrap();
        let Load::Open { stretches, .. } = plan.load else {
            panic!("a ramp is an open loop")
        };
        let rates: Vec<f64> = stretches.iter().map(|s| s.rate).collect();
        assert_eq!(rates, [1000.0, 1500.0, 2000.0, 2500.0, 3000.0]);
    }

    #[test]
    fn what_contradicts_itself_is_refused_with_a_sentence() {
        let cases: [&[&str]; 8] = [
            &[
                "https://127.0.0.1:1/",
                "--tls",
                "1.3",
                "--resume-kind",
                "id",
            ],
            &[
                "https://127.0.0.1:1/",
                "--tls",
                "1.2",
                "--resume-kind",
                "psk",
            ],
            &["http://127.0.0.1:1/", "--resume", "always"],
            &["https://192.0.2.1/"],
            &["https://127.0.0.1:1/", "--suite", "RC4"],
            &["https://127.0.0.1:1/", "--cpus", "99999"],
            &["https://127.0.0.1:1/", "--source", "::1"],
            &["https://127.0.0.1:1/", "--ramp", "5..1/1"],
        ];
        for args in cases {
            let error = plan(args).unwrap_err().to_string();
            assert!(error.len() > 20, "{args:?}: {error}");
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }
}
