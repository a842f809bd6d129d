//! Limits on the certificate chain of a client or server, checked before webpki searches for a
//! path.
//!
//! webpki searches depth first from the leaf to a CA, and parses *all* certificates of the chain
//! again at each step. Its limits on steps (200 000) and signature checks (100) do not bound the
//! parsing. So a chain of nine large certificates that name each other costs seconds.
//!
//! This module parses each certificate once, and rejects a chain if the search could become long.
//! For an accepted chain, webpki receives only certificates on a possible path from the leaf. Its
//! search then takes at most [`MOST_STEPS`] steps and parses at most 234 certificates.
//!
//! Source: RFC 5280 section 6; rustls-webpki 0.103.16, `verify_cert.rs`, `build_chain_inner`.

use std::sync::Arc;

use becket_config::process::LimitsSection;
use rustls::pki_types::{CertificateDer, TrustAnchor};
use rustls::{CertificateError, Error, OtherError};
use webpki::EndEntityCert;

use super::engine::Overfull;
use super::names;
use crate::scratch::LARGEST_RECORD;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Excess {
    #[error("the chain has {shown} bytes, limits.certificate-chain is {most}")]
    Bytes { shown: usize, most: usize },
    #[error(
        "the chain has {shown} intermediate certificates, limits.chain-intermediates is {most}"
    )]
    Intermediates { shown: usize, most: usize },
    #[error(
        "more than {0} intermediate certificates have the same subject (limits.chain-same-subject)"
    )]
    OneSubject(usize),
}

/// Checks the limits on a chain. Returns the intermediate certificates that may be on a path from
/// the leaf: those with the name of the leaf's issuer, then with the names of their issuers.
/// Certificates with the same subject keep their order.
///
/// # Errors
///
/// Returns [`Excess`] as a rustls error for which rustls sends an alert; [`is_excess`] recognizes
/// that error.
pub fn usable<'a>(
    leaf: &CertificateDer<'_>,
    intermediates: &'a [CertificateDer<'_>],
    most: LimitsSection,
) -> Result<Vec<CertificateDer<'a>>, Error> {
    if let Some(excess) = too_long(leaf, intermediates, most) {
        return Err(refused(excess));
    }
    // Certificates that do not parse are skipped, as webpki does.
    let parsed = intermediates.iter().map(EndEntityCert::try_from);
    let parsed: Vec<_> = parsed.filter_map(Result::ok).collect();
    let alike = |one: &EndEntityCert<'_>| {
        let same = |other: &&EndEntityCert<'_>| other.subject() == one.subject();
        parsed.iter().filter(same).count()
    };
    if parsed
        .iter()
        .any(|one| alike(one) > most.chain_same_subject)
    {
        return Err(refused(Excess::OneSubject(most.chain_same_subject)));
    }
    // If the leaf does not parse, webpki rejects it without a search.
    let Ok(leaf) = EndEntityCert::try_from(leaf) else {
        return Ok(Vec::new());
    };
    Ok(reachable(leaf.issuer(), &parsed))
}

/// Returns the certificates that can be reached from the leaf by issuer name, each at most once.
fn reachable<'a>(first: &[u8], parsed: &[EndEntityCert<'a>]) -> Vec<CertificateDer<'a>> {
    let (mut found, mut left): (Vec<_>, Vec<_>) =
        (parsed.iter()).partition(|one| one.subject() == first);
    let mut next = 0;
    while let Some(issuer) = found.get(next).map(|one| one.issuer()) {
        let (issuers, others) = (left.into_iter()).partition(|one| one.subject() == issuer);
        found.extend::<Vec<_>>(issuers);
        left = others;
        next += 1;
    }
    found.into_iter().map(|one| one.der()).collect()
}

fn too_long(
    leaf: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
    most: LimitsSection,
) -> Option<Excess> {
    let shown = leaf.len() + intermediates.iter().map(|one| one.len()).sum::<usize>();
    if shown > most.certificate_chain {
        let most = most.certificate_chain;
        return Some(Excess::Bytes { shown, most });
    }
    let (shown, most) = (intermediates.len(), most.chain_intermediates);
    (shown > most).then_some(Excess::Intermediates { shown, most })
}

fn refused(excess: Excess) -> Error {
    let cause = OtherError(Arc::new(excess));
    Error::InvalidCertificate(CertificateError::Other(cause))
}

/// Returns `true` if a peer was rejected for the size of its chain: by [`usable`], or because its
/// message did not fit into the engine.
pub fn is_excess(error: &Error) -> bool {
    match error {
        Error::InvalidCertificate(CertificateError::Other(OtherError(cause))) => {
            cause.is::<Excess>()
        }
        Error::Other(OtherError(cause)) => cause.is::<Overfull>(),
        _ => false,
    }
}

/// Returns `true` if a certificate was rejected only because its X.509 version is lower than 3.
pub fn is_of_old_version(error: &Error) -> bool {
    let Error::InvalidCertificate(CertificateError::Other(OtherError(cause))) = error else {
        return false;
    };
    matches!(
        cause.downcast_ref(),
        Some(webpki::Error::UnsupportedCertVersion)
    )
}

/// Describes a TLS error in words, including certificate errors of webpki that rustls does not
/// describe.
pub fn explain(error: &Error) -> String {
    let fault = match error {
        Error::AlertReceived(alert) => {
            return format!("the peer sent alert {}", names::alert(*alert));
        }
        Error::InvalidCertificate(fault) => fault,
        other => return in_words(other),
    };
    match fault {
        CertificateError::Other(OtherError(cause)) => {
            if let Some(excess) = cause.downcast_ref::<Excess>() {
                return format!("invalid peer certificate: {excess}");
            }
            if let Some(webpki::Error::UnsupportedCertVersion) = cause.downcast_ref() {
                return format!("invalid peer certificate: {VERSION_1}");
            }
        }
        CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext {
            public_key_algorithm_id,
            ..
        } if public_key_algorithm_id.starts_with(&RSASSA_PSS) => {
            return format!("invalid peer certificate: {PSS_KEY}");
        }
        CertificateError::ApplicationVerificationFailure => {
            return "the client's certificate has none of policy.client-names".to_owned();
        }
        _ => {}
    }
    in_words(error)
}

/// Formats an error. If the text of rustls ends with the name of an enum variant, splits that name
/// into words.
fn in_words(error: &Error) -> String {
    let text = error.to_string();
    match text.rsplit_once(' ') {
        Some((rest, cause)) if cause.bytes().all(|byte| byte.is_ascii_alphabetic()) => {
            format!("{rest} {}", names::words(cause, ' '))
        }
        _ => text,
    }
}

/// Returns `true` if a CA's key is restricted to RSASSA-PSS. Signatures of such a key cannot be
/// verified.
pub fn is_useless(authority: &TrustAnchor<'_>) -> bool {
    // Skips the two-byte header of the outer SEQUENCE, which is shorter than 128 bytes.
    let algorithm = authority.subject_public_key_info.get(2..);
    algorithm.is_some_and(|algorithm| algorithm.starts_with(&RSASSA_PSS))
}

/// Returns the maximum size in bytes of an unfinished message or record in an engine, if a chain
/// may have `most_bytes` bytes.
pub fn most_held(most_bytes: usize) -> usize {
    LARGEST_RECORD.max(most_bytes + FRAMING)
}

/// Maximum number of steps in webpki's search. The worst case is three names with two certificates
/// each, which results in 2 + 4 + 8 + 8 + 8 + 8 partial paths. A test checks this for all chains.
pub const MOST_STEPS: usize = 38;
const VERSION_1: &str = "X.509 version 1 is not supported; use a certificate of version 3";
const PSS_KEY: &str = "keys restricted to RSASSA-PSS are not supported; use an rsaEncryption key, which can sign with PSS, too";
/// OID of public keys restricted to RSASSA-PSS: 1.2.840.113549.1.1.10 in DER (RFC 4055, section
/// 1.2).
const RSASSA_PSS: [u8; 11] = [6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0a];
/// Additional bytes of a message with a chain: lengths, record headers, and TLS 1.3 certificate
/// extensions with an OCSP response.
const FRAMING: usize = 4 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    /// Maximum value of `limits.chain-intermediates`.
    const MOST_INTERMEDIATES: usize = 6;

    /// A chain in webpki's search: the numbers of subject and issuer for each certificate. Number 0
    /// is the issuer name of the leaf.
    type Chain = Vec<(usize, usize)>;

    /// Counts the steps of a search without a valid path, as in `build_chain_inner`.
    fn steps(chain: &Chain, wanted: usize, path: &mut Vec<usize>) -> usize {
        let mut made = 0;
        for (at, (subject, issuer)) in chain.iter().enumerate() {
            if *subject == wanted && !path.contains(&at) {
                if path.len() == MOST_INTERMEDIATES {
                    made += 1;
                    continue;
                }
                path.push(at);
                made += 1 + steps(chain, *issuer, path);
                path.pop();
            }
        }
        made
    }

    /// Calls `with` for every list of `len` numbers below `base`.
    fn every(base: usize, len: usize, mut with: impl FnMut(&[usize])) {
        for mut code in 0..base.pow(len as u32) {
            let digits = (0..len).map(|_| {
                let digit = code % base;
                code /= base;
                digit
            });
            with(&digits.collect::<Vec<_>>());
        }
    }

    #[test]
    fn accepted_chains_never_need_more_steps_than_stated() {
        let mut most = 0;
        for names in 1..=MOST_INTERMEDIATES {
            // Subjects in ascending order; the first ones occur twice if there is room.
            let doubles = MOST_INTERMEDIATES - names;
            if doubles > names {
                continue;
            }
            let subjects =
                (0..names).flat_map(|name| [name].repeat(1 + usize::from(name < doubles)));
            let subjects: Vec<usize> = subjects.collect();
            every(names, MOST_INTERMEDIATES, |issuers| {
                let chain = subjects.iter().copied().zip(issuers.iter().copied());
                let chain = chain.collect();
                for leaf in 0..names {
                    most = most.max(steps(&chain, leaf, &mut Vec::new()));
                }
            });
        }
        assert_eq!(most, MOST_STEPS);
    }

    #[test]
    fn errors_of_webpki_are_explained() {
        let certificate = include_bytes!("../../proto/testdata/client_certificate/x509-v1.der");
        let version = EndEntityCert::try_from(&certificate[..].into()).err();
        let version = OtherError(Arc::new(version.expect("version 1 is not parsed")));
        let version = CertificateError::Other(version);

        let certificate = include_bytes!("../../proto/testdata/client_certificate/rsassa-pss.der");
        let certificate = certificate[..].into();
        let key = EndEntityCert::try_from(&certificate).expect("version 3 is parsed");
        let by = webpki::aws_lc_rs::RSA_PSS_2048_8192_SHA256_LEGACY_KEY;
        let Err(webpki::Error::UnsupportedSignatureAlgorithmForPublicKeyContext(context)) =
            key.verify_signature(by, b"", b"")
        else {
            panic!("webpki accepts keys restricted to RSASSA-PSS now");
        };
        let key = CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext {
            signature_algorithm_id: context.signature_algorithm_id,
            public_key_algorithm_id: context.public_key_algorithm_id,
        };
        for (error, said) in [(version, "version 1"), (key, "restricted to RSASSA-PSS")] {
            let text = explain(&Error::InvalidCertificate(error));
            assert!(text.contains(said), "{text}");
        }
    }

    #[test]
    fn an_authority_restricted_to_pss_is_detected_by_its_key() {
        let authority = |key: &[u8]| TrustAnchor {
            subject: [0; 2].as_slice().into(),
            subject_public_key_info: key.to_vec().into(),
            name_constraints: None,
        };
        let alone = [&[0x30, 13], &RSASSA_PSS[..], &[5, 0, 3, 2, 0, 0]].concat();
        assert!(is_useless(&authority(&alone)));
        let mut any = alone;
        // The OID of rsaEncryption.
        any[12] = 1;
        assert!(!is_useless(&authority(&any)));
        assert!(!is_useless(&authority(&[])));
    }

    #[test]
    fn nine_identical_intermediates_require_260_649_steps() {
        let alike = vec![(0, 0); 9];
        assert_eq!(steps(&alike, 0, &mut Vec::new()), 260_649);
    }
}
