//! Algorithm names of the server's certificate for the PROXY header: its signature algorithm and
//! its kind of key.
//!
//! Computed when certificates are loaded. Source: HAProxy's proxy-protocol.txt, section 2.2.6, with
//! the examples `SHA256` and `RSA2048`.

use rustls::pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::public_key::PublicKey;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Presented {
    /// Hash or algorithm of the certificate's signature, such as `SHA256`; `None` if the algorithm
    /// is unknown.
    pub signature: Option<&'static str>,
    /// Kind and size of the key, such as `RSA2048` or `EC256`.
    pub key: Option<Box<str>>,
}

impl Presented {
    pub fn of(leaf: &CertificateDer<'_>) -> Self {
        let Ok((_, leaf)) = X509Certificate::from_der(leaf) else {
            return Self::default();
        };
        Self {
            signature: signature(&leaf.signature_algorithm.algorithm.to_id_string()),
            key: key(&leaf).map(Box::from),
        }
    }
}

fn key(leaf: &X509Certificate<'_>) -> Option<String> {
    match leaf.public_key().parsed() {
        Ok(PublicKey::RSA(key)) => Some(format!("RSA{}", key.key_size())),
        // The parser rounds P-521 up to whole bytes: 66 bytes, or 528 bits.
        Ok(PublicKey::EC(key)) if key.key_size() == 528 => Some("EC521".to_owned()),
        Ok(PublicKey::EC(key)) => Some(format!("EC{}", key.key_size())),
        _ => without_hash(&leaf.public_key().algorithm.algorithm.to_id_string()).map(str::to_owned),
    }
}

/// Returns the name of the hash, or of the algorithm if it implies its hash. `id` is an OID.
fn signature(id: &str) -> Option<&'static str> {
    Some(match id {
        "1.2.840.113549.1.1.5" | "1.2.840.10045.4.1" => "SHA1",
        "1.2.840.113549.1.1.11" | "1.2.840.10045.4.3.2" => "SHA256",
        "1.2.840.113549.1.1.12" | "1.2.840.10045.4.3.3" => "SHA384",
        "1.2.840.113549.1.1.13" | "1.2.840.10045.4.3.4" => "SHA512",
        "1.2.840.113549.1.1.10" => "RSASSA-PSS",
        _ => return without_hash(id),
    })
}

/// Returns the name of an algorithm whose keys sign in one way only.
fn without_hash(id: &str) -> Option<&'static str> {
    Some(match id {
        "1.3.101.112" => "ED25519",
        "2.16.840.1.101.3.4.3.17" => "ML-DSA-44",
        "2.16.840.1.101.3.4.3.18" => "ML-DSA-65",
        "2.16.840.1.101.3.4.3.19" => "ML-DSA-87",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn presented(algorithm: &'static rcgen::SignatureAlgorithm) -> (Option<&'static str>, String) {
        let key = rcgen::KeyPair::generate_for(algorithm).unwrap();
        let params = rcgen::CertificateParams::new(["a.test".to_owned()]).unwrap();
        let presented = Presented::of(params.self_signed(&key).unwrap().der());
        (presented.signature, presented.key.unwrap().into())
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

    #[test]
    fn an_unparsable_certificate_has_no_algorithm_names() {
        let presented = Presented::of(&CertificateDer::from(vec![0x30, 3, 1]));
        assert_eq!((presented.signature, presented.key), (None, None));
    }
}
