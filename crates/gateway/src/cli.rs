//! The command line: reads files, prints the configuration and the conditions.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;

use crate::manifests::Manifests;
use crate::render::{Settings, render};

/// Command line of the program.
#[derive(Debug, Parser)]
#[command(
    name = "becket-gateway",
    version,
    about = "Gateway API manifests as the configuration of becket, without a controller",
    max_term_width = 100
)]
pub struct Cli {
    /// Subcommand to run.
    #[command(subcommand)]
    pub command: Subcommand,
}

/// Subcommand of `becket-gateway`.
#[derive(Debug, clap::Subcommand)]
pub enum Subcommand {
    /// Print becket.toml for Gateways, TLSRoutes and TCPRoutes
    #[command(after_help = HELP)]
    Render(Render),
}

/// Arguments of `render`.
#[derive(Debug, clap::Args)]
pub struct Render {
    /// Manifests in YAML or JSON: files, folders (their *.yaml, *.yml and *.json), or - for
    /// standard input
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,

    /// Folder where becket finds certificates: NAMESPACE/NAME/tls.crt and tls.key of each Secret,
    /// NAMESPACE/NAME/ca.crt of each ConfigMap
    #[arg(long, value_name = "DIR", default_value = "/etc/becket/certificates")]
    pub certificates: String,

    /// Render only Gateways of this class; skip other Gateways and their routes
    #[arg(long, value_name = "NAME")]
    pub class: Option<String>,

    /// Namespace of objects that name none
    #[arg(long, value_name = "NAME", default_value = "default")]
    pub namespace: String,

    /// Take Secrets, ConfigMaps and Services that no file contains as present in the cluster
    #[arg(long)]
    pub assume_missing: bool,
}

const HELP: &str = "\
A server is the DNS name of its Service, NAME.NAMESPACE.svc, or the ready addresses of its
EndpointSlices if these are among the files. Keys of Secrets are checked and never printed: mount
each Secret at DIR/NAMESPACE/NAME.

Nothing is printed if becket cannot do all that the manifests say. Conditions on standard error say
what to change:
  gateway.yaml:12: Gateway/web/edge: spec.listeners[1] = \"HTTP\": UnsupportedProtocol; accepted: TLS
  or TCP

Examples:
  becket-gateway render manifests/ > becket.toml && becket check --config becket.toml
  kustomize build overlays/prod | becket-gateway render --assume-missing -
      Secrets come from cert-manager and are not in Git.
  becket-gateway render --class becket --certificates /run/secrets manifests/

Exit codes: 0 everything is rendered, 1 conditions on standard error, 2 wrong arguments, or a file
cannot be read or written.";

/// Runs the command and returns its exit code.
pub fn run(cli: &Cli) -> ExitCode {
    let Subcommand::Render(arguments) = &cli.command;
    let mut manifests = Manifests::new(&arguments.namespace);
    for path in &arguments.files {
        if let Err((path, error)) = add(&mut manifests, path) {
            eprintln!("becket-gateway: cannot read {}: {error}", path.display());
            return ExitCode::from(2);
        }
    }
    let settings = Settings {
        certificates: arguments.certificates.clone(),
        class: arguments.class.clone(),
        assume_missing: arguments.assume_missing,
    };
    let (toml, report) = render(manifests, &settings);
    for warning in &report.warnings {
        eprintln!("{}", warning.labelled("warning: "));
    }
    for error in &report.errors {
        eprintln!("{error}");
    }
    let Some(toml) = toml else {
        return ExitCode::FAILURE;
    };
    if let Err(error) = io::stdout().write_all(toml.as_bytes()) {
        eprintln!("becket-gateway: cannot write the configuration: {error}");
        return ExitCode::from(2);
    }
    ExitCode::SUCCESS
}

/// Adds a file, the files of a folder, or standard input.
fn add(manifests: &mut Manifests, path: &Path) -> Result<(), (PathBuf, io::Error)> {
    let failed = |error| (path.to_owned(), error);
    if path == Path::new("-") {
        let text = text(io::stdin().lock()).map_err(failed)?;
        manifests.add("-", &text);
        return Ok(());
    }
    if path.is_dir() {
        let entries = fs::read_dir(path).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        let entries = entries.map_err(failed)?.into_iter();
        let mut files: Vec<PathBuf> = entries.map(|it| it.path()).collect();
        let endings = ["yaml", "yml", "json"].map(OsStr::new).map(Some);
        files.retain(|file| endings.contains(&file.extension()) && !file.is_dir());
        files.sort();
        return files.iter().try_for_each(|file| add(manifests, file));
    }
    let text = fs::File::open(path).and_then(text).map_err(failed)?;
    manifests.add(&path.to_string_lossy(), &text);
    Ok(())
}

fn text(file: impl Read) -> io::Result<String> {
    let mut text = String::new();
    file.take(MOST_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MOST_BYTES {
        return Err(io::Error::other("longer than 64 MiB"));
    }
    Ok(text)
}

/// Maximum size of a file, above the 1.5 MiB of the largest object.
const MOST_BYTES: u64 = 64 << 20;
