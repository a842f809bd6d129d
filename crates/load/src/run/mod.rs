//! A run from beginning to end: threads, boundaries of steps, signals, the report.
//!
//! The main thread does no work of its own: it sleeps until the next boundary or the next second,
//! reads CPU times there, and collects what the threads give back.

mod assembly;
mod workers;

use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use becket_stats::report::LoadReport;

use self::assembly::{assemble, conditions};
use self::workers::Workers;
use crate::Error;
use crate::cpu;
use crate::plan::Plan;

/// Does what the plan says, and reports. `stop` ends the run early; the report covers what was done.
///
/// # Errors
/// [`Error`]: nothing was measured then.
pub fn run(plan: Plan, stop: &Arc<AtomicBool>) -> Result<LoadReport, Error> {
    let plan = prepare(plan)?;
    let conditions = conditions(&plan);
    let plan = Arc::new(plan);
    let workers = Workers::start(&plan, stop)?;
    let (marks, harvests) = workers.watch(&plan, stop)?;
    let mut report = assemble(&plan, &marks, harvests, conditions);
    report.interrupted = stop.load(Ordering::Relaxed);
    Ok(report)
}

/// Checks what would make the whole run void, and settles on an address that answers.
fn prepare(mut plan: Plan) -> Result<Plan, Error> {
    cpu::of_processes(&plan.options.measuring.pid)?;
    let wanted = plan.connections as u64 + DESCRIPTORS_BESIDE;
    becket_sys::rlimit::raise_open_files(wanted).map_err(|e| {
        let count = plan.connections;
        Error::os(format!("{count} connections need {wanted} file descriptors (raise `ulimit -n`, or lower -c)"), e)
    })?;
    let mut refusal = None;
    for address in std::mem::take(&mut plan.addresses) {
        match TcpStream::connect_timeout(&address, plan.options.load.time_out) {
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

/// Polls, standard streams, libraries.
const DESCRIPTORS_BESIDE: u64 = 64;
