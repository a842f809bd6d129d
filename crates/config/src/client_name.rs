//! Accepted names in client certificates: the values of `policy.client-names`.

use std::net::IpAddr;

use crate::address::NamePattern;
use crate::notation::{Text, ValueError, as_text};

/// A name that a client's certificate must contain, written `KIND:NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientName {
    /// The whole subject, formatted as in RFC 4514 and in the access log.
    Subject(String),
    /// The common name of the subject; the last one if there are several.
    CommonName(String),
    /// An organizational unit of the subject.
    OrganizationalUnit(String),
    /// A DNS name in the subject alternative names.
    Dns(NamePattern),
    /// A URI in the subject alternative names, such as a SPIFFE ID; compared byte by byte.
    Uri(String),
    /// A mail address in the subject alternative names; compared byte by byte.
    Email(String),
    /// An IP address in the subject alternative names.
    Ip(IpAddr),
}

impl Text for ClientName {
    const ACCEPTED: &str = "\"subject:CN=..,O=..\", \"cn:..\", \"ou:..\", \"dns:name\" or \"dns:*.name\", \"uri:..\", \"email:..\" or \"ip:..\"";

    fn parse(text: &str) -> Result<Self, ValueError> {
        let (kind, name) = text.split_once(':').ok_or("no kind of name")?;
        if name.is_empty() {
            return Err("an empty name".into());
        }
        let owned = || name.to_owned();
        Ok(match kind {
            "subject" => Self::Subject(owned()),
            "cn" => Self::CommonName(owned()),
            "ou" => Self::OrganizationalUnit(owned()),
            "dns" => Self::Dns(NamePattern::parse(name)?),
            "uri" => Self::Uri(owned()),
            "email" => Self::Email(owned()),
            "ip" => Self::Ip(name.parse().map_err(|_| "not an IP address")?),
            _ => return Err("an unknown kind of name".into()),
        })
    }

    fn write(&self) -> String {
        match self {
            Self::Subject(name) => format!("subject:{name}"),
            Self::CommonName(name) => format!("cn:{name}"),
            Self::OrganizationalUnit(name) => format!("ou:{name}"),
            Self::Dns(name) => format!("dns:{name}"),
            Self::Uri(name) => format!("uri:{name}"),
            Self::Email(name) => format!("email:{name}"),
            Self::Ip(ip) => format!("ip:{ip}"),
        }
    }
}

as_text!(ClientName);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_written_as_they_are_read() {
        for text in [
            "subject:CN=alice,O=Rope",
            "cn:alice: the first",
            "ou:staff",
            "dns:a.test",
            "dns:*.a.test",
            "uri:spiffe://a.test/web",
            "email:alice@a.test",
            "ip:2001:db8::1",
        ] {
            let name = ClientName::parse(text).map(|name| name.write());
            assert_eq!(name, Ok(text.to_owned()));
        }
    }

    #[test]
    fn invalid_names_are_rejected_with_the_cause() {
        for (text, fault) in [
            ("alice", "no kind of name"),
            ("cn:", "an empty name"),
            ("name:alice", "an unknown kind of name"),
            ("dns:a.*.test", "a wildcard must be the whole first label"),
            ("ip:a.test", "not an IP address"),
        ] {
            assert_eq!(ClientName::parse(text), Err(fault.into()), "{text}");
        }
    }
}
