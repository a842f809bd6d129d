//! Private keys: the content of a file that should hold one.

use becket_proto::private_key::SecretNumbers;
use becket_proto::rsa_key::{RsaKey, pkcs1_of};

/// Checks one input as PKCS#8 and as PKCS#1. Returns the number of valid forms.
///
/// # Panics
///
/// If a parsed number does not occur in the input, if missing or trailing bytes are accepted, or if the secret numbers
/// depend on the form.
pub fn run(data: &[u8]) -> usize {
    let inner = pkcs1_of(data);
    assert!(inner.is_none_or(|key| key.len() < data.len()));
    if let Some(inner) = inner {
        assert!(SecretNumbers::of_pkcs8(data) == SecretNumbers::of_pkcs1(inner));
    }
    if let Some(SecretNumbers::Ecdsa(scalar)) = SecretNumbers::of_sec1(data) {
        assert_ne!(scalar[0], 0);
    }
    let keys = [Some(data), inner].into_iter().flatten();
    usize::from(inner.is_some()) + keys.filter(|key| is_key(key)).count()
}

fn is_key(der: &[u8]) -> bool {
    let Some(key) = RsaKey::parse(der) else {
        return false;
    };
    let numbers = [key.modulus, key.public_exponent, key.prime1, key.prime2];
    for number in [key.exponent1, key.exponent2, key.coefficient]
        .iter()
        .chain(&numbers)
    {
        assert_ne!(number.first(), Some(&0));
        assert!(number.is_empty() || der.windows(number.len()).any(|found| found == *number));
    }
    assert!(RsaKey::parse(&der[..der.len() - 1]).is_none());
    assert!(RsaKey::parse(&[der, &[0]].concat()).is_none());
    true
}
