//! Checks whether a client's certificate contains a name that a policy accepts.
//!
//! The certificate has already been verified, so its CA vouches for the names. Comparisons use
//! complete names, never the truncated names in logs. A certificate that does not parse, or that
//! contains two lists of alternative names, matches no name.

use std::net::IpAddr;

use becket_config::client_name::ClientName;
use rustls::pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use super::identity::whole_subject;

/// Returns `true` if the certificate contains at least one accepted name.
pub fn has_one(leaf: &CertificateDer<'_>, wanted: &[ClientName]) -> bool {
    let Ok((_, leaf)) = X509Certificate::from_der(leaf) else {
        return false;
    };
    let subject = leaf.subject();
    let alternative = leaf.subject_alternative_name().ok().flatten();
    let general = alternative.map_or(&[][..], |names| &names.value.general_names);
    wanted.iter().any(|wanted| {
        match wanted {
        ClientName::Subject(name) => whole_subject(&leaf) == *name,
        ClientName::CommonName(name) => {
            let last = subject.iter_common_name().last();
            last.is_some_and(|it| it.as_str().is_ok_and(|it| it == name))
        }
        ClientName::OrganizationalUnit(name) => {
            let mut units = subject.iter_organizational_unit();
            units.any(|it| it.as_str().is_ok_and(|it| it == name))
        }
        ClientName::Dns(pattern) => general.iter().any(|it| {
            matches!(it, GeneralName::DNSName(it) if pattern.matches(&it.to_ascii_lowercase()))
        }),
        ClientName::Uri(name) => {
            let has = |it: &GeneralName<'_>| matches!(it, GeneralName::URI(it) if it == name);
            general.iter().any(has)
        }
        ClientName::Email(name) => {
            let has =
                |it: &GeneralName<'_>| matches!(it, GeneralName::RFC822Name(it) if it == name);
            general.iter().any(has)
        }
        ClientName::Ip(ip) => general
            .iter()
            .any(|it| matches!(it, GeneralName::IPAddress(it) if is_address(it, *ip))),
    }
    })
}

fn is_address(bytes: &[u8], ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => bytes == ip.octets(),
        IpAddr::V6(ip) => bytes == ip.octets(),
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair, SanType};

    use super::*;

    fn has(wanted: ClientName) -> bool {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        let name = &mut params.distinguished_name;
        name.push(DnType::OrganizationName, "Rope & Sons");
        name.push(DnType::OrganizationalUnitName, "staff");
        name.push(DnType::CommonName, "alice");
        params.subject_alt_names = vec![
            SanType::DnsName("Alice.Staff.test".try_into().unwrap()),
            SanType::URI("spiffe://a.test/web".try_into().unwrap()),
            SanType::Rfc822Name("alice@a.test".try_into().unwrap()),
            SanType::IpAddress([10, 0, 0, 7].into()),
        ];
        let key = KeyPair::generate().unwrap();
        has_one(params.self_signed(&key).unwrap().der(), &[wanted])
    }

    #[test]
    fn each_kind_of_name_matches_only_its_own_kind() {
        let wildcard = |name: &str| {
            ClientName::Dns(becket_config::address::NamePattern::Wildcard(name.into()))
        };
        let exact =
            |name: &str| ClientName::Dns(becket_config::address::NamePattern::Exact(name.into()));
        let text = String::from;
        for (good, wanted) in [
            (
                true,
                ClientName::Subject(text("CN=alice,OU=staff,O=Rope & Sons")),
            ),
            (false, ClientName::Subject(text("CN=alice"))),
            (true, ClientName::CommonName(text("alice"))),
            (false, ClientName::CommonName(text("Alice"))),
            (false, ClientName::CommonName(text("staff"))),
            (true, ClientName::OrganizationalUnit(text("staff"))),
            (false, ClientName::OrganizationalUnit(text("alice"))),
            (true, exact("alice.staff.test")),
            (true, wildcard("staff.test")),
            (false, wildcard("test")),
            (false, exact("alice")),
            (true, ClientName::Uri(text("spiffe://a.test/web"))),
            (false, ClientName::Uri(text("spiffe://a.test/"))),
            (true, ClientName::Email(text("alice@a.test"))),
            (false, ClientName::Email(text("a.test"))),
            (true, ClientName::Ip([10, 0, 0, 7].into())),
            (false, ClientName::Ip([10, 0, 0, 8].into())),
        ] {
            assert_eq!(has(wanted.clone()), good, "{wanted:?}");
        }
    }

    #[test]
    fn an_unparsable_certificate_matches_no_client_name() {
        let broken = CertificateDer::from(vec![0x30, 3, 1]);
        assert!(!has_one(&broken, &[ClientName::CommonName(String::new())]));
    }
}
