//! The responder: the cheapest HTTP/1 server there is, for standing behind a terminator.
//!
//! A request that comes in one piece costs `accept4`, `recv`, `send`, `close` and nothing else: no
//! registration, no parsing beyond three headers. `Connection: close` and HTTP/1.0 are answered by
//! closing; the path `/bytes/N` asks for a body of N bytes.
//!
//! A service time makes it a model of an application. It is constant, or grows with the number `n` of
//! requests in service: `time * max(1, n / knee)^2`. The formula is fixed before a run and printed.

mod service;
mod thread;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};

pub use self::service::Responder;
use self::thread::ResponderThread;
use crate::Error;

/// Answers until `stop` is set.
///
/// # Errors
/// [`Error::Os`] when the address is in use or may not be bound.
pub fn run(responder: &Responder, stop: &Arc<AtomicBool>) -> Result<(), Error> {
    // As many as the system gives: a responder with fewer callers does not need them.
    becket_sys::rlimit::raise_open_files(DESCRIPTORS).unwrap_or(0);
    let first = ResponderThread::new(responder, responder.address)?;
    let bound = first
        .listener
        .local_addr()
        .map_err(|e| Error::os("getsockname", e))?;
    let in_service = Arc::new(AtomicUsize::new(0));
    let mut responders = vec![first];
    for _ in 1..responder.threads {
        responders.push(ResponderThread::new(responder, bound)?);
    }
    println!("listening on {bound}");
    let threads = responders.into_iter().enumerate().map(|(index, mut one)| {
        one.in_service = Arc::clone(&in_service);
        let (stop, cpu) = (Arc::clone(stop), responder.cpus.get(index).copied());
        std::thread::spawn(move || {
            if let Some(cpu) = cpu {
                becket_sys::affinity::pin_current_thread(cpu)
                    .map_err(|e| Error::os(format!("pinning to CPU {cpu}"), e))?;
            }
            one.work(&stop)
        })
    });
    let threads: Vec<_> = threads.collect();
    for thread in threads {
        thread.join().unwrap_or(Ok(()))?;
    }
    Ok(())
}

/// As many callers as any scenario has.
const DESCRIPTORS: u64 = 32_768;
