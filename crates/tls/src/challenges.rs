//! Pending challenges of an ACME authority, and their answers.
//!
//! An authority proves that a host serves a name: it connects with the ALPN protocol `acme-tls/1`
//! and expects a certificate with a digest (TLS-ALPN-01, RFC 8737), or requests a path over HTTP
//! (HTTP-01, RFC 8555 section 8.3). The ACME companion supplies the answers, the control thread
//! calls [`Challenges::replace`], and workers look answers up. A worker takes the lock only for a
//! client that offers `acme-tls/1` alone, or that requests a path below [`HTTP_PATH`].
//!
//! The supervisor limits the number of answers, and each has a deadline. Without pending challenges,
//! every lookup fails.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use rcgen::{CertificateParams, CustomExtension, DistinguishedName, KeyPair};
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::server::NoServerSessionStorage;
use rustls::sign::{CertifiedKey, SingleCertAndKey};

use becket_proto::client_hello::ClientHello;

/// PendingChallenges that all workers share.
#[derive(Debug, Default)]
pub struct Challenges(RwLock<PendingChallenges>);

/// The answers of all pending challenges.
#[derive(Debug, Default)]
pub struct PendingChallenges {
    /// TLS configurations by server name.
    configs: HashMap<String, (Duration, Arc<ServerConfig>)>,
    /// Key authorizations by token.
    authorizations: HashMap<String, (Duration, Arc<str>)>,
}

impl Challenges {
    pub fn replace(&self, answers: PendingChallenges) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = answers;
    }

    /// Returns the TLS configuration that answers the challenge for a server name at time `now`.
    pub fn config(&self, name: &str, now: Duration) -> Option<Arc<ServerConfig>> {
        let answers = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let (until, config) = answers.configs.get(name)?;
        (now < *until).then(|| Arc::clone(config))
    }

    /// Returns the answer to an HTTP request for `path` at time `now`.
    pub fn http(&self, path: &str, now: Duration) -> Option<Arc<str>> {
        let token = path.strip_prefix(HTTP_PATH)?;
        let answers = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let (until, authorization) = answers.authorizations.get(token)?;
        (now < *until).then(|| Arc::clone(authorization))
    }
}

impl PendingChallenges {
    /// Adds the answer of a TLS-ALPN-01 challenge: a self-signed certificate for `name` with the
    /// digest of the key authorization.
    ///
    /// # Errors
    /// Fails if `name` is neither a host name nor an IP address.
    pub fn add_digest(
        &mut self,
        name: &str,
        digest: &[u8; 32],
        until: Duration,
    ) -> Result<(), String> {
        let config = config(name, digest).map_err(|error| error.to_string())?;
        self.configs
            .insert(asked_name(name), (until, Arc::new(config)));
        Ok(())
    }

    /// Adds the answer of an HTTP-01 challenge.
    ///
    /// # Errors
    /// Fails if a value is not base64url (RFC 4648 section 5).
    pub fn add_http(
        &mut self,
        token: String,
        thumbprint: &str,
        until: Duration,
    ) -> Result<(), String> {
        let is_valid = |text: &str| {
            let is_base64 = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
            (1..=LONGEST_TOKEN).contains(&text.len()) && text.bytes().all(is_base64)
        };
        if !is_valid(&token) || !is_valid(thumbprint) {
            return Err("a token or a thumbprint is not base64url".to_owned());
        }
        let authorization = format!("{token}.{thumbprint}").into();
        self.authorizations.insert(token, (until, authorization));
        Ok(())
    }
}

/// Returns `true` if the client offers `acme-tls/1` and no other protocol, as only an authority
/// does.
pub fn is_of_authority(hello: &ClientHello<'_>) -> bool {
    let mut offered = hello.alpn();
    offered.next() == Some(ACME_TLS) && offered.next().is_none()
}

/// Returns the server name with which an authority asks for `name`. An address is asked for by its
/// reverse name (RFC 8738 section 6).
fn asked_name(name: &str) -> String {
    match name.parse() {
        Ok(IpAddr::V4(address)) => {
            let [a, b, c, d] = address.octets();
            format!("{d}.{c}.{b}.{a}.in-addr.arpa")
        }
        Ok(IpAddr::V6(address)) => {
            let digits = address.octets().map(|byte| [byte >> 4, byte & 15]);
            let reversed = digits.as_flattened().iter().rev();
            let labels: String = reversed.map(|digit| format!("{digit:x}.")).collect();
            format!("{labels}ip6.arpa")
        }
        Err(_) => name.to_owned(),
    }
}

fn config(name: &str, digest: &[u8; 32]) -> Result<ServerConfig, Box<dyn std::error::Error>> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new([name.to_owned()])?;
    params.distinguished_name = DistinguishedName::new();
    params.custom_extensions = vec![CustomExtension::new_acme_identifier(digest)];
    let certificate = params.self_signed(&key)?;
    let key = PrivatePkcs8KeyDer::from(key.serialize_der());
    let provider = Arc::new(aws_lc_rs::default_provider());
    let key = provider.key_provider.load_private_key(key.into())?;
    // `with_single_cert` would reject the critical extension.
    let chain = CertifiedKey::new(vec![certificate.der().clone()], key);
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(rustls::DEFAULT_VERSIONS)?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(chain)));
    config.alpn_protocols = vec![ACME_TLS.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// ALPN protocol of TLS-ALPN-01 (RFC 8737 section 3).
pub const ACME_TLS: &[u8] = b"acme-tls/1";
/// Start of the path of an HTTP-01 request (RFC 8555 section 8.3); a token follows.
pub const HTTP_PATH: &str = "/.well-known/acme-challenge/";
/// Maximum length of a token. Authorities send 43 characters.
const LONGEST_TOKEN: usize = 256;

#[cfg(test)]
mod tests {
    use x509_parser::prelude::{FromDer, X509Certificate};

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn an_answer_ends_at_its_deadline_and_with_the_next_set() {
        let challenges = Challenges::default();
        let mut answers = PendingChallenges::default();
        answers.add_digest("a.test", &[1; 32], MINUTE).unwrap();
        answers
            .add_http("token".to_owned(), "thumb", MINUTE)
            .unwrap();
        challenges.replace(answers);
        let before = MINUTE - Duration::from_nanos(1);
        let path = format!("{HTTP_PATH}token");
        assert!(challenges.config("a.test", before).is_some());
        assert!(challenges.config("b.test", before).is_none());
        assert!(challenges.config("a.test", MINUTE).is_none());
        let answer = challenges.http(&path, before);
        assert_eq!(answer.as_deref(), Some("token.thumb"));
        assert!(challenges.http(&path, MINUTE).is_none());
        assert!(challenges.http("/token", before).is_none());
        challenges.replace(PendingChallenges::default());
        assert!(challenges.config("a.test", before).is_none());
        assert!(challenges.http(&path, before).is_none());
    }

    #[test]
    fn a_token_cannot_leave_its_path_or_add_lines() {
        let mut answers = PendingChallenges::default();
        for token in ["", "../x", "a\r\nb", "a b", &"a".repeat(257)] {
            assert!(answers.add_http(token.to_owned(), "x", MINUTE).is_err());
            assert!(answers.add_http("x".to_owned(), token, MINUTE).is_err());
        }
    }

    #[test]
    fn addresses_are_asked_for_by_their_reverse_names() {
        assert_eq!(asked_name("192.0.2.1"), "1.2.0.192.in-addr.arpa");
        let zeros = "0.".repeat(23);
        let expected = format!("1.{zeros}8.b.d.0.1.0.0.2.ip6.arpa");
        assert_eq!(asked_name("2001:db8::1"), expected);
    }

    #[test]
    fn the_certificate_has_the_digest_in_a_critical_extension_and_one_name() {
        let mut answers = PendingChallenges::default();
        answers.add_digest("192.0.2.1", &[7; 32], MINUTE).unwrap();
        let (_, config) = &answers.configs["1.2.0.192.in-addr.arpa"];
        assert_eq!(config.alpn_protocols, [ACME_TLS]);
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(["192.0.2.1".to_owned()]).unwrap();
        params.custom_extensions = vec![CustomExtension::new_acme_identifier(&[7; 32])];
        let der = params.self_signed(&key).unwrap();
        let (_, parsed) = X509Certificate::from_der(der.der()).unwrap();
        // id-pe-acmeIdentifier, RFC 8737 section 6.1.
        let oid = x509_parser::oid_registry::asn1_rs::oid!(1.3.6.1.5.5.7.1.31);
        let extension = parsed.extensions().iter().find(|it| it.oid == oid).unwrap();
        assert!(extension.critical);
        assert_eq!(extension.value, [&[4, 32][..], &[7; 32]].concat());
    }
}
