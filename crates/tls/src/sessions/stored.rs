//! Checks that the client of a stored session may resume it, before rustls accepts the session.
//!
//! A client that resumes a session presents no certificate (RFC 8446, section 2.2). Its certificate
//! may have expired or been revoked since the full handshake, or its CA may have been removed. So
//! the chain in the session is verified again. If that fails, the handshake continues as a full
//! handshake, in which the client can present a new certificate.
//!
//! A client may offer several sessions, but only one chain is verified per ClientHello, to bound
//! the work.

use std::mem::replace;
use std::sync::Arc;
use std::time::Duration;

use becket_proto::session_state::client_chain;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;

use super::context;
use crate::resumption::Resumption;

/// Verifies again the client certificates in sessions of one policy. The default accepts every
/// session.
#[derive(Clone, Debug, Default)]
pub struct ReturningClients(Option<Arc<dyn ClientCertVerifier>>);

impl ReturningClients {
    /// Creates a check with `verifier`. If `verifier` is `None`, every session is accepted.
    pub fn new(verifier: Option<Arc<dyn ClientCertVerifier>>) -> Self {
        Self(verifier)
    }

    /// Checks that the client of a session may resume it. Must not be called inside
    /// [`context::with`], because the verifier writes to the context.
    ///
    /// # Errors
    ///
    /// Fails if the chain does not verify, if another chain was already verified for this
    /// ClientHello, or if a required chain is missing.
    pub fn admits(&self, state: &[u8]) -> Result<(), Resumption> {
        let Some(verifier) = &self.0 else {
            return Ok(());
        };
        let refused = Resumption::ClientCertificate;
        let chain = client_chain(state).ok_or(refused)?;
        let chain: Vec<_> = chain.into_iter().map(CertificateDer::from).collect();
        let Some((leaf, intermediates)) = chain.split_first() else {
            return if verifier.client_auth_mandatory() {
                Err(refused)
            } else {
                Ok(())
            };
        };
        let first = context::with(|handshake| {
            (!replace(&mut handshake.resumption.verified, true)).then_some(handshake.clock.unix)
        });
        let now = first.flatten().ok_or(refused)?;
        let now = UnixTime::since_unix_epoch(Duration::from_secs(now.0));
        let verified = verifier.verify_client_cert(leaf, intermediates, now);
        // The verifier's results are removed from the context, because rustls may still reject the
        // session.
        context::with(|handshake| {
            handshake.client.until = None;
            handshake.client.path = None;
        });
        verified.map(drop).map_err(|_| refused)
    }
}
