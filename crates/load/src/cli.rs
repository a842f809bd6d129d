//! Command-line options of `becket-load`.

use std::num::NonZeroUsize;
use std::time::Duration;

use becket_stats::units::{parse_duration, parse_rate, parse_size};
use clap::{Args, Parser, Subcommand};
use http::{HeaderName, HeaderValue};

use crate::fleet_options::{AgentOptions, FleetOptions};
use crate::probe::ProbeOptions;
use crate::schedule::Ramp;
use crate::source::Sources;
use crate::tls::TlsOptions;

/// Generate load on a TLS server and report throughput, latency and errors.
///
/// A transaction is: connect, TLS handshake (full or resumed), one HTTP request, the whole response, close. Without
/// options: 50 connections in a closed loop for 10 seconds, every handshake full.
#[derive(Clone, Debug, Parser)]
#[command(name = "becket-load", version, max_term_width = 100, after_long_help = TEACHING)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Cli {
    #[command(subcommand)]
    pub instead: Option<Instead>,
    /// Target: https://HOST:PORT/PATH, or http:// to measure without TLS
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
    pub fleet: FleetOptions,
    #[command(flatten)]
    pub responder: ResponderOptions,
}

/// Subcommands that generate no load of their own.
#[derive(Clone, Debug, Subcommand)]
pub enum Instead {
    /// Show what servers offer: versions, suites, resumption, early data, certificate
    #[command(after_long_help = PROBING)]
    Probe(ProbeOptions),
    /// Generate load for coordinators (becket-load --agents) on other machines
    #[command(after_long_help = ABOUT_AGENTS)]
    Agent(AgentOptions),
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Load")]
pub struct LoadOptions {
    /// Parallel connections; with -R, the maximum [default: 50; with -R 10000, or 900 if file descriptors are scarce]
    #[arg(short = 'c', long, value_name = "N")]
    pub connections: Option<NonZeroUsize>,
    /// Client threads [default: half of the CPUs; all CPUs of an agent]
    #[arg(short = 't', long, value_name = "N")]
    pub threads: Option<NonZeroUsize>,
    /// Time to measure; with --ramp, length of each step [default: 10s; with --ramp 3s]
    #[arg(short = 'd', long, value_name = "TIME", value_parser = parse_duration)]
    pub duration: Option<Duration>,
    /// Measure this number of transactions instead of a period
    #[arg(short = 'n', long, value_name = "N", conflicts_with_all = ["duration", "rate", "ramp"], value_parser = clap::value_parser!(u64).range(1..))]
    pub transactions: Option<u64>,
    /// Open loop: start this many transactions per second, regardless of responses
    #[arg(short = 'R', long, value_name = "RATE", value_parser = parse_rate)]
    pub rate: Option<f64>,
    /// Open loop with rising rates, for example 1000..10000/500 or 1k..10k/500,5s, to find the highest rate that holds; LENGTH is the
    /// duration of each step and replaces -d
    #[arg(long, value_name = "FROM..TO/STEP[,LENGTH]", conflicts_with = "rate")]
    pub ramp: Option<Ramp>,
    /// Time before measuring starts; its results are discarded [default: a tenth of -d, at most 1s; none with -n]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub warm_up: Option<Duration>,
    /// Abort a transaction after this time
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "5s")]
    pub time_out: Duration,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Connections")]
pub struct ConnectionOptions {
    /// Requests per connection
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub keepalive: u64,
    /// Use HTTP/1.0 with one request per connection
    #[arg(long, conflicts_with = "keepalive")]
    pub http10: bool,
    /// Send this header line with each request; may be repeated
    #[arg(short = 'H', long, value_name = "NAME:VALUE", value_parser = parse_header)]
    pub header: Vec<String>,
    /// Count a response whose body has another length as a failure
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    pub expect_body: Option<u64>,
    /// Also measure from the moment the server's kernel acknowledged the first bytes of a connection (SO_TIMESTAMPING). With a full
    /// accept queue, that is later than the client's connect. Costs three more system calls per connection
    #[arg(long, conflicts_with = "keepalive")]
    pub since_queued: bool,
    /// Send the request in a separate packet after the last handshake message
    #[arg(long)]
    pub nagle: bool,
    /// Connect from these addresses in rotation, for example 127.0.0.2-127.0.0.50
    #[arg(long, value_name = "RANGE")]
    pub source: Option<Sources>,
    /// Confirm that you own a target on another machine
    #[arg(long)]
    pub i_own_this_target: bool,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Measuring")]
pub struct MeasuringOptions {
    /// Sample the CPU time of this server process with its threads and children; may be repeated. With --agents, a process of this host
    #[arg(long, value_name = "PID")]
    pub pid: Vec<u32>,
    /// CPUs to pin the threads to, comma separated [default: the last allowed CPUs]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub cpus: Vec<usize>,
    /// Print the report as JSON on standard output and as text on standard error
    #[arg(long)]
    pub json: bool,
    /// Print no progress line every second
    #[arg(short = 'q', long)]
    pub quiet: bool,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Responder")]
pub struct ResponderOptions {
    /// Run as an HTTP server on this address instead of generating load
    #[arg(long, value_name = "ADDR", conflicts_with = "url")]
    pub serve: Option<String>,
    /// Body size of each response; a request for /bytes/N overrides it
    #[arg(long, value_name = "BYTES", value_parser = parse_size, default_value = "1k")]
    pub body: u64,
    /// Delay before each response
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "0s")]
    pub service_time: Duration,
    /// Lengthen the delay above KNEE concurrent requests: TIME * (n / KNEE)^2
    #[arg(long, value_name = "KNEE")]
    pub service_knee: Option<NonZeroUsize>,
}

/// Checks a `NAME:VALUE` option and returns the header line without a line end.
fn parse_header(text: &str) -> Result<String, String> {
    let (name, value) = text
        .split_once(':')
        .ok_or("no colon (accepted: NAME:VALUE)")?;
    name.parse::<HeaderName>()
        .map_err(|e| format!("invalid header name: {e}"))?;
    match value.trim().parse::<HeaderValue>() {
        Ok(_) => Ok(format!("{name}: {}", value.trim())),
        Err(e) => Err(format!("invalid header value: {e}")),
    }
}

const TEACHING: &str = "\
How to read the report:
  A closed loop (-c) shows the capacity of the server, but its latencies are too low: while the server
  stalls, no new transaction starts. An open loop (-R) starts transactions on schedule. `corrected`
  latencies count from the scheduled start, `uncorrected` ones from the actual start.
  If the client was the bottleneck, the result says `generator-bound, at least X`: X is then only a
  lower bound. Give the client more threads or other CPUs.
  Certificates are not verified and key shares are reused: do not use this client for real traffic.

Examples:
  becket-load https://localhost:8443/                        full handshakes, 50 connections
  becket-load https://localhost:8443/ --resume every=4       one full, three resumed
  becket-load https://localhost:8443/ -R 2000 -d 30s         2000 per second, corrected latencies
  becket-load https://localhost:8443/ --ramp 500..5000/500   the highest rate that holds
  becket-load https://localhost:8443/ --resume every=8 --http10  8 HTTP/1.0 requests per client
  becket-load https://localhost:8443/ --pid $(pgrep -o hitch)  with the server's CPU per transaction
  becket-load --serve 127.0.0.1:8080 --body 16k              a backend for the TLS terminator
  becket-load probe www.example.org localhost:8443           what these servers offer
  becket-load https://10.1.0.7/ --agents load1,load2 ...     from two machines, see `agent --help`

Exit codes:
  0 report printed; 1 report printed, but no transaction succeeded; 2 invalid command line;
  3 target unreachable; 4 operating system error (limits, disk); 5 an agent failed; 130 interrupted,
  report printed.";

const ABOUT_AGENTS: &str = "\
How agents work:
  Start an agent on each machine, then `becket-load URL --agents HOST,HOST` with the usual options.
  Rate, connections and transactions are divided. The report has all counts and latencies together,
  and for each agent its CPU use and late starts. Both sides require a certificate of the other's CA;
  the agent's must contain its name in --agents. Use a CA for this purpose alone.
  An agent takes one run at a time, and ends it when the coordinator's connection ends. If an agent
  fails, the others stop, and the coordinator exits with 5.

Example:
  becket-load agent --listen 0.0.0.0:7440 --allow 10.1.0.0/16:443 --longest 5m \\
    --certificate load.pem --key load.key --ca ca.pem
  becket-load https://10.1.0.7/ -R 50k --i-own-this-target --agents load1,load2,load3 \\
    --certificate load.pem --key load.key --ca ca.pem

Exit codes:
  0 stopped by a signal, or with --once after a complete run; 2 invalid command line or certificate;
  4 operating system error.";

const PROBING: &str = "\
How to read the table:
  Each server receives at most nine connections, one at a time: a full and a resumed handshake with a
  pre-shared key (TLS 1.3), a ticket and a session ID (TLS 1.2), and a ClientHello of TLS 1.1 and of
  TLS 1.0. `RESUMES BY` lists the methods with which the server resumed a session, and the lifetime of
  its tickets (604800 s means a week or more). `EARLY DATA` is shown if the server accepted it. The
  server chose suite and group from all that this client supports. Certificates are not verified.
  After a TLS 1.3 handshake the client sends `HEAD /`, because some servers send tickets only then.

Examples:
  becket-load probe www.example.org                          one server, port 443
  becket-load probe 127.0.0.1:8443 --sni www.example.org     an address with a server name
  becket-load probe a.example b.example --json               one JSON object per line

Exit codes:
  0 every server answered; 1 a server failed, see its row; 2 invalid command line; 130 interrupted.";

#[cfg(test)]
#[test]
fn the_command_line_is_consistent() {
    use clap::CommandFactory;
    Cli::command().debug_assert();
}
