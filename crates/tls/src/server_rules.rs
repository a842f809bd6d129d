//! Rules by which server certificates are verified. A rule checks the configured name, which may
//! differ from the SNI that was sent.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use becket_config::process::LimitsSection;
use becket_keys::facts::{self, not_after};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_name;
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, SignatureScheme};

use super::chain;
use super::path::Paths;

/// Verifies server certificates by a rule. Every rule requires proof that the server has the
/// private key.
#[derive(Debug)]
pub struct RuleVerifier {
    pub rule: ServerRule,
    pub provider: Arc<CryptoProvider>,
}

#[derive(Debug)]
pub enum ServerRule {
    /// Accepts every certificate, for `verify = "none"`.
    Any,
    /// Requires a path to a CA, for `verify = "chain"`.
    Chain(Paths),
    /// Requires a listed certificate, for `verify = "pinned"`. If a name is given, the certificate
    /// must also have that name.
    Pinned {
        pins: Pins,
        name: Option<ServerName<'static>>,
    },
    /// Requires a certificate for one name, independent of the SNI that was sent. Checks the limits
    /// of the chain first.
    Named {
        name: ServerName<'static>,
        verifier: Arc<dyn ServerCertVerifier>,
        most_chain: LimitsSection,
        /// Earliest expiry of the certificates on the verified path, in seconds since 1970. The
        /// verifier sets it.
        until: Arc<AtomicU64>,
    },
}

impl RuleVerifier {
    pub fn none(provider: Arc<CryptoProvider>) -> Self {
        let rule = ServerRule::Any;
        Self { rule, provider }
    }
}

impl ServerCertVerifier for RuleVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _sent: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match &self.rule {
            ServerRule::Any => {}
            ServerRule::Chain(paths) => {
                paths.find(end_entity, intermediates, now)?;
            }
            ServerRule::Pinned { pins, name } => {
                pins.verify(end_entity, now)?;
                if let Some(name) = name {
                    verify_server_name(&ParsedCertificate::try_from(end_entity)?, name)?;
                }
            }
            ServerRule::Named {
                name,
                verifier,
                most_chain,
                until,
            } => {
                let usable = chain::usable(end_entity, intermediates, *most_chain)?;
                let _verified =
                    verifier.verify_server_cert(end_entity, &usable, name, ocsp_response, now)?;
                // Expired certificates are skipped: a server may send them, but they are on no
                // verified path.
                let certificates = [end_entity].into_iter().chain(&usable);
                let ends = certificates.filter_map(|one| not_after(one));
                let later = ends.map(|end| end.0).filter(|end| *end > now.as_secs());
                if let Some(first) = later.min() {
                    until.fetch_min(first, Relaxed);
                }
            }
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

/// Pinned certificates, which are trusted without their issuer while they are valid.
#[derive(Debug)]
pub struct Pins(pub Vec<CertificateDer<'static>>);

impl Pins {
    /// Checks that a certificate is listed and valid.
    ///
    /// # Errors
    /// Returns the reason to reject the certificate.
    pub fn verify(&self, leaf: &CertificateDer<'_>, now: UnixTime) -> Result<(), Error> {
        if !self.0.iter().any(|pin| pin == leaf) {
            return Err(CertificateError::UnknownIssuer.into());
        }
        let read = facts::certificate(leaf).ok_or(CertificateError::BadEncoding)?;
        let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        let validity = read.validity();
        if now < validity.not_before.timestamp() {
            return Err(CertificateError::NotValidYet.into());
        }
        if now > validity.not_after.timestamp() {
            return Err(CertificateError::Expired.into());
        }
        Ok(())
    }
}
