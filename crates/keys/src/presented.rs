//! Algorithm names of the server's certificate for the PROXY header: its signature algorithm and
//! its kind of key.
//!
//! Computed when certificates are loaded. Source: HAProxy's proxy-protocol.txt, section 2.2.6, with
//! the examples `SHA256` and `RSA2048`.

use x509_parser::prelude::X509Certificate;
use x509_parser::public_key::PublicKey;

/// Four bytes, so that each certificate in memory can have them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Presented {
    signature: Option<Algorithm>,
    key: Option<Algorithm>,
    /// Size of an RSA or EC key.
    bits: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Algorithm {
    Sha1,
    Sha256,
    Sha384,
    Sha512,
    RsaPss,
    Ed25519,
    MlDsa44,
    MlDsa65,
    MlDsa87,
    Rsa,
    Ec,
}

impl Presented {
    pub fn of(leaf: &X509Certificate<'_>) -> Self {
        let signature = leaf.signature_algorithm.algorithm.to_id_string();
        let (key, bits) = match leaf.public_key().parsed() {
            Ok(PublicKey::RSA(key)) => (Some(Algorithm::Rsa), key.key_size()),
            // The parser rounds P-521 up to whole bytes: 66 bytes, or 528 bits.
            Ok(PublicKey::EC(key)) if key.key_size() == 528 => (Some(Algorithm::Ec), 521),
            Ok(PublicKey::EC(key)) => (Some(Algorithm::Ec), key.key_size()),
            _ => {
                let id = leaf.public_key().algorithm.algorithm.to_id_string();
                (without_hash(&id), 0)
            }
        };
        Self {
            signature: algorithm(&signature),
            key,
            bits: u16::try_from(bits).unwrap_or_default(),
        }
    }

    /// Returns the hash or algorithm of the certificate's signature, such as `SHA256`; `None` if the
    /// algorithm is unknown.
    pub fn signature(self) -> Option<&'static str> {
        self.signature.map(Algorithm::name)
    }

    /// Returns the kind and size of the key, such as `RSA2048` or `EC256`.
    pub fn key(self) -> Option<String> {
        let name = self.key?.name();
        Some(match self.bits {
            0 => name.to_owned(),
            bits => format!("{name}{bits}"),
        })
    }
}

impl Algorithm {
    fn name(self) -> &'static str {
        match self {
            Self::Sha1 => "SHA1",
            Self::Sha256 => "SHA256",
            Self::Sha384 => "SHA384",
            Self::Sha512 => "SHA512",
            Self::RsaPss => "RSASSA-PSS",
            Self::Ed25519 => "ED25519",
            Self::MlDsa44 => "ML-DSA-44",
            Self::MlDsa65 => "ML-DSA-65",
            Self::MlDsa87 => "ML-DSA-87",
            Self::Rsa => "RSA",
            Self::Ec => "EC",
        }
    }
}

/// Returns the hash of a signature, or the algorithm if it implies its hash. `id` is an OID.
fn algorithm(id: &str) -> Option<Algorithm> {
    Some(match id {
        "1.2.840.113549.1.1.5" | "1.2.840.10045.4.1" => Algorithm::Sha1,
        "1.2.840.113549.1.1.11" | "1.2.840.10045.4.3.2" => Algorithm::Sha256,
        "1.2.840.113549.1.1.12" | "1.2.840.10045.4.3.3" => Algorithm::Sha384,
        "1.2.840.113549.1.1.13" | "1.2.840.10045.4.3.4" => Algorithm::Sha512,
        "1.2.840.113549.1.1.10" => Algorithm::RsaPss,
        _ => return without_hash(id),
    })
}

/// Returns an algorithm whose keys sign in one way only.
fn without_hash(id: &str) -> Option<Algorithm> {
    Some(match id {
        "1.3.101.112" => Algorithm::Ed25519,
        "2.16.840.1.101.3.4.3.17" => Algorithm::MlDsa44,
        "2.16.840.1.101.3.4.3.18" => Algorithm::MlDsa65,
        "2.16.840.1.101.3.4.3.19" => Algorithm::MlDsa87,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts;

    fn presented(algorithm: &'static rcgen::SignatureAlgorithm) -> (Option<&'static str>, String) {
        let key = rcgen::KeyPair::generate_for(algorithm).unwrap();
        let params = rcgen::CertificateParams::new(["a.test".to_owned()]).unwrap();
        let signed = params.self_signed(&key).unwrap();
        let presented = Presented::of(&facts::certificate(signed.der()).unwrap());
        (presented.signature(), presented.key().unwrap())
    }

    #[test]
    fn certificates_are_named_by_their_algorithms() {
        for (algorithm, signature, key) in [
            (&rcgen::PKCS_ECDSA_P256_SHA256, "SHA256", "EC256"),
            (&rcgen::PKCS_ECDSA_P384_SHA384, "SHA384", "EC384"),
            (&rcgen::PKCS_ED25519, "ED25519", "ED25519"),
            (&rcgen::PKCS_ML_DSA_44, "ML-DSA-44", "ML-DSA-44"),
            (&rcgen::PKCS_ML_DSA_65, "ML-DSA-65", "ML-DSA-65"),
            (&rcgen::PKCS_ML_DSA_87, "ML-DSA-87", "ML-DSA-87"),
            (&rcgen::PKCS_RSA_SHA256, "SHA256", "RSA2048"),
        ] {
            assert_eq!(presented(algorithm), (Some(signature), key.to_owned()));
        }
    }
}
