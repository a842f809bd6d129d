//! Compresses the certificates that TLS 1.3 clients receive (RFC 8879).
//!
//! Each worker has a cache of the messages in use, so a full handshake normally copies the compressed
//! bytes. It takes at most [`MOST_BYTES`], and survives reloads and rotations of ticket keys. The
//! cache of rustls would compare a message with every entry. A compression takes 50 to 300 us, so a
//! worker makes at most one per [`INTERVAL`]: clients that ask for many names cannot slow it down.
//! Clients receive a certificate uncompressed until it is in the cache.
//!
//! Becket offers no algorithm to peers, so clients and servers send their certificates
//! uncompressed.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use aws_lc_rs::digest;
use becket_proto::bounded_table::{BoundedTable, Bounds, Entry, Order};
use brotli::enc::BrotliEncoderParams;
use rustls::CertificateCompressionAlgorithm;
use rustls::compress::{CertCompressor, CompressionFailed, CompressionLevel};
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

#[derive(Debug)]
struct CertificateCompressor {
    algorithm: CertificateCompressionAlgorithm,
    compress: fn(&[u8]) -> Option<Vec<u8>>,
}

impl CertCompressor for CertificateCompressor {
    /// Returns the compressed message from the cache, or compresses it. If this fails, rustls sends
    /// the certificates uncompressed.
    fn compress(
        &self,
        certificates: Vec<u8>,
        _: CompressionLevel,
    ) -> Result<Vec<u8>, CompressionFailed> {
        if certificates.len() > LONGEST {
            return Err(CompressionFailed);
        }
        let name = MessageName::of(self.algorithm, &certificates);
        if let Some(known) = CACHE.with_borrow_mut(|cache| cache.find(&name)) {
            return Ok(known);
        }
        let now = context::with(|handshake| handshake.clock.mono).ok_or(CompressionFailed)?;
        if now < NEXT.get() {
            return Err(CompressionFailed);
        }
        NEXT.set(now + INTERVAL);
        let compressed = (self.compress)(&certificates);
        let compressed = compressed.filter(|it| it.len() < certificates.len());
        let compressed = compressed.ok_or(CompressionFailed)?;
        CACHE.with_borrow_mut(|cache| cache.keep(name, &compressed));
        Ok(compressed)
    }

    fn algorithm(&self) -> CertificateCompressionAlgorithm {
        self.algorithm
    }
}

/// SHA-256 digest of an algorithm and a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct MessageName([u8; 32]);

impl MessageName {
    fn of(algorithm: CertificateCompressionAlgorithm, message: &[u8]) -> Self {
        let mut whole = digest::Context::new(&digest::SHA256);
        whole.update(&u16::from(algorithm).to_be_bytes());
        whole.update(message);
        let mut name = Self::default();
        name.0.copy_from_slice(whole.finish().as_ref());
        name
    }

    fn hash(&self) -> u64 {
        self.0.first_chunk().map_or(0, |it| u64::from_ne_bytes(*it))
    }
}

#[derive(Debug, Default)]
struct CompressedMessage {
    name: MessageName,
    bytes: Box<[u8]>,
}

impl Entry for CompressedMessage {
    fn bytes(&self) -> usize {
        size_of::<Self>() + self.bytes.len()
    }
}

/// The compressed messages that were used last.
struct MessageCache(BoundedTable<CompressedMessage>);

impl MessageCache {
    fn new() -> Self {
        let bounds = Bounds {
            entries: MOST_BYTES / size_of::<CompressedMessage>(),
            bytes: MOST_BYTES,
        };
        Self(BoundedTable::new(Order::Used, bounds))
    }

    fn find(&mut self, name: &MessageName) -> Option<Vec<u8>> {
        let at = self.0.find(name.hash(), |it| it.name == *name)?;
        self.0.used(at).map(|it| it.bytes.to_vec())
    }

    fn keep(&mut self, name: MessageName, bytes: &[u8]) {
        let (hash, bytes) = (name.hash(), bytes.into());
        self.0.insert(hash, CompressedMessage { name, bytes });
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
    static CACHE: RefCell<MessageCache> = RefCell::new(MessageCache::new());
    /// Time at which this thread may compress again.
    static NEXT: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Minimum time between two compressions of a worker, so that they take at most 0.5 % of a core.
const INTERVAL: Duration = Duration::from_millis(50);
/// Maximum size of a cache in bytes: usually 2500 messages, or 1250 chains in both algorithms.
const MOST_BYTES: usize = 4 * 1024 * 1024;
/// Maximum length in bytes of a message that is compressed.
const LONGEST: usize = 8 * 1024;
/// Level 9 saves less than 2 % more, and takes milliseconds.
const BROTLI_QUALITY: i32 = 5;
/// Binary logarithm of the window size. Smaller windows use a slower search.
const BROTLI_WINDOW: i32 = 18;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_in_use_are_kept_and_the_others_evicted() {
        let mut cache = MessageCache::new();
        let name = |number: usize| {
            MessageName::of(CertificateCompressionAlgorithm::Zlib, &number.to_be_bytes())
        };
        let message = [7; 1600];
        for number in 0..2000 {
            cache.keep(name(number), &message);
        }
        assert!((0..2000).all(|number| cache.find(&name(number)) == Some(message.into())));
        for number in 2000..4000 {
            cache.keep(name(number), &message);
            assert!(cache.find(&name(0)).is_some());
        }
        assert!(cache.find(&name(1)).is_none());
        let other = MessageName::of(
            CertificateCompressionAlgorithm::Brotli,
            &0_usize.to_be_bytes(),
        );
        assert!(cache.find(&other).is_none());
    }
}
