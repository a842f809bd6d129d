//! The check if the client of a stored session may come back, before the session is accepted.
//!
//! A resumption skips the client's certificate (RFC 8446, section 2.2). Since the full handshake it may have
//! expired, been revoked, or lost its CA, so the chain in the state is verified again. That is done
//! where the state is opened, in the ticketer and the stores: one that fails is as good as unknown, so
//! the handshake continues as a full one, and a client that has a new certificate by now can show it.
//!
//! A client may offer many sessions; one chain is judged for each hello.

use std::mem::replace;
use std::sync::Arc;
use std::time::Duration;

use becket_proto::session_state::client_chain;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;

use super::context;
use crate::resumption::Resumption;

/// Admits clients of one policy's sessions; the default admits all.
#[derive(Clone, Debug, Default)]
pub struct ReturningClients(Option<Arc<dyn ClientCertVerifier>>);

impl ReturningClients {
    /// Admits as `verifier` does; without one no client has to show a certificate.
    pub fn new(verifier: Option<Arc<dyn ClientCertVerifier>>) -> Self {
        Self(verifier)
    }

    /// Returns whether a client with this session may come back, at the time of the lent handshake. Must
    /// not be called while [`context::with`] runs: the verifier leaves notes there.
    ///
    /// # Errors
    ///
    /// When its chain does not verify, another was judged before, or there is none and must be one.
    pub fn admits(&self, state: &[u8]) -> Result<(), Resumption> {
        let Some(verifier) = &self.0 else {
            return Ok(());
        };
        let refused = Resumption::ClientCertificate;
        let chain = client_chain(state).map_err(|_| refused)?;
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
        // That was of a session, which may still not be used.
        context::with(|handshake| {
            handshake.client.until = None;
            handshake.client.path = None;
        });
        verified.map(drop).map_err(|_| refused)
    }
}
