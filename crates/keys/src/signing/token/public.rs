//! The public half of a key on a token, from its certificate: which schemes it signs with, what is sent to be signed, and
//! whether the token has the other half.

use aws_lc_rs::digest;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::{SignatureAlgorithm, SignatureScheme};
use rustls_pki_types::SubjectPublicKeyInfoDer;
use x509_parser::prelude::FromDer;
use x509_parser::x509::SubjectPublicKeyInfo;

use super::wire::Mechanisms;

/// A public key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicKey {
    info: Vec<u8>,
    bits: Vec<u8>,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Rsa,
    P256,
    P384,
    Ed25519,
}

impl PublicKey {
    /// Reads the `SubjectPublicKeyInfo` of a certificate. Nothing for a kind that tokens are not asked to sign with.
    pub fn of(info: &[u8]) -> Option<Self> {
        let (_, parsed) = SubjectPublicKeyInfo::from_der(info).ok()?;
        let curve = || parsed.algorithm.parameters.as_ref()?.as_oid().ok();
        let curve = curve().map(|curve| curve.to_id_string());
        let algorithm = parsed.algorithm.algorithm.to_id_string();
        let kind = match (algorithm.as_str(), curve.as_deref()) {
            ("1.2.840.113549.1.1.1", _) => Kind::Rsa,
            ("1.2.840.10045.2.1", Some("1.2.840.10045.3.1.7")) => Kind::P256,
            ("1.2.840.10045.2.1", Some("1.3.132.0.34")) => Kind::P384,
            ("1.3.101.112", _) => Kind::Ed25519,
            _ => return None,
        };
        Some(Self {
            info: info.to_vec(),
            bits: parsed.subject_public_key.data.to_vec(),
            kind,
        })
    }

    /// As a certificate has it.
    pub(super) fn info(&self) -> SubjectPublicKeyInfoDer<'_> {
        self.info.as_slice().into()
    }

    pub(super) fn algorithm(&self) -> SignatureAlgorithm {
        match self.kind {
            Kind::Rsa => SignatureAlgorithm::RSA,
            Kind::P256 | Kind::P384 => SignatureAlgorithm::ECDSA,
            Kind::Ed25519 => SignatureAlgorithm::ED25519,
        }
    }

    /// What a token with these mechanisms signs with this key, best first.
    pub(super) fn schemes(&self, mechanisms: Mechanisms) -> Vec<SignatureScheme> {
        use SignatureScheme as Scheme;
        let all: &[(SignatureScheme, Mechanisms)] = match self.kind {
            Kind::Rsa => &[
                (Scheme::RSA_PSS_SHA512, Mechanisms::RSA_PSS),
                (Scheme::RSA_PSS_SHA384, Mechanisms::RSA_PSS),
                (Scheme::RSA_PSS_SHA256, Mechanisms::RSA_PSS),
                (Scheme::RSA_PKCS1_SHA512, Mechanisms::RSA_PKCS1),
                (Scheme::RSA_PKCS1_SHA384, Mechanisms::RSA_PKCS1),
                (Scheme::RSA_PKCS1_SHA256, Mechanisms::RSA_PKCS1),
            ],
            Kind::P256 => &[(Scheme::ECDSA_NISTP256_SHA256, Mechanisms::ECDSA)],
            Kind::P384 => &[(Scheme::ECDSA_NISTP384_SHA384, Mechanisms::ECDSA)],
            Kind::Ed25519 => &[(Scheme::ED25519, Mechanisms::EDDSA)],
        };
        let had = all.iter().filter(|(_, needs)| mechanisms.has(*needs));
        had.map(|(scheme, _)| *scheme).collect()
    }

    /// Whether this is a signature of the message by the other half.
    pub(super) fn verifies(
        &self,
        scheme: SignatureScheme,
        message: &[u8],
        signature: &[u8],
    ) -> bool {
        let known = default_provider().signature_verification_algorithms;
        let fit = known.mapping.iter().filter(|(of, _)| *of == scheme);
        fit.flat_map(|(_, algorithms)| *algorithms)
            .any(|algorithm| {
                algorithm
                    .verify_signature(&self.bits, message, signature)
                    .is_ok()
            })
    }
}

/// What is sent to have a message signed: its digest, or itself where the scheme has no digest of its own.
pub(super) fn input(scheme: SignatureScheme, message: &[u8]) -> Vec<u8> {
    use SignatureScheme as Scheme;
    let algorithm = match scheme {
        Scheme::ED25519 => return message.to_vec(),
        Scheme::RSA_PSS_SHA512 | Scheme::RSA_PKCS1_SHA512 => &digest::SHA512,
        Scheme::RSA_PSS_SHA384 | Scheme::RSA_PKCS1_SHA384 | Scheme::ECDSA_NISTP384_SHA384 => {
            &digest::SHA384
        }
        _ => &digest::SHA256,
    };
    digest::digest(algorithm, message).as_ref().to_vec()
}
