//! Discards records with rejected early data before rustls processes them.
//!
//! A server that rejects early data must skip the records that its handshake key does not decrypt
//! (RFC 8446, section 4.2.10). rustls does this, but it reads skipped records again in every call
//! and reduces its budget each time. So a client within its limit could get an error. rustls also
//! stores the positions of skipped bytes, so the caller cannot remove them.
//!
//! So this module first tries to decrypt a copy of each record, with the key that rustls derived
//! ([`ClientSecrets`], from its key log). Records that do not decrypt are skipped, up to [`MOST`]
//! bytes. Skipping ends with the first record that decrypts or, after a HelloRetryRequest, with the
//! second ClientHello. The client's first record has sequence number 0, so only the key is needed.
//! Each record is tried once and counts as at least [`LEAST`] bytes, which bounds the work.
//!
//! If the session was resumed and the policy accepts early data, only rustls decides whether it is
//! accepted. So the first record that is valid early data is passed to rustls. If rustls returns no
//! data, it has rejected early data.
//!
//! Source: RFC 8446, sections 4.2.10, 5.2, 7.1 and 7.3.

use std::sync::Arc;

use aws_lc_rs::aead::{self, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::hkdf;
use becket_proto::records::{APPLICATION_DATA, HANDSHAKE as HANDSHAKE_RECORD};
use rustls::{CipherSuite, CommonState, Error, HandshakeKind, KeyLog, PeerMisbehaved};
use zeroize::Zeroizing;

use crate::sessions::context::{self, ClientSecrets};

/// Key log that stores the traffic secrets of a client that announced early data in the handshake
/// context of this thread.
#[derive(Debug)]
pub struct SecretsForSkipping {
    /// Another key log to which the secrets are also passed.
    pub next: Arc<dyn KeyLog>,
}

impl KeyLog for SecretsForSkipping {
    fn log(&self, label: &str, client_random: &[u8], secret: &[u8]) {
        if self.next.will_log(label) {
            self.next.log(label, client_random, secret);
        }
        context::with(|handshake| {
            let Some(secrets) = &mut handshake.secrets else {
                return;
            };
            let place = match label {
                EARLY => &mut secrets.early,
                HANDSHAKE => &mut secrets.handshake,
                _ => return,
            };
            *place = Some(Zeroizing::new(secret.to_vec()));
        });
    }

    fn will_log(&self, label: &str) -> bool {
        let ours = matches!(label, EARLY | HANDSHAKE);
        let wanted = || context::with(|handshake| handshake.secrets.is_some()) == Some(true);
        (ours && wanted()) || self.next.will_log(label)
    }
}

/// State for skipping the rejected early data of one client.
pub struct Skipping {
    /// `true` if the policy accepts early data, so that rustls may accept the early data of this
    /// client.
    may_be_taken: bool,
    left: usize,
    key: Option<FirstKey>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The record is rejected early data.
    Skip,
    /// The record is early data that rustls may accept. If rustls returns no data, the caller must
    /// call [`Skipping::refuse`] and discard the record.
    Ask,
    /// The record must be passed to rustls. The next record must be classified again.
    Pass,
    /// Skipping has ended. The caller must pass this record and all following records to rustls.
    Over,
}

impl Skipping {
    /// Creates the state before the ClientHello is processed.
    pub fn new(may_be_taken: bool) -> Self {
        Self {
            may_be_taken,
            left: MOST,
            key: None,
        }
    }

    /// Classifies a whole record that has not been passed to rustls.
    ///
    /// # Errors
    ///
    /// Fails if the client sent more early data than the limit.
    pub fn judge(&mut self, record: &[u8], common: &CommonState) -> Result<Verdict, Error> {
        let kind = common.handshake_kind();
        let is_retried = kind == Some(HandshakeKind::FullWithHelloRetryRequest);
        match record.first() {
            Some(&APPLICATION_DATA) => {}
            // RFC 8446, section 4.1.2: "Early data is not permitted after a HelloRetryRequest."
            Some(&HANDSHAKE_RECORD) if is_retried => return Ok(Verdict::Over),
            _ => return Ok(Verdict::Pass),
        }
        if self.may_be_taken && kind == Some(HandshakeKind::Resumed) {
            let key = key_of(common, |secrets| &secrets.early);
            let holds = key.and_then(|key| key.open(record));
            return Ok(match holds {
                Some(APPLICATION_DATA) => Verdict::Ask,
                _ => Verdict::Over,
            });
        }
        if self.key.is_none() {
            self.key = key_of(common, |secrets| &secrets.handshake);
        }
        match &self.key {
            // The client must send a second ClientHello, so encrypted records before it are early
            // data.
            None if is_retried => {}
            Some(key) if key.open(record).is_none() => {}
            None | Some(_) => return Ok(Verdict::Over),
        }
        self.skip(record.len())?;
        Ok(Verdict::Skip)
    }

    /// Counts a skipped record of `len` bytes after rustls has rejected early data. From then on,
    /// all early data is skipped.
    ///
    /// # Errors
    ///
    /// Fails if the client sent more early data than the limit.
    pub fn refuse(&mut self, len: usize) -> Result<(), Error> {
        self.may_be_taken = false;
        self.skip(len)
    }

    fn skip(&mut self, len: usize) -> Result<(), Error> {
        let data = len.saturating_sub(OVERHEAD);
        match self.left.checked_sub(data.max(LEAST)) {
            Some(left) => self.left = left,
            None => return Err(PeerMisbehaved::TooMuchEarlyDataReceived.into()),
        }
        Ok(())
    }
}

/// Derives the record key from a secret in the handshake context of this thread.
fn key_of(
    common: &CommonState,
    secret: impl FnOnce(&ClientSecrets) -> &Option<Zeroizing<Vec<u8>>>,
) -> Option<FirstKey> {
    let suite = common.negotiated_cipher_suite()?.suite();
    context::with(|handshake| {
        let secret = secret(handshake.secrets.as_ref()?).as_ref()?;
        FirstKey::derive(suite, secret)
    })?
}

struct FirstKey {
    key: LessSafeKey,
    iv: [u8; aead::NONCE_LEN],
}

impl FirstKey {
    fn derive(suite: CipherSuite, secret: &[u8]) -> Option<Self> {
        let (hash, cipher) = match suite {
            CipherSuite::TLS13_AES_128_GCM_SHA256 => (hkdf::HKDF_SHA256, &aead::AES_128_GCM),
            CipherSuite::TLS13_AES_256_GCM_SHA384 => (hkdf::HKDF_SHA384, &aead::AES_256_GCM),
            CipherSuite::TLS13_CHACHA20_POLY1305_SHA256 => {
                (hkdf::HKDF_SHA256, &aead::CHACHA20_POLY1305)
            }
            _ => return None,
        };
        let secret = hkdf::Prk::new_less_safe(hash, secret);
        let mut key = Zeroizing::new([0; 32]);
        let key = key.get_mut(..cipher.key_len())?;
        expand(&secret, b"tls13 key", key)?;
        let mut iv = [0; aead::NONCE_LEN];
        expand(&secret, b"tls13 iv", &mut iv)?;
        Some(Self {
            key: LessSafeKey::new(UnboundKey::new(cipher, key).ok()?),
            iv,
        })
    }

    /// Decrypts a record and returns its content type, or `None` if it does not decrypt.
    fn open(&self, record: &[u8]) -> Option<u8> {
        let (header, sealed) = record.split_first_chunk::<5>()?;
        let mut sealed = Zeroizing::new(sealed.to_vec());
        // RFC 8446, section 5.3: the sequence number is 0, so the nonce is the IV.
        let nonce = Nonce::assume_unique_for_key(self.iv);
        let plain = self
            .key
            .open_in_place(nonce, Aad::from(header), &mut sealed);
        // Section 5.4: zeros may follow the content type.
        plain.ok()?.iter().rev().copied().find(|byte| *byte != 0)
    }
}

/// HKDF-Expand-Label without a context (RFC 8446, section 7.1).
fn expand(secret: &hkdf::Prk, label: &[u8], out: &mut [u8]) -> Option<()> {
    struct Length(usize);
    impl hkdf::KeyType for Length {
        fn len(&self) -> usize {
            self.0
        }
    }
    let length = u16::try_from(out.len()).ok()?.to_be_bytes();
    let label_length = [u8::try_from(label.len()).ok()?];
    let info = [&length[..], &label_length, label, &[0]];
    let expanded = secret.expand(&info, Length(out.len())).ok()?;
    expanded.fill(out).ok()
}

const EARLY: &str = "CLIENT_EARLY_TRAFFIC_SECRET";
const HANDSHAKE: &str = "CLIENT_HANDSHAKE_TRAFFIC_SECRET";
/// Maximum number of bytes to skip: the largest value that `early-data` accepts, because the
/// session may come from a host with another setting.
const MOST: usize = 64 * 1024;
/// Minimum number of bytes that a record counts for. So a client can cause at most about 4000
/// decryptions, which take as long as two or three signatures.
const LEAST: usize = 16;
/// Overhead of a record in bytes: header, content type and tag.
const OVERHEAD: usize = 5 + 1 + 16;
