//! The TLS client: versions, suites, groups, and no verification at all.
//!
//! In load mode certificates and signatures are **not verified**: that work is the client's and would
//! hide the server's. Key shares come from [`crate::key_share`]. What a real client would send is
//! sent, so that the server does the same work as for one.
//!
//! Each thread makes one [`Tls`], each slot one configuration from it, with its own session store.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, Tls12Resumption};
use rustls::crypto::{SupportedKxGroup, aws_lc_rs};
use rustls::{
    ClientConfig, DigitallySignedStruct, Error as TlsError, SignatureScheme, SupportedCipherSuite,
    SupportedProtocolVersion, version,
};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};

use crate::Error;
use crate::sessions::Sessions;
use crate::{key_share, negotiated, random};

/// How sessions may be resumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ResumeKind {
    /// Whatever the server gives.
    Any,
    /// TLS 1.2 session identifiers; no ticket is asked for.
    Id,
    /// TLS 1.2 tickets (RFC 5077); a session without one is not offered.
    Ticket,
    /// TLS 1.3 pre-shared keys.
    Psk,
}

/// TLS versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum TlsVersion {
    /// TLS 1.2.
    #[value(name = "1.2")]
    Tls12,
    /// TLS 1.3.
    #[value(name = "1.3")]
    Tls13,
}

/// What the client offers.
#[derive(Clone, Debug)]
pub struct TlsPlan {
    /// One version only; both when absent.
    pub version: Option<TlsVersion>,
    /// Suites in order of preference; the library's default when empty.
    pub suites: Vec<SupportedCipherSuite>,
    /// Groups in order of preference; the first one's share is sent.
    pub groups: Vec<&'static dyn SupportedKxGroup>,
    /// The name in SNI; absent when the target is an address and none was given.
    pub server_name: ServerName<'static>,
    /// ALPN protocols in order of preference.
    pub alpn: Vec<Vec<u8>>,
    /// Whether requests go out as early data when a session allows it.
    pub early_data: bool,
    /// PEM files of a client certificate chain and its key.
    pub client_cert: Option<(PathBuf, PathBuf)>,
    /// What may be resumed.
    pub resume_kind: ResumeKind,
}

/// The TLS client of one thread.
#[derive(Debug)]
pub struct Tls {
    base: ClientConfig,
    trust: Arc<Trusting>,
    tls12_resumption: Tls12Resumption,
}

impl Tls {
    /// Makes the client, reading the client certificate if there is one.
    ///
    /// # Errors
    /// [`Error::Plan`] for suites, groups and versions that do not go together, and for unreadable
    /// certificates.
    pub fn new(plan: &TlsPlan) -> Result<Self, Error> {
        let mut provider = aws_lc_rs::default_provider();
        if !plan.suites.is_empty() {
            provider.cipher_suites.clone_from(&plan.suites);
        }
        provider.kx_groups.clone_from(&plan.groups);
        provider.secure_random = &random::Careless;
        let schemes = by_cost(
            provider
                .signature_verification_algorithms
                .supported_schemes(),
        );
        let trust = Arc::new(Trusting {
            schemes,
            last: AtomicU16::new(0),
        });
        let builder = ClientConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(versions(plan))
            .map_err(|e| {
                Error::Plan(format!(
                    "this version, these suites and groups do not go together: {e}"
                ))
            })?
            .dangerous()
            .with_custom_certificate_verifier(Arc::clone(&trust) as Arc<dyn ServerCertVerifier>);
        let mut base = match &plan.client_cert {
            None => builder.with_no_client_auth(),
            Some((chain, key)) => {
                let (chain, key) = read_identity(chain, key)?;
                builder.with_client_auth_cert(chain, key).map_err(|e| {
                    Error::Plan(format!("the client certificate cannot be used: {e}"))
                })?
            }
        };
        base.alpn_protocols.clone_from(&plan.alpn);
        base.enable_early_data = plan.early_data;
        let tls12_resumption = match plan.resume_kind {
            ResumeKind::Id => Tls12Resumption::SessionIdOnly,
            _ => Tls12Resumption::SessionIdOrTickets,
        };
        Ok(Self {
            base,
            trust,
            tls12_resumption,
        })
    }

    /// Makes the configuration of a slot with these sessions.
    pub fn slot(&self, sessions: &Arc<Sessions>) -> Arc<ClientConfig> {
        let mut config = self.base.clone();
        let store = Arc::clone(sessions) as Arc<dyn rustls::client::ClientSessionStore>;
        config.resumption = Resumption::store(store).tls12_resumption(self.tls12_resumption);
        Arc::new(config)
    }

    /// Returns the scheme of the last signature that a server made, as IANA names it.
    pub fn signature(&self) -> Option<String> {
        match self.trust.last.load(Ordering::Relaxed) {
            0 => None,
            number => Some(format!("{:?}", SignatureScheme::from(number))),
        }
    }
}

/// Returns the suites that `names` (comma separated) stand for, in their order.
///
/// Accepted are IANA's names, OpenSSL's, and the short `aes128`, `aes256` and `chacha20`, which mean
/// every suite with that cipher.
///
/// # Errors
/// [`Error::Plan`] with the names that would be accepted.
pub fn suites(names: &str) -> Result<Vec<SupportedCipherSuite>, Error> {
    let all = aws_lc_rs::ALL_CIPHER_SUITES;
    let mut chosen = Vec::new();
    for name in names.split(',') {
        let wanted = plain_name(name);
        let matches = |suite: &&SupportedCipherSuite| {
            let known = plain_name(&negotiated::suite(suite.suite()));
            let short = matches!(wanted.as_str(), "AES128" | "AES256" | "CHACHA20");
            known == wanted
                || format!("{wanted}SHA256") == known
                || (short && known.contains(&wanted))
        };
        let before = chosen.len();
        chosen.extend(all.iter().filter(matches).copied());
        if chosen.len() == before {
            let known = all.iter().map(|known| negotiated::suite(known.suite()));
            return Err(Error::Plan(format!(
                "unknown suite `{name}` (accepted: aes128, aes256, chacha20, {})",
                known.collect::<Vec<_>>().join(", ")
            )));
        }
    }
    Ok(chosen)
}

/// Returns the groups that `names` (comma separated) stand for, in their order.
///
/// # Errors
/// [`Error::Plan`] with the names that would be accepted.
pub fn groups(names: &str) -> Result<Vec<&'static dyn SupportedKxGroup>, Error> {
    let known = |name: &str| -> Option<&'static dyn SupportedKxGroup> {
        match name.trim().to_ascii_lowercase().as_str() {
            "x25519" => Some(&key_share::X25519),
            "p256" | "p-256" | "secp256r1" | "prime256v1" => Some(&key_share::SECP256R1),
            "p384" | "p-384" | "secp384r1" => Some(&key_share::SECP384R1),
            "x25519mlkem768" => Some(&key_share::X25519MLKEM768),
            _ => None,
        }
    };
    let wrong = |name| {
        Error::Plan(format!(
            "unknown group `{name}` (accepted: x25519, p256, p384, x25519mlkem768)"
        ))
    };
    names
        .split(',')
        .map(|name| known(name).ok_or_else(|| wrong(name)))
        .collect()
}

/// Puts the schemes that real clients ask for first in front: a server may sign with any digest.
fn by_cost(mut schemes: Vec<SignatureScheme>) -> Vec<SignatureScheme> {
    let preferred = [
        SignatureScheme::ECDSA_NISTP256_SHA256,
        SignatureScheme::RSA_PSS_SHA256,
        SignatureScheme::RSA_PKCS1_SHA256,
    ];
    schemes.sort_by_key(|scheme| {
        preferred
            .iter()
            .position(|p| p == scheme)
            .unwrap_or(preferred.len())
    });
    schemes
}

fn versions(plan: &TlsPlan) -> &'static [&'static SupportedProtocolVersion] {
    let wanted = match plan.resume_kind {
        ResumeKind::Any => plan.version,
        ResumeKind::Id | ResumeKind::Ticket => Some(TlsVersion::Tls12),
        ResumeKind::Psk => Some(TlsVersion::Tls13),
    };
    static TLS12: &[&SupportedProtocolVersion] = &[&version::TLS12];
    static TLS13: &[&SupportedProtocolVersion] = &[&version::TLS13];
    match wanted {
        None => rustls::ALL_VERSIONS,
        Some(TlsVersion::Tls12) => TLS12,
        Some(TlsVersion::Tls13) => TLS13,
    }
}

/// Strips what differs between IANA's, rustls' and OpenSSL's ways to write a suite.
fn plain_name(name: &str) -> String {
    let kept: String = name.chars().filter(char::is_ascii_alphanumeric).collect();
    let kept = kept.to_ascii_uppercase().replace("WITH", "");
    let kept = kept
        .strip_prefix("TLS13")
        .or_else(|| kept.strip_prefix("TLS"))
        .unwrap_or(&kept);
    kept.to_owned()
}

type ClientIdentity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn read_identity(chain: &PathBuf, key: &PathBuf) -> Result<ClientIdentity, Error> {
    let wrong = |path: &PathBuf, e: &dyn std::fmt::Display| {
        Error::Plan(format!("client certificate {}: {e}", path.display()))
    };
    let certificates = CertificateDer::pem_file_iter(chain)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|e| wrong(chain, &e))?;
    if certificates.is_empty() {
        return Err(wrong(chain, &"no certificate in it"));
    }
    let key = PrivateKeyDer::from_pem_file(key).map_err(|e| wrong(key, &e))?;
    Ok((certificates, key))
}

/// Believes every server, and remembers how the last one signed.
#[derive(Debug)]
struct Trusting {
    schemes: Vec<SignatureScheme>,
    last: AtomicU16,
}

impl Trusting {
    fn believe(&self, signed: &DigitallySignedStruct) -> HandshakeSignatureValid {
        self.last.store(u16::from(signed.scheme), Ordering::Relaxed);
        HandshakeSignatureValid::assertion()
    }
}

impl ServerCertVerifier for Trusting {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        Ok(self.believe(signed))
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        Ok(self.believe(signed))
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(names: &str) -> Vec<String> {
        suites(names)
            .unwrap()
            .iter()
            .map(|suite| negotiated::suite(suite.suite()))
            .collect()
    }

    #[test]
    fn suites_go_by_three_kinds_of_names() {
        assert_eq!(named("TLS_AES_128_GCM_SHA256"), ["TLS_AES_128_GCM_SHA256"]);
        let gcm = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256";
        assert_eq!(named("ECDHE-ECDSA-AES128-GCM-SHA256"), [gcm]);
        assert_eq!(named(gcm), [gcm]);
        assert_eq!(
            named("ECDHE-RSA-CHACHA20-POLY1305"),
            ["TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256"]
        );
        assert_eq!(named("aes256").len(), 3);
    }
}
