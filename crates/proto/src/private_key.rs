//! The secret numbers of a private key, independent of the encoding of the key file.
//!
//! Reads PKCS#1 (RFC 8017), SEC1 (RFC 5915) and PKCS#8 (RFC 5208 and 5958), and borrows the
//! numbers. The crypto provider, not this module, checks that the numbers form a key.

use crate::der::Der;
use crate::rsa_key::{RSA_ENCRYPTION, RsaKey, pkcs8};

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum SecretNumbers<'a> {
    /// Primes of an RSA key, the larger one first.
    Rsa([&'a [u8]; 2]),
    /// Scalar of an elliptic-curve key, without leading zeros.
    Ecdsa(&'a [u8]),
    Ed25519(&'a [u8]),
}

impl<'a> SecretNumbers<'a> {
    /// Reads a PKCS#1 private key with two primes.
    pub fn of_pkcs1(der: &'a [u8]) -> Option<Self> {
        let key = RsaKey::parse(der)?;
        let mut primes = [key.prime1, key.prime2];
        primes.sort_by_key(|prime| std::cmp::Reverse((prime.len(), *prime)));
        Some(Self::Rsa(primes))
    }

    pub fn of_sec1(der: &'a [u8]) -> Option<Self> {
        let mut key = Der::new(der).sequence()?;
        let _version = key.unsigned().filter(|version| *version == 1)?;
        let scalar = key.octets()?;
        let first = scalar.iter().position(|byte| *byte != 0)?;
        scalar.get(first..).map(Self::Ecdsa)
    }

    /// Reads a PKCS#8 private key of a supported type: RSA, ECDSA or Ed25519.
    pub fn of_pkcs8(der: &'a [u8]) -> Option<Self> {
        let (algorithm, key) = pkcs8(der)?;
        match algorithm {
            RSA_ENCRYPTION => Self::of_pkcs1(key),
            EC_PUBLIC_KEY => Self::of_sec1(key),
            ED25519 => Der::new(key).octets().map(Self::Ed25519),
            _ => None,
        }
    }
}

/// Object identifier id-ecPublicKey, 1.2.840.10045.2.1 (RFC 5480).
const EC_PUBLIC_KEY: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];
/// Object identifier id-Ed25519, 1.3.101.112 (RFC 8410).
const ED25519: &[u8] = &[0x2b, 0x65, 0x70];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn element(tag: u8, contents: &[u8]) -> Vec<u8> {
        [&[tag, contents.len() as u8], contents].concat()
    }

    fn pkcs8_of(algorithm: &[u8], key: &[u8]) -> Vec<u8> {
        let algorithm = element(0x30, &element(0x06, algorithm));
        let body = [element(0x02, &[0]), algorithm, element(0x04, key)].concat();
        element(0x30, &body)
    }

    fn pkcs1_of(primes: [u8; 2], private_exponent: u8) -> Vec<u8> {
        let numbers = [0, 33, 3, private_exponent, primes[0], primes[1], 3, 7, 1];
        let body: Vec<u8> = numbers.iter().flat_map(|n| element(0x02, &[*n])).collect();
        element(0x30, &body)
    }

    #[test]
    fn all_encodings_of_a_key_have_the_same_numbers() {
        // Tools differ in the private exponent and in the order of the primes.
        let (one, other) = (pkcs1_of([11, 3], 7), pkcs1_of([3, 11], 17));
        let wrapped = pkcs8_of(RSA_ENCRYPTION, &one);
        let expected = Some(SecretNumbers::Rsa([&[11], &[3]]));
        assert!(SecretNumbers::of_pkcs1(&one) == expected);
        assert!(SecretNumbers::of_pkcs1(&other) == expected);
        assert!(SecretNumbers::of_pkcs8(&wrapped) == expected);
        let sec1 = |scalar: &[u8]| {
            let body = [element(0x02, &[1]), element(0x04, scalar)].concat();
            element(0x30, &body)
        };
        let (short, padded) = (sec1(&[5, 0]), sec1(&[0, 5, 0]));
        let wrapped = pkcs8_of(EC_PUBLIC_KEY, &short);
        let expected = Some(SecretNumbers::Ecdsa(&[5, 0]));
        assert!(SecretNumbers::of_sec1(&padded) == expected);
        assert!(SecretNumbers::of_pkcs8(&wrapped) == expected);
        assert!(SecretNumbers::of_sec1(&sec1(&[0])).is_none());
        let wrapped = pkcs8_of(ED25519, &element(0x04, &[9; 32]));
        assert!(SecretNumbers::of_pkcs8(&wrapped) == Some(SecretNumbers::Ed25519(&[9; 32])));
        assert!(SecretNumbers::of_pkcs8(&pkcs8_of(&[0x2b, 0x65, 0x71], &one)).is_none());
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_cause_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            for der in [bytes.clone(), element(0x30, &bytes), pkcs8_of(EC_PUBLIC_KEY, &bytes)] {
                let _found = [
                    SecretNumbers::of_pkcs1(&der),
                    SecretNumbers::of_sec1(&der),
                    SecretNumbers::of_pkcs8(&der),
                ];
            }
        }
    }
}
