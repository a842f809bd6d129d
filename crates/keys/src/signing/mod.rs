//! Signatures off the event loop: requests of workers, and answers of crypto threads and tokens.
//!
//! A signature with RSA-4096 or P-384 takes as long as ten to a thousand other steps of a worker. So the step of a handshake that
//! needs one runs as a coroutine (`becket_sys::coroutine`): where rustls asks the key (`crates/tls/src/deferred.rs`) the step is
//! suspended, the [`SignatureRequest`] goes to the [`queue::SigningQueue`] that all workers share, and a crypto thread ([`threads`])
//! signs. Its [`queue::Signed`] comes back as a message, and the step goes on. [`worker::WorkerSigning`] is one worker's
//! part: its stacks, and how many of its signatures are under way. What waits is a phase of the connection
//! (`crates/proxy/src/connection/signing.rs`).
//!
//! With a key on a token ([`token`]) the request goes to the process that speaks with it, and the answer comes by the same way.
//!
//! Keys that sign as fast as a signature is handed over stay with the worker: see [`Offload`].
//! docs/decisions/0029 says why it is done so. Signatures with RSA of one length may be made eight at a
//! time ([`batches`]; docs/decisions/0031).

pub mod batches;
pub mod queue;
mod request;
pub mod threads;
pub mod token;
pub mod worker;

pub use self::request::{Offload, SignatureRequest};
