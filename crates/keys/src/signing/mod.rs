//! Signatures off the event loop: requests of workers, and answers of crypto threads and tokens.
//!
//! An RSA-4096 or P-384 signature takes 10 to 1000 times as long as other steps of a worker.
//! Therefore a handshake step that needs a signature runs as a coroutine (`becket_sys::coroutine`).
//! When rustls calls the key (`crates/tls/src/served_key.rs`), the step is suspended and the
//! [`SignatureRequest`] goes to the [`queue::SigningQueue`], which all workers share. A crypto
//! thread ([`threads`]) signs. Its answer ([`queue::Signed`]) arrives as a message, and the step
//! continues. [`worker::WorkerSigning`] contains the state of one worker: its stacks, and the
//! number of its signatures in progress. A connection that waits for a signature has a separate
//! phase (`crates/proxy/src/connection/signing.rs`).
//!
//! For a key on a token ([`token`]), the request goes to the agent of the token, and the answer
//! arrives in the same way.
//!
//! If a signature costs no more than passing the request to a thread, the worker itself signs: see
//! [`Offload`] and docs/decisions/0029. RSA signatures of the same key length may be computed eight
//! at a time ([`batches`]; docs/decisions/0031).

pub mod batches;
pub mod queue;
mod request;
pub mod threads;
pub mod token;
pub mod worker;

pub use self::request::{Offload, SignatureRequest};
