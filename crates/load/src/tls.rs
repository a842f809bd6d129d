//! The TLS client: versions, cipher suites and groups, without verification.
//!
//! Certificates and signatures are **not verified** in load mode, because the cost of verification on the client would hide the
//! cost of the server. Key shares come from [`crate::key_share`]. The client sends the same messages as a real client, so that
//! the server does the same work.
//!
//! Each thread creates one [`Tls`], and each slot creates a configuration per full handshake. The configuration stores the sessions of
//! that handshake for later resumption.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, Tls12Resumption};
use rustls::crypto::aws_lc_rs;
use rustls::{
    ClientConfig, DigitallySignedStruct, Error as TlsError, ProtocolVersion, SignatureScheme,
    SupportedCipherSuite, SupportedProtocolVersion,
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use crate::Error;
use crate::key_share::Group;
use crate::negotiated;
use crate::resume::Resume;

/// Options of the TLS client.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "TLS")]
pub struct TlsOptions {
    /// Handshakes to resume: never, always or every=N (one full handshake, then N-1 resumed)
    #[arg(long, value_name = "PLAN", default_value = "never")]
    pub resume: Resume,
    /// Allowed methods of resumption: id and ticket use TLS 1.2, psk uses TLS 1.3
    #[arg(long, value_name = "KIND", value_enum, default_value = "any")]
    pub resume_kind: ResumeKind,
    /// Offer only this version
    #[arg(long, value_name = "VERSION", value_enum)]
    pub tls: Option<TlsVersion>,
    /// Cipher suites to offer: aes128, aes256, chacha20 or IANA names, comma separated
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = suites)]
    pub suite: Vec<Vec<SupportedCipherSuite>>,
    /// Key exchange groups to offer, comma separated; the key share is for the first one
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        value_enum,
        default_value = "x25519,p256,p384"
    )]
    pub group: Vec<Group>,
    /// Server name to send instead of the URL's host
    #[arg(long, value_name = "NAME")]
    pub sni: Option<String>,
    /// ALPN protocols to offer, comma separated
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub alpn: Vec<String>,
    /// Send the request as TLS 1.3 early data if the session allows it
    #[arg(long, requires = "resume")]
    pub early_data: bool,
}

/// Allowed method of resumption.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ResumeKind {
    /// Any method that the server offers.
    Any,
    /// TLS 1.2 session IDs; the client requests no tickets.
    Id,
    /// TLS 1.2 tickets (RFC 5077); the client does not offer a session without a ticket.
    Ticket,
    /// TLS 1.3 pre-shared keys.
    Psk,
}

/// TLS version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum TlsVersion {
    /// TLS 1.2.
    #[value(name = "1.2")]
    Tls12,
    /// TLS 1.3.
    #[value(name = "1.3")]
    Tls13,
}

impl TlsOptions {
    /// Returns the versions to offer.
    ///
    /// # Errors
    /// [`Error::Plan`] if the method of resumption needs another version.
    pub fn versions(&self) -> Result<Vec<&'static SupportedProtocolVersion>, Error> {
        let of_kind = match self.resume_kind {
            ResumeKind::Any => self.tls,
            ResumeKind::Id | ResumeKind::Ticket => Some(TlsVersion::Tls12),
            ResumeKind::Psk => Some(TlsVersion::Tls13),
        };
        let wanted = |only: Option<TlsVersion>, version: &SupportedProtocolVersion| match only {
            None => true,
            Some(TlsVersion::Tls12) => version.version == ProtocolVersion::TLSv1_2,
            Some(TlsVersion::Tls13) => version.version == ProtocolVersion::TLSv1_3,
        };
        let all = rustls::ALL_VERSIONS.iter().copied();
        let offered: Vec<_> = all
            .filter(|version| wanted(of_kind, version) && wanted(self.tls, version))
            .collect();
        if offered.is_empty() {
            let fault = "--resume-kind id and ticket require TLS 1.2, psk requires TLS 1.3: remove --tls, or choose another kind";
            return Err(Error::Plan(fault.to_owned()));
        }
        let tls13 = |version| wanted(Some(TlsVersion::Tls13), version);
        if self.early_data && !offered.iter().copied().any(tls13) {
            let fault = "--early-data requires TLS 1.3, which --tls or --resume-kind excludes";
            return Err(Error::Plan(fault.to_owned()));
        }
        Ok(offered)
    }
}

/// The TLS client of one thread.
#[derive(Debug)]
pub struct Tls {
    base: ClientConfig,
    trust: Arc<Trusting>,
    tls12_resumption: Tls12Resumption,
}

impl Tls {
    /// Creates the client.
    ///
    /// # Errors
    /// [`Error::Plan`] if versions, cipher suites and groups are incompatible.
    pub fn new(options: &TlsOptions) -> Result<Self, Error> {
        let mut provider = aws_lc_rs::default_provider();
        if !options.suite.is_empty() {
            provider.cipher_suites = options.suite.concat();
        }
        let groups = options.group.iter();
        provider.kx_groups = groups.map(|group| group.of_library()).collect();
        let schemes = by_cost(
            provider
                .signature_verification_algorithms
                .supported_schemes(),
        );
        let trust = Arc::new(Trusting {
            schemes,
            last: AtomicU16::new(0),
        });
        let mut base = ClientConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(&options.versions()?)
            .map_err(|e| {
                Error::Plan(format!(
                    "incompatible TLS version, cipher suites or groups: {e}"
                ))
            })?
            .dangerous()
            .with_custom_certificate_verifier(Arc::clone(&trust) as Arc<dyn ServerCertVerifier>)
            .with_no_client_auth();
        let alpn = options.alpn.iter();
        base.alpn_protocols = alpn.map(|name| name.clone().into_bytes()).collect();
        base.enable_early_data = options.early_data;
        let tls12_resumption = match options.resume_kind {
            ResumeKind::Id => Tls12Resumption::SessionIdOnly,
            _ => Tls12Resumption::SessionIdOrTickets,
        };
        Ok(Self {
            base,
            trust,
            tls12_resumption,
        })
    }

    /// Creates a configuration with an empty session store for one server.
    pub fn config(&self) -> Arc<ClientConfig> {
        self.config_with(Resumption::in_memory_sessions(1))
    }

    /// Creates a configuration that keeps its sessions as `resumption` says.
    pub fn config_with(&self, resumption: Resumption) -> Arc<ClientConfig> {
        let mut config = self.base.clone();
        config.resumption = resumption.tls12_resumption(self.tls12_resumption);
        Arc::new(config)
    }

    /// Returns the scheme of the last server signature, as Rust debug text; `None` before the first one.
    pub fn signature(&self) -> Option<String> {
        match self.trust.last.load(Ordering::Relaxed) {
            0 => None,
            number => Some(format!("{:?}", SignatureScheme::from(number))),
        }
    }
}

/// Returns the cipher suites for a name: a single suite for an IANA name, or all suites with the cipher `aes128`, `aes256` or
/// `chacha20`.
///
/// # Errors
/// [`Error::Plan`] with the accepted names.
pub fn suites(name: &str) -> Result<Vec<SupportedCipherSuite>, Error> {
    let cipher = match name {
        "aes128" => "_AES_128_",
        "aes256" => "_AES_256_",
        "chacha20" => "_CHACHA20_",
        name => name,
    };
    let all = aws_lc_rs::ALL_CIPHER_SUITES;
    let named = |suite: &SupportedCipherSuite| negotiated::suite(suite.suite());
    let chosen: Vec<_> = all
        .iter()
        .filter(|suite| {
            let known = named(suite);
            known == name || (cipher != name && known.contains(cipher))
        })
        .copied()
        .collect();
    if chosen.is_empty() {
        let known: Vec<String> = all.iter().map(named).collect();
        return Err(Error::Plan(format!(
            "unknown cipher suite `{name}` (accepted: aes128, aes256, chacha20, {})",
            known.join(", ")
        )));
    }
    Ok(chosen)
}

/// Moves the schemes that real clients prefer to the front, because a server may sign with the first scheme that it
/// supports.
fn by_cost(mut schemes: Vec<SignatureScheme>) -> Vec<SignatureScheme> {
    let preferred = [
        SignatureScheme::ECDSA_NISTP256_SHA256,
        SignatureScheme::RSA_PSS_SHA256,
        SignatureScheme::RSA_PKCS1_SHA256,
    ];
    schemes.sort_by_key(|scheme| !preferred.contains(scheme));
    schemes
}

/// Verifier that accepts every server and records the scheme of the last signature.
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

    #[test]
    fn cipher_suites_are_found_by_name_and_by_cipher() {
        for (name, count) in [
            ("TLS_AES_128_GCM_SHA256", 1),
            ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", 1),
            ("aes256", 3),
        ] {
            assert_eq!(suites(name).unwrap().len(), count, "{name}");
        }
        assert!(suites("DES").is_err() && suites("").is_err());
    }
}
