//! Runs a plan from start to end: threads, step boundaries, signals and the report.
//!
//! The main thread generates no load. It wakes at each step boundary to read CPU times and every second to print
//! progress, and it collects the results of the threads.

mod assembly;
mod workers;

use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use signal_hook::flag;

use crate::report::LoadReport;

use self::assembly::{assemble, conditions};
use self::workers::{SETTLE, Workers};
use crate::Error;
use crate::outcome::Outcome;
use crate::plan::Plan;
use crate::{clock, cpu};

/// Runs the plan and returns the report. `stop` ends the run early; the report then covers the time until the stop.
///
/// # Errors
/// [`Error`] if nothing could be measured.
pub fn run(plan: Plan, stop: &Arc<AtomicBool>) -> Result<LoadReport, Error> {
    let plan = Arc::new(prepare(plan)?);
    let outcome = measure(&plan, clock::now() + SETTLE, stop)?;
    let mut report = outcome.report(&plan);
    report.interrupted = stop.load(Ordering::Relaxed);
    Ok(report)
}

/// Runs a prepared plan from `begin` on. `stop` ends the run early.
///
/// # Errors
/// [`Error`] if nothing could be measured.
pub fn measure(plan: &Arc<Plan>, begin: Instant, stop: &Arc<AtomicBool>) -> Result<Outcome, Error> {
    let conditions = conditions(plan);
    let workers = Workers::start(plan, begin, stop)?;
    let (marks, harvests) = workers.watch(plan, stop)?;
    Ok(assemble(plan, &marks, harvests, conditions))
}

/// Installs signal handlers, and returns the flag that the first signal sets. The second signal exits at once.
///
/// # Errors
/// [`Error::Os`] if a handler cannot be installed.
pub fn stop_on(signals: &[i32]) -> Result<Arc<AtomicBool>, Error> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in signals {
        flag::register_conditional_shutdown(*signal, INTERRUPTED.into(), Arc::clone(&stop))
            .and_then(|_| flag::register(*signal, Arc::clone(&stop)))
            .map_err(|e| Error::os("cannot install signal handlers", e))?;
    }
    Ok(stop)
}

/// Raises the limit on open files and selects the first address that accepts a connection.
///
/// # Errors
/// [`Error`] if the limit cannot be raised, or no address accepts a connection.
pub fn prepare(mut plan: Plan) -> Result<Plan, Error> {
    cpu::of_processes(&plan.options.measuring.pid)?;
    let wanted = (plan.connections as u64).saturating_add(DESCRIPTORS_BESIDE);
    becket_sys::rlimit::raise_open_files(wanted).map_err(|e| {
        let count = plan.connections;
        Error::os(format!("cannot open {wanted} file descriptors for {count} connections (raise `ulimit -n`, or lower -c)"), e)
    })?;
    let mut refusal = None;
    let patience = plan.options.load.time_out.max(FIRST_CONNECT);
    for address in std::mem::take(&mut plan.addresses) {
        match TcpStream::connect_timeout(&address, patience) {
            Ok(_) => {
                plan.addresses = vec![address];
                return Ok(plan);
            }
            Err(error) => {
                refusal = Some(format!(
                    "cannot connect to {} ({address}): {error}",
                    plan.target
                ))
            }
        }
    }
    Err(Error::Unreachable(refusal.unwrap_or_else(|| {
        format!("{} has no address", plan.target)
    })))
}

/// Exit code that shells use for a program that SIGINT terminated.
pub const INTERRUPTED: u8 = 130;
/// Number of file descriptors reserved for polls, standard streams and libraries.
const DESCRIPTORS_BESIDE: u64 = 64;
/// Minimum time limit of the connect before the run: after a flood, a server may accept late.
const FIRST_CONNECT: Duration = Duration::from_secs(10);
