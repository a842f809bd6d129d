//! Public part of a key on a token, from its certificate, and the signature schemes that tokens
//! support.

use aws_lc_rs::digest::{Algorithm, SHA256, SHA384, SHA512};
use cryptoki::mechanism::MechanismType;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::sign::public_key_to_spki;
use rustls::{SignatureAlgorithm, SignatureScheme, SignatureScheme as Scheme};
use rustls_pki_types::alg_id::{
    ECDSA_P256 as P256, ECDSA_P384 as P384, ED25519, RSA_ENCRYPTION as RSA,
};
use rustls_pki_types::{AlgorithmIdentifier, SubjectPublicKeyInfoDer};
use x509_parser::prelude::FromDer;
use x509_parser::x509::SubjectPublicKeyInfo;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicKey {
    kind: AlgorithmIdentifier,
    bits: Vec<u8>,
}

impl PublicKey {
    /// Parses the `SubjectPublicKeyInfo` of a certificate. Returns `None` for a kind of key that
    /// tokens do not support.
    pub fn of(info: &[u8]) -> Option<Self> {
        let (_, parsed) = SubjectPublicKeyInfo::from_der(info).ok()?;
        let bits = parsed.subject_public_key.data.to_vec();
        let mut kinds = SCHEMES.iter().map(|(_, kind, _)| *kind);
        let kind = kinds.find(|kind| public_key_to_spki(kind, &bits).as_ref() == info)?;
        Some(Self { kind, bits })
    }

    pub(super) fn info(&self) -> SubjectPublicKeyInfoDer<'static> {
        public_key_to_spki(&self.kind, &self.bits)
    }

    pub(super) fn algorithm(&self) -> SignatureAlgorithm {
        match self.kind {
            RSA => SignatureAlgorithm::RSA,
            ED25519 => SignatureAlgorithm::ED25519,
            _ => SignatureAlgorithm::ECDSA,
        }
    }

    /// Returns the schemes of this key that are in `supported`, most preferred first.
    pub(super) fn schemes(&self, supported: &[u16]) -> Vec<SignatureScheme> {
        let fit = SCHEMES.iter().filter(|(_, kind, _)| *kind == self.kind);
        let schemes = fit.map(|(scheme, ..)| *scheme);
        schemes
            .filter(|scheme| supported.contains(&u16::from(*scheme)))
            .collect()
    }

    pub(super) fn verifies(
        &self,
        scheme: SignatureScheme,
        message: &[u8],
        signature: &[u8],
    ) -> bool {
        let known = default_provider().signature_verification_algorithms;
        let fit = known.mapping.iter().filter(|(of, _)| *of == scheme);
        let mut algorithms = fit.flat_map(|(_, algorithms)| *algorithms);
        algorithms.any(|it| it.verify_signature(&self.bits, message, signature).is_ok())
    }
}

/// Returns the hash function for a scheme whose digest the token signs. Returns `None` if the token
/// signs the message itself.
pub(super) fn digest_of(scheme: SignatureScheme) -> Option<&'static Algorithm> {
    match scheme {
        Scheme::ED25519 => None,
        Scheme::RSA_PSS_SHA512 | Scheme::RSA_PKCS1_SHA512 => Some(&SHA512),
        Scheme::RSA_PSS_SHA384 | Scheme::RSA_PKCS1_SHA384 | Scheme::ECDSA_NISTP384_SHA384 => {
            Some(&SHA384)
        }
        _ => Some(&SHA256),
    }
}

/// Signature schemes that tokens support, each with its kind of key and its PKCS#11 mechanism. The
/// schemes for one kind of key are in order of preference.
pub(super) const SCHEMES: [(SignatureScheme, AlgorithmIdentifier, MechanismType); 9] = [
    (Scheme::RSA_PSS_SHA512, RSA, MechanismType::RSA_PKCS_PSS),
    (Scheme::RSA_PSS_SHA384, RSA, MechanismType::RSA_PKCS_PSS),
    (Scheme::RSA_PSS_SHA256, RSA, MechanismType::RSA_PKCS_PSS),
    (Scheme::RSA_PKCS1_SHA512, RSA, MechanismType::RSA_PKCS),
    (Scheme::RSA_PKCS1_SHA384, RSA, MechanismType::RSA_PKCS),
    (Scheme::RSA_PKCS1_SHA256, RSA, MechanismType::RSA_PKCS),
    (Scheme::ECDSA_NISTP256_SHA256, P256, MechanismType::ECDSA),
    (Scheme::ECDSA_NISTP384_SHA384, P384, MechanismType::ECDSA),
    (Scheme::ED25519, ED25519, MechanismType::EDDSA),
];
