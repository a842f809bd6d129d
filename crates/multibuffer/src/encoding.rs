//! Hashing and padding of messages: PKCS#1 v1.5 and PSS (RFC 8017, section 9) with SHA-2.

use aws_lc_rs::digest::{self, SHA256, SHA384, SHA512};
use aws_lc_rs::rand;

use crate::error::Error;
use crate::key::PrivateKey;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hash {
    Sha256,
    Sha384,
    Sha512,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Padding {
    /// EMSA-PKCS1-v1_5.
    Pkcs1,
    /// EMSA-PSS, with MGF1 of the same hash and a salt as long as the digest.
    Pss,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scheme {
    pub hash: Hash,
    pub padding: Padding,
}

impl Scheme {
    /// Hashes and pads a message for a key. The salt, if there is one, comes from AWS-LC's generator.
    ///
    /// # Errors
    /// [`Error::Random`] if the generator fails.
    pub fn encode(self, key: &PrivateKey, message: &[u8]) -> Result<Vec<u8>, Error> {
        let digest = self.hash.digest(message);
        let len = key.modulus_len();
        match self.padding {
            Padding::Pkcs1 => Ok(pkcs1(self.hash, digest.as_ref(), len)),
            Padding::Pss => {
                let mut salt = [0; digest::MAX_OUTPUT_LEN];
                let salt = &mut salt[..digest.as_ref().len()];
                rand::fill(salt).map_err(|_| Error::Random)?;
                Ok(pss(self.hash, digest.as_ref(), salt, len))
            }
        }
    }
}

impl Hash {
    fn digest(self, message: &[u8]) -> digest::Digest {
        let algorithm = match self {
            Self::Sha256 => &SHA256,
            Self::Sha384 => &SHA384,
            Self::Sha512 => &SHA512,
        };
        digest::digest(algorithm, message)
    }

    /// Returns the DER encoding of a DigestInfo up to its digest (RFC 8017, section 9.2, note 1).
    fn digest_info(self) -> &'static [u8] {
        match self {
            Self::Sha256 => {
                b"\x30\x31\x30\x0d\x06\x09\x60\x86\x48\x01\x65\x03\x04\x02\x01\x05\x00\x04\x20"
            }
            Self::Sha384 => {
                b"\x30\x41\x30\x0d\x06\x09\x60\x86\x48\x01\x65\x03\x04\x02\x02\x05\x00\x04\x30"
            }
            Self::Sha512 => {
                b"\x30\x51\x30\x0d\x06\x09\x60\x86\x48\x01\x65\x03\x04\x02\x03\x05\x00\x04\x40"
            }
        }
    }
}

/// Returns the PKCS#1 v1.5 encoding: `00 01 ff .. ff 00 | DigestInfo`.
fn pkcs1(hash: Hash, digest: &[u8], len: usize) -> Vec<u8> {
    let info = [hash.digest_info(), digest].concat();
    let mut encoded = vec![0xff; len - info.len()];
    encoded[..2].copy_from_slice(&[0, 1]);
    if let Some(end) = encoded.last_mut() {
        *end = 0;
    }
    encoded.extend(info);
    encoded
}

/// Returns the PSS encoding, `masked 00 .. 00 01 salt | H | bc`, for a modulus of exactly `8 len` bits.
fn pss(hash: Hash, digest: &[u8], salt: &[u8], len: usize) -> Vec<u8> {
    let seed = hash.digest(&[&[0; 8], digest, salt].concat());
    let mut encoded = vec![0; len - seed.as_ref().len() - salt.len() - 2];
    encoded.push(1);
    encoded.extend(salt);
    let blocks = (0_u32..).flat_map(|count| {
        let block = hash.digest(&[seed.as_ref(), &count.to_be_bytes()].concat());
        block.as_ref().to_vec()
    });
    for (byte, mask) in encoded.iter_mut().zip(blocks) {
        *byte ^= mask;
    }
    // The encoded message has one bit less than the modulus.
    encoded[0] &= 0x7f;
    encoded.extend(seed.as_ref());
    encoded.push(0xbc);
    encoded
}
