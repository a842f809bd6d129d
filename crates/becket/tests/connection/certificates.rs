//! Tests of the certificates that clients receive: their form, and the choice among the chains of
//! a name.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::compress::{CertDecompressor, DecompressionFailed};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::version::{TLS12, TLS13};
use rustls::{
    AlertDescription, CertificateCompressionAlgorithm, ClientConfig, DigitallySignedStruct,
    DistinguishedName, Error, RootCertStore, SignatureScheme,
};

use becket_keys::signing::SignatureRequest;
use becket_proxy::connection::listener::ListenerState;

use crate::common::{BACKEND, COSTLY, Client, House, ML_DSA, RSA, house};

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
    for (client, millis, expected) in [
        ((&config(&[]), "a.test"), 0, false),
        ((&with_zlib, "a.test"), 0, true),
        ((&with_zlib, "x.b.test"), 49, false),
        ((&with_zlib, "a.test"), 49, true),
        ((&with_brotli, "a.test"), 50, true),
        ((&with_brotli, "a.test"), 50, true),
        ((&with_zlib, "x.b.test"), 100, true),
        ((&config(&[&ZLIB, &BROTLI]), "x.b.test"), 150, true),
        ((&with_zlib, "a.test"), 150, true),
    ] {
        let waited = Duration::from_millis(millis);
        // The cache survives a reload.
        let compressed = is_compressed(&house, &house.listener(0), client, waited);
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

/// Verifies like rustls, and names certificate authorities in the ClientHello.
#[derive(Debug)]
struct NamesAuthorities {
    verifier: Arc<WebPkiServerVerifier>,
    authorities: Vec<DistinguishedName>,
}

impl ServerCertVerifier for NamesAuthorities {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verifier = &self.verifier;
        verifier.verify_server_cert(leaf, intermediates, name, ocsp, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier.verify_tls12_signature(message, leaf, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier.verify_tls13_signature(message, leaf, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.supported_verify_schemes()
    }

    fn root_hint_subjects(&self) -> Option<&[DistinguishedName]> {
        Some(&self.authorities)
    }
}

fn certificate(house: &House, file: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_file(house.folder.path().join(file)).unwrap()
}

/// Returns a client that names the issuers of these files.
fn naming(house: &House, files: &[&str]) -> ClientConfig {
    let mut named = RootCertStore::empty();
    for file in files {
        named.add(certificate(house, file)).unwrap();
    }
    let mut config = house.client(&TLS13);
    let provider = Arc::clone(config.crypto_provider());
    let roots = Arc::new(house.roots.clone());
    let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider).build();
    config
        .dangerous()
        .set_certificate_verifier(Arc::new(NamesAuthorities {
            verifier: verifier.unwrap(),
            authorities: named.subjects(),
        }));
    config
}

/// Returns a house whose listener has the certificates of these files.
fn serving(files: &[&str]) -> House {
    House::new(&format!(
        "[[listener]]\nname = 'web'\nbind = ['127.0.0.1:443']\nbackend = 'app'\n\
         certificates = {files:?}\n{BACKEND}"
    ))
}

/// Connects, and returns the certificate that the client accepted.
fn received(house: &House, config: ClientConfig) -> Result<CertificateDer<'static>, Option<Error>> {
    let mut stage = house.stage();
    let mut client = Client::enter(&mut stage, house.listener(0), &Arc::new(config), "a.test");
    client.talk(&mut stage);
    let chain = client.tls.peer_certificates();
    let leaf = chain.and_then(<[_]>::first).cloned();
    leaf.ok_or(client.fault)
}

#[test]
fn authorities_that_a_client_names_select_among_the_chains_of_a_name() {
    let house = serving(&["a.pem", RSA, ML_DSA]);
    for (named, expected) in [
        (&[][..], "a.pem"),
        (&[RSA], RSA),
        (&["b.pem", RSA], RSA),
        (&["a.pem", RSA], "a.pem"),
        (&["b.pem"], "a.pem"),
        (&[ML_DSA], ML_DSA),
    ] {
        let leaf = received(&house, naming(&house, named));
        assert_eq!(leaf, Ok(certificate(&house, expected)), "{named:?}");
    }
}

#[test]
fn an_ml_dsa_key_serves_clients_of_tls_13() {
    let house = serving(&[ML_DSA]);
    let leaf = received(&house, house.client(&TLS13));
    assert_eq!(leaf, Ok(certificate(&house, ML_DSA)));
    let failed = received(&house, house.client(&TLS12));
    let alert = Error::AlertReceived(AlertDescription::HandshakeFailure);
    assert_eq!(failed, Err(Some(alert)));
}
