//! Cost of a signature: one at a time with AWS-LC, and batches of eight and of five with the lanes of this
//! processor.
//!
//! Run with `cargo bench -p becket-multibuffer --bench signatures`. The time is per batch, so a signature
//! takes an eighth of it, or a fifth; the throughput is in signatures per second.

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeyPair;
use aws_lc_rs::signature::RSA_PKCS1_SHA256;
use becket_multibuffer::{Hash, LANES, Multibuffer, Padding, PrivateKey, Scheme, SignRequest};
use divan::Bencher;
use divan::counter::ItemsCount;

const KEYS: [(u32, &[u8]); 3] = [
    (2048, include_bytes!("../testdata/rsa-2048.der")),
    (3072, include_bytes!("../testdata/rsa-3072.der")),
    (4096, include_bytes!("../testdata/rsa-4096.der")),
];
const BITS: [u32; 3] = [2048, 3072, 4096];

fn main() {
    if Multibuffer::detect().is_none() {
        println!("no AVX-512 IFMA here: batches are by portable lanes, whose speed means nothing");
    }
    divan::main();
}

fn pkcs8(bits: u32) -> &'static [u8] {
    let found = KEYS.iter().find(|(length, _)| *length == bits);
    found.map(|(_, der)| *der).expect("a key of each length")
}

#[divan::bench(args = BITS)]
fn aws_lc(bencher: Bencher<'_, '_>, bits: u32) {
    let key = KeyPair::from_pkcs8(pkcs8(bits)).expect("a key");
    let mut signature = vec![0; key.public_modulus_len()];
    bencher.counter(ItemsCount::new(1_u32)).bench_local(|| {
        let random = SystemRandom::new();
        key.sign(&RSA_PKCS1_SHA256, &random, b"message", &mut signature)
    });
}

#[divan::bench(args = BITS)]
fn eight(bencher: Bencher<'_, '_>, bits: u32) {
    batch(bencher, bits, LANES);
}

#[divan::bench(args = BITS)]
fn five(bencher: Bencher<'_, '_>, bits: u32) {
    batch(bencher, bits, 5);
}

fn batch(bencher: Bencher<'_, '_>, bits: u32, filled: usize) {
    let lanes = Multibuffer::detect().unwrap_or(Multibuffer::portable());
    let key = PrivateKey::from_pkcs8(pkcs8(bits)).expect("a key");
    let scheme = Scheme {
        hash: Hash::Sha256,
        padding: Padding::Pkcs1,
    };
    bencher.counter(ItemsCount::new(filled)).bench_local(|| {
        let message = scheme.encode(&key, b"message").expect("random numbers");
        let request = SignRequest {
            key: &key,
            message: &message,
        };
        lanes.sign(&vec![request; filled])
    });
}
