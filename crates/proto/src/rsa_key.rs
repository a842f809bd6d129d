//! RSA private keys in DER: PKCS#1 (RFC 8017, appendix A.1.2), also inside PKCS#8 (RFC 5208).
//!
//! Finds the numbers and borrows them, but does not check that they form a key.

use crate::der::Der;

/// The secret numbers of an RSA key with two primes, big-endian, without leading zeros.
#[derive(Clone, Copy)]
pub struct RsaKey<'a> {
    pub modulus: &'a [u8],
    pub public_exponent: &'a [u8],
    pub prime1: &'a [u8],
    pub prime2: &'a [u8],
    pub exponent1: &'a [u8],
    pub exponent2: &'a [u8],
    pub coefficient: &'a [u8],
}

impl<'a> RsaKey<'a> {
    /// Reads a PKCS#1 private key. Returns `None` if it is invalid or has more than two primes.
    pub fn parse(pkcs1: &'a [u8]) -> Option<Self> {
        let mut whole = Der::new(pkcs1);
        let mut fields = whole.sequence().filter(|_| whole.is_empty())?;
        let two_primes = fields.unsigned()? == 0;
        let (modulus, public_exponent) = (fields.integer()?, fields.integer()?);
        let _private_exponent = fields.integer()?;
        let key = Self {
            modulus,
            public_exponent,
            prime1: fields.integer()?,
            prime2: fields.integer()?,
            exponent1: fields.integer()?,
            exponent2: fields.integer()?,
            coefficient: fields.integer()?,
        };
        (two_primes && fields.is_empty()).then_some(key)
    }
}

/// Returns the PKCS#1 key inside a PKCS#8 key, or `None` if it is not an RSA key.
pub fn pkcs1_of(der: &[u8]) -> Option<&[u8]> {
    let (algorithm, key) = pkcs8(der)?;
    (algorithm == RSA_ENCRYPTION).then_some(key)
}

/// Returns the algorithm's object identifier and the encoded key from a PKCS#8 private key.
pub(crate) fn pkcs8(der: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut whole = Der::new(der);
    let mut info = whole.sequence()?;
    let version = info.unsigned()?;
    let algorithm = info.sequence()?.element(OBJECT_IDENTIFIER)?;
    let key = info.octets()?;
    (whole.is_empty() && version <= 1).then_some((algorithm, key))
}

const OBJECT_IDENTIFIER: u8 = 0x06;
/// Object identifier rsaEncryption, 1.2.840.113549.1.1.1 (RFC 8017).
pub(crate) const RSA_ENCRYPTION: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_rsa_keys_yield_a_pkcs1_key() {
        let algorithm = |oid: &[u8]| [&[0x06, oid.len() as u8], oid, &[0x05, 0]].concat();
        let of = |oid: &[u8]| {
            let algorithm = algorithm(oid);
            let mut body = vec![0x02, 1, 0, 0x30, algorithm.len() as u8];
            body.extend(algorithm);
            body.extend([0x04, 3, 1, 2, 3]);
            [&[0x30, body.len() as u8], body.as_slice()].concat()
        };
        assert_eq!(pkcs1_of(&of(RSA_ENCRYPTION)), Some(&[1u8, 2, 3][..]));
        let elliptic = [0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];
        assert_eq!(pkcs1_of(&of(&elliptic)), None);
        assert_eq!(pkcs1_of(b""), None);
    }

    #[test]
    fn keys_with_trailing_numbers_or_other_versions_are_rejected() {
        let of = |numbers: &[u8]| {
            let fields: Vec<u8> = numbers.iter().flat_map(|n| [0x02, 1, *n]).collect();
            [&[0x30, fields.len() as u8], fields.as_slice()].concat()
        };
        let pkcs1 = of(&[0, 33, 3, 7, 11, 3, 7, 1, 4]);
        let key = RsaKey::parse(&pkcs1).unwrap();
        assert_eq!((key.modulus, key.public_exponent), (&[33][..], &[3][..]));
        assert_eq!((key.prime1, key.prime2), (&[11][..], &[3][..]));
        assert_eq!((key.exponent1, key.exponent2), (&[7][..], &[1][..]));
        assert_eq!(key.coefficient, [4]);
        assert!(RsaKey::parse(&of(&[1, 33, 3, 7, 11, 3, 7, 1, 4])).is_none());
        assert!(RsaKey::parse(&of(&[0, 33, 3, 7, 11, 3, 7, 1])).is_none());
        assert!(RsaKey::parse(&of(&[0, 33, 3, 7, 11, 3, 7, 1, 4, 5])).is_none());
    }
}
