//! A TLS 1.3 client that writes its own records: for what no well-behaved client sends.

use std::io::{self, Write};
use std::net::TcpStream;

use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use rustls::ConnectionTrafficSecrets;

use crate::client::Client;

/// The sending half of a connection with AES-128-GCM.
#[derive(Debug)]
pub struct RawRecords {
    /// The socket; what comes from it is not opened.
    pub socket: TcpStream,
    key: LessSafeKey,
    iv: [u8; 12],
    sequence: u64,
}

impl RawRecords {
    /// Takes over from rustls.
    pub fn new(client: Client) -> Self {
        let secrets = client.tls.dangerous_extract_secrets().expect("secrets");
        let (sequence, ConnectionTrafficSecrets::Aes128Gcm { key, iv }) = secrets.tx else {
            panic!("not AES-128-GCM");
        };
        let key = UnboundKey::new(&AES_128_GCM, key.as_ref()).expect("a key");
        Self {
            socket: client.socket,
            key: LessSafeKey::new(key),
            iv: iv.as_ref().try_into().expect("twelve bytes"),
            sequence,
        }
    }

    /// Sends one record: `kind` is the ContentType (RFC 8446, section 5.1).
    pub fn send(&mut self, kind: u8, bytes: &[u8]) -> io::Result<()> {
        let mut inner = [bytes, &[kind]].concat();
        let length = u16::try_from(inner.len() + AES_128_GCM.tag_len()).expect("a record");
        let mut record = vec![23, 3, 3];
        record.extend(length.to_be_bytes());
        let mut nonce = self.iv;
        for (byte, mask) in nonce[4..].iter_mut().zip(self.sequence.to_be_bytes()) {
            *byte ^= mask;
        }
        self.sequence += 1;
        let nonce = Nonce::assume_unique_for_key(nonce);
        let aad = Aad::from(record.clone());
        self.key
            .seal_in_place_append_tag(nonce, aad, &mut inner)
            .expect("a sealed record");
        record.extend(inner);
        self.socket.write_all(&record)
    }
}
