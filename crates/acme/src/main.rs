//! The program `becket-acme`: the companion if a supervisor has started it, otherwise a command.
//!
//! | code | meaning |
//! |---|---|
//! | 0 | done; the supervisor has exited |
//! | 1 | failed |
//! | 2 | wrong arguments |
#![forbid(unsafe_code)]

use std::process::ExitCode;

use becket_acme::cli::{self, Cli};
use becket_acme::confine::{self, Sandbox};
use becket_acme::context::Context;
use becket_acme::error::Error;
use becket_acme::store::Store;
use becket_acme::{companion, link};
use becket_config::process::Log;
use becket_keys::files::Files;
use becket_process::protocol::{IS_STARTED, VERSION};
use becket_process::signals::Signals;
use clap::Parser;
use tokio::task::LocalSet;

fn main() -> ExitCode {
    let Some(version) = std::env::var_os(IS_STARTED) else {
        return cli::run(&Cli::parse());
    };
    let served = if version == VERSION {
        serve()
    } else {
        Err(Error::config(
            "becket-acme",
            "not of the same version as becket",
        ))
    };
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(name: "acme-stopped", %error, "the ACME companion cannot run");
            ExitCode::FAILURE
        }
    }
}

fn serve() -> Result<(), Error> {
    let failed = |error| Error::os("start", error);
    let stream = link::stdin().map_err(failed)?;
    let Some(start) = link::begin(&stream).map_err(failed)? else {
        return Ok(());
    };
    let logging = becket_log::install(&Log::default(), &Files::default());
    let logging = logging.map_err(|error| Error::config("log", error))?;
    confine::drop_privileges(start.user.as_ref())?;
    let store = Store::open(&start.section.folder(&start.base))?;
    let sandbox = Sandbox::apply(&start.section, &start.base);
    logging
        .start()
        .map_err(|error| Error::config("log", error))?;
    let context = Context::new(start.section, start.base, store);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.map_err(failed)?;
    let run = async {
        // The supervisor reacts to signals, and ends this process by closing the socket.
        let _signals = Signals::listen().map_err(failed)?;
        companion::run(context, stream, sandbox).await
    };
    let done = LocalSet::new().block_on(&runtime, run);
    // Does not wait for a lookup of a host in progress.
    runtime.shutdown_background();
    done
}
