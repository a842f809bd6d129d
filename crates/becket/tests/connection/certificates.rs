//! Tests of the form of the certificates that clients receive.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rustls::compress::{CertDecompressor, DecompressionFailed};
use rustls::version::TLS13;
use rustls::{CertificateCompressionAlgorithm, ClientConfig};

use becket_keys::signing::SignatureRequest;
use becket_proxy::connection::listener::ListenerState;

use crate::common::{BACKEND, COSTLY, Client, House, house};

thread_local! {
    /// Number of compressed messages that clients of this thread received.
    static COMPRESSED: Cell<usize> = const { Cell::new(0) };
}

static BROTLI: Decompressor = Decompressor(CertificateCompressionAlgorithm::Brotli);
static ZLIB: Decompressor = Decompressor(CertificateCompressionAlgorithm::Zlib);

#[derive(Debug)]
struct Decompressor(CertificateCompressionAlgorithm);

impl CertDecompressor for Decompressor {
    fn decompress(&self, mut input: &[u8], output: &mut [u8]) -> Result<(), DecompressionFailed> {
        COMPRESSED.set(COMPRESSED.get() + 1);
        let mut whole = Vec::new();
        match self.0 {
            CertificateCompressionAlgorithm::Brotli => {
                brotli::BrotliDecompress(&mut input, &mut whole).unwrap();
            }
            _ => {
                whole.resize(output.len(), 0);
                let config = zlib_rs::InflateConfig::default();
                zlib_rs::decompress_slice(&mut whole, input, config);
            }
        }
        output.copy_from_slice(&whole);
        Ok(())
    }

    fn algorithm(&self) -> CertificateCompressionAlgorithm {
        self.0
    }
}

/// Returns `true` if the client's certificate is compressed; `waited` passes before its connection.
fn is_compressed(
    house: &House,
    listener: &Rc<ListenerState>,
    (config, name): (&Arc<ClientConfig>, &str),
    waited: Duration,
) -> bool {
    let before = COMPRESSED.get();
    let mut stage = house.stage();
    stage.wait(waited);
    let mut client = Client::enter(&mut stage, Rc::clone(listener), config, name);
    client.talk(&mut stage);
    assert!(!client.tls.is_handshaking(), "{:?}", client.fault);
    COMPRESSED.get() > before
}

#[test]
fn certificates_are_compressed_at_a_bounded_rate_and_then_cached() {
    let house = house("");
    let config = |accepted: &[&'static dyn CertDecompressor]| {
        let mut config = house.client(&TLS13);
        config.cert_decompressors = accepted.to_vec();
        config.resumption = rustls::client::Resumption::disabled();
        Arc::new(config)
    };
    let (with_brotli, with_zlib) = (config(&[&BROTLI]), config(&[&ZLIB]));
    let listener = house.listener(0);
    for (client, millis, expected) in [
        ((&config(&[]), "a.test"), 0, false),
        ((&with_zlib, "a.test"), 0, true),
        ((&with_zlib, "x.b.test"), 49, false),
        ((&with_zlib, "a.test"), 49, true),
        ((&with_brotli, "a.test"), 50, true),
        ((&with_brotli, "a.test"), 50, true),
        ((&with_zlib, "x.b.test"), 100, true),
        ((&config(&[&ZLIB, &BROTLI]), "x.b.test"), 150, true),
    ] {
        let waited = Duration::from_millis(millis);
        let compressed = is_compressed(&house, &listener, client, waited);
        assert_eq!(compressed, expected, "{} after {millis} ms", client.1);
    }
}

#[test]
fn the_stack_of_a_suspended_handshake_suffices_for_a_compression() {
    let house = serving(&[COSTLY]);
    for decompressor in [&BROTLI, &ZLIB] {
        let before = COMPRESSED.get();
        let mut stage = house.stage();
        stage.defer();
        stage.wait(Duration::from_millis(50 * before as u64));
        let mut config = house.client(&TLS13);
        config.cert_decompressors = vec![decompressor];
        let mut client = Client::enter(&mut stage, house.listener(0), &Arc::new(config), "a.test");
        client.talk(&mut stage);
        assert!(stage.sign(SignatureRequest::sign));
        client.talk(&mut stage);
        assert!(!client.tls.is_handshaking(), "{:?}", client.fault);
        assert_eq!(COMPRESSED.get(), before + 1);
    }
}

/// Returns a house whose listener has the certificates of these files.
fn serving(files: &[&str]) -> House {
    House::new(&format!(
        "[[listener]]\nname = 'web'\nbind = ['127.0.0.1:443']\nbackend = 'app'\n\
         certificates = {files:?}\n{BACKEND}"
    ))
}
