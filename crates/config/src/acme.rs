//! `[acme]`: certificates that the ACME companion orders.

use std::collections::HashSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::address::NamePattern;
use crate::notation::{Text, ValueError, as_text};
use crate::section::section;

section! {
/// `[acme]`: authorities, and the certificates to order from them.
pub struct Acme {
    /// Authorities, tried in this order.
    pub authority: Vec<Authority> = vec![Authority::LetsEncrypt],
    /// Use the test environments of the authorities.
    pub staging: bool,
    /// Mail addresses for the account.
    pub contact: Vec<String>,
    /// Folder of the companion, with accounts and certificates.
    pub folder: String = FOLDER.to_owned(),
    /// Share challenges and certificates with the other nodes of the cluster.
    pub share: bool = true,
    /// User of the companion; absent means `process.user`.
    pub user: Option<String>,
    /// PEM file of CA certificates for connections to the authority; absent means the CA
    /// certificates of the system.
    pub ca: Option<String>,
    /// Proof that this host serves the names.
    pub challenge: ChallengeKind,
    /// Kind of private key.
    pub key: KeyKind,
    /// Profile of the authority, such as `shortlived`.
    pub profile: Option<String>,
    /// Accounts of the authorities to which the ACME accounts are bound.
    pub external_account: Vec<ExternalAccount>,
    /// Name servers for the lookups before an order; empty means `/etc/resolv.conf`.
    pub name_servers: Vec<NameServerAddress>,
    /// Program that creates and removes DNS records for `dns-01`.
    pub hook: Option<String>,
    /// Certificates for names as clients first ask for them.
    pub on_demand: Option<OnDemand>,
    pub certificate: Vec<AcmeCertificate>,
}
}

section! {
/// `[[acme.certificate]]`: one certificate.
pub struct AcmeCertificate {
    /// Host names, wildcards (`*.example.org`) and IP addresses.
    pub names: Vec<AcmeName>,
    /// Overrides `acme.challenge`.
    pub challenge: Option<ChallengeKind>,
    /// Overrides `acme.key`.
    pub key: Option<KeyKind>,
    /// Overrides `acme.profile`.
    pub profile: Option<String>,
}
}

section! {
/// `{ id = "..", key-file = ".." }`: external account binding (RFC 8555, section 7.3.4).
pub struct ExternalAccount {
    /// Authority that gave the key; absent means each one without an entry of its own.
    pub authority: Option<Authority>,
    /// Key identifier from the authority.
    pub id: String,
    /// File with the MAC key from the authority, base64url.
    pub key_file: String,
}
}

section! {
/// `[acme.on-demand]`: certificates for names as clients first ask for them. Every condition that is
/// given must allow a name.
pub struct OnDemand {
    /// Allowed names and wildcards; empty means any name.
    pub names: Vec<NamePattern>,
    /// Folder with a file for each allowed name.
    pub folder: Option<String>,
    /// URL that is asked whether a name is allowed.
    pub ask: Option<String>,
    /// Maximum number of orders in an hour, with renewals.
    pub per_hour: usize = 10,
    /// Maximum number of certificates.
    pub most: usize = 1000,
}
}

/// Proof that this host, or its operator, controls a name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize, Serialize)]
pub enum ChallengeKind {
    /// A certificate on port 443 (RFC 8737).
    #[default]
    #[serde(rename = "tls-alpn-01")]
    TlsAlpn,
    /// A page on port 80 (RFC 8555, section 8.3).
    #[serde(rename = "http-01")]
    Http,
    /// A DNS record that the hook program creates (RFC 8555, section 8.4).
    #[serde(rename = "dns-01")]
    Dns,
    /// A DNS record that the operator creates once.
    #[serde(rename = "dns-persist-01")]
    DnsPersist,
}

impl ChallengeKind {
    pub const fn label(self) -> &'static str {
        match self {
            Self::TlsAlpn => "tls-alpn-01",
            Self::Http => "http-01",
            Self::Dns => "dns-01",
            Self::DnsPersist => "dns-persist-01",
        }
    }

    /// Returns `true` if authorities accept this proof for `*.name`.
    pub const fn proves_wildcards(self) -> bool {
        matches!(self, Self::Dns | Self::DnsPersist)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum KeyKind {
    #[default]
    P256,
    P384,
    #[serde(rename = "rsa-2048")]
    Rsa2048,
}

/// A certificate authority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Authority {
    LetsEncrypt,
    Google,
    ZeroSsl,
    Actalis,
    /// `https` URL of a directory.
    Directory(String),
}

impl Authority {
    /// Returns the URL of the directory, or `None` if the authority has no test environment and
    /// `staging` is `true`.
    pub fn directory(&self, staging: bool) -> Option<&str> {
        Some(match (self, staging) {
            (Self::LetsEncrypt, false) => "https://acme-v02.api.letsencrypt.org/directory",
            (Self::LetsEncrypt, true) => "https://acme-staging-v02.api.letsencrypt.org/directory",
            (Self::Google, false) => "https://dv.acme-v02.api.pki.goog/directory",
            (Self::Google, true) => "https://dv.acme-v02.test-api.pki.goog/directory",
            (Self::ZeroSsl, false) => "https://acme.zerossl.com/v2/DV90",
            (Self::Actalis, false) => "https://acme-api.actalis.com/acme/directory",
            (Self::ZeroSsl | Self::Actalis, true) => return None,
            (Self::Directory(url), _) => url,
        })
    }
}

impl Text for Authority {
    const ACCEPTED: &str =
        "letsencrypt, google, zerossl, actalis, or the https URL of an ACME directory";

    fn parse(text: &str) -> Result<Self, ValueError> {
        Ok(match text {
            "letsencrypt" => Self::LetsEncrypt,
            "google" => Self::Google,
            "zerossl" => Self::ZeroSsl,
            "actalis" => Self::Actalis,
            url if url.len() > HTTPS.len() && url.starts_with(HTTPS) => {
                Self::Directory(url.to_owned())
            }
            _ => return Err("not an authority".into()),
        })
    }

    fn write(&self) -> String {
        match self {
            Self::LetsEncrypt => "letsencrypt",
            Self::Google => "google",
            Self::ZeroSsl => "zerossl",
            Self::Actalis => "actalis",
            Self::Directory(url) => url,
        }
        .to_owned()
    }
}

/// A name of a certificate: a host name, a wildcard or an IP address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AcmeName(pub NamePattern);

impl AcmeName {
    pub fn address(&self) -> Option<IpAddr> {
        match &self.0 {
            NamePattern::Exact(name) => name.parse().ok(),
            NamePattern::Wildcard(_) => None,
        }
    }

    pub const fn is_wildcard(&self) -> bool {
        matches!(self.0, NamePattern::Wildcard(_))
    }
}

impl fmt::Display for AcmeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Text for AcmeName {
    const ACCEPTED: &str = "a name such as www.example.org or *.example.org, or an IP address";

    fn parse(text: &str) -> Result<Self, ValueError> {
        match text.parse::<IpAddr>() {
            Ok(address) => Ok(Self(NamePattern::Exact(address.to_string()))),
            Err(_) => NamePattern::parse(text).map(Self),
        }
    }

    fn write(&self) -> String {
        self.to_string()
    }
}

/// Address of a name server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameServerAddress(pub SocketAddr);

impl Text for NameServerAddress {
    const ACCEPTED: &str = "IP, IP:PORT or [V6]:PORT";

    fn parse(text: &str) -> Result<Self, ValueError> {
        let alone = text.parse::<IpAddr>().map(|ip| (ip, DNS_PORT).into());
        let address = alone.or_else(|_| text.parse()).ok();
        let address = address.filter(|it: &SocketAddr| it.port() != 0);
        address.map(Self).ok_or("not an address".into())
    }

    fn write(&self) -> String {
        self.0.to_string()
    }
}

as_text!(Authority, AcmeName, NameServerAddress);

impl AcmeCertificate {
    /// Returns the name of the certificate's files without extension: its first name, with an ending
    /// that no host name has if the certificate asks for an RSA key. So an RSA certificate may stand
    /// next to another one for the same names.
    pub fn stem(&self) -> String {
        let first = self.names.first();
        let first = first.map(AcmeName::to_string).unwrap_or_default();
        let ending = match self.key {
            Some(KeyKind::Rsa2048) => RSA_ENDING,
            _ => "",
        };
        first.replace('*', "_").replace(':', "-") + ending
    }

    /// Returns `true` if a name is one of the certificate's.
    pub fn has_name(&self, name: &str) -> bool {
        self.names.iter().any(|own| own.to_string() == name)
    }
}

impl OnDemand {
    /// Returns `true` if a certificate for this host name could be ordered, as far as the list of
    /// names decides.
    pub fn lists(&self, name: &str) -> bool {
        let is_listed = |name: &str| self.names.iter().any(|pattern| pattern.matches(name));
        name.contains('.') && (self.names.is_empty() || is_listed(name))
    }
}

/// The names that get a certificate on demand.
#[derive(Debug)]
pub struct OnDemandNames<'a> {
    list: &'a OnDemand,
    configured: HashSet<&'a AcmeName>,
}

impl OnDemandNames<'_> {
    /// Returns the certificate for a name. Returns `None` if the name is not listed or invalid, or a
    /// configured certificate has it.
    pub fn certificate(&self, name: &str) -> Option<AcmeCertificate> {
        let own = NamePattern::parse(name).ok().map(AcmeName)?;
        let is_exact = matches!(&own.0, NamePattern::Exact(exact) if exact == name);
        let is_new = !self.configured.contains(&own);
        (is_exact && is_new && self.list.lists(name)).then(|| AcmeCertificate {
            names: vec![own],
            ..AcmeCertificate::default()
        })
    }

    /// Returns `true` if challenges for a name may be answered.
    pub fn answers_for(&self, name: &str) -> bool {
        let own = AcmeName::parse(name);
        let is_configured = own.is_ok_and(|own| self.configured.contains(&own));
        is_configured || self.certificate(name).is_some()
    }
}

impl Acme {
    pub fn folder(&self, base: &Path) -> PathBuf {
        base.join(&self.folder)
    }

    /// Returns the folder of the issued certificates, relative to the configuration.
    pub fn bundles(&self) -> String {
        format!("{}/{BUNDLES}", self.folder)
    }

    /// Returns the path of a certificate's bundle: chain and key.
    pub fn bundle(&self, base: &Path, certificate: &AcmeCertificate) -> PathBuf {
        base.join(self.bundles())
            .join(format!("{}.pem", certificate.stem()))
    }

    /// Returns the names that get a certificate on demand.
    pub fn on_demand_names(&self) -> Option<OnDemandNames<'_>> {
        let configured = self.certificate.iter().flat_map(|it| &it.names);
        Some(OnDemandNames {
            list: self.on_demand.as_ref()?,
            configured: configured.collect(),
        })
    }

    pub fn challenge(&self, certificate: &AcmeCertificate) -> ChallengeKind {
        certificate.challenge.unwrap_or(self.challenge)
    }

    pub fn key(&self, certificate: &AcmeCertificate) -> KeyKind {
        certificate.key.unwrap_or(self.key)
    }

    pub fn profile<'a>(&'a self, certificate: &'a AcmeCertificate) -> Option<&'a str> {
        certificate.profile.as_deref().or(self.profile.as_deref())
    }
}

const FOLDER: &str = "/var/lib/becket-acme";
const BUNDLES: &str = "certificates";
const RSA_ENDING: &str = "+rsa";
const DNS_PORT: u16 = 53;
const HTTPS: &str = "https://";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::File;

    fn acme(text: &str) -> Acme {
        File::parse(text).unwrap().acme.unwrap()
    }

    #[test]
    fn the_first_name_is_the_name_of_the_file() {
        let acme = acme(
            "[acme]\nfolder = 'a'\n[[acme.certificate]]\nnames = ['*.A.test', 'b.test']\n\
             [[acme.certificate]]\nnames = ['2001:db8::1']\n\
             [[acme.certificate]]\nnames = ['*.a.test']\nkey = 'rsa-2048'",
        );
        let bundles = acme.certificate.iter();
        let bundles: Vec<_> = bundles
            .map(|it| acme.bundle(Path::new("/etc"), it))
            .collect();
        let expected = ["_.a.test", "2001-db8--1", "_.a.test+rsa"];
        assert_eq!(
            bundles,
            expected.map(|it| PathBuf::from(format!("/etc/a/certificates/{it}.pem")))
        );
    }

    #[test]
    fn a_name_server_has_an_address_and_port_53() {
        let servers =
            acme("[acme]\nname-servers = ['192.0.2.1', '[2001:db8::1]:5353', '::1']").name_servers;
        let all: Vec<_> = servers.iter().map(Text::write).collect();
        assert_eq!(all, ["192.0.2.1:53", "[2001:db8::1]:5353", "[::1]:53"]);
        for text in ["", "dns.test", "192.0.2.1:0", ":53"] {
            assert!(NameServerAddress::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn listed_host_names_get_a_certificate_on_demand() {
        let text = "[acme]\n[acme.on-demand]\nnames = ['*.a.test', 'b.test']\n\
                    [[acme.certificate]]\nnames = ['own.a.test']";
        let names = |acme: &Acme, name: &str| {
            acme.on_demand_names()
                .and_then(|it| it.certificate(name))
                .map(|it| it.stem())
        };
        let listed = acme(text);
        for name in ["x.a.test", "b.test"] {
            assert_eq!(names(&listed, name).as_deref(), Some(name));
        }
        for name in [
            "own.a.test",
            "a.test",
            "x.y.a.test",
            "*.a.test",
            "X.a.test",
            "c.test",
            "",
        ] {
            assert_eq!(names(&listed, name), None, "{name}");
        }
        let any = acme(&text.replace("names = ['*.a.test', 'b.test']", "ask = 'http://a/'"));
        assert_eq!(names(&any, "c.test").as_deref(), Some("c.test"));
        for name in [
            "localhost",
            "192.0.2.1",
            "2001:db8::1",
            "../c.test",
            "a/b.test",
            "c.test.",
            "c.test+rsa",
        ] {
            assert_eq!(names(&any, name), None, "{name}");
        }
        assert_eq!(names(&acme("[acme]\nstaging = true"), "c.test"), None);
    }

    #[test]
    fn an_authority_is_a_word_or_an_https_url() {
        for (text, url) in [
            (
                "letsencrypt",
                "https://acme-v02.api.letsencrypt.org/directory",
            ),
            ("https://ca.test/dir", "https://ca.test/dir"),
        ] {
            let authority = Authority::parse(text).unwrap();
            assert_eq!(authority.directory(false), Some(url));
            assert_eq!(authority.write(), text);
        }
        for text in ["", "http://ca.test", "https://", "lets-encrypt"] {
            assert!(Authority::parse(text).is_err(), "{text}");
        }
        for authority in [Authority::ZeroSsl, Authority::Actalis] {
            assert!(authority.directory(false).is_some());
            assert_eq!(authority.directory(true), None);
        }
    }
}
