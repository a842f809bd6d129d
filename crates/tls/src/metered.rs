//! Private keys that cost a token: a signature is what makes a full handshake expensive, so admission is asked there.
//!
//! rustls asks a [`SigningKey`] for a signer and the signer for a signature, once per full handshake and never in a
//! resumed one: TLS 1.2 signs the key exchange, TLS 1.3 the transcript (RFC 5246 section 7.4.3, RFC 8446 section
//! 4.4.3). The handshake that pays is the one that is lent to this thread ([`sessions::context`](crate::sessions::context)); outside of any, as in
//! `becket check`, nothing is asked. Keys are wrapped where the configuration limits full handshakes, and only there.

use std::sync::Arc;

use rustls::pki_types::SubjectPublicKeyInfoDer;
use rustls::sign::{CertifiedKey, Signer, SigningKey};
use rustls::{Error, SignatureAlgorithm, SignatureScheme};

use crate::sessions::context;

/// The same chain with a key that costs a token.
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
        // The charge keeps the reason, and the handshake is ended by it.
        context::pay().map_err(|reason| Error::General(reason.label().to_owned()))?;
        self.0.sign(message)
    }

    fn scheme(&self) -> SignatureScheme {
        self.0.scheme()
    }
}
