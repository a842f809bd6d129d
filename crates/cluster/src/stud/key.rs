//! The key that seals datagrams of stud and hitch: SHA-1 of the PKCS#1 form of the RSA key of a certificate.

use std::fmt;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use becket_proto::rsa_key::pkcs1_of;
use rustls_pki_types::PrivateKeyDer;
use zeroize::Zeroizing;

/// HMAC key: erased on drop, omitted from debug output, compared in constant time.
#[derive(Clone)]
pub struct StudKey(Zeroizing<[u8; 20]>);

impl PartialEq for StudKey {
    fn eq(&self, other: &Self) -> bool {
        verify_slices_are_equal(self.expose(), other.expose()).is_ok()
    }
}

impl Eq for StudKey {}

impl StudKey {
    pub fn new(bytes: Zeroizing<[u8; 20]>) -> Self {
        Self(bytes)
    }

    pub fn expose(&self) -> &[u8] {
        &self.0[..]
    }

    /// Derives the key as stud does, from the PKCS#1 form of the RSA key. Returns `None` if the private key is not
    /// an RSA key.
    pub fn of(key: &PrivateKeyDer<'_>) -> Option<Self> {
        let pkcs1 = match key {
            PrivateKeyDer::Pkcs1(key) => key.secret_pkcs1_der(),
            PrivateKeyDer::Pkcs8(key) => pkcs1_of(key.secret_pkcs8_der())?,
            _ => return None,
        };
        let mut bytes = Zeroizing::new([0; 20]);
        let digest = digest(&SHA1_FOR_LEGACY_USE_ONLY, pkcs1);
        bytes.copy_from_slice(digest.as_ref().first_chunk::<20>()?);
        Some(Self(bytes))
    }
}

impl fmt::Debug for StudKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StudKey(..)")
    }
}
