//! Parses certificates and revocation lists without verifying them; `becket_tls` has the verifiers.

use std::collections::BTreeSet;
use std::net::IpAddr;

use becket_config::address::NamePattern;
use becket_config::notation::Text;
use becket_proto::ticket::UnixSeconds;
use x509_parser::error::X509Error;
use x509_parser::nom;
use x509_parser::prelude::{
    CertificateRevocationList, FromDer, GeneralName, ParsedExtension, Validity, X509Certificate,
};

pub fn certificate(der: &[u8]) -> Option<X509Certificate<'_>> {
    X509Certificate::from_der(der).ok().map(|(_, read)| read)
}

/// Returns the identifier of the certificate's public key.
pub(super) fn key_identifier<'a>(certificate: &X509Certificate<'a>) -> Option<&'a [u8]> {
    let mut extensions = certificate.extensions().iter();
    extensions.find_map(|it| match it.parsed_extension() {
        ParsedExtension::SubjectKeyIdentifier(id) => Some(id.0),
        _ => None,
    })
}

/// Returns the identifier of the public key that a certificate names as its issuer's.
pub(super) fn issuer_key_identifier<'a>(certificate: &X509Certificate<'a>) -> Option<&'a [u8]> {
    let mut extensions = certificate.extensions().iter();
    extensions.find_map(|it| match it.parsed_extension() {
        ParsedExtension::AuthorityKeyIdentifier(id) => Some(id.key_identifier.as_ref()?.0),
        _ => None,
    })
}

/// Parses a DER revocation list.
///
/// # Errors
///
/// Returns the first violation of RFC 5280.
pub fn revocation_list(der: &[u8]) -> Result<CertificateRevocationList<'_>, nom::Err<X509Error>> {
    CertificateRevocationList::from_der(der).map(|(_, read)| read)
}

/// Returns the DNS names and IP addresses of a certificate in lower case, and in the second list
/// the names that no ClientHello can contain. Uses the common name if the certificate contains no
/// alternative names.
pub fn names_of(certificate: &X509Certificate<'_>) -> (Vec<Box<str>>, Vec<String>) {
    let mut names: Vec<Box<str>> = Vec::new();
    let mut unusable = Vec::new();
    let mut addresses = BTreeSet::new();
    let mut add = |name: &str| match NamePattern::parse(name) {
        Ok(name) => {
            let name = name.to_string().into_boxed_str();
            if !names.contains(&name) {
                names.push(name);
            }
        }
        Err(_) => unusable.push(name.to_owned()),
    };
    let alternative = certificate.subject_alternative_name().ok().flatten();
    let general = alternative.map(|names| names.value.general_names.as_slice());
    for name in general.unwrap_or_default() {
        match name {
            GeneralName::DNSName(name) => add(name),
            GeneralName::IPAddress(bytes) => addresses.extend(ip_address(bytes)),
            _ => {}
        }
    }
    // The common name counts only if the certificate contains no alternative names (RFC 6125,
    // section 6.4.4).
    if general.is_none() {
        let common = certificate.subject().iter_common_name().next();
        common
            .and_then(|name| name.as_str().ok())
            .into_iter()
            .for_each(add);
    }
    names.extend(addresses.into_iter().map(String::into_boxed_str));
    (names, unusable)
}

/// Formats an IP address from a certificate (RFC 5280, section 4.2.1.6). Returns `None` for an
/// invalid length.
fn ip_address(bytes: &[u8]) -> Option<String> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    let address = v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from));
    address
        .ok()
        .map(|address| address.to_canonical().to_string())
}

/// Returns the expiry of a certificate. An expiry before 1970 becomes 1970.
pub fn not_after(leaf: &[u8]) -> Option<UnixSeconds> {
    let seconds = certificate(leaf)?.validity().not_after.timestamp();
    Some(UnixSeconds(u64::try_from(seconds).unwrap_or(0)))
}

/// Returns the time in seconds since 1970 from which a certificate needs renewal: a third of its
/// lifetime before the expiry, at most two weeks.
pub fn renew_by(validity: &Validity) -> i64 {
    let (from, until) = (validity.not_before, validity.not_after);
    let lifetime = until.timestamp().saturating_sub(from.timestamp());
    until.timestamp() - (lifetime / 3).clamp(0, TWO_WEEKS)
}

/// Formats the expiry of a certificate from the remaining seconds, such as "expires in 3 days" or
/// "expired 2 days ago".
pub fn expiry(left: i64) -> String {
    let (count, unit) = match left.unsigned_abs() {
        hours @ ..TWO_DAYS => (hours / 3600, "hour"),
        days => (days / 86_400, "day"),
    };
    let span = match count {
        0 => "less than an hour".to_owned(),
        1 => format!("1 {unit}"),
        _ => format!("{count} {unit}s"),
    };
    if left < 0 {
        format!("expired {span} ago")
    } else {
        format!("expires in {span}")
    }
}

/// Maximum time from the renewal warning to the expiry, in seconds. A certificate this close to its
/// expiry indicates that automatic renewal has failed repeatedly.
const TWO_WEEKS: i64 = 14 * 86_400;
/// Maximum of [`renew_by`]'s time before the expiry, in seconds.
pub const LONGEST_WARNING: u64 = TWO_WEEKS as u64;
const TWO_DAYS: u64 = 2 * 86_400;

#[cfg(test)]
mod tests {
    use x509_parser::prelude::ASN1Time;

    use super::*;

    #[test]
    fn renewal_is_due_a_third_of_the_lifetime_or_two_weeks_before_expiry() {
        for (days, left) in [(6, 2), (30, 10), (42, 14), (90, 14), (365, 14)] {
            let at = |day: i64| ASN1Time::from_timestamp(day * 86_400).unwrap();
            let (not_before, not_after) = (at(100), at(100 + days));
            let by = renew_by(&Validity {
                not_before,
                not_after,
            });
            assert_eq!(by, (100 + days - left) * 86_400, "{days} days");
        }
    }

    #[test]
    fn an_expiry_is_shown_in_days_and_when_near_in_hours() {
        for (left, said) in [
            (4 * 86_400 + 3600, "expires in 4 days"),
            (2 * 86_400 - 1, "expires in 47 hours"),
            (3600, "expires in 1 hour"),
            (0, "expires in less than an hour"),
            (-1, "expired less than an hour ago"),
            (-2 * 86_400, "expired 2 days ago"),
        ] {
            assert_eq!(expiry(left), said);
        }
    }
}
