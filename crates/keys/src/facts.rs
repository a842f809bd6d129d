//! Certificates and revocation lists, read for what they say. They need not be sound: who trusts them verifies them elsewhere.

use becket_proto::ticket::UnixSeconds;
use x509_parser::error::X509Error;
use x509_parser::nom;
use x509_parser::prelude::{CertificateRevocationList, FromDer, X509Certificate};

/// Reads a certificate in DER.
pub fn certificate(der: &[u8]) -> Option<X509Certificate<'_>> {
    X509Certificate::from_der(der).ok().map(|(_, read)| read)
}

/// Reads a revocation list in DER.
///
/// # Errors
///
/// What is not as RFC 5280 has it.
pub fn revocation_list(der: &[u8]) -> Result<CertificateRevocationList<'_>, nom::Err<X509Error>> {
    CertificateRevocationList::from_der(der).map(|(_, read)| read)
}

/// The end of a certificate's validity; the beginning of 1970 if that was later.
pub fn not_after(leaf: &[u8]) -> Option<UnixSeconds> {
    let seconds = certificate(leaf)?.validity().not_after.timestamp();
    Some(UnixSeconds(u64::try_from(seconds).unwrap_or(0)))
}
