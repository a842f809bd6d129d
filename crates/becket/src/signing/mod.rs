//! Signatures off the loop: what a worker asks crypto threads for, and how the answer comes back.
//!
//! A signature with RSA-4096 or P-384 takes as long as ten to a thousand other steps of a worker. So the step of a handshake that
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
use rustls::{Error, SignatureAlgorithm, SignatureScheme};

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

/// Whether the worker had better sign itself. With P-256 and Ed25519 a signature costs about as much as handing it over, 15 us.
/// With RSA of 2048 bits it costs a quarter of a millisecond, and a handshake whose signature is handed over was measured to
/// cost 15 to 22 % more CPU (docs/decisions/0029). All others hold a worker up for longer than a slice, on every processor, so
/// nothing has to be measured to know them.
pub(crate) fn is_cheap(key: &dyn SigningKey) -> bool {
    let is_short_rsa = || {
        key.algorithm() == SignatureAlgorithm::RSA
            && key.public_key().is_some_and(|key| key.len() < LONG_RSA)
    };
    key.choose_scheme(&CHEAP).is_some() || is_short_rsa()
}

/// Bytes of a public key: 294 with RSA of 2048 bits, 422 with 3072.
const LONG_RSA: usize = 360;

const CHEAP: [SignatureScheme; 2] = [
    SignatureScheme::ECDSA_NISTP256_SHA256,
    SignatureScheme::ED25519,
];

#[cfg(test)]
mod tests {
    use rcgen::{KeyPair, RsaKeySize};
    use rustls::crypto::aws_lc_rs::sign::any_supported_type;
    use rustls::pki_types::PrivateKeyDer;

    use super::*;

    #[test]
    fn a_worker_signs_with_short_keys_itself() {
        let rsa = |size| KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, size);
        let of = |kind| KeyPair::generate_for(kind);
        for (key, cheap) in [
            (of(&rcgen::PKCS_ED25519), true),
            (of(&rcgen::PKCS_ECDSA_P256_SHA256), true),
            (rsa(RsaKeySize::_2048), true),
            (rsa(RsaKeySize::_3072), false),
            (of(&rcgen::PKCS_ECDSA_P384_SHA384), false),
        ] {
            let key = PrivateKeyDer::Pkcs8(key.unwrap().serialize_der().into());
            assert_eq!(is_cheap(&*any_supported_type(&key).unwrap()), cheap);
        }
    }
}
