//! RSA private keys, stored as the numbers that a batch computes with.

use std::fmt;
use std::sync::Mutex;

use aws_lc_rs::rsa::KeyPair;
use becket_proto::rsa_key::{RsaKey, pkcs1_of};

use crate::error::KeyError;
use crate::natural::{BLOCK, LIMB_BITS, Modulus, Natural};

/// An RSA private key for batches. Its numbers are erased on drop.
pub struct PrivateKey {
    bits: u32,
    pub(crate) modulus: Modulus,
    pub(crate) p: Prime,
    pub(crate) q: Prime,
    /// 1 / q modulo p.
    pub(crate) q_inverse: Natural,
    /// Blinding pairs that no batch uses at present.
    pub(crate) blindings: Mutex<Vec<Blinding>>,
}

pub(crate) struct Prime {
    pub(crate) modulus: Modulus,
    /// The private exponent modulo the prime minus one.
    pub(crate) exponent: Natural,
    /// The prime minus two. A number to this power is its inverse modulo the prime.
    pub(crate) less_two: Natural,
}

/// Blinding pair: two factors computed from a random number r, in Montgomery form.
pub(crate) struct Blinding {
    /// r^65537
    pub(crate) factor: Natural,
    /// 1 / r
    pub(crate) inverse: Natural,
    /// Number of uses since the pair was created from a random number. Squaring the pair does not
    /// reset it.
    pub(crate) uses: u32,
}

#[cfg(test)]
impl Blinding {
    pub(crate) fn parts(&self) -> (Natural, Natural, u32) {
        (self.factor.clone(), self.inverse.clone(), self.uses)
    }
}

impl PrivateKey {
    /// Reads a PKCS#8 key. Takes a few milliseconds.
    ///
    /// # Errors
    /// Fails if AWS-LC rejects the key, or if the key cannot be used in batches.
    pub fn from_pkcs8(der: &[u8]) -> Result<Self, KeyError> {
        let pair = KeyPair::from_pkcs8(der).map_err(|_| KeyError::Rejected)?;
        Self::of(&pair, pkcs1_of(der))
    }

    /// Reads a PKCS#1 key. Takes a few milliseconds.
    ///
    /// # Errors
    /// Returns the errors of [`Self::from_pkcs8`].
    pub fn from_pkcs1(der: &[u8]) -> Result<Self, KeyError> {
        let pair = KeyPair::from_der(der).map_err(|_| KeyError::Rejected)?;
        Self::of(&pair, Some(der))
    }

    /// The key pair proves that AWS-LC has checked the consistency of the numbers.
    fn of(_checked: &KeyPair, pkcs1: Option<&[u8]>) -> Result<Self, KeyError> {
        let key = pkcs1.and_then(RsaKey::parse).ok_or(KeyError::Rejected)?;
        if key.public_exponent != [1, 0, 1] {
            return Err(KeyError::Exponent);
        }
        let bits = bits_of(key.modulus);
        let lengths = [key.prime1, key.prime2].map(bits_of);
        if ![2048, 3072, 4096].contains(&bits) || lengths != [bits / 2; 2] {
            return Err(KeyError::Length);
        }
        // Rounds up to whole blocks, with at least four spare bits, so that intermediate results need no
        // reduction.
        let limbs = ((bits / 2 + 4).div_ceil(LIMB_BITS) as usize).next_multiple_of(BLOCK);
        let part = |bytes| Natural::from_be(bytes, limbs);
        let prime = |number, exponent| Prime {
            less_two: part(number).less_two(),
            modulus: Modulus::new(part(number)),
            exponent: part(exponent),
        };
        Ok(Self {
            bits,
            modulus: Modulus::new(Natural::from_be(key.modulus, 2 * limbs)),
            p: prime(key.prime1, key.exponent1),
            q: prime(key.prime2, key.exponent2),
            q_inverse: part(key.coefficient),
            blindings: Mutex::default(),
        })
    }

    /// Returns the length of the modulus, of a padded message and of a signature in bytes: 256, 384 or 512.
    #[must_use]
    pub fn modulus_len(&self) -> usize {
        self.bits as usize / 8
    }

    pub(crate) fn bits(&self) -> u32 {
        self.bits
    }

    /// Returns the number of limbs of the modulus, twice that of a prime.
    pub(crate) fn limbs(&self) -> usize {
        self.modulus.number.limbs().len()
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrivateKey({} bits)", self.bits)
    }
}

/// Returns the bit length of a number in big-endian bytes without leading zeros.
fn bits_of(number: &[u8]) -> u32 {
    let zeros = number.first().map_or(0, |byte| byte.leading_zeros());
    number.len() as u32 * 8 - zeros
}
