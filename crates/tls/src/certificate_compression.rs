//! Compresses the certificates that TLS 1.3 clients receive (RFC 8879).
//!
//! Each worker has a [`cache`] per listener, so a full handshake normally copies the compressed
//! bytes. A compression takes 50 to 300 us, so a worker makes at most one per [`INTERVAL`]: clients
//! that ask for many names cannot slow it down. Clients receive a certificate uncompressed until it
//! is in the cache.
//!
//! Becket offers no algorithm to peers, so clients and servers send their certificates
//! uncompressed.

use std::cell::Cell;
use std::time::Duration;

use brotli::enc::BrotliEncoderParams;
use rustls::CertificateCompressionAlgorithm;
use rustls::compress::{CertCompressor, CompressionCache, CompressionFailed, CompressionLevel};
use zlib_rs::{DeflateConfig, ReturnCode, compress_bound, compress_slice};

use crate::sessions::context;

/// Supported algorithms, the preferred one first.
pub(crate) const COMPRESSORS: [&dyn CertCompressor; 2] = [
    &CertificateCompressor {
        algorithm: CertificateCompressionAlgorithm::Brotli,
        compress: brotli,
    },
    &CertificateCompressor {
        algorithm: CertificateCompressionAlgorithm::Zlib,
        compress: zlib,
    },
];

/// Creates the cache of a listener and worker, for the [`ENTRIES`] last used certificates.
pub(crate) fn cache() -> CompressionCache {
    CompressionCache::new(ENTRIES)
}

#[derive(Debug)]
struct CertificateCompressor {
    algorithm: CertificateCompressionAlgorithm,
    compress: fn(&[u8]) -> Option<Vec<u8>>,
}

impl CertCompressor for CertificateCompressor {
    /// Compresses certificates that are not in the cache. If this fails, rustls sends them
    /// uncompressed.
    fn compress(
        &self,
        certificates: Vec<u8>,
        _: CompressionLevel,
    ) -> Result<Vec<u8>, CompressionFailed> {
        let now = context::with(|handshake| handshake.clock.mono).ok_or(CompressionFailed)?;
        if certificates.len() > LONGEST || now < NEXT.get() {
            return Err(CompressionFailed);
        }
        NEXT.set(now + INTERVAL);
        let compressed = (self.compress)(&certificates);
        compressed
            .filter(|it| it.len() < certificates.len())
            .ok_or(CompressionFailed)
    }

    fn algorithm(&self) -> CertificateCompressionAlgorithm {
        self.algorithm
    }
}

fn brotli(mut certificates: &[u8]) -> Option<Vec<u8>> {
    let params = BrotliEncoderParams {
        quality: BROTLI_QUALITY,
        lgwin: BROTLI_WINDOW,
        size_hint: certificates.len(),
        ..BrotliEncoderParams::default()
    };
    let mut compressed = Vec::new();
    brotli::BrotliCompress(&mut certificates, &mut compressed, &params).ok()?;
    Some(compressed)
}

fn zlib(certificates: &[u8]) -> Option<Vec<u8>> {
    let mut room = vec![0; compress_bound(certificates.len())];
    let best = DeflateConfig::best_compression();
    let (compressed, code) = compress_slice(&mut room, certificates, best);
    (code == ReturnCode::Ok).then(|| compressed.to_vec())
}

thread_local! {
    /// Time at which this thread may compress again.
    static NEXT: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Minimum time between two compressions of a worker, so that they take at most 0.5 % of a core.
const INTERVAL: Duration = Duration::from_millis(50);
/// Maximum number of entries: 32 chains in both algorithms. An entry has the message and its
/// compressed form, usually 5 KiB.
const ENTRIES: usize = 64;
/// Maximum length in bytes of a message that is compressed.
const LONGEST: usize = 8 * 1024;
/// Level 9 saves less than 2 % more, and takes milliseconds.
const BROTLI_QUALITY: i32 = 5;
/// Binary logarithm of the window size. Smaller windows use a slower search.
const BROTLI_WINDOW: i32 = 18;
