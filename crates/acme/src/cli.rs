//! The commands of `becket-acme`.
//!
//! `list`, `renew` and `try` ask the companion through its control socket. `revoke` uses the
//! account itself, as the owner of the folder.

use std::fmt::Display;
use std::fs;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use becket_config::acme::{AcmeName, ChallengeKind};
use becket_config::file::File;
use becket_log::{Escaped, Timestamp};
use becket_sys::clock::Clock;
use becket_sys::identity::UnixIdentity;
use becket_sys::privileges;
use clap::Parser;
use instant_acme::RevocationRequest;

use crate::authority::{Session, account_url};
use crate::context::{Context, bundle_file, label};
use crate::control::{Answer, Request, Row, ask};
use crate::error::Error;
use crate::store::{Part, Store};
use crate::verify;

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
    /// Configuration file with [acme]
    #[arg(long, value_name = "FILE", global = true, default_value = "/etc/becket/becket.toml")]
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
    Renew { name: String },
    /// Revoke the certificate with this name
    Revoke { name: String },
    /// Check a certificate's names, order it from the test environment, and discard it
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
      Check that the names resolve and that the port of the challenge answers, then order from the
      test environment. Prints the DNS records that restrict orders to this account, and the TXT
      record for dns-persist-01.
  becket-acme renew example.org --config /etc/becket/becket.toml
      Renew at once, for example after revoking. Counts towards the limits of the authority.
  becket-acme revoke example.org
      Revoke a certificate whose key is compromised. Renew it afterwards.

Exit codes: 0 done, 1 failed, 2 wrong arguments.";

/// Runs a command and returns its exit code.
pub fn run(cli: &Cli) -> ExitCode {
    match carry_out(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("becket-acme: {}", printable(&error));
            ExitCode::FAILURE
        }
    }
}

fn carry_out(cli: &Cli) -> Result<(), Error> {
    let (file, base) = read(&cli.config)?;
    let section = file.acme.unwrap_or_default();
    let folder = section.folder(&base);
    match &cli.command {
        Subcommand::List => match ask(&folder, &Request::List {})? {
            Answer::Certificates(rows) => rows.iter().for_each(show),
            Answer::Ended { error, .. } => return ended(error),
        },
        Subcommand::Renew { name } => {
            let name = name.clone();
            match ask(&folder, &Request::Renew { name })? {
                Answer::Ended { error, .. } => ended(error)?,
                Answer::Certificates(_) => {}
            }
            println!("renewed");
        }
        Subcommand::Revoke { name } => {
            become_owner(&folder)?;
            let store = Store::open_to_read(&folder)?;
            let clock = Clock::start();
            let context = Context {
                section,
                base,
                store,
                clock,
            };
            revoke(&context, name)?;
            println!("revoked; order another certificate with: becket-acme renew {name}");
        }
        Subcommand::Try { name } => {
            let all = &section.certificate;
            let wanted = |names: &[AcmeName]| match name {
                Some(name) => names.iter().any(|own| own.to_string() == *name),
                None => true,
            };
            let certificate = all.iter().find(|it| wanted(&it.names));
            let missing = || Error::config("acme.certificate", "no certificate has this name");
            let certificate = certificate.ok_or_else(missing)?;
            let challenge = section.challenge(certificate);
            for name in &certificate.names {
                println!("{name}: {}", reach(name, challenge));
            }
            println!("ordering from the test environment");
            let name = name.clone();
            if let Answer::Ended { error, records } = ask(&folder, &Request::Try { name })? {
                records.iter().for_each(|record| println!("{}", record.escape_debug()));
                ended(error)?;
            }
            println!("ordered; the certificate is discarded");
        }
    }
    Ok(())
}

fn ended(error: Option<String>) -> Result<(), Error> {
    error.map_or(Ok(()), |error| Err(Error::Authority(error)))
}

fn show(row: &Row) {
    println!("{}", row.names.join(", "));
    let line = |title, value: &dyn Display| println!("  {title:9} {value}");
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
        line("error", &format!("{} (failures: {})", printable(error), row.failures));
    }
}

fn minute(time: Timestamp) -> String {
    let text = time.to_string();
    format!("{} UTC", text.get(..16).unwrap_or(&text).replace('T', " "))
}

/// Returns a text that may contain words of an authority, for a terminal.
fn printable(text: &impl Display) -> String {
    Escaped::new(&text.to_string()).to_string()
}

/// Reads the configuration. Returns its folder too.
fn read(path: &Path) -> Result<(File, PathBuf), Error> {
    let shown = path.display();
    let path = fs::canonicalize(path).map_err(Error::os(format!("open {shown}")))?;
    let text = fs::read_to_string(&path).map_err(Error::os(format!("read {shown}")))?;
    let file = File::parse(&text).map_err(|problems| {
        let lines = problems.iter().map(ToString::to_string);
        Error::config("configuration", lines.collect::<Vec<_>>().join("\n"))
    })?;
    if file.acme.is_none() {
        return Err(Error::config("acme", format!("{shown} has no [acme] section")));
    }
    let base = path.parent().unwrap_or(Path::new("/")).to_owned();
    Ok((file, base))
}

/// Changes from root to the owner of the folder, so that no file there becomes root's.
fn become_owner(folder: &Path) -> Result<(), Error> {
    let failed = || Error::os(format!("use {}", folder.display()));
    let owner = fs::metadata(folder).map_err(failed())?;
    if !privileges::is_root() || owner.uid() == 0 {
        return Ok(());
    }
    let identity = UnixIdentity {
        uid: owner.uid(),
        gid: owner.gid(),
        groups: Vec::new(),
    };
    privileges::drop_to(&identity).map_err(failed())
}

fn revoke(context: &Context, name: &str) -> Result<(), Error> {
    let missing = |what: &str| Error::config("acme.certificate", format!("{name}: no {what}"));
    let index = context.find(name).ok_or_else(|| missing("such certificate"))?;
    let directory = context.issued_by(index).unwrap_or_default();
    let authority = context.authority(&directory);
    let (authority, staging) = authority.ok_or_else(|| missing("configured authority"))?;
    if account_url(&context.store, &label(authority, staging)).is_none() {
        return Err(missing("account at the authority"));
    }
    let file = bundle_file(&context.section.certificate[index]);
    let bundle = context.store.load(Part::Certificates, &file)?;
    let certificate = bundle.and_then(|bundle| verify::leaf(&bundle));
    let certificate = certificate.ok_or_else(|| missing("certificate"))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(Error::os("start"))?;
    runtime.block_on(async {
        let session = Session::open(context, authority, staging).await?;
        let request = RevocationRequest {
            certificate: &certificate,
            reason: None,
        };
        Ok(session.account.revoke(&request).await?)
    })
}

/// Checks what an authority would check first, from this host. Returns the finding.
fn reach(name: &AcmeName, challenge: ChallengeKind) -> String {
    let port = match challenge {
        ChallengeKind::TlsAlpn => 443,
        ChallengeKind::Http => 80,
        ChallengeKind::Dns | ChallengeKind::DnsPersist => {
            return format!("proved by a TXT record ({})", challenge.label());
        }
    };
    let host = name.to_string();
    let addresses = match (host.as_str(), port).to_socket_addrs() {
        Ok(addresses) => addresses.take(MOST_ADDRESSES),
        Err(error) => return format!("DOES NOT RESOLVE: {error}"),
    };
    let findings = addresses.map(|address| match TcpStream::connect_timeout(&address, PATIENCE) {
        Ok(_) => format!("{address} answers"),
        Err(error) => format!("{address} DOES NOT ANSWER: {error}"),
    });
    findings.collect::<Vec<_>>().join(", ")
}

const MOST_ADDRESSES: usize = 8;
const PATIENCE: Duration = Duration::from_secs(5);
