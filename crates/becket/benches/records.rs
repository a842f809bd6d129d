//! What each kind of record costs whoever opens it, once there are traffic keys.
//!
//! Run with `cargo bench -p becket --bench records`. A [`Case`] is one kind of message and a batch of them, as many
//! as a peer may send without data between; time per message is the time divided by `messages`, and the counter shows
//! bytes of the wire for each second. What may be sent in all is bounded by `becket_proto::records`.

#![expect(clippy::unwrap_used, reason = "a bench fails by panicking")]

use std::fmt;
use std::io::Write;
use std::sync::Arc;

use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use becket::scratch::Scratch;
use becket::tls::engine::Engine;
use divan::counter::{BytesCount, ItemsCount};
use divan::{Bencher, black_box};
use rustls::crypto::aws_lc_rs::{cipher_suite, default_provider};
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::version::TLS13;
use rustls::{
    ClientConfig, ClientConnection, ConnectionTrafficSecrets, RootCertStore, ServerConfig,
};

fn main() {
    divan::main();
}

/// One kind of message, and how the bytes of a batch are made by a client whose handshake is done.
struct Case {
    name: &'static str,
    messages: usize,
    make: fn(ClientConnection, usize) -> Vec<u8>,
}

/// What a client can send. rustls has its own limits: 32 KeyUpdates or empty records in a row, four alerts.
const CASES: &[Case] = &[
    Case {
        name: "16 KiB of data",
        messages: 4,
        make: |client, messages| said(client, messages, 16 * 1024),
    },
    Case {
        name: "1 byte of data",
        messages: 64,
        make: |client, messages| said(client, messages, 1),
    },
    Case {
        name: "KeyUpdate",
        messages: 31,
        make: |mut client, messages| {
            for _ in 0..messages {
                client.refresh_traffic_keys().unwrap();
            }
            sent(&mut client)
        },
    },
    Case {
        name: "empty record",
        messages: 31,
        make: |client, messages| Sealer::of(client).seal(DATA, &[], messages),
    },
    Case {
        name: "alert user_canceled",
        messages: 4,
        make: |client, messages| Sealer::of(client).seal(ALERT, &[1, 90], messages),
    },
];

impl fmt::Display for Case {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name)
    }
}

#[divan::bench(args = CASES, sample_count = 100, sample_size = 1)]
fn open(bencher: Bencher<'_, '_>, case: &'static Case) {
    let configs = configs();
    bencher
        .with_inputs(|| {
            let (client, engine) = established(&configs);
            (engine, (case.make)(client, case.messages), Scratch::new())
        })
        .input_counter(|(_, bytes, _)| BytesCount::of_slice(bytes))
        .input_counter(|_| ItemsCount::new(case.messages))
        .bench_values(|(mut engine, mut bytes, mut scratch)| {
            let mut received =
                engine.receive(&mut bytes, &mut scratch.plain, &mut scratch.sealed_out);
            while engine.waits() {
                received = engine.resume(&mut scratch.plain, &mut scratch.sealed_out);
            }
            received.unwrap();
            black_box((engine, scratch))
        });
}

fn configs() -> (Arc<ClientConfig>, Arc<ServerConfig>) {
    let made = rcgen::generate_simple_self_signed(["a.test".to_owned()]).unwrap();
    let mut provider = default_provider();
    provider.cipher_suites = vec![cipher_suite::TLS13_AES_128_GCM_SHA256];
    let provider = Arc::new(provider);
    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let client = ClientConfig::builder_with_provider(Arc::clone(&provider));
    let client = client.with_protocol_versions(&[&TLS13]).unwrap();
    let mut client = client.with_root_certificates(roots).with_no_client_auth();
    client.enable_secret_extraction = true;
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let server = ServerConfig::builder_with_provider(provider);
    let server = server.with_protocol_versions(&[&TLS13]).unwrap();
    let server = server.with_no_client_auth();
    let server = server.with_single_cert(vec![made.cert.der().clone()], key);
    (Arc::new(client), Arc::new(server.unwrap()))
}

/// A client and the engine it speaks with, after the handshake.
fn established(configs: &(Arc<ClientConfig>, Arc<ServerConfig>)) -> (ClientConnection, Engine) {
    let name = ServerName::try_from("a.test").unwrap();
    let mut client = ClientConnection::new(Arc::clone(&configs.0), name).unwrap();
    client.set_buffer_limit(None);
    let mut engine = Engine::new(Arc::clone(&configs.1), 1 << 16).unwrap();
    let mut scratch = Scratch::new();
    loop {
        let mut bytes = [engine.held(), &sent(&mut client)].concat();
        scratch.clear();
        let received = engine.receive(&mut bytes, &mut scratch.plain, &mut scratch.sealed_out);
        let ready = received.unwrap().ready;
        let mut answer = scratch.sealed_out.filled();
        while !answer.is_empty() {
            client.read_tls(&mut answer).unwrap();
            client.process_new_packets().unwrap();
        }
        if ready {
            return (client, engine);
        }
    }
}

fn said(mut client: ClientConnection, messages: usize, length: usize) -> Vec<u8> {
    for _ in 0..messages {
        client.writer().write_all(&vec![7; length]).unwrap();
    }
    sent(&mut client)
}

/// What TLS wants to send.
fn sent(client: &mut ClientConnection) -> Vec<u8> {
    let mut bytes = Vec::new();
    while client.wants_write() {
        client.write_tls(&mut bytes).unwrap();
    }
    bytes
}

/// Seals records that rustls never would (RFC 8446, section 5.2).
struct Sealer {
    key: LessSafeKey,
    iv: [u8; 12],
    sequence: u64,
}

impl Sealer {
    fn of(client: ClientConnection) -> Self {
        let (sequence, secrets) = client.dangerous_extract_secrets().unwrap().tx;
        let ConnectionTrafficSecrets::Aes128Gcm { key, iv } = secrets else {
            panic!("the only suite");
        };
        Self {
            key: LessSafeKey::new(UnboundKey::new(&AES_128_GCM, key.as_ref()).unwrap()),
            iv: iv.as_ref().try_into().unwrap(),
            sequence,
        }
    }

    fn seal(mut self, kind: u8, content: &[u8], messages: usize) -> Vec<u8> {
        let mut out = Vec::new();
        for _ in 0..messages {
            let mut nonce = self.iv;
            for (byte, sequence) in nonce[4..].iter_mut().zip(self.sequence.to_be_bytes()) {
                *byte ^= sequence;
            }
            self.sequence += 1;
            let mut sealed = [content, &[kind]].concat();
            let length = (sealed.len() as u16 + 16).to_be_bytes();
            let header = [DATA, 3, 3, length[0], length[1]];
            let nonce = Nonce::assume_unique_for_key(nonce);
            let aad = Aad::from(header);
            self.key
                .seal_in_place_append_tag(nonce, aad, &mut sealed)
                .unwrap();
            out.extend(header);
            out.extend(sealed);
        }
        out
    }
}

const ALERT: u8 = 21;
const DATA: u8 = 23;
