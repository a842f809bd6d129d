//! The command line: `becket run`, `becket check`, `becket status`, `becket top`, `becket reload`, `becket secret`,
//! `becket migrate`, `becket files`, `becket demo`. The command lines of other programs are read in `dropin`.
//!
//! Only the shape of the arguments is here; clap refuses what does not fit with exit code 2.
//! What the flags of `run` mean is in `prepare::flags`, and what is wrong with their values is
//! said by `prepare`, together with everything else.

use std::path::PathBuf;

use becket_dialects::Dialect;
use clap::{Args, Parser};

use crate::admin::AdminAddress;
use crate::ctl::tasks::CtlTask;
use crate::demo::folder::FilesFlags;
use crate::secret_command::SecretFlags;
use becket_prepare::flags::Flags;

/// What `--version` says; `-V` says the number alone. Packages set the commit.
const VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    "\ncommit: ",
    env!("COMMIT"),
    "\nrustls ",
    env!("RUSTLS_VERSION"),
    "\naws-lc-sys ",
    env!("AWS_LC_SYS_VERSION")
);

/// Arguments of this process.
#[derive(Debug, Parser)]
#[command(
    name = "becket",
    version,
    long_version = VERSION,
    about = "TLS terminator: TLS in, TCP out, one worker per core",
    after_help = EXAMPLES,
    propagate_version = true,
    max_term_width = 100
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Subcommand,
}

/// What to do.
#[derive(Debug, clap::Subcommand)]
pub enum Subcommand {
    /// Terminate TLS until told to stop
    #[command(after_help = RUN, after_long_help = RUN)]
    Run(Box<Flags>),
    /// Load everything that `run` would, say what is wrong, and stop
    #[command(after_help = CHECK)]
    Check(Box<CheckFlags>),
    /// Show the state of a running becket
    #[command(after_help = STATUS)]
    Status(StatusFlags),
    /// Watch a running becket in a terminal: rates, servers, who has most connections
    #[command(after_help = TOP)]
    Top(TopFlags),
    /// Have a running becket reload, and wait for the outcome
    #[command(after_help = RELOAD)]
    Reload(AdminAddress),
    /// Look at and change what a running becket does: servers, connections, sessions, keys, log
    #[command(after_help = CTL)]
    Ctl(Box<CtlFlags>),
    /// Have a running becket become the program as it is now, without a lost connection, and wait for the outcome
    #[command(after_help = UPGRADE)]
    Upgrade(AdminAddress),
    /// Make a secret for a cluster, in a file that only its owner can read
    #[command(after_help = SECRET, after_long_help = SECRET)]
    Secret(SecretFlags),
    /// Write the configuration of hitch, stud or stunnel as becket's own
    #[command(after_help = MIGRATE)]
    Migrate(MigrateFlags),
    /// Serve the files of a folder, with a certificate made on the spot
    #[command(after_help = FILES)]
    Files(FilesFlags),
    /// Run a demo, with a certificate and a backend made on the spot
    #[command(after_help = DEMO)]
    Demo(DemoFlags),
}

/// Arguments of `becket check`.
#[derive(Clone, Debug, Default, Args)]
pub struct CheckFlags {
    /// What would be run.
    #[command(flatten)]
    pub flags: Flags,

    /// Also connect every server as for a client, with TLS where there is any, and look up every peer
    #[arg(long)]
    pub connect: bool,

    /// Exit with 1 when there are warnings, which otherwise leave it at 0
    #[arg(long)]
    pub strict: bool,

    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `becket status`.
#[derive(Clone, Debug, Default, Args)]
pub struct StatusFlags {
    #[command(flatten)]
    pub place: AdminAddress,

    /// Print JSON instead of a page
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `becket top`.
#[derive(Clone, Debug, Args)]
pub struct TopFlags {
    #[command(flatten)]
    pub place: AdminAddress,

    /// Ask again after so many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub every: u64,
}

/// Arguments of `becket ctl`.
#[derive(Clone, Debug, Args)]
pub struct CtlFlags {
    #[command(flatten)]
    pub place: AdminAddress,

    /// Print JSON instead of tables
    #[arg(long, global = true)]
    pub json: bool,

    /// What to do.
    #[command(subcommand)]
    pub task: CtlTask,
}

/// Arguments of `becket migrate`.
#[derive(Clone, Debug, Args)]
pub struct MigrateFlags {
    /// The program whose configuration it is: hitch, stud or stunnel
    #[arg(long, value_name = "PROGRAM", value_parser = dialect)]
    pub from: Dialect,

    /// Its configuration file
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// Write to this file, which must not be there yet, instead of standard output
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,

    /// Print what became of each setting, and the file, as JSON
    #[arg(long)]
    pub json: bool,
}

fn dialect(name: &str) -> Result<Dialect, &'static str> {
    Dialect::named(name).ok_or("hitch, stud or stunnel")
}

/// Arguments of `becket demo`.
#[derive(Clone, Debug, Default, Args)]
pub struct DemoFlags {
    /// Port to listen on; default is 8443 or the next one that is free
    #[arg(long, value_name = "PORT")]
    pub port: Option<u16>,
}

const EXAMPLES: &str = "\
Examples:
  becket demo
      Serve https://127.0.0.1:8443 with a certificate made on the spot.
  becket files
      Serve the files of this folder, there too.
  becket run --frontend :443 --backend 127.0.0.1:8080 site.pem
      TLS for one site; site.pem holds the chain and the private key.
  becket run --config /etc/becket/becket.toml
      Many names, policies, routes: see docs/reference/configuration.md and examples/.
  becket check --config /etc/becket/becket.toml
      Find every fault of a configuration before it is used.
  becket status --config /etc/becket/becket.toml
      Ask the becket that runs with it: problems, rates, certificates, servers, peers.
  becket reload --config /etc/becket/becket.toml
      Have it read certificates and configuration again; say what is wrong with them.
  becket ctl servers drain app/10.0.0.1:8080
      Have it give a server no new clients; see becket ctl --help.
  becket secret /etc/becket/cluster.secret
      Make the secret by which several hosts resume each other's sessions.
  becket hitch --config /etc/hitch/hitch.conf
      Drop-in replacement for hitch (also stud, stunnel). See docs/reference/drop-in.md.";

const RUN: &str = "\
Examples:
  becket run --frontend :443 --backend 127.0.0.1:8080 site.pem
      One site. ':443' is every IPv4 and IPv6 address.
  becket run --frontend :443 --backend 10.0.0.1:80 --backend 10.0.0.2:80 \\
             --balance least-connections --maxconn 50 --queue-timeout 3s site.pem
      Two servers with 50 connections each at most; further clients wait for up to 3 s.
  becket run --frontend :443 --backend 127.0.0.1:8080 --certificate site.crt,site.key
      Chain and key in two files. A folder /etc/letsencrypt/live/NAME/ is such a pair, too.
  becket run --config becket.toml --workers 2 --admin 127.0.0.1:9443
      With --config only --workers, --admin and the log flags may be given too.

becket(1) describes signals and exit codes.";

const CHECK: &str = "\
Examples:
  becket check --config /etc/becket/becket.toml
  becket check --connect --config /etc/becket/becket.toml
      Also connects servers, verifies their certificates, and runs their health checks.

Exit codes: 0 no error, 1 warnings, with --strict, 2 errors.";

const STATUS: &str = "\
Examples:
  becket status --admin 127.0.0.1:9443
  becket status --config /etc/becket/becket.toml
      Reads admin.socket or admin.address there.

Exit codes: 0 no problem, 1 no answer, 2 wrong arguments, 3 a problem.";

const TOP: &str = "\
Keys: q quits; n, o, r, f sort servers by name, open connections, rate, failures, and once more reverse
the order; p pauses; arrows scroll.";

const RELOAD: &str = "\
Examples:
  becket reload --config /etc/becket/becket.toml

It sends SIGHUP to the main process: run it as root, or as the user of that process.
Exit codes: 0 reloaded, 1 not reloaded, for the reasons printed, 2 wrong arguments.";

const CTL: &str = "\
Examples:
  becket ctl servers
  becket ctl servers drain app/10.0.0.1:8080
  becket ctl servers weight app/10.0.0.1:8080 20
  becket ctl connections --backend app --age 3600
  becket ctl connections kill --client 192.0.2.0/24
  becket ctl log becket=debug

A change lasts until the next reload, upgrade or restart.
Exit codes: 0 done, 1 no answer, 2 wrong arguments, 3 refused.";

const UPGRADE: &str = "\
Examples:
  becket upgrade --config /etc/becket/becket.toml

It sends SIGUSR2 to the main process: run it as root, or as the user of that process.
Exit codes: 0 upgraded, 1 not upgraded, for the reasons printed, 2 wrong arguments.";

const SECRET: &str = "\
Beckets with the same secret resume each other's sessions. Treat it like a private key.

Copy the file to all hosts, with mode 0600, and set cluster.secret to it, and another cluster.node on each.
docs/reference/configuration.md says how to change it, and what --state is for.";

const MIGRATE: &str = "\
Examples:
  becket migrate --from hitch /etc/hitch/hitch.conf --out /etc/becket/becket.toml

Exit codes: 0 written, 1 the system refused, 2 wrong arguments, or settings that becket refuses.";

const FILES: &str = "\
Examples:
  becket files
      The current folder at https://localhost:8443/, for this machine alone.
  becket files --plain dist
      The folder dist at http://localhost:8000/.
  becket files --listen :443 --certificate site.pem /srv/www
      For everybody, with a certificate that clients trust.";

const DEMO: &str = "\
The certificate is for localhost and kept under the user's state directory.";

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use clap::error::ErrorKind;

    use super::*;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(line.split_whitespace())
    }

    #[test]
    fn the_arguments_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_unit_for_systemd_has_commands_that_there_are() {
        let unit = include_str!("../../../packaging/becket.service");
        let commands: Vec<_> = unit.split("/usr/bin/").skip(1).collect();
        assert_eq!(commands.len(), 2);
        for command in commands {
            parse(command.lines().next().unwrap()).unwrap();
        }
    }

    #[test]
    fn a_pair_is_one_argument() {
        let line = "becket run --frontend :1 --backend b:1 --certificate c.pem,k.pem a.pem";
        let Subcommand::Run(flags) = parse(line).unwrap().command else {
            panic!("not run");
        };
        let table = flags.to_table(std::path::Path::new("/"));
        let listed = table["listener"][0]["certificates"].to_string();
        assert_eq!(
            listed,
            "[\"a.pem\", { chain = \"c.pem\", key = \"k.pem\" }]"
        );
        let flag = |index| flags.named(&format!("listener[main].certificates[{index}].key"));
        assert_eq!(
            (flag(0), flag(1)),
            (Some("CERT.pem"), Some("--certificate"))
        );
    }

    #[test]
    fn a_file_takes_only_workers_admin_and_logs_beside_it() {
        for accepted in [
            "--workers 2",
            "--admin 127.0.0.1:1",
            "--log-level debug --log-format json --log-file a --access-log b",
        ] {
            assert!(parse(&format!("becket run --config f {accepted}")).is_ok());
        }
        for refused in [
            "a.pem",
            "--certificate c.pem,k.pem",
            "--frontend :1",
            "--backend a:1",
            "--balance first",
            "--maxconn 1",
            "--queue-timeout 1s",
            "--idle-reclaim 1s",
            "--alpn h2",
            "--proxy-header v1",
            "--cluster-secret a --node 1",
            "--user a",
            "--group a",
        ] {
            let error = parse(&format!("becket run --config f {refused}")).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ArgumentConflict, "{refused}");
            assert_eq!(error.exit_code(), 2);
        }
    }

    #[test]
    fn where_to_ask_is_said_before_or_behind_what_to_do() {
        for line in [
            "status",
            "status --admin [::1]:1",
            "status --config f --json",
            "top --socket s --every 5",
            "reload --admin a:1 --config f",
            "ctl --socket s servers",
            "ctl servers drain app/a:1 --socket s --json",
            "ctl connections --server a:1 --age 60",
            "ctl connections kill --name a.test",
            "ctl log debug",
        ] {
            assert!(parse(&format!("becket {line}")).is_ok(), "{line}");
        }
        for line in ["ctl", "ctl servers weight app/a", "ctl servers drain app"] {
            assert!(parse(&format!("becket {line}")).is_err(), "{line}");
        }
    }

    #[test]
    fn the_flags_of_a_cluster_come_together() {
        let run = "becket run --frontend :1 --backend b:1 a.pem";
        let whole = "--cluster-secret s --node 3 --cluster-listen :7443 \
                     --cluster-peer b:7443 --cluster-peer [::1]:7443";
        let Subcommand::Run(flags) = parse(&format!("{run} {whole}")).unwrap().command else {
            panic!("not run");
        };
        assert_eq!(flags.cluster.node, Some(3));
        assert_eq!(flags.cluster.cluster_peer, ["b:7443", "[::1]:7443"]);
        for part in [
            "--cluster-secret s",
            "--node 3",
            "--cluster-listen :1 --node 3",
            "--cluster-secret s --node 3 --cluster-peer b:1",
            "--cluster-secret s --node x",
        ] {
            let error = parse(&format!("{run} {part}")).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{part}");
        }
    }
}
