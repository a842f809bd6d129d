//! Measures the memory per idle connection: the growth of the servers' memory over thousands of connections.
//!
//! A blocking client opens the connections one by one. Each makes one request, so that the buffers of both sides have been used. The
//! proportional set size is read while all connections are open and have been idle for [`Effort::rest`](crate::order::Effort::rest).

use std::thread;

use super::client::{self, WARM_UP};
use super::stage::Stage;
use crate::result::{Column, Sample};
use crate::{Error, figures};

pub(super) fn run(stage: &Stage<'_>) -> Result<Vec<Column>, Error> {
    let mut columns = stage.columns();
    let count = stage.held();
    for (server, column) in stage.servers.iter().zip(&mut columns) {
        let hold = |count| client::hold(stage, server.address, count, |client| client.ask(stage));
        drop(hold(WARM_UP.min(count))?);
        let before = server.process.weight();
        let held = hold(count)?;
        thread::sleep(stage.effort.rest);
        let after = server.process.weight();
        let mut sample = Sample::default();
        let each = after.growth(before, held.len());
        sample.put(figures::PSS_PER_CONNECTION, each);
        sample.put(figures::HELD, held.len() as f64);
        sample.put(figures::PSS, after.pss_bytes as f64);
        sample.put(figures::THREADS, after.threads as f64);
        column.samples.push(sample);
    }
    Ok(columns)
}
