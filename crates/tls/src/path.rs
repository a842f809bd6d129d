//! Verifies a peer's certificate chain, and returns the path from its certificate to a CA.
//!
//! rustls' client verifier calls webpki in the same way, but does not return the path. becket needs
//! the path, because sessions store only the leaf and the certificates on its path
//! ([`context`](crate::sessions::context)). rustls' server verifier always checks a name, but
//! `verify = "chain"` must not.
//!
//! Revocation lists are checked for the whole path, and overdue lists are still used. [`chain`]
//! selects the certificates that are passed to webpki.
//!
//! Source: RFC 5280 section 6; rustls 0.23.46, `webpki/client_verifier.rs`, and `pki_error` in
//! `webpki/mod.rs`.

use std::sync::Arc;

use becket_config::choices::UnknownStatus;
use becket_config::process::LimitsSection;
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, UnixTime};
use rustls::{CertRevocationListError, CertificateError, Error, OtherError, RootCertStore};
use webpki::{
    CertRevocationList, EndEntityCert, ExpirationPolicy, KeyUsage, OwnedCertRevocationList,
    RevocationCheckDepth, RevocationOptionsBuilder, UnknownStatusPolicy,
};

use super::chain;

/// Verifies chains, and finds their paths to a set of CAs.
#[derive(Debug)]
pub struct Paths {
    roots: Arc<RootCertStore>,
    lists: Vec<CertRevocationList<'static>>,
    unknown: UnknownStatusPolicy,
    algorithms: WebPkiSupportedAlgorithms,
    /// Required key usage: authentication of clients, or of servers.
    usage: KeyUsage,
    most_chain: LimitsSection,
}

impl Paths {
    /// Creates a verifier for chains within the limits of `most_chain`.
    ///
    /// # Errors
    ///
    /// Fails if a revocation list cannot be used.
    pub fn new(
        roots: Arc<RootCertStore>,
        (lists, unknown): (&[CertificateRevocationListDer<'static>], UnknownStatus),
        (algorithms, usage): (WebPkiSupportedAlgorithms, KeyUsage),
        most_chain: LimitsSection,
    ) -> Result<Self, CertRevocationListError> {
        let lists = lists
            .iter()
            .map(|list| OwnedCertRevocationList::from_der(list).map(Into::into));
        let lists: Result<_, webpki::Error> = lists.collect();
        Ok(Self {
            roots,
            lists: lists.map_err(|fault| CertRevocationListError::Other(boxed(fault)))?,
            unknown: match unknown {
                UnknownStatus::Refuse => UnknownStatusPolicy::Deny,
                UnknownStatus::Allow => UnknownStatusPolicy::Allow,
            },
            algorithms,
            usage,
            most_chain,
        })
    }

    /// Verifies the leaf. Returns the path as indices into the intermediate certificates, starting
    /// with the leaf's issuer and without the CA.
    ///
    /// # Errors
    ///
    /// Returns the reason as a rustls error, so that rustls sends the matching alert.
    pub fn find(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<Vec<usize>, Error> {
        let usable = chain::usable(leaf, intermediates, self.most_chain)?;
        let leaf = EndEntityCert::try_from(leaf).map_err(fault)?;
        let lists: Vec<_> = self.lists.iter().collect();
        // The builder fails if the list of revocation lists is empty. In that case, revocation is
        // not checked.
        let revocation = RevocationOptionsBuilder::new(&lists).ok().map(|options| {
            options
                .with_depth(RevocationCheckDepth::Chain)
                .with_status_policy(self.unknown)
                .with_expiration_policy(ExpirationPolicy::Ignore)
                .build()
        });
        let path = leaf.verify_for_usage(
            self.algorithms.all,
            &self.roots.roots,
            &usable,
            now,
            self.usage,
            revocation,
            None,
        );
        let path = path.map_err(fault)?;
        let place = |der| intermediates.iter().position(|one| *one == der);
        let issuers = path.intermediate_certificates();
        Ok(issuers.filter_map(|one| place(one.der())).collect())
    }
}

/// Maps a webpki error to the rustls error with the matching alert. Errors without a matching
/// rustls error are returned with webpki's text.
fn fault(fault: webpki::Error) -> Error {
    use webpki::Error as E;
    Error::InvalidCertificate(match fault {
        E::BadDer | E::BadDerTime | E::TrailingData(_) => CertificateError::BadEncoding,
        E::CertNotValidYet { time, not_before } => {
            CertificateError::NotValidYetContext { time, not_before }
        }
        E::CertExpired { time, not_after } => CertificateError::ExpiredContext { time, not_after },
        E::InvalidCertValidity => CertificateError::Expired,
        E::UnknownIssuer => CertificateError::UnknownIssuer,
        E::CertRevoked => CertificateError::Revoked,
        E::UnknownRevocationStatus => CertificateError::UnknownRevocationStatus,
        E::InvalidSignatureForPublicKey => CertificateError::BadSignature,
        E::UnsupportedSignatureAlgorithmContext(of) => {
            CertificateError::UnsupportedSignatureAlgorithmContext {
                signature_algorithm_id: of.signature_algorithm_id,
                supported_algorithms: of.supported_algorithms,
            }
        }
        E::UnsupportedSignatureAlgorithmForPublicKeyContext(of) => {
            CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext {
                signature_algorithm_id: of.signature_algorithm_id,
                public_key_algorithm_id: of.public_key_algorithm_id,
            }
        }
        E::RequiredEkuNotFoundContext(_) => CertificateError::InvalidPurpose,
        other => CertificateError::Other(boxed(other)),
    })
}

fn boxed(fault: webpki::Error) -> OtherError {
    OtherError(Arc::new(fault))
}
