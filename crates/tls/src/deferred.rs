//! Private keys whose signatures are made by crypto threads or tokens: see
//! [`becket_keys::signing`].
//!
//! rustls requests a signature synchronously. If a worker runs the handshake step as a coroutine,
//! the request is stored in the handshake context that is lent to this thread
//! (`sessions/context.rs`), and the coroutine is suspended. When the coroutine resumes, that
//! context contains the answer. Without a coroutine, as in `becket check`, the key signs at once.
//! Only keys with a suitable [`Offload`] are wrapped, and only if there are crypto threads. Keys on
//! tokens are always wrapped.

use std::sync::Arc;

use becket_multibuffer::PrivateKey;
use rustls::pki_types::SubjectPublicKeyInfoDer;
use rustls::sign::{CertifiedKey, Signer, SigningKey};
use rustls::{Error, SignatureAlgorithm, SignatureScheme};

use crate::sessions::context;
use becket_keys::keys::Loaded;
use becket_keys::signing::token::TokenKey;
use becket_keys::signing::{Offload, SignatureRequest};

/// Wraps the key of a chain so that it defers its signatures, if its [`Offload`] requires this.
pub fn deferred(loaded: &Loaded) -> Arc<CertifiedKey> {
    if loaded.offload < Offload::Batches {
        return Arc::clone(&loaded.key);
    }
    let chain = CertifiedKey::clone(&loaded.key);
    let key = DeferredKey {
        key: Arc::clone(&chain.key),
        batch_key: loaded.batch_key.clone(),
        token: loaded.token.clone(),
    };
    Arc::new(CertifiedKey {
        key: Arc::new(key),
        ..chain
    })
}

#[derive(Clone, Debug)]
struct DeferredKey {
    key: Arc<dyn SigningKey>,
    batch_key: Option<Arc<PrivateKey>>,
    token: Option<TokenKey>,
}

impl SigningKey for DeferredKey {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        let signer = self.key.choose_scheme(offered)?;
        let key = self.clone();
        Some(Box::new(DeferredSigner { key, signer }))
    }

    fn public_key(&self) -> Option<SubjectPublicKeyInfoDer<'_>> {
        self.key.public_key()
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        self.key.algorithm()
    }
}

#[derive(Debug)]
struct DeferredSigner {
    key: DeferredKey,
    signer: Box<dyn Signer>,
}

impl Signer for DeferredSigner {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        if !becket_sys::coroutine::can_suspend() {
            return self.signer.sign(message);
        }
        context::with(|handshake| {
            handshake.signature.request = Some(SignatureRequest {
                key: Arc::clone(&self.key.key),
                batch_key: self.key.batch_key.clone(),
                token: self.key.token.clone(),
                scheme: self.scheme(),
                message: message.to_vec(),
            });
        });
        if !becket_sys::coroutine::suspend() {
            return Err(Error::General("the handshake was abandoned".into()));
        }
        let answer = context::with(|handshake| {
            let answer = handshake.signature.answer.take();
            handshake.signature.token_failed =
                self.key.token.is_some() && !matches!(answer, Some(Ok(_)));
            answer
        });
        answer
            .flatten()
            .unwrap_or_else(|| Err(Error::General("no signature was made".into())))
    }

    fn scheme(&self) -> SignatureScheme {
        self.signer.scheme()
    }
}
