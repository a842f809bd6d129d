//! Signatures off the loop: what a worker asks crypto threads for, and how the answer comes back.
//!
//! A signature with RSA or P-384 takes as long as ten to a thousand other steps of a worker. So the step of a handshake that
//! needs one runs as a coroutine (`becket_sys::coroutine`): where rustls asks the key (`tls/deferred.rs`) the step is
//! suspended, the [`Request`] goes to the [`queue::SigningQueue`] that all workers share, and a crypto thread ([`threads`])
//! signs. Its [`queue::Signed`] comes back as a message, and the step goes on. [`worker::WorkerSigning`] is one worker's
//! part: its stacks, and how many of its signatures are under way. What waits is a phase of the connection
//! (`connection/signing.rs`).
//!
//! Keys that sign as fast as a signature is handed over stay with the worker: see [`is_cheap`].
//! docs/decisions/0029 says why it is done so.

pub mod queue;
pub mod threads;
pub mod worker;

use std::sync::Arc;

use rustls::sign::SigningKey;
use rustls::{Error, SignatureScheme};

/// A signature that is wanted.
#[derive(Debug)]
pub struct Request {
    /// Who signs.
    pub key: Arc<dyn SigningKey>,
    /// What the peer accepts, and the key offers.
    pub scheme: SignatureScheme,
    /// What is signed.
    pub message: Vec<u8>,
}

impl Request {
    /// Signs, on whichever thread this is.
    ///
    /// # Errors
    /// Why the key does not.
    pub fn sign(&self) -> Result<Vec<u8>, Error> {
        let signer = self.key.choose_scheme(&[self.scheme]);
        let signer = signer.ok_or_else(|| Error::General("the key lacks the scheme".into()))?;
        signer.sign(&self.message)
    }
}

/// Whether a signature costs about as much as handing it over: 15 us with P-256 and Ed25519. All others cost ten times as
/// much at least, on every processor, so nothing has to be measured to know them.
pub(crate) fn is_cheap(key: &dyn SigningKey) -> bool {
    key.choose_scheme(&CHEAP).is_some()
}

const CHEAP: [SignatureScheme; 2] = [
    SignatureScheme::ECDSA_NISTP256_SHA256,
    SignatureScheme::ED25519,
];
