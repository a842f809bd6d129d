//! Private keys at rest: bytes, which are parsed at the first signature.
//!
//! A parsed P-256 key takes 1.5 KiB, its secret number 32 bytes. Few of many certificates are in
//! use, so a [`StoredKey`] keeps the bytes. A [`LazyKey`] parses them in the thread that makes
//! the first signature: a worker, or a crypto thread for an expensive key. The bytes are erased on
//! drop.

use std::fmt;
use std::sync::{Arc, OnceLock};

use becket_proto::der::Der;
use becket_proto::private_key::SecretNumbers;
use rustls::crypto::aws_lc_rs::sign::{any_ecdsa_type, any_eddsa_type, any_supported_type};
use rustls::pki_types::alg_id::{ECDSA_P256, ECDSA_P384, ECDSA_P521, ED25519, RSA_ENCRYPTION};
use rustls::pki_types::{PrivateKeyDer, SubjectPublicKeyInfoDer};
use rustls::sign::{Signer, SigningKey};
use rustls::{Error, SignatureAlgorithm, SignatureScheme, SignatureScheme as Scheme};
use zeroize::Zeroizing;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredKind {
    P256,
    P384,
    P521,
    Ed25519,
    Rsa,
}

impl StoredKind {
    /// Returns the kind of a public key, a `SubjectPublicKeyInfo`. Returns `None` for another kind,
    /// whose keys must be parsed when they are loaded.
    pub fn of(public: &[u8]) -> Option<Self> {
        let algorithm = Der::new(public).sequence()?.element(SEQUENCE)?;
        let known = [
            (ECDSA_P256, Self::P256),
            (ECDSA_P384, Self::P384),
            (ECDSA_P521, Self::P521),
            (ED25519, Self::Ed25519),
            (RSA_ENCRYPTION, Self::Rsa),
        ];
        let mut known = known.into_iter();
        let found = known.find(|(of, _)| of.as_ref() == algorithm);
        found.map(|(_, kind)| kind)
    }

    pub fn algorithm(self) -> SignatureAlgorithm {
        match self {
            Self::P256 | Self::P384 | Self::P521 => SignatureAlgorithm::ECDSA,
            Self::Ed25519 => SignatureAlgorithm::ED25519,
            Self::Rsa => SignatureAlgorithm::RSA,
        }
    }

    /// Returns the signature schemes of the kind in the order in which rustls prefers them.
    pub fn schemes(self) -> &'static [SignatureScheme] {
        match self {
            Self::P256 => &[Scheme::ECDSA_NISTP256_SHA256],
            Self::P384 => &[Scheme::ECDSA_NISTP384_SHA384],
            Self::P521 => &[Scheme::ECDSA_NISTP521_SHA512],
            Self::Ed25519 => &[Scheme::ED25519],
            Self::Rsa => &[
                Scheme::RSA_PSS_SHA512,
                Scheme::RSA_PSS_SHA384,
                Scheme::RSA_PSS_SHA256,
                Scheme::RSA_PKCS1_SHA512,
                Scheme::RSA_PKCS1_SHA384,
                Scheme::RSA_PKCS1_SHA256,
            ],
        }
    }
}

#[derive(Clone, PartialEq, Eq)]
pub struct StoredKey {
    pub kind: StoredKind,
    encoding: KeyEncoding,
    bytes: Zeroizing<Box<[u8]>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyEncoding {
    /// The number of a P-256 key.
    Scalar,
    Pkcs8,
    Sec1,
    Pkcs1,
}

impl StoredKey {
    pub fn new(kind: StoredKind, der: &PrivateKeyDer<'_>) -> Self {
        let (encoding, numbers) = match der {
            PrivateKeyDer::Pkcs1(_) => (KeyEncoding::Pkcs1, None),
            PrivateKeyDer::Sec1(key) => (
                KeyEncoding::Sec1,
                SecretNumbers::of_sec1(key.secret_sec1_der()),
            ),
            _ => (
                KeyEncoding::Pkcs8,
                SecretNumbers::of_pkcs8(der.secret_der()),
            ),
        };
        if let (StoredKind::P256, Some(SecretNumbers::Ecdsa(number))) = (kind, numbers)
            && let Some(zeros) = SCALAR.checked_sub(number.len())
        {
            let mut bytes = Zeroizing::new(vec![0; SCALAR].into_boxed_slice());
            for (to, from) in bytes.iter_mut().skip(zeros).zip(number) {
                *to = *from;
            }
            return Self {
                kind,
                encoding: KeyEncoding::Scalar,
                bytes,
            };
        }
        Self {
            kind,
            encoding,
            bytes: Zeroizing::new(der.secret_der().into()),
        }
    }

    pub(super) fn of_parts(kind: StoredKind, encoding: KeyEncoding, bytes: &[u8]) -> Self {
        Self {
            kind,
            encoding,
            bytes: Zeroizing::new(bytes.into()),
        }
    }

    pub(super) fn parts(&self) -> (KeyEncoding, &[u8]) {
        (self.encoding, &self.bytes)
    }

    /// Parses the key. AWS-LC checks that its numbers fit.
    ///
    /// # Errors
    /// Fails if the key cannot be used.
    pub fn parse(&self) -> Result<Arc<dyn SigningKey>, Error> {
        let bytes = self.bytes.to_vec();
        let der = Zeroizing::new(match self.encoding {
            KeyEncoding::Scalar => {
                let mut whole = Vec::with_capacity(P256_PKCS8.len() + SCALAR);
                whole.extend_from_slice(&P256_PKCS8);
                whole.extend_from_slice(&Zeroizing::new(bytes));
                PrivateKeyDer::Pkcs8(whole.into())
            }
            KeyEncoding::Pkcs8 => PrivateKeyDer::Pkcs8(bytes.into()),
            KeyEncoding::Sec1 => PrivateKeyDer::Sec1(bytes.into()),
            KeyEncoding::Pkcs1 => PrivateKeyDer::Pkcs1(bytes.into()),
        });
        parse(self.kind, &der)
    }
}

/// Parses a key of a known kind. `any_supported_type` would parse it as each kind.
///
/// # Errors
/// Fails if the key cannot be used.
pub fn parse(kind: StoredKind, der: &PrivateKeyDer<'_>) -> Result<Arc<dyn SigningKey>, Error> {
    match (kind, der) {
        (StoredKind::P256 | StoredKind::P384 | StoredKind::P521, _) => any_ecdsa_type(der),
        (StoredKind::Ed25519, PrivateKeyDer::Pkcs8(key)) => any_eddsa_type(key),
        _ => any_supported_type(der),
    }
}

/// Omits the key from the output.
impl fmt::Debug for StoredKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "StoredKey({:?})", self.kind)
    }
}

/// A key that is parsed at its first signature. Clones share the parsed key.
#[derive(Clone, Debug)]
pub struct LazyKey(Arc<LazyState>);

#[derive(Debug)]
struct LazyState {
    stored: StoredKey,
    parsed: OnceLock<Result<Arc<dyn SigningKey>, Error>>,
}

impl LazyKey {
    pub fn new(stored: StoredKey) -> Self {
        let parsed = OnceLock::new();
        Self(Arc::new(LazyState { stored, parsed }))
    }

    /// Returns the parsed key. If several threads need it first, one parses and the others wait.
    fn parsed(&self) -> Result<&Arc<dyn SigningKey>, Error> {
        let parsed = self.0.parsed.get_or_init(|| self.0.stored.parse());
        parsed.as_ref().map_err(Clone::clone)
    }
}

impl SigningKey for LazyKey {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        if let Some(Ok(key)) = self.0.parsed.get() {
            return key.choose_scheme(offered);
        }
        let mut schemes = self.0.stored.kind.schemes().iter();
        let scheme = *schemes.find(|scheme| offered.contains(scheme))?;
        let key = self.clone();
        Some(Box::new(LazySigner { key, scheme }))
    }

    fn public_key(&self) -> Option<SubjectPublicKeyInfoDer<'_>> {
        self.parsed().ok()?.public_key()
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        self.0.stored.kind.algorithm()
    }
}

#[derive(Debug)]
struct LazySigner {
    key: LazyKey,
    scheme: SignatureScheme,
}

impl Signer for LazySigner {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        let signer = self.key.parsed()?.choose_scheme(&[self.scheme]);
        let signer = signer.ok_or_else(|| Error::General("the key lacks the scheme".into()))?;
        signer.sign(message)
    }

    fn scheme(&self) -> SignatureScheme {
        self.scheme
    }
}

const SEQUENCE: u8 = 0x30;
/// Length in bytes of the number of a P-256 key.
const SCALAR: usize = 32;
/// A PKCS#8 key for P-256 without its public key (RFC 5208 and 5915), up to the number.
const P256_PKCS8: [u8; 35] = [
    0x30, 0x41, 0x02, 0x01, 0x00, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01,
    0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x04, 0x27, 0x30, 0x25, 0x02, 0x01,
    0x01, 0x04, 0x20,
];

#[cfg(test)]
mod tests {
    use rcgen::{KeyPair, PublicKeyData};

    use super::*;

    fn pairs() -> Vec<(StoredKind, KeyPair)> {
        let of = |kind| KeyPair::generate_for(kind).unwrap();
        vec![
            (StoredKind::P256, of(&rcgen::PKCS_ECDSA_P256_SHA256)),
            (StoredKind::P384, of(&rcgen::PKCS_ECDSA_P384_SHA384)),
            (StoredKind::P521, of(&rcgen::PKCS_ECDSA_P521_SHA512)),
            (StoredKind::Ed25519, of(&rcgen::PKCS_ED25519)),
            (StoredKind::Rsa, of(&rcgen::PKCS_RSA_SHA256)),
        ]
    }

    #[test]
    fn a_stored_key_is_parsed_as_the_original_and_prefers_the_same_schemes() {
        for (kind, pair) in pairs() {
            let der = PrivateKeyDer::Pkcs8(pair.serialize_der().into());
            let public = pair.subject_public_key_info();
            assert_eq!(StoredKind::of(&public), Some(kind));
            let original = any_supported_type(&der).unwrap();
            let key = LazyKey::new(StoredKey::new(kind, &der));
            assert_eq!(key.algorithm(), original.algorithm());
            for offered in [kind.schemes(), &kind.schemes()[kind.schemes().len() - 1..]] {
                let expected = original.choose_scheme(offered).unwrap().scheme();
                assert_eq!(key.choose_scheme(offered).unwrap().scheme(), expected);
            }
            assert!(key.choose_scheme(&[Scheme::ECDSA_SHA1_Legacy]).is_none());
            let signer = key.choose_scheme(kind.schemes()).unwrap();
            assert!(key.0.parsed.get().is_none());
            signer.sign(b"message").unwrap();
            assert!(key.0.parsed.get().is_some());
            assert_eq!(key.public_key().unwrap().as_ref(), public);
        }
    }

    #[test]
    fn a_p256_key_takes_32_bytes_in_each_encoding() {
        for _ in 0..8 {
            let pair = KeyPair::generate().unwrap();
            let der = PrivateKeyDer::Pkcs8(pair.serialize_der().into());
            let stored = StoredKey::new(StoredKind::P256, &der);
            assert_eq!(stored.bytes.len(), 32);
            let mut fields = Der::new(der.secret_der()).sequence().unwrap();
            fields.unsigned().unwrap();
            fields.sequence().unwrap();
            let sec1 = PrivateKeyDer::Sec1(fields.octets().unwrap().to_vec().into());
            assert!(StoredKey::new(StoredKind::P256, &sec1) == stored);
            let parsed = stored.parse().unwrap();
            let public = parsed.public_key().unwrap();
            assert_eq!(public.as_ref(), pair.subject_public_key_info());
        }
    }

    #[test]
    fn an_unusable_key_fails_at_its_first_signature() {
        let der = PrivateKeyDer::Pkcs8(vec![0x30, 0].into());
        let key = LazyKey::new(StoredKey::new(StoredKind::P384, &der));
        let signer = key.choose_scheme(StoredKind::P384.schemes()).unwrap();
        signer.sign(b"message").unwrap_err();
    }
}
