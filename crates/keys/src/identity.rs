//! Identity in a client's certificate, for the access log and the PROXY header.
//!
//! The certificate has already been verified, but another party chose its contents. Therefore all
//! lengths are bounded, and the subject follows RFC 4514, so a value cannot look like another
//! attribute. A common name that could be misread (control characters, excessive length) is
//! omitted, because a truncated name would be a different name.

use std::fmt::Write;

use rustls::pki_types::CertificateDer;
use x509_parser::prelude::{AttributeTypeAndValue, FromDer, X509Certificate, X509Name};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Subject in RFC 4514 form, most specific part first. Truncated after 512 bytes, with `...`
    /// appended.
    pub subject: Box<str>,
    pub common_name: Option<Box<str>>,
    pub serial: Box<str>,
}

impl Identity {
    pub fn of(leaf: &CertificateDer<'_>) -> Option<Box<Self>> {
        let (_, leaf) = X509Certificate::from_der(leaf).ok()?;
        let common_name = leaf.subject().iter_common_name().last();
        let common_name = common_name.and_then(|name| name.as_str().ok());
        let usable = |name: &&str| name.len() <= LONGEST_NAME && !name.contains(char::is_control);
        Some(Box::new(Self {
            subject: shortened(leaf.subject(), LONGEST_SUBJECT).into(),
            common_name: common_name.filter(usable).map(Box::from),
            serial: serial(&leaf).into(),
        }))
    }
}

/// Returns the serial number in hexadecimal digits, in the format of OpenSSL.
pub fn serial(leaf: &X509Certificate<'_>) -> String {
    let bytes = leaf.raw_serial();
    let first = bytes.iter().position(|byte| *byte != 0);
    let bytes = bytes.get(first.unwrap_or(0)..).unwrap_or_default();
    hex(bytes.get(..LONGEST_SERIAL).unwrap_or(bytes))
}

/// Formats subject, issuer and serial number of a rejected certificate for the log.
pub fn summary(leaf: &CertificateDer<'_>) -> Option<String> {
    let (_, leaf) = X509Certificate::from_der(leaf).ok()?;
    let [subject, issuer] = [leaf.subject(), leaf.issuer()].map(|name| shortened(name, 64));
    let serial = serial(&leaf);
    Some(format!(
        "subject {subject}, issuer {issuer}, serial {serial}"
    ))
}

fn shortened(name: &X509Name<'_>, longest: usize) -> String {
    let mut text = write_name(name, longest);
    if text.len() > longest {
        let mut ends = (0..=longest).rev();
        let end = ends.find(|end| text.is_char_boundary(*end));
        text.truncate(end.unwrap_or(0));
        text.push_str("...");
    }
    text
}

/// Returns the complete subject for comparisons. It must not be logged, because its length is
/// unbounded.
pub(super) fn whole_subject(leaf: &X509Certificate<'_>) -> String {
    write_name(leaf.subject(), usize::MAX)
}

/// Formats a name (RFC 4514, section 2.1). Stops after the attribute with which the length exceeds
/// `enough` bytes.
fn write_name(name: &X509Name<'_>, enough: usize) -> String {
    let mut parts: Vec<_> = name.iter_rdn().collect();
    parts.reverse();
    let mut text = String::new();
    for (at, part) in parts.into_iter().enumerate() {
        for (of_part, attribute) in part.iter().enumerate() {
            text.push_str(match (at, of_part) {
                (0, 0) => "",
                (_, 0) => ",",
                (_, _) => "+",
            });
            push_attribute(attribute, &mut text);
            if text.len() > enough {
                return text;
            }
        }
    }
    text
}

/// Writes an attribute (RFC 4514, sections 2.3 and 2.4). An attribute type without a short name is
/// written as an OID, and an unreadable value as hexadecimal bytes.
fn push_attribute(attribute: &AttributeTypeAndValue<'_>, text: &mut String) {
    let id = attribute.attr_type().to_id_string();
    let name = SHORT_NAMES.iter().find(|(known, _)| *known == id);
    text.push_str(name.map_or(id.as_str(), |(_, name)| name));
    text.push('=');
    match (attribute.as_str(), name) {
        (Ok(value), Some(_)) => push_value(value, text),
        _ => {
            text.push('#');
            text.push_str(&hex(attribute.as_slice()));
        }
    }
}

fn push_value(value: &str, text: &mut String) {
    let last = value.chars().count().saturating_sub(1);
    for (at, char) in value.chars().enumerate() {
        match char {
            '"' | '+' | ',' | ';' | '<' | '>' | '\\' => text.extend(['\\', char]),
            ' ' if at == 0 || at == last => text.push_str("\\ "),
            '#' if at == 0 => text.push_str("\\#"),
            _ if char.is_control() => {
                let mut bytes = [0; 4];
                for byte in char.encode_utf8(&mut bytes).bytes() {
                    // A write to a `String` cannot fail.
                    let _written = write!(text, "\\{byte:02x}");
                }
            }
            _ => text.push(char),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02X}")).collect()
}

/// Short names from RFC 4514, section 3, and two more that are in common use.
const SHORT_NAMES: [(&str, &str); 11] = [
    ("2.5.4.3", "CN"),
    ("2.5.4.7", "L"),
    ("2.5.4.8", "ST"),
    ("2.5.4.10", "O"),
    ("2.5.4.11", "OU"),
    ("2.5.4.6", "C"),
    ("2.5.4.9", "STREET"),
    ("0.9.2342.19200300.100.1.25", "DC"),
    ("0.9.2342.19200300.100.1.1", "UID"),
    ("1.2.840.113549.1.9.1", "emailAddress"),
    ("2.5.4.5", "serialNumber"),
];

/// Maximum length of a common name in bytes. X.520 allows 64 characters, but some CAs issue longer
/// names.
const LONGEST_NAME: usize = 256;
const LONGEST_SUBJECT: usize = 512;
/// Maximum length of a serial number in bytes (RFC 5280, section 4.1.2.2).
const LONGEST_SERIAL: usize = 20;

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DistinguishedName, DnType, DnValue, KeyPair, SerialNumber};

    use super::*;

    fn identity(attributes: &[(DnType, &str)]) -> Identity {
        *Identity::of(&certificate(attributes)).unwrap()
    }

    fn certificate(attributes: &[(DnType, &str)]) -> CertificateDer<'static> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        for (kind, value) in attributes {
            let value = DnValue::Utf8String((*value).to_owned());
            params.distinguished_name.push(kind.clone(), value);
        }
        params.serial_number = Some(SerialNumber::from(vec![0x0a, 0xbc, 0x01]));
        let key = KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().der().clone()
    }

    #[test]
    fn a_summary_of_any_certificate_fits_in_a_log_line() {
        let bob = summary(&certificate(&[(DnType::CommonName, "bob")])).unwrap();
        assert_eq!(bob, "subject CN=bob, issuer CN=bob, serial 0ABC01");
        let endless = summary(&certificate(&[(DnType::CommonName, &"é".repeat(5000))]));
        assert!(endless.unwrap().len() < 200);
        assert_eq!(summary(&b"no certificate".as_slice().into()), None);
    }

    #[test]
    fn the_most_specific_part_comes_first() {
        let alice = identity(&[
            (DnType::CountryName, "DE"),
            (DnType::OrganizationName, "Rope & Sons"),
            (DnType::CommonName, "alice"),
        ]);
        assert_eq!(&*alice.subject, "CN=alice,O=Rope & Sons,C=DE");
        assert_eq!(alice.common_name.as_deref(), Some("alice"));
        assert_eq!(&*alice.serial, "0ABC01");
    }

    #[test]
    fn a_value_cannot_look_like_another_attribute() {
        let mallory = identity(&[(DnType::CommonName, "mallory,CN=admin+OU=\\x \u{7}")]);
        let subject = "CN=mallory\\,CN=admin\\+OU=\\\\x \\07";
        assert_eq!(&*mallory.subject, subject);
        assert_eq!(mallory.common_name, None, "a control character");
        let spaces = identity(&[(DnType::CommonName, " #a ")]);
        assert_eq!(&*spaces.subject, "CN=\\ #a\\ ");
        let hash = identity(&[(DnType::OrganizationName, "#a")]);
        assert_eq!(&*hash.subject, "O=\\#a");
        assert_eq!(hash.common_name, None);
    }

    #[test]
    fn a_type_without_a_name_is_a_number_and_its_value_bytes() {
        let odd = identity(&[(DnType::CustomDnType(vec![1, 2, 3, 4]), "hi")]);
        assert_eq!(&*odd.subject, "1.2.3.4=#6869");
    }

    #[test]
    fn a_long_subject_is_truncated_and_a_long_common_name_omitted() {
        let long = "é".repeat(5000);
        let endless = identity(&[(DnType::CommonName, &long)]);
        assert!(endless.subject.len() <= LONGEST_SUBJECT + 3);
        assert!(endless.subject.ends_with("é..."));
        assert_eq!(endless.common_name, None);
    }

    #[test]
    fn an_unparsable_certificate_has_no_identity() {
        assert_eq!(Identity::of(&CertificateDer::from(vec![0x30, 3, 1])), None);
    }
}
