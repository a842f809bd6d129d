//! Signatures off the loop: what a worker asks crypto threads for, and how the answer comes back.
//!
//! A signature with RSA-4096 or P-384 takes as long as ten to a thousand other steps of a worker. So the step of a handshake that
//! needs one runs as a coroutine (`becket_sys::coroutine`): where rustls asks the key (`crates/tls/src/deferred.rs`) the step is
//! suspended, the [`Request`] goes to the [`queue::SigningQueue`] that all workers share, and a crypto thread ([`threads`])
//! signs. Its [`queue::Signed`] comes back as a message, and the step goes on. [`worker::WorkerSigning`] is one worker's
//! part: its stacks, and how many of its signatures are under way. What waits is a phase of the connection
//! (`crates/proxy/src/connection/signing.rs`).
//!
//! With a key on a token ([`token`]) the request goes to the process that speaks with it, and the answer comes by the same way.
//!
//! Keys that sign as fast as a signature is handed over stay with the worker: see [`Offload`].
//! docs/decisions/0029 says why it is done so. Of signatures that wait ([`waiting`]) those with RSA of one length may be made
//! eight at a time ([`batches`]; docs/decisions/0031).

pub mod batches;
pub mod queue;
pub mod threads;
pub mod token;
mod waiting;
pub mod worker;

use std::sync::Arc;

use becket_multibuffer::PrivateKey;
use rustls::sign::SigningKey;
use rustls::{Error, SignatureAlgorithm, SignatureScheme};

use self::token::TokenKey;

/// A signature that is wanted.
#[derive(Debug)]
pub struct Request {
    /// Who signs.
    pub key: Arc<dyn SigningKey>,
    /// Its numbers, where it may sign in a batch.
    pub batch_key: Option<Arc<PrivateKey>>,
    /// Who signs, where that is a token.
    pub token: Option<TokenKey>,
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

/// Which signatures of a key are handed over, to crypto threads where there are any; the cheapest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Offload {
    /// None, and the worker signs at once where nobody waits: with P-256 and Ed25519 a signature costs about as much as handing it
    /// over, 15 us.
    Pointless,
    /// None; clients wait for their turn. With RSA of 2048 bits a signature costs a
    /// quarter of a millisecond, and a handshake whose lone signature is handed over costs 15 to 22 % more CPU.
    Never,
    /// Those that fill a batch, and while few wait none: RSA of 2048 bits, where there are batches.
    Batches,
    /// All. They hold a worker up for longer than a slice, on every processor, so nothing has to be measured to know them.
    Always,
    /// All, and to the token that has the key: with crypto threads or without.
    Token,
}

impl Offload {
    /// What is best for a key, by its kind. docs/decisions/0029 and 0031 have the figures.
    pub fn of(key: &dyn SigningKey, in_batches: bool) -> Self {
        let is_short_rsa = || {
            key.algorithm() == SignatureAlgorithm::RSA
                && key.public_key().is_some_and(|key| key.len() < LONG_RSA)
        };
        if key.choose_scheme(&CHEAP).is_some() {
            Self::Pointless
        } else if !is_short_rsa() {
            Self::Always
        } else if in_batches {
            Self::Batches
        } else {
            Self::Never
        }
    }
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
    fn how_much_is_handed_over_is_a_matter_of_kind_and_length() {
        let rsa = |size| KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, size);
        let of = |kind| KeyPair::generate_for(kind);
        for (key, alone, in_batches) in [
            (
                of(&rcgen::PKCS_ED25519),
                Offload::Pointless,
                Offload::Pointless,
            ),
            (
                of(&rcgen::PKCS_ECDSA_P256_SHA256),
                Offload::Pointless,
                Offload::Pointless,
            ),
            (rsa(RsaKeySize::_2048), Offload::Never, Offload::Batches),
            (rsa(RsaKeySize::_3072), Offload::Always, Offload::Always),
            (
                of(&rcgen::PKCS_ECDSA_P384_SHA384),
                Offload::Always,
                Offload::Always,
            ),
        ] {
            let key = PrivateKeyDer::Pkcs8(key.unwrap().serialize_der().into());
            let key = any_supported_type(&key).unwrap();
            assert_eq!(Offload::of(&*key, false), alone);
            assert_eq!(Offload::of(&*key, true), in_batches);
        }
    }
}
