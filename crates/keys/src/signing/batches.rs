//! RSA signatures in batches of eight.
//!
//! `becket_multibuffer` computes a batch and verifies each signature. If a signature does not
//! verify, AWS-LC signs the message instead, and [`BatchCounts::repeated`] counts it.
//! docs/decisions/0031 explains when a batch is used.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use becket_multibuffer::{self as multibuffer, Hash, Multibuffer, Padding, PrivateKey, Scheme};
use rustls::{Error, SignatureScheme};

use super::request::SignatureRequest;

#[derive(Debug)]
pub struct Batches {
    multibuffer: Multibuffer,
    made: AtomicU64,
    signatures: AtomicU64,
    repeated: AtomicU64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct BatchCounts {
    pub made: u64,
    /// Number of valid signatures that were computed in batches.
    pub signatures: u64,
    /// Number of signatures computed again by AWS-LC, because the batch signature failed
    /// verification.
    pub repeated: u64,
}

impl Batches {
    pub(super) fn new(multibuffer: Multibuffer) -> Self {
        Self {
            multibuffer,
            made: AtomicU64::new(0),
            signatures: AtomicU64::new(0),
            repeated: AtomicU64::new(0),
        }
    }

    pub fn counts(&self) -> BatchCounts {
        BatchCounts {
            made: self.made.load(Relaxed),
            signatures: self.signatures.load(Relaxed),
            repeated: self.repeated.load(Relaxed),
        }
    }

    /// Signs each request. Uses one batch if the requests permit it.
    pub(super) fn sign(&self, requests: &[&SignatureRequest]) -> Vec<Result<Vec<u8>, Error>> {
        let padded: Vec<_> = requests.iter().map(|request| pad(request)).collect();
        let batch: Vec<_> = padded
            .iter()
            .flatten()
            .map(|(key, message)| multibuffer::SignRequest { key, message })
            .collect();
        let mut signed = self.multibuffer.sign(&batch).into_iter();
        self.made.fetch_add(1, Relaxed);
        let each = requests.iter().zip(&padded);
        each.map(
            |(request, padded)| match padded.as_ref().and_then(|_| signed.next()) {
                Some(Ok(signature)) => {
                    self.signatures.fetch_add(1, Relaxed);
                    Ok(signature)
                }
                _ => {
                    self.repeated.fetch_add(1, Relaxed);
                    request.sign()
                }
            },
        )
        .collect()
    }
}

/// Returns the key and the padded message. Returns `None` if the request cannot use a batch or
/// random bytes are unavailable.
fn pad(request: &SignatureRequest) -> Option<(&PrivateKey, Vec<u8>)> {
    let key = request.batch_key.as_deref()?;
    let message = scheme_of(request.scheme)?.encode(key, &request.message);
    Some((key, message.ok()?))
}

fn scheme_of(scheme: SignatureScheme) -> Option<Scheme> {
    let (hash, padding) = match scheme {
        SignatureScheme::RSA_PKCS1_SHA256 => (Hash::Sha256, Padding::Pkcs1),
        SignatureScheme::RSA_PKCS1_SHA384 => (Hash::Sha384, Padding::Pkcs1),
        SignatureScheme::RSA_PKCS1_SHA512 => (Hash::Sha512, Padding::Pkcs1),
        SignatureScheme::RSA_PSS_SHA256 => (Hash::Sha256, Padding::Pss),
        SignatureScheme::RSA_PSS_SHA384 => (Hash::Sha384, Padding::Pss),
        SignatureScheme::RSA_PSS_SHA512 => (Hash::Sha512, Padding::Pss),
        _ => return None,
    };
    Some(Scheme { hash, padding })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rcgen::{KeyPair, RsaKeySize};
    use rustls::crypto::WebPkiSupportedAlgorithms;
    use rustls::crypto::aws_lc_rs::{default_provider, sign::any_supported_type};
    use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
    use rustls::sign::SigningKey;

    use super::*;

    struct Key {
        signs: Arc<dyn SigningKey>,
        numbers: Arc<PrivateKey>,
        public: Vec<u8>,
    }

    fn key() -> Key {
        let pair = KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, RsaKeySize::_2048).unwrap();
        let der = pair.serialize_der();
        let numbers = PrivateKey::from_pkcs8(&der).unwrap();
        let der = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(der));
        Key {
            signs: any_supported_type(&der).unwrap(),
            numbers: Arc::new(numbers),
            public: rcgen::PublicKeyData::der_bytes(&pair).to_vec(),
        }
    }

    fn request(key: &Key, scheme: SignatureScheme, message: u8) -> SignatureRequest {
        SignatureRequest {
            key: Arc::clone(&key.signs),
            batch_key: Some(Arc::clone(&key.numbers)),
            token: None,
            scheme,
            message: vec![message; 130],
        }
    }

    fn is_right(key: &Key, request: &SignatureRequest, signature: &[u8]) -> bool {
        let WebPkiSupportedAlgorithms { mapping, .. } =
            default_provider().signature_verification_algorithms;
        let algorithms = mapping.iter().find(|(scheme, _)| *scheme == request.scheme);
        let (_, algorithms) = algorithms.unwrap();
        let verifies = |algorithm: &&dyn rustls::pki_types::SignatureVerificationAlgorithm| {
            algorithm
                .verify_signature(&key.public, &request.message, signature)
                .is_ok()
        };
        algorithms.iter().any(verifies)
    }

    #[test]
    fn one_batch_signs_requests_of_different_keys() {
        let keys = [key(), key()];
        let schemes = [
            SignatureScheme::RSA_PSS_SHA512,
            SignatureScheme::RSA_PSS_SHA384,
            SignatureScheme::RSA_PSS_SHA256,
            SignatureScheme::RSA_PKCS1_SHA512,
            SignatureScheme::RSA_PKCS1_SHA384,
            SignatureScheme::RSA_PKCS1_SHA256,
        ];
        let batches = Batches::new(Multibuffer::portable());
        let requests: Vec<_> = (0..)
            .zip(schemes)
            .map(|(at, scheme)| request(&keys[at % 2], scheme, at as u8))
            .collect();
        let signed = batches.sign(&requests.iter().collect::<Vec<_>>());
        for (at, signature) in signed.into_iter().enumerate() {
            let (key, request) = (&keys[at % 2], &requests[at]);
            assert!(is_right(key, request, &signature.unwrap()), "{at}");
        }
        let counts = BatchCounts {
            made: 1,
            signatures: 6,
            repeated: 0,
        };
        assert_eq!(batches.counts(), counts);
    }

    /// A message without a batch signature is signed singly, with the right key.
    #[test]
    fn requests_without_a_batch_key_are_signed_individually() {
        let (ours, other) = (key(), key());
        let batches = Batches::new(Multibuffer::portable());
        let scheme = SignatureScheme::RSA_PSS_SHA256;
        let mut requests: Vec<_> = (0..3).map(|at| request(&ours, scheme, at)).collect();
        requests[1].batch_key = None;
        let mut signed = batches
            .sign(&requests.iter().collect::<Vec<_>>())
            .into_iter();
        for request in &requests {
            let signature = signed.next().unwrap().unwrap();
            assert!(is_right(&ours, request, &signature));
            assert!(!is_right(&other, request, &signature));
        }
        let counts = batches.counts();
        assert_eq!((counts.signatures, counts.repeated), (2, 1));
    }
}
