//! Encrypts TLS 1.3 records that rustls would never send, with AES-128-GCM (RFC 8446, sections 5.2,
//! 7.2 and 7.3).

use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Prk};

pub(crate) struct Sealer {
    secret: Vec<u8>,
    key: LessSafeKey,
    iv: [u8; 12],
    sequence: u64,
}

impl Sealer {
    /// Creates a sealer. `sequence` is the number of records that are already encrypted with this
    /// secret.
    pub(crate) fn new(secret: Vec<u8>, sequence: u64) -> Self {
        let key = UnboundKey::new(&AES_128_GCM, &expand(&secret, "key", 16));
        let mut iv = [0; 12];
        iv.copy_from_slice(&expand(&secret, "iv", 12));
        Self {
            key: LessSafeKey::new(key.expect("a key")),
            iv,
            secret,
            sequence,
        }
    }

    pub(crate) fn seal(&mut self, kind: u8, content: &[u8]) -> Vec<u8> {
        let mut nonce = self.iv;
        for (byte, sequence) in nonce[4..].iter_mut().zip(self.sequence.to_be_bytes()) {
            *byte ^= sequence;
        }
        self.sequence += 1;
        let mut sealed = [content, &[kind]].concat();
        let length = (sealed.len() as u16 + 16).to_be_bytes();
        let header = [DATA, 3, 3, length[0], length[1]];
        let nonce = Nonce::assume_unique_for_key(nonce);
        let done = self
            .key
            .seal_in_place_append_tag(nonce, Aad::from(header), &mut sealed);
        done.expect("a record");
        [&header[..], &sealed].concat()
    }

    /// Returns an encrypted KeyUpdate message, and switches to the next keys.
    pub(crate) fn update(&mut self, requested: bool) -> Vec<u8> {
        let record = self.seal(HANDSHAKE, &[24, 0, 0, 1, u8::from(requested)]);
        *self = Self::new(expand(&self.secret, "traffic upd", 32), 0);
        record
    }
}

/// Computes HKDF-Expand-Label with an empty context (RFC 8446, section 7.1).
fn expand(secret: &[u8], label: &str, length: usize) -> Vec<u8> {
    let label = ["tls13 ", label].concat();
    let head = [0, length as u8, label.len() as u8];
    let info = [&head[..], label.as_bytes(), &[0]];
    let prk = Prk::new_less_safe(HKDF_SHA256, secret);
    let mut out = vec![0; length];
    let expanded = prk.expand(&info, Length(length));
    let filled = expanded.and_then(|okm| okm.fill(&mut out));
    filled.expect("a secret");
    out
}

struct Length(usize);

impl KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

pub(crate) const ALERT: u8 = 21;
pub(crate) const HANDSHAKE: u8 = 22;
pub(crate) const DATA: u8 = 23;
