//! The signature that a handshake needs, and the choice of the thread that signs.

use std::sync::Arc;

use becket_multibuffer::PrivateKey;
use rustls::sign::SigningKey;
use rustls::{Error, SignatureAlgorithm, SignatureScheme};

use super::token::TokenKey;

#[derive(Debug)]
pub struct SignatureRequest {
    pub key: Arc<dyn SigningKey>,
    /// RSA key for batched signatures; `None` if this key does not sign in batches.
    pub batch_key: Option<Arc<PrivateKey>>,
    /// Key on a token; `None` if the private key is in this process.
    pub token: Option<TokenKey>,
    /// Scheme that the peer accepts and the key supports.
    pub scheme: SignatureScheme,
    pub message: Vec<u8>,
}

impl SignatureRequest {
    /// Signs on this thread.
    ///
    /// # Errors
    /// Fails if the key does not support the scheme or cannot sign.
    pub fn sign(&self) -> Result<Vec<u8>, Error> {
        let signer = self.key.choose_scheme(&[self.scheme]);
        let signer = signer.ok_or_else(|| Error::General("the key lacks the scheme".into()))?;
        signer.sign(&self.message)
    }
}

/// Signatures that a worker sends to crypto threads, by kind of key. Ordered by ascending cost of a
/// signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Offload {
    /// No signature: the worker signs at once if no client waits. Passing a P-256 or Ed25519
    /// signature to a thread costs 15 us, about as much as the signature itself.
    Pointless,
    /// No signature: the worker signs, and its clients wait in a queue. An RSA-2048 signature takes
    /// about 250 us; passing single signatures to a thread costs 15 to 22 % more CPU time per
    /// handshake.
    Never,
    /// Signatures that fill a batch: RSA-2048, if batches are available.
    Batches,
    /// All signatures, because they take longer than a time slice on every processor, or an ML-DSA
    /// signature after many attempts.
    Always,
    /// All signatures: the key's token signs, even without crypto threads.
    Token,
}

impl Offload {
    /// Returns the value for a key and its encoded public key. docs/decisions/0029 and 0031 contain
    /// the measurements.
    pub fn of(key: &dyn SigningKey, public: &[u8], in_batches: bool) -> Self {
        let is_short_rsa = || key.algorithm() == SignatureAlgorithm::RSA && public.len() < LONG_RSA;
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

/// Minimum size in bytes of an encoded RSA public key whose signatures always run on crypto
/// threads. RSA-2048 takes 294 bytes, RSA-3072 422.
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
    fn the_offload_depends_on_the_kind_and_length_of_the_key() {
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
            (of(&rcgen::PKCS_ML_DSA_44), Offload::Always, Offload::Always),
        ] {
            let key = PrivateKeyDer::Pkcs8(key.unwrap().serialize_der().into());
            let key = any_supported_type(&key).unwrap();
            let public = key.public_key().unwrap();
            assert_eq!(Offload::of(&*key, &public, false), alone);
            assert_eq!(Offload::of(&*key, &public, true), in_batches);
        }
    }
}
