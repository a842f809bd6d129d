//! The commands of `becket-acme`. All ask the companion through its control socket.

use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use becket_config::acme::Acme;
use becket_config::file::File;
use becket_log::Timestamp;
use clap::Parser;

use crate::control::{Answer, Request, Row, ask};
use crate::error::Error;

/// Command line of the program.
#[derive(Debug, Parser)]
#[command(
    name = "becket-acme",
    version,
    about = "Certificates of [acme] in becket.toml: list, renew, revoke, try",
    after_help = HELP,
    max_term_width = 100
)]
pub struct Cli {
    /// Configuration file with the section acme
    #[arg(
        long,
        value_name = "FILE",
        global = true,
        default_value = "/etc/becket/becket.toml"
    )]
    pub config: PathBuf,

    /// Subcommand to run.
    #[command(subcommand)]
    pub command: Subcommand,
}

/// Subcommand of `becket-acme`.
#[derive(Debug, clap::Subcommand)]
pub enum Subcommand {
    /// Show names, authority, expiry, next renewal and last error of each certificate
    List,
    /// Renew the certificate with this name now, and wait for the outcome
    Renew {
        /// One of its names, or the name of its file in `list` without .pem
        name: String,
    },
    /// Revoke the certificate with this name, and order another one
    Revoke {
        /// One of its names, or the name of its file in `list` without .pem
        name: String,
    },
    /// Check a certificate as its authority will, order it from the test environment, and discard it
    Try {
        /// Name of the certificate (default: the first certificate)
        name: Option<String>,
    },
}

const HELP: &str = "\
becket runs this program as the companion that orders certificates. The commands below ask the
running companion; run them as root or as acme.user.

Examples:
  becket-acme list
  becket-acme try example.org
      Resolve the names, and ask each address for a made-up challenge at the port of an authority
      (443 or 80): this becket must answer. Check CAA records, and the TXT record of
      dns-persist-01. Then order from the test environment, whatever an address answered: an
      authority connects from elsewhere, so a firewall may treat it differently. Prints the DNS
      records that restrict orders to this account, and the TXT record for dns-persist-01.
  becket-acme renew example.org --config /etc/becket/becket.toml
      Renew at once. Counts towards the limits of the authority.
  becket-acme revoke example.org
      Revoke a certificate whose key is compromised. The companion orders another one at once.

Exit codes: 0 done, 1 failed, 2 wrong arguments.";

/// Runs a command and returns its exit code.
pub fn run(cli: &Cli) -> ExitCode {
    match carry_out(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Texts of an authority and of name servers may contain anything.
            match error {
                Error::Config { .. } | Error::Os { .. } => eprintln!("becket-acme: {error}"),
                error => eprintln!("becket-acme: {}", printable(&error)),
            }
            ExitCode::FAILURE
        }
    }
}

fn carry_out(cli: &Cli) -> Result<(), Error> {
    let (section, base) = read(&cli.config)?;
    let (request, done) = match &cli.command {
        Subcommand::List => (Request::List {}, ""),
        Subcommand::Renew { name } => (Request::Renew { name: name.clone() }, "renewed"),
        Subcommand::Revoke { name } => (Request::Revoke { name: name.clone() }, "revoked"),
        Subcommand::Try { name } => {
            println!("asking for a challenge, then ordering from the test environment");
            (
                Request::Try { name: name.clone() },
                "ordered; the certificate is discarded",
            )
        }
    };
    match ask(&section.folder(&base), &request)? {
        Answer::Certificates(rows) => rows.iter().for_each(show),
        Answer::Ended { error, records } => {
            for record in records {
                // The URL of the account is a text of the authority.
                println!("{}", printable(&record));
            }
            if let Some(error) = error {
                return Err(Error::Authority(error));
            }
            println!("{done}");
        }
    }
    Ok(())
}

fn show(row: &Row) {
    println!("{}", row.names.join(", "));
    let line = |title, value: &dyn Display| println!("  {title:9} {value}");
    line("file", &row.file);
    line("challenge", &row.challenge);
    if let Some(authority) = &row.authority {
        line("authority", &printable(authority));
    }
    match row.expires {
        Some(expires) => line("expires", &minute(expires)),
        None => line("expires", &"no certificate"),
    }
    if let Some(next) = row.next {
        line("renews", &minute(next));
    }
    if let Some(error) = &row.error {
        line(
            "error",
            &format!("{} (failures: {})", printable(error), row.failures),
        );
    }
}

fn minute(time: Timestamp) -> String {
    let text = time.to_string();
    format!("{} UTC", text.get(..16).unwrap_or(&text).replace('T', " "))
}

/// Returns a text that may contain words of an authority or a name server, for a terminal. Quotes
/// stay, so that records can be copied.
fn printable(text: &impl Display) -> String {
    let text = text.to_string();
    text.replace(|c: char| !(' '..='~').contains(&c), "?")
}

/// Reads the section, and returns the folder of its file too.
fn read(path: &Path) -> Result<(Acme, PathBuf), Error> {
    let shown = path.display();
    let path = fs::canonicalize(path).map_err(|error| Error::os(format!("open {shown}"), error))?;
    let text =
        fs::read_to_string(&path).map_err(|error| Error::os(format!("read {shown}"), error))?;
    let file = File::parse(&text).map_err(|problems| {
        let lines = problems.iter().map(ToString::to_string);
        Error::config("configuration", lines.collect::<Vec<_>>().join("\n"))
    })?;
    let missing = || Error::config("acme", format!("{shown} has no such section"));
    let base = path.parent().unwrap_or(Path::new("/")).to_owned();
    Ok((file.acme.ok_or_else(missing)?, base))
}
