//! Private keys of listeners: their signatures may cost an admission token, and may be made by
//! crypto threads or PKCS#11 tokens (see [`becket_keys::signing`]).
//!
//! rustls requests a signer from a [`SigningKey`] and a signature from the signer, once per full
//! handshake and never in a resumed handshake. TLS 1.2 signs the key exchange, TLS 1.3 the
//! transcript (RFC 5246 section 7.4.3, RFC 8446 section 4.4.3). The signature is the expensive part
//! of a full handshake, so admission is checked at that point. The handshake context that is lent
//! to this thread (`sessions/context.rs`) contains the permit that takes the admission token.
//!
//! rustls requests a signature synchronously. If a worker runs the handshake step as a coroutine,
//! the request is stored in the handshake context, and the coroutine is suspended. When the
//! coroutine resumes, that context contains the answer. Without a coroutine, as in `becket check`,
//! the key signs at once.

use std::sync::Arc;

use becket_multibuffer::PrivateKey;
use rustls::pki_types::SubjectPublicKeyInfoDer;
use rustls::sign::{Signer, SigningKey};
use rustls::{Error, SignatureAlgorithm, SignatureScheme};

use crate::sessions::context;
use becket_keys::loaded::{HeldKey, Loaded};
use becket_keys::signing::token::TokenKey;
use becket_keys::signing::{Offload, SignatureRequest};

/// Returns the key of a certificate for handshakes of workers.
pub fn served_key(loaded: &Loaded) -> Arc<dyn SigningKey> {
    let key = loaded.key();
    Arc::new(ServedKey {
        key: key.signing_key(),
        batch_key: loaded.batch_key().cloned(),
        token: match key {
            HeldKey::Token(token) => Some(token),
            HeldKey::Stored(_) | HeldKey::Parsed(_) => None,
        },
        is_deferred: loaded.offload >= Offload::Batches,
    })
}

#[derive(Clone, Debug)]
struct ServedKey {
    key: Arc<dyn SigningKey>,
    batch_key: Option<Arc<PrivateKey>>,
    token: Option<TokenKey>,
    /// `true` if the signature is made elsewhere, provided that the handshake step can wait.
    is_deferred: bool,
}

impl SigningKey for ServedKey {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        let signer = self.key.choose_scheme(offered)?;
        if !self.is_deferred && !context::is_limited() {
            return Some(signer);
        }
        let key = self.clone();
        Some(Box::new(ServedSigner { key, signer }))
    }

    fn public_key(&self) -> Option<SubjectPublicKeyInfoDer<'_>> {
        self.key.public_key()
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        self.key.algorithm()
    }
}

#[derive(Debug)]
struct ServedSigner {
    key: ServedKey,
    signer: Box<dyn Signer>,
}

impl Signer for ServedSigner {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        // This error only ends the handshake. The permit stores the close reason.
        context::pay().map_err(|reason| Error::General(reason.label().to_owned()))?;
        if !self.key.is_deferred || !becket_sys::coroutine::can_suspend() {
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
