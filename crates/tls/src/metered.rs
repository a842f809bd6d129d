//! Private keys whose signatures cost an admission token. The signature is the expensive part of a
//! full handshake, so admission is checked at that point.
//!
//! rustls requests a signer from a [`SigningKey`] and a signature from the signer, once per full
//! handshake and never in a resumed handshake. TLS 1.2 signs the key exchange, TLS 1.3 the
//! transcript (RFC 5246 section 7.4.3, RFC 8446 section 4.4.3). The handshake context that is lent
//! to this thread ([`sessions::context`](crate::sessions::context)) contains the permit that takes
//! the token. Without such a context, as in `becket check`, no token is taken. Keys are wrapped
//! only if the configuration limits full handshakes.

use std::sync::Arc;

use rustls::pki_types::SubjectPublicKeyInfoDer;
use rustls::sign::{CertifiedKey, Signer, SigningKey};
use rustls::{Error, SignatureAlgorithm, SignatureScheme};

use crate::sessions::context;

/// Wraps the key of a chain so that each signature takes an admission token.
pub fn metered(key: &CertifiedKey) -> Arc<CertifiedKey> {
    Arc::new(CertifiedKey {
        key: Arc::new(MeteredKey(Arc::clone(&key.key))),
        ..key.clone()
    })
}

#[derive(Debug)]
struct MeteredKey(Arc<dyn SigningKey>);

impl SigningKey for MeteredKey {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        let signer = self.0.choose_scheme(offered)?;
        Some(Box::new(MeteredSigner(signer)))
    }

    fn public_key(&self) -> Option<SubjectPublicKeyInfoDer<'_>> {
        self.0.public_key()
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        self.0.algorithm()
    }
}

#[derive(Debug)]
struct MeteredSigner(Box<dyn Signer>);

impl Signer for MeteredSigner {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        // This error only ends the handshake. The permit stores the close reason.
        context::pay().map_err(|reason| Error::General(reason.label().to_owned()))?;
        self.0.sign(message)
    }

    fn scheme(&self) -> SignatureScheme {
        self.0.scheme()
    }
}
