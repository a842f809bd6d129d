//! The command line: `becket run`, `becket check`, `becket status`, `becket top`, `becket reload`,
//! `becket secret`, `becket migrate`, `becket files`, `becket demo`. Module `dropin` parses the
//! command lines of other programs.
//!
//! This module defines the syntax of the arguments; clap rejects invalid ones with exit code 2.
//! `becket_prepare::flags` converts the flags of `run`, and `becket_prepare` reports invalid values
//! together with all other problems.

use std::ffi::OsString;
use std::path::PathBuf;

use becket_dialects::MigrationSource;
use clap::{Args, Parser};

use crate::admin::AdminAddress;
use crate::ctl::tasks::CtlTask;
use crate::demo::folder::FilesFlags;
use crate::secret_command::SecretFlags;
use becket_prepare::flags::Flags;

/// Output of `--version`; `-V` prints only the version number. `build.rs` finds the commit.
const VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    "\ncommit: ",
    env!("COMMIT"),
    "\nrustls ",
    env!("RUSTLS_VERSION"),
    "\naws-lc-sys ",
    env!("AWS_LC_SYS_VERSION")
);

/// Command line of the program.
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
    /// Subcommand to run.
    #[command(subcommand)]
    pub command: Subcommand,
}

/// Subcommand of `becket`.
#[derive(Debug, clap::Subcommand)]
pub enum Subcommand {
    /// Run the TLS terminator
    #[command(after_help = RUN, after_long_help = RUN)]
    Run(Box<Flags>),
    /// Check a configuration, its files and its certificates, then exit
    #[command(after_help = CHECK)]
    Check(Box<CheckFlags>),
    /// Show the state of a running becket
    #[command(after_help = STATUS)]
    Status(StatusFlags),
    /// Show live rates, servers and busiest clients in a terminal
    #[command(after_help = TOP)]
    Top(TopFlags),
    /// Reload configuration and certificates, and wait for the outcome
    #[command(after_help = RELOAD)]
    Reload(AdminAddress),
    /// Show and change servers, connections, sessions, keys and log level
    #[command(after_help = CTL)]
    Ctl(Box<CtlFlags>),
    /// Replace the running program without dropping connections
    #[command(after_help = UPGRADE)]
    Upgrade(AdminAddress),
    /// List, renew, revoke and test certificates of an ACME authority
    #[command(disable_help_flag = true)]
    Acme(AcmeArguments),
    /// Create a cluster secret in a file that only its owner can read
    #[command(after_help = SECRET, after_long_help = SECRET)]
    Secret(SecretFlags),
    /// Convert a HAProxy, nginx, hitch, stud or stunnel configuration to becket's format
    #[command(after_help = MIGRATE)]
    Migrate(MigrateFlags),
    /// Serve a directory over HTTPS with a generated certificate
    #[command(after_help = FILES)]
    Files(FilesFlags),
    /// Run a demo with a generated certificate and a built-in backend
    #[command(after_help = DEMO)]
    Demo(DemoFlags),
}

/// Arguments of `becket check`.
#[derive(Clone, Debug, Default, Args)]
pub struct CheckFlags {
    #[command(flatten)]
    pub flags: Flags,

    /// Also connect to every server and resolve every peer
    #[arg(long)]
    pub connect: bool,

    /// Exit with 1 if there are warnings (default: 0)
    #[arg(long)]
    pub strict: bool,

    /// Also print the effective configuration and every handshake
    #[arg(long)]
    pub dump: bool,

    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `becket acme`, for the program `becket-acme`.
#[derive(Clone, Debug, Default, Args)]
pub struct AcmeArguments {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub arguments: Vec<OsString>,
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

    /// Refresh interval in seconds
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

    /// Subcommand to run.
    #[command(subcommand)]
    pub task: CtlTask,
}

/// Arguments of `becket migrate`.
#[derive(Clone, Debug, Args)]
pub struct MigrateFlags {
    /// Program that the file belongs to: haproxy, nginx, hitch, stud or stunnel
    #[arg(long, value_name = "PROGRAM", value_parser = migration_source)]
    pub from: MigrationSource,

    /// Configuration file to convert
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// Write to this new file instead of standard output
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,

    /// Print the outcome for each setting, and the new file, as JSON
    #[arg(long)]
    pub json: bool,
}

fn migration_source(name: &str) -> Result<MigrationSource, &'static str> {
    MigrationSource::named(name).ok_or("expected haproxy, nginx, hitch, stud or stunnel")
}

/// Arguments of `becket demo`.
#[derive(Clone, Debug, Default, Args)]
pub struct DemoFlags {
    /// Port to listen on (default: 8443, or the next free port)
    #[arg(long, value_name = "PORT")]
    pub port: Option<u16>,
}

const EXAMPLES: &str = "\
Examples:
  becket demo
      Serve https://127.0.0.1:8443 with a generated certificate.
  becket files
      Serve the files of the current directory at the same address.
  becket run --frontend :443 --backend 127.0.0.1:8080 site.pem
      Terminate TLS for one site; site.pem holds the chain and the private key.
  becket run --config /etc/becket/becket.toml
      Run a configuration file; see docs/reference/configuration.md and examples/.
  becket check --config /etc/becket/becket.toml
      Report every error in a configuration before it is used.
  becket status --config /etc/becket/becket.toml
      Show problems, rates, certificates, servers and peers of the running becket.
  becket reload --config /etc/becket/becket.toml
      Load configuration and certificates again; report errors.
  becket ctl servers drain app/10.0.0.1:8080
      Stop sending new clients to a server; see becket ctl --help.
  becket secret /etc/becket/cluster.secret
      Create the secret that lets several hosts resume each other's sessions.
  becket hitch --config /etc/hitch/hitch.conf
      Drop-in replacement for hitch (also stud, stunnel). See docs/reference/drop-in.md.";

const RUN: &str = "\
Examples:
  becket run --frontend :443 --backend 127.0.0.1:8080 site.pem
      Serve one site; ':443' listens on every IPv4 and IPv6 address.
  becket run --frontend :443 --backend 10.0.0.1:80 --backend 10.0.0.2:80 \\
             --balance least-connections --maxconn 50 --queue-timeout 3s site.pem
      Limit two servers to 50 connections each; further clients wait for up to 3 s.
  becket run --frontend :443 --backend 127.0.0.1:8080 --certificate site.crt,site.key
      Read chain and key from two files, or from a directory /etc/letsencrypt/live/NAME/.
  becket run --config becket.toml --workers 2 --admin 127.0.0.1:9443
      Combine --config only with --workers, --admin and the log flags.

See becket(1) for signals and exit codes.";

const CHECK: &str = "\
Examples:
  becket check --config /etc/becket/becket.toml
  becket check --connect --config /etc/becket/becket.toml
      Also connect to servers, verify their certificates, and run their health checks.

Exit codes: 0 no error, 1 warnings (with --strict), 2 errors.";

const STATUS: &str = "\
Examples:
  becket status --admin 127.0.0.1:9443
  becket status --config /etc/becket/becket.toml
      Use admin.socket or admin.address of this file.

Exit codes: 0 no problem, 1 no answer, 2 wrong arguments, 3 problems found.";

const TOP: &str = "\
Keys: q quit; n, o, r, f sort servers by name, open connections, rate, failures (press again to
reverse the order); p pause; arrows scroll.";

const RELOAD: &str = "\
Examples:
  becket reload --config /etc/becket/becket.toml

Uses admin.socket: run this command as its owner or as root. Without a socket, send SIGHUP to
the main process.
Exit codes: 0 reloaded, 1 not reloaded (reasons are printed), 2 wrong arguments.";

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

Uses admin.socket: run this command as its owner or as root. Without a socket, send SIGUSR2 to
the main process.
Exit codes: 0 upgraded, 1 not upgraded (reasons are printed), 2 wrong arguments.";

const SECRET: &str = "\
Hosts with the same secret resume each other's sessions. Protect the file like a private key.

Copy the file to every host with mode 0600, and set cluster.secret to its path.
See docs/reference/configuration.md for how to change the secret.";

const MIGRATE: &str = "\
Examples:
  becket migrate --from haproxy /etc/haproxy/haproxy.cfg
      Print the configuration, and what became of each directive.
  becket migrate --from nginx /etc/nginx/nginx.conf --out /etc/becket/becket.toml
  becket migrate --from hitch /etc/hitch/hitch.conf --out /etc/becket/becket.toml

Exit codes: 0 written, 1 system error, 2 wrong arguments, or faults in the file,
3 written without directives that have no counterpart (comments in the file say what to do).";

const FILES: &str = "\
Examples:
  becket files
      Serve the current directory at https://localhost:8443/, for this machine only.
  becket files --plain dist
      Serve the directory dist at http://localhost:8000/.
  becket files --listen :443 --certificate site.pem /srv/www
      Serve /srv/www to all clients, with a certificate that they trust.

Each request is a line: method, path, status, size, time.";

const DEMO: &str = "\
The certificate is for localhost and is kept in the user's state directory. The status page is at
http://127.0.0.1:9443/, or the next free port. Ctrl-C ends the demo with a summary.";

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
    fn the_version_names_the_commit_of_a_clone() {
        let head = std::process::Command::new("git")
            .args(["-C", "../..", "rev-parse", "--short=12", "HEAD"])
            .output();
        let is_clone = std::path::Path::new("../../.git").exists();
        let Some(head) = head.ok().filter(|git| git.status.success() && is_clone) else {
            return;
        };
        let head = String::from_utf8(head.stdout).unwrap();
        let commit = option_env!("BECKET_COMMIT").unwrap_or(head.trim());
        assert!(
            VERSION.contains(&format!("\ncommit: {commit}\n")),
            "{VERSION}"
        );
    }

    #[test]
    fn the_systemd_unit_uses_valid_commands() {
        let unit = include_str!("../../../packaging/becket.service");
        let commands: Vec<_> = unit.split("/usr/bin/").skip(1).collect();
        assert_eq!(commands.len(), 2);
        for command in commands {
            parse(command.lines().next().unwrap()).unwrap();
        }
    }

    #[test]
    fn a_certificate_and_its_key_are_one_argument() {
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
    fn a_config_file_excludes_all_flags_except_workers_admin_and_logs() {
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
    fn admin_options_are_accepted_before_and_after_the_subcommand() {
        for line in [
            "status",
            "status --admin [::1]:1",
            "status --config f --json",
            "top --socket s --every 5",
            "reload --admin a:1 --config f",
            "ctl --socket s servers",
            "ctl servers drain app/a:1 --socket s --json",
            "ctl connections --server a:1 --age 60",
            "ctl connections kill --sni a.test",
            "ctl log debug",
        ] {
            assert!(parse(&format!("becket {line}")).is_ok(), "{line}");
        }
        for line in ["ctl", "ctl servers weight app/a", "ctl servers drain app"] {
            assert!(parse(&format!("becket {line}")).is_err(), "{line}");
        }
    }

    #[test]
    fn incomplete_cluster_flags_are_rejected() {
        let run = "becket run --frontend :1 --backend b:1 a.pem";
        let whole = "--cluster-secret s --node 3 --cluster-listen :7443 \
                     --cluster-peer b:7443 --cluster-peer [::1]:7443";
        let Subcommand::Run(flags) = parse(&format!("{run} {whole}")).unwrap().command else {
            panic!("not run");
        };
        assert_eq!(flags.cluster.node, Some(3));
        assert_eq!(flags.cluster.cluster_peer, ["b:7443", "[::1]:7443"]);
        for part in [
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
