//! Writes the manual pages and the shell completions, for packages: `cargo run -p becket --example
//! pages -- FOLDER`.
//!
//! `becket.1` and `becket.toml.5` come from `docs/`; the pages of subcommands and the completions
//! come from the command line.
#![forbid(unsafe_code)]

mod manual;

use std::fs;
use std::path::Path;

use anyhow::Context;
use becket::cli::Cli;
use clap::CommandFactory;
use clap_complete::Shell;

const MANUAL: &str = include_str!("../../../../docs/reference/becket.1.md");
const NAME: &str = "## Name\n\nbecket.toml - the configuration of becket(1)\n\n## Description\n\n";
const CONFIGURATION: &str = include_str!("../../../../docs/reference/configuration.md");

fn main() -> anyhow::Result<()> {
    let folder = std::env::args_os().nth(1);
    let folder = folder.context("usage: pages FOLDER")?;
    let folder = Path::new(&folder);
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    write_manual(folder)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut Cli::command(), "becket", folder)?;
    }
    Ok(())
}

fn write_manual(folder: &Path) -> anyhow::Result<()> {
    clap_mangen::generate_to(Cli::command().disable_help_subcommand(true), folder)?;
    let version = env!("CARGO_PKG_VERSION");
    // Replaces the short page that clap_mangen generates.
    let page = manual::page("BECKET", "1", version, MANUAL);
    fs::write(folder.join("becket.1"), page)?;
    let page = manual::page(
        "BECKET.TOML",
        "5",
        version,
        &format!("{NAME}{CONFIGURATION}"),
    );
    fs::write(folder.join("becket.toml.5"), page)?;
    Ok(())
}
