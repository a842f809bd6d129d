//! The signature that a handshake needs, and which thread makes it.

use std::sync::Arc;

use becket_multibuffer::PrivateKey;
use rustls::sign::SigningKey;
use rustls::{Error, SignatureAlgorithm, SignatureScheme};

use super::token::TokenKey;

/// A signature that a handshake needs.
#[derive(Debug)]
pub struct SignatureRequest {
    pub key: Arc<dyn SigningKey>,
    /// The numbers of the key, if it may sign in a batch.
    pub batch_key: Option<Arc<PrivateKey>>,
    /// The same key, if it is on a token.
    pub token: Option<TokenKey>,
    /// Accepted by the peer and offered by the key.
    pub scheme: SignatureScheme,
    pub message: Vec<u8>,
}

impl SignatureRequest {
    /// Signs on this thread.
    ///
    /// # Errors
    /// The key lacks the scheme, or fails.
    pub fn sign(&self) -> Result<Vec<u8>, Error> {
        let signer = self.key.choose_scheme(&[self.scheme]);
        let signer = signer.ok_or_else(|| Error::General("the key lacks the scheme".into()))?;
        signer.sign(&self.message)
    }
}

/// Which signatures of a key are handed over to crypto threads, if there are any; the cheapest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Offload {
    /// None, and the worker signs at once if no client waits: with P-256 and Ed25519 a signature costs about as much as handing it
    /// over, 15 us.
    Pointless,
    /// None; clients wait for their turn. With RSA of 2048 bits a signature costs a
    /// quarter of a millisecond, and a handshake whose lone signature is handed over costs 15 to 22 % more CPU.
    Never,
    /// Signatures that fill a batch, and none while few wait: RSA of 2048 bits, if there are batches.
    Batches,
    /// All. They take longer than a slice on every processor.
    Always,
    /// All, to the token that has the key, also without crypto threads.
    Token,
}

impl Offload {
    /// Returns what is best for a key, by its kind. docs/decisions/0029 and 0031 have the figures.
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
