//! The command line.

use std::num::NonZeroUsize;
use std::time::Duration;

use becket_stats::units::{parse_duration, parse_rate, parse_size};
use clap::{Args, Parser, Subcommand};
use http::{HeaderName, HeaderValue};

use crate::probe::ProbeOptions;
use crate::schedule::Ramp;
use crate::source::Sources;
use crate::tls::TlsOptions;

/// Puts load on a TLS front end and reports what it did with it.
///
/// A transaction is: connect, TLS handshake (full or resumed), one HTTP request, the whole response,
/// close. Without flags: 50 connections in a closed loop for 10 seconds, every handshake full.
#[derive(Clone, Debug, Parser)]
#[command(name = "becket-load", version, max_term_width = 100, after_long_help = TEACHING)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Cli {
    #[command(subcommand)]
    pub instead: Option<Instead>,
    /// https://HOST:PORT/PATH, or http:// for the floor
    #[arg(value_name = "URL", required_unless_present = "serve")]
    pub url: Option<String>,
    #[command(flatten)]
    pub load: LoadOptions,
    #[command(flatten)]
    pub tls: TlsOptions,
    #[command(flatten)]
    pub connection: ConnectionOptions,
    #[command(flatten)]
    pub measuring: MeasuringOptions,
    #[command(flatten)]
    pub responder: ResponderOptions,
}

/// Commands that put no load on a target.
#[derive(Clone, Debug, Subcommand)]
pub enum Instead {
    /// Show what servers offer: versions, suites, resumption, early data, certificate
    #[command(after_long_help = PROBING)]
    Probe(ProbeOptions),
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Load")]
pub struct LoadOptions {
    /// Connections in parallel; with -R the most that may be in parallel [default: 50; with -R 10000, as far as descriptors go]
    #[arg(short = 'c', long, value_name = "N")]
    pub connections: Option<NonZeroUsize>,
    /// Client threads [default: half of the CPUs]
    #[arg(short = 't', long, value_name = "N")]
    pub threads: Option<NonZeroUsize>,
    /// How long to measure; with --ramp each step [default: 10s; with --ramp 3s]
    #[arg(short = 'd', long, value_name = "TIME", value_parser = parse_duration)]
    pub duration: Option<Duration>,
    /// Measure this many transactions instead of a time
    #[arg(short = 'n', long, value_name = "N", conflicts_with_all = ["duration", "rate", "ramp"], value_parser = clap::value_parser!(u64).range(1..))]
    pub transactions: Option<u64>,
    /// Open loop: start this many transactions per second, whatever the server does
    #[arg(short = 'R', long, value_name = "RATE", value_parser = parse_rate)]
    pub rate: Option<f64>,
    /// Open loop through rising rates, for example 1000..10000/500 or 1k..10k/500,5s: which is the highest that holds? LENGTH is how
    /// long each step takes, as -d is
    #[arg(long, value_name = "FROM..TO/STEP[,LENGTH]", conflicts_with = "rate")]
    pub ramp: Option<Ramp>,
    /// Time before measuring whose results are thrown away [default: a tenth of -d, at most 1s; none with -n]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub warm_up: Option<Duration>,
    /// Give a transaction up after this time
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "5s")]
    pub time_out: Duration,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Connections")]
pub struct ConnectionOptions {
    /// Requests per connection
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub keepalive: u64,
    /// Ask by HTTP/1.0, with one request on each connection
    #[arg(long, conflicts_with = "keepalive")]
    pub http10: bool,
    /// Send this header line with each request; may be repeated
    #[arg(short = 'H', long, value_name = "NAME:VALUE", value_parser = parse_header)]
    pub header: Vec<String>,
    /// A body of another length is a failure
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    pub expect_body: Option<u64>,
    /// Measure also from when the server's kernel took the first bytes of a connection (SO_TIMESTAMPING): where its accept
    /// queue is full, that is later than the client is connected. Three system calls more for each connection
    #[arg(long, conflicts_with = "keepalive")]
    pub since_queued: bool,
    /// Send the request apart from the last handshake message
    #[arg(long)]
    pub nagle: bool,
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
    /// CPUs to pin the threads to, comma separated [default: the last ones that are allowed]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub cpus: Vec<usize>,
    /// Print the report as JSON, and its text on standard error
    #[arg(long)]
    pub json: bool,
    /// No line a second
    #[arg(short = 'q', long)]
    pub quiet: bool,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Responder")]
pub struct ResponderOptions {
    /// Answer HTTP on this address instead of putting load on one
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

/// Returns the line without its end.
fn parse_header(text: &str) -> Result<String, String> {
    let (name, value) = text.split_once(':').ok_or("it has no colon")?;
    name.parse::<HeaderName>()
        .map_err(|e| format!("its name: {e}"))?;
    match value.trim().parse::<HeaderValue>() {
        Ok(_) => Ok(format!("{name}: {}", value.trim())),
        Err(e) => Err(format!("its value: {e}")),
    }
}

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
  becket-load https://localhost:8443/ --ramp 500..5000/500   the highest rate that holds
  becket-load https://localhost:8443/ --resume every=8 --http10  8 HTTP/1.0 requests per client
  becket-load https://localhost:8443/ --pid $(pgrep -o hitch)  with the server's CPU per transaction
  becket-load --serve 127.0.0.1:8080 --body 16k              a backend to stand behind it
  becket-load probe www.example.org localhost:8443           what these servers offer

Exit codes:
  0 a report was made; 1 one was made, but no transaction succeeded; 2 wrong command line;
  3 target unreachable; 4 the operating system refused (limits, disk); 130 interrupted, report made.";

const PROBING: &str = "\
How to read it:
  Each server gets at most nine connections, one after the other: a full and a resumed handshake by
  pre-shared key (TLS 1.3), by ticket and by session ID (TLS 1.2), and a ClientHello of TLS 1.1 and
  of 1.0. `RESUMES BY` names the ways by which the server did resume, with the lifetime of its
  tickets (604800 s: a week or more). Early data counts if the server accepted it. Suites and group
  are those that the server chose from all that this client has. Certificates are not verified.
  After a TLS 1.3 handshake the client asks `HEAD /`: some servers send tickets only then.

Examples:
  becket-load probe www.example.org                          one server, port 443
  becket-load probe 127.0.0.1:8443 --sni www.example.org     by address, with a server name
  becket-load probe a.example b.example --json               a JSON object on each line

Exit codes:
  0 every server answered; 1 one did not, and its row says why; 2 wrong command line; 130 interrupted.";

#[cfg(test)]
#[test]
fn the_command_line_is_consistent() {
    use clap::CommandFactory;
    Cli::command().debug_assert();
}
