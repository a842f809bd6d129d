//! The digest of a policy, which separates sessions.
//!
//! A session or ticket is bound to the digest of the policy that created it, and is rejected under
//! another digest. For example, a session that was created without a client certificate cannot be
//! resumed for a server name that requires one (nginx CVE-2025-23419).
//!
//! The digest covers the policy's name, the mode and CAs of client authentication, and the extended
//! master secret. It excludes properties that may differ between hosts that share sessions:
//! addresses, certificates, ALPN, revocation lists.

use becket_config::choices::{ClientCertificates, ClientTrust};
use becket_config::suites::{KeyExchangeGroup, ServedVersion};
use rustls::crypto::SupportedKxGroup;
use rustls::crypto::aws_lc_rs::ALL_KX_GROUPS;
use rustls::{RootCertStore, SupportedProtocolVersion, version};
use rustls_pki_types::{CertificateDer, CertificateRevocationListDer, TrustAnchor};

use becket_keys::digest::digest as encode;

/// Computes SHA-256 over the parts, each preceded by its length as a big-endian u64. The CAs are
/// represented by the sorted digests of their names and keys.
pub fn digest(
    name: &str,
    (asked, trust): (ClientCertificates, ClientTrust),
    roots: &RootCertStore,
    require_ems: bool,
) -> [u8; 32] {
    let mode = match asked {
        ClientCertificates::Off => "off",
        ClientCertificates::Optional => "optional",
        ClientCertificates::Required => "required",
    };
    let authorities = authorities(roots);
    let mut parts: Vec<&[u8]> = vec![b"becket policy 1", name.as_bytes(), mode.as_bytes()];
    if trust == ClientTrust::Certificates {
        // This part is added only if `client-trust` is `certificates`, so that all other policies
        // have the same digests as in earlier versions.
        parts.push(b"certificates");
    }
    let ems: &[u8] = if require_ems { b"ems" } else { b"" };
    parts.push(ems);
    parts.extend(authorities.iter().map(<[u8; 32]>::as_slice));
    encode(&parts)
}

/// Returns the sorted, distinct digests of the names and keys of a set of CAs.
pub fn authorities(roots: &RootCertStore) -> Vec<[u8; 32]> {
    let digest = |anchor: &TrustAnchor<'_>| {
        let constraints = anchor.name_constraints.as_ref();
        encode(&[
            &anchor.subject,
            &anchor.subject_public_key_info,
            constraints.map_or(&[], |der| der),
        ])
    };
    let mut authorities: Vec<[u8; 32]> = roots.roots.iter().map(digest).collect();
    authorities.sort_unstable();
    authorities.dedup();
    authorities
}

/// Computes SHA-256 over the contents of the files that determine the accepted certificates: CAs,
/// listed certificates, revocation lists.
pub fn contents(
    roots: &RootCertStore,
    certificates: &[CertificateDer<'_>],
    lists: &[CertificateRevocationListDer<'_>],
) -> [u8; 32] {
    let authorities = authorities(roots);
    let counts = [authorities.len(), certificates.len()].map(|count| (count as u64).to_be_bytes());
    let authorities = authorities.iter().map(<[u8; 32]>::as_slice);
    let lists = lists.iter().map(AsRef::as_ref);
    let parts = authorities
        .chain(certificates.iter().map(AsRef::as_ref))
        .chain(lists)
        .chain(counts.iter().map(<[u8; 8]>::as_slice));
    encode(&parts.collect::<Vec<_>>())
}

/// Converts the configured versions to those of rustls, highest first.
pub fn versions(listed: &[ServedVersion]) -> Vec<&'static SupportedProtocolVersion> {
    let tls13 = (ServedVersion::Tls13, &version::TLS13);
    let both = [tls13, (ServedVersion::Tls12, &version::TLS12)].into_iter();
    let allowed = both.filter(|(version, _)| listed.contains(version));
    allowed.map(|(_, version)| version).collect()
}

/// Converts the configured groups to those of rustls, in the same order.
pub fn groups(listed: &[KeyExchangeGroup]) -> Vec<&'static dyn SupportedKxGroup> {
    let known = |number| {
        ALL_KX_GROUPS
            .iter()
            .find(|one| u16::from(one.name()) == number)
    };
    let groups = listed.iter().filter_map(|group| known(*group as u16));
    groups.copied().collect()
}

#[cfg(test)]
mod tests {
    use becket_config::policy::Policy;

    use super::*;

    #[test]
    fn name_mode_and_ems_each_change_the_digest() {
        let of = |name, asked, ems| {
            let asked = (asked, ClientTrust::Authorities);
            digest(name, asked, &RootCertStore::empty(), ems)
        };
        let all = [
            of("a", ClientCertificates::Off, false),
            of("b", ClientCertificates::Off, false),
            of("a", ClientCertificates::Off, true),
            of("a", ClientCertificates::Optional, false),
            of("a", ClientCertificates::Required, false),
        ];
        for (i, one) in all.iter().enumerate() {
            assert!(!all[..i].contains(one), "digest {i} repeats an earlier one");
        }
    }

    #[test]
    fn every_configurable_group_is_supported() {
        let all = Policy::default().groups;
        assert_eq!(groups(&all).len(), all.len());
    }
}
