//! Private keys whose signatures crypto threads make: see [`crate::signing`].
//!
//! rustls asks for a signature as if it had it at once. Where a worker runs the step of a handshake as a coroutine, the
//! request is left in the handshake that is lent to this thread (`sessions/context.rs`), the coroutine is suspended, and when it
//! goes on, the answer lies there. Anywhere else, as in `becket check`, the key signs at once. Only expensive keys are wrapped,
//! and only where there are crypto threads.

use std::sync::Arc;

use rustls::pki_types::SubjectPublicKeyInfoDer;
use rustls::sign::{CertifiedKey, Signer, SigningKey};
use rustls::{Error, SignatureAlgorithm, SignatureScheme};

use crate::sessions::context;
use crate::signing::{Request, is_cheap};

/// The same chain with a key whose signatures may be made elsewhere, if it is an expensive one.
pub(crate) fn deferred(key: &Arc<CertifiedKey>) -> Arc<CertifiedKey> {
    if is_cheap(&*key.key) {
        return Arc::clone(key);
    }
    Arc::new(CertifiedKey {
        key: Arc::new(DeferredKey(Arc::clone(&key.key))),
        ..CertifiedKey::clone(key)
    })
}

#[derive(Debug)]
struct DeferredKey(Arc<dyn SigningKey>);

impl SigningKey for DeferredKey {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        let signer = self.0.choose_scheme(offered)?;
        let key = Arc::clone(&self.0);
        Some(Box::new(DeferredSigner { key, signer }))
    }

    fn public_key(&self) -> Option<SubjectPublicKeyInfoDer<'_>> {
        self.0.public_key()
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        self.0.algorithm()
    }
}

#[derive(Debug)]
struct DeferredSigner {
    key: Arc<dyn SigningKey>,
    signer: Box<dyn Signer>,
}

impl Signer for DeferredSigner {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        if !becket_sys::coroutine::can_suspend() {
            return self.signer.sign(message);
        }
        context::with(|resuming| {
            resuming.request = Some(Request {
                key: Arc::clone(&self.key),
                scheme: self.scheme(),
                message: message.to_vec(),
            });
        });
        if !becket_sys::coroutine::suspend() {
            return Err(Error::General("nobody waits for the signature".into()));
        }
        let answer = context::with(|resuming| resuming.signature.take()).flatten();
        answer.unwrap_or_else(|| Err(Error::General("no signature came".into())))
    }

    fn scheme(&self) -> SignatureScheme {
        self.signer.scheme()
    }
}
