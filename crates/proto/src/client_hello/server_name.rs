//! The host name of the server_name extension (SNI): validation and comparison.
//!
//! The rules for a name are the rules of rustls, because rustls selects the certificate by the name
//! and Becket selects the policy by it. A label has 1 to 63 letters, digits, hyphens and
//! underscores, without a hyphen at either end. The last label is not all digits, and the name has
//! at most 253 bytes. One trailing dot is allowed and kept. An IP address literal, which RFC 6066
//! forbids but clients send, is treated as a missing name. A hello with any other invalid name is
//! refused. Source: RFC 6066 3, RFC 1035 2.3.1.

use std::net::IpAddr;

use super::not_hello::Malformed;
use crate::reader::{Reader, Span};

/// A DNS name as the client sent it, possibly in upper case and with a trailing dot.
///
/// DNS ignores case, so compare it after [`to_lowercase`](Self::to_lowercase).
#[derive(Clone, Copy, Debug)]
pub struct ServerName<'a>(&'a str);

impl<'a> ServerName<'a> {
    pub fn as_str(self) -> &'a str {
        self.0
    }

    /// Writes the name in lower case to `buffer` and returns it.
    pub fn to_lowercase(self, buffer: &mut [u8; MAX_NAME_BYTES]) -> &str {
        let Some(lower) = buffer.get_mut(..self.0.len()) else {
            return "";
        };
        lower.copy_from_slice(self.0.as_bytes());
        lower.make_ascii_lowercase();
        std::str::from_utf8(lower).unwrap_or_default()
    }

    /// Returns the name in a span that [`read`] has checked.
    pub(super) fn of(span: Span, body: &'a [u8]) -> Option<Self> {
        std::str::from_utf8(span.of(body)).ok().map(Self)
    }
}

/// Reads the content of a server_name extension. Returns `None` if it is an address instead of a name.
///
/// An entry with a name type other than host_name ends the list. Its length is unknown, so the entries after it cannot
/// be read.
pub(super) fn read(list: Reader<'_>) -> Result<Option<Span>, Malformed> {
    let name = only_name(list).ok_or(Malformed::ServerName)?;
    let text = std::str::from_utf8(name.rest()).map_err(|_| Malformed::ServerName)?;
    if is_dns_name(text) {
        Ok(name.span())
    } else if text.parse::<IpAddr>().is_ok() {
        Ok(None)
    } else {
        Err(Malformed::ServerName)
    }
}

fn only_name<'a>(mut list: Reader<'a>) -> Option<Reader<'a>> {
    let mut found = None;
    while list.u8() == Some(HOST_NAME) {
        let name = list.vec16().filter(|name| !name.is_empty())?;
        if found.replace(name).is_some() {
            return None;
        }
    }
    found
}

fn is_dns_name(name: &str) -> bool {
    if name.len() > MAX_NAME_BYTES {
        return false;
    }
    let relative = name.strip_suffix('.').unwrap_or(name);
    let last = relative.rsplit('.').next().unwrap_or_default();
    relative.split('.').all(is_label) && !last.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_label(label: &str) -> bool {
    (1..=MAX_LABEL_BYTES).contains(&label.len())
        && !label.starts_with('-')
        && !label.ends_with('-')
        && label
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
}

/// Maximum length of a DNS name, in bytes (RFC 1035 2.3.4 without the length of the first label and
/// the root).
pub const MAX_NAME_BYTES: usize = 253;

const MAX_LABEL_BYTES: usize = 63;
const HOST_NAME: u8 = 0;

#[cfg(test)]
mod tests {
    use super::*;

    fn list(names: &[&[u8]]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for name in names {
            bytes.push(HOST_NAME);
            bytes.extend(u16::try_from(name.len()).unwrap().to_be_bytes());
            bytes.extend(*name);
        }
        bytes
    }

    fn name_in(bytes: &[u8]) -> Option<String> {
        let span = read(Reader::new(bytes)).ok()??;
        Some(ServerName::of(span, bytes).unwrap().as_str().to_owned())
    }

    #[test]
    fn names_are_validated_as_in_rustls() {
        let longest_label = "a".repeat(63);
        for name in [
            "a",
            "example.com",
            "EXAMPLE.com.",
            "_x.y-z.1a",
            "1.2.3.4a",
            "3com.com",
            "1-2",
        ] {
            assert!(is_dns_name(name), "{name}");
        }
        assert!(is_dns_name(&longest_label));
        assert!(!is_dns_name(&format!("{longest_label}a")));
        for name in [
            "", ".", "..", "a..b", ".a", "a..", "-a", "a-", "a-.b", "a b", "a.1", "1.2.3.4",
            "ä.de", "a.1.", "::1",
        ] {
            assert!(!is_dns_name(name), "{name}");
        }
    }

    #[test]
    fn names_of_up_to_253_bytes_are_accepted() {
        let label = "a".repeat(49);
        let name = [label.as_str(); 5].join(".");
        assert!(is_dns_name(&format!("{name}aaaa")));
        assert!(is_dns_name(&format!("{name}aaa.")));
        assert!(!is_dns_name(&format!("{name}aaaaa")));
    }

    #[test]
    fn an_address_literal_is_ignored_without_an_error() {
        for literal in ["192.0.2.1", "::1", "2001:db8::192.0.2.1"] {
            let bytes = list(&[literal.as_bytes()]);
            assert_eq!(read(Reader::new(&bytes)), Ok(None));
        }
    }

    #[test]
    fn an_invalid_name_list_is_an_error() {
        for names in [
            &[][..],
            &[b"".as_slice()],
            &[b"a", b"b"],
            &[b"1.2.3"],
            &[b"\xff"],
        ] {
            assert!(read(Reader::new(&list(names))).is_err(), "{names:?}");
        }
        let another_name_type_only = [1, 2, 3];
        let cut = [0, 0, 9, b'a'];
        for list in [&another_name_type_only[..], &cut] {
            assert!(read(Reader::new(list)).is_err(), "{list:?}");
        }
    }

    #[test]
    fn data_after_an_unknown_name_type_is_ignored() {
        let mut bytes = list(&[b"first.example"]);
        bytes.extend([7, 1, 2, 3]);
        assert_eq!(name_in(&bytes).as_deref(), Some("first.example"));
    }

    #[test]
    fn a_lower_case_name_keeps_its_trailing_dot() {
        let name = ServerName("WwW.Example.COM.");
        assert_eq!(
            name.to_lowercase(&mut [0; MAX_NAME_BYTES]),
            "www.example.com."
        );
    }
}
