//! Rules for certificates of servers: the one that a backend is configured with decides, whatever name was sent.

use std::fmt;
use std::sync::Arc;

use becket_keys::facts;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_name;
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, SignatureScheme};

use super::path::Paths;

/// Verifies certificates of servers by a rule. The provider always verifies that a server holds its key.
#[derive(Debug)]
pub struct RuleVerifier<R> {
    /// Decides which certificates are accepted.
    pub rule: R,
    /// Verifies signatures.
    pub provider: Arc<CryptoProvider>,
}

/// Decides which certificates of servers are accepted.
pub trait CertificateRule: fmt::Debug + Send + Sync {
    /// Checks the certificates of a server at this time.
    ///
    /// # Errors
    /// Returns the reason to reject them.
    fn judge(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<(), Error>;
}

impl<R: CertificateRule> ServerCertVerifier for RuleVerifier<R> {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _sent: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let judged = self
            .rule
            .judge(end_entity, intermediates, ocsp_response, now);
        judged.map(|()| ServerCertVerified::assertion())
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

/// A path must lead to an authority, for `verify = "chain"`.
#[derive(Debug)]
pub struct Chained(pub Paths);

impl CertificateRule for Chained {
    fn judge(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<(), Error> {
        self.0.find(end_entity, intermediates, now).map(drop)
    }
}

/// Accepts every certificate, for `verify = "none"`.
#[derive(Debug)]
pub struct AnyCertificate;

impl CertificateRule for AnyCertificate {
    fn judge(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<(), Error> {
        Ok(())
    }
}

impl RuleVerifier<AnyCertificate> {
    /// Accepts any certificate.
    pub fn none(provider: Arc<CryptoProvider>) -> Self {
        let rule = AnyCertificate;
        Self { rule, provider }
    }
}

/// A certificate must be listed, and where there is a name, be for that, for `verify = "pinned"`.
#[derive(Debug)]
pub struct Pinned {
    /// Accepted certificates.
    pub pins: Pins,
    /// Name that the certificate must have.
    pub name: Option<ServerName<'static>>,
}

impl CertificateRule for Pinned {
    fn judge(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<(), Error> {
        self.pins.verify(end_entity, now)?;
        match &self.name {
            Some(name) => verify_server_name(&ParsedCertificate::try_from(end_entity)?, name),
            None => Ok(()),
        }
    }
}

/// Certificates that are trusted on their own, regardless of the issuer, while they are valid.
#[derive(Debug)]
pub struct Pins(pub Vec<CertificateDer<'static>>);

impl Pins {
    /// Checks that a certificate is one of them and valid.
    ///
    /// # Errors
    /// Returns the reason to reject it.
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
