//! The command line.

mod planning;

use clap::Parser;

use crate::options::{
    LoadOptions, MeasuringOptions, NetworkOptions, RequestOptions, ResponderOptions, TlsOptions,
};

/// Puts load on a TLS front end and reports what it did with it.
///
/// A transaction is: connect, TLS handshake (full or resumed), one HTTP request, the whole response,
/// close. Without flags: 50 connections in a closed loop for 10 seconds, every handshake full.
#[derive(Debug, Parser)]
#[command(name = "becket-load", version, max_term_width = 100, after_long_help = TEACHING)]
pub struct Cli {
    /// https://HOST:PORT/PATH, or http:// for the floor
    #[arg(value_name = "URL", required_unless_present = "serve")]
    pub url: Option<String>,

    #[command(flatten)]
    pub load: LoadOptions,
    #[command(flatten)]
    pub tls: TlsOptions,
    #[command(flatten)]
    pub request: RequestOptions,
    #[command(flatten)]
    pub network: NetworkOptions,
    #[command(flatten)]
    pub measuring: MeasuringOptions,
    #[command(flatten)]
    pub responder: ResponderOptions,
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
  becket-load https://localhost:8443/ --ramp 500..5000/500   find where it breaks
  becket-load https://localhost:8443/ --pid $(pgrep -o hitch)  with the server's CPU per transaction
  becket-load --serve 127.0.0.1:8080 --body 16k              a backend to stand behind it

Exit codes:
  0 a report was made; 1 one was made, but no transaction succeeded; 2 wrong command line;
  3 target unreachable; 4 the operating system refused (limits, disk); 130 interrupted, report made.";

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
