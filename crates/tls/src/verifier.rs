//! Verifiers of client and server certificates.
//!
//! webpki verifies chains (RFC 5280), including revocation lists for the whole path. An overdue
//! list is still used: becket warns the operator, and a client could not fix the problem.
//!
//! The verifier of client certificates also checks the names that a policy accepts and, before
//! webpki runs, the limits of [`chain`](super::chain). It stores the results in the
//! [`HandshakeContext`](crate::sessions::context::HandshakeContext): the client certificate's
//! expiry, which limits the session, and the verified path ([`path`](super::path)).

use std::sync::Arc;

use becket_config::choices::{ClientCertificates, ClientTrust, UnknownStatus};
use becket_config::client_name::ClientName;
use becket_config::policy::Policy;
use becket_config::process::LimitsSection;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore,
    SignatureScheme,
};

use webpki::KeyUsage;

use super::path::Paths;
use super::server_rules::{Pins, RuleVerifier, ServerRule};
use crate::sessions::context;
use becket_keys::{client_names, facts, identity};

/// Creates the verifier for a policy that requests client certificates. The verifier trusts the
/// CAs, or only the listed certificates if `client-trust` is `certificates`. `most_chain` limits
/// chains.
///
/// # Errors
///
/// Fails if the set of CAs is empty or a revocation list cannot be used.
pub fn of_clients(
    policy: &Policy,
    (roots, pins): (&Arc<RootCertStore>, Vec<CertificateDer<'static>>),
    lists: &[CertificateRevocationListDer<'static>],
    most_chain: LimitsSection,
) -> Result<Arc<dyn ClientCertVerifier>, VerifierBuilderError> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let algorithms = provider.signature_verification_algorithms;
    let asked = (lists, policy.crl_unknown);
    let usage = (algorithms, KeyUsage::client_auth());
    let paths = Paths::new(Arc::clone(roots), asked, usage, most_chain)?;
    let mut builder = WebPkiClientVerifier::builder_with_provider(Arc::clone(roots), provider);
    if policy.client_certificates == ClientCertificates::Optional {
        builder = builder.allow_unauthenticated();
    }
    let inner = builder.build()?;
    Ok(Arc::new(Noting {
        inner,
        paths,
        pins: (policy.client_trust == ClientTrust::Certificates).then_some(Pins(pins)),
        names: policy.client_names.clone(),
    }))
}

/// Creates the verifier for server certificates that must have a name;
/// [`to_servers`](crate::to_servers) chooses the name.
///
/// # Errors
///
/// Fails if the set of CAs is empty or a revocation list cannot be used.
pub fn of_servers(
    authorities: Arc<RootCertStore>,
    (lists, unknown): (Vec<CertificateRevocationListDer<'static>>, UnknownStatus),
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ServerCertVerifier>, VerifierBuilderError> {
    let provider = Arc::clone(provider);
    let mut builder =
        WebPkiServerVerifier::builder_with_provider(authorities, provider).with_crls(lists);
    if unknown == UnknownStatus::Allow {
        builder = builder.allow_unknown_revocation_status();
    }
    Ok(builder.build()?)
}

/// Creates the verifier for server certificates whose name is not checked.
///
/// # Errors
///
/// Fails if a revocation list cannot be used.
pub fn of_any_server(
    authorities: Arc<RootCertStore>,
    (lists, unknown): (Vec<CertificateRevocationListDer<'static>>, UnknownStatus),
    most_chain: LimitsSection,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ServerCertVerifier>, VerifierBuilderError> {
    let algorithms = provider.signature_verification_algorithms;
    let usage = (algorithms, KeyUsage::server_auth());
    let paths = Paths::new(authorities, (&lists, unknown), usage, most_chain)?;
    Ok(Arc::new(RuleVerifier {
        rule: ServerRule::Chain(paths),
        provider: Arc::clone(provider),
    }))
}

/// Checks that a verifier can be built with a revocation list. The signature of the list is not
/// checked.
///
/// # Errors
///
/// Returns the reason to reject the list.
pub fn accepts(
    authorities: &Arc<RootCertStore>,
    list: &CertificateRevocationListDer<'static>,
) -> Result<(), VerifierBuilderError> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::clone(authorities), provider);
    builder.with_crls([list.clone()]).build().map(drop)
}

/// Verifies client certificates, and stores the verified path in the handshake context of this
/// thread.
#[derive(Debug)]
struct Noting {
    /// Verifier of rustls, which provides the contents of certificate requests and checks
    /// signatures.
    inner: Arc<dyn ClientCertVerifier>,
    paths: Paths,
    /// Pinned certificates. If set, only these are accepted; `None` to verify a path to a CA
    /// instead.
    pins: Option<Pins>,
    /// Accepted client names, from `policy.client-names`.
    names: Vec<ClientName>,
}

impl Noting {
    fn path(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<Vec<usize>, Error> {
        let path = match &self.pins {
            Some(pins) => pins.verify(leaf, now).map(|()| Vec::new())?,
            None => self.paths.find(leaf, intermediates, now)?,
        };
        if !self.names.is_empty() && !client_names::has_one(leaf, &self.names) {
            return Err(CertificateError::ApplicationVerificationFailure.into());
        }
        Ok(path)
    }
}

impl ClientCertVerifier for Noting {
    fn offer_client_auth(&self) -> bool {
        self.inner.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.inner.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let path = self.path(leaf, intermediates, now);
        context::with(|handshake| match &path {
            Ok(path) => {
                handshake.client.until = facts::not_after(leaf);
                handshake.client.path = Some(path.clone());
            }
            Err(_) => handshake.client.refused = identity::summary(leaf),
        });
        path.map(|_| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, leaf, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, leaf, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_pin_accepts_one_certificate_during_its_validity() {
        let issue = || {
            let mut params = rcgen::CertificateParams::new(["a.test".to_owned()]).unwrap();
            params.not_before = rcgen::date_time_ymd(2026, 1, 1);
            params.not_after = rcgen::date_time_ymd(2026, 1, 2);
            let key = rcgen::KeyPair::generate().unwrap();
            params.self_signed(&key).unwrap().der().clone()
        };
        let (known, stranger) = (issue(), issue());
        let pins = Pins(vec![issue(), known.clone()]);
        let verify = |leaf: &CertificateDer<'_>, at: u64| {
            let now = UnixTime::since_unix_epoch(Duration::from_secs(at));
            pins.verify(leaf, now)
        };
        let refused = |error: CertificateError| Err(Error::from(error));
        assert_eq!(verify(&known, 1_767_225_600), Ok(()));
        let early = verify(&known, 1_767_225_599);
        assert_eq!(early, refused(CertificateError::NotValidYet));
        let late = verify(&known, 1_767_312_001);
        assert_eq!(late, refused(CertificateError::Expired));
        let other = verify(&stranger, 1_767_225_600);
        assert_eq!(other, refused(CertificateError::UnknownIssuer));
    }
}
