//! Pending challenges of an ACME authority, and their answers.
//!
//! An authority proves that a host serves a name: it connects with the ALPN protocol `acme-tls/1`
//! and expects a certificate with a digest (TLS-ALPN-01, RFC 8737), or requests a path over HTTP
//! (HTTP-01, RFC 8555 section 8.3). The ACME companion supplies the answers, the control thread
//! calls [`Challenges::replace`], and workers look answers up. A worker takes the lock only for a
//! client that offers `acme-tls/1` alone, or that requests a path below [`HTTP_PATH`].
//!
//! The control thread limits the number of answers, and each has a deadline. Without pending challenges,
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

use becket_proto::acme::{Challenge, ChallengeAnswer};
use becket_proto::client_hello::ClientHello;

use super::wanted_names::WantedNames;

/// Answers to the pending challenges, and names without a certificate. All workers share them.
#[derive(Debug, Default)]
pub struct Challenges {
    answers: RwLock<PendingAnswers>,
    pub wanted_names: WantedNames,
}

#[derive(Debug, Default)]
struct PendingAnswers {
    /// Answers of TLS-ALPN-01 by server name.
    configs: HashMap<String, TlsAnswer>,
    /// Key authorizations by token.
    authorizations: HashMap<String, (Duration, Arc<str>)>,
}

#[derive(Clone, Debug)]
struct TlsAnswer {
    digest: [u8; 32],
    until: Duration,
    config: Arc<ServerConfig>,
}

impl Challenges {
    /// Replaces all answers; each is given until a time. The first of several for one name counts.
    /// Keeps the certificates of challenges that were pending before. Calls `failed` for a challenge
    /// that cannot be answered.
    pub fn replace<'a>(
        &self,
        challenges: impl IntoIterator<Item = &'a (Challenge, Duration)>,
        mut failed: impl FnMut(&Challenge, String),
    ) {
        let mut answers = PendingAnswers::default();
        {
            let before = self.answers.read().unwrap_or_else(PoisonError::into_inner);
            for (challenge, until) in challenges {
                if let Err(error) = answers.add(challenge, *until, &before) {
                    failed(challenge, error);
                }
            }
        }
        *self.answers.write().unwrap_or_else(PoisonError::into_inner) = answers;
    }

    /// Returns the TLS configuration that answers the challenge for a server name at time `now`.
    pub fn config(&self, name: &str, now: Duration) -> Option<Arc<ServerConfig>> {
        let answers = self.answers.read().unwrap_or_else(PoisonError::into_inner);
        let answer = answers.configs.get(name)?;
        (now < answer.until).then(|| Arc::clone(&answer.config))
    }

    /// Returns the answer to an HTTP request for `path` at time `now`.
    pub fn http(&self, path: &str, now: Duration) -> Option<Arc<str>> {
        let token = path.strip_prefix(HTTP_PATH)?;
        let answers = self.answers.read().unwrap_or_else(PoisonError::into_inner);
        let (until, authorization) = answers.authorizations.get(token)?;
        (now < *until).then(|| Arc::clone(authorization))
    }
}

impl PendingAnswers {
    /// Fails if the name is neither a host name nor an IP address, and if a token or a thumbprint is
    /// not base64url (RFC 4648 section 5).
    fn add(&mut self, challenge: &Challenge, until: Duration, before: &Self) -> Result<(), String> {
        if !challenge.answer.is_valid() {
            return Err("a token or a thumbprint is not base64url".to_owned());
        }
        match &challenge.answer {
            ChallengeAnswer::TlsAlpn(digest) => {
                let name = asked_name(&challenge.name);
                if self.configs.contains_key(&name) {
                    return Ok(());
                }
                let known = before.configs.get(&name);
                let known = known.filter(|known| known.digest == *digest);
                let config = match known {
                    Some(known) => Arc::clone(&known.config),
                    None => {
                        let config = config(&challenge.name, digest);
                        Arc::new(config.map_err(|error| error.to_string())?)
                    }
                };
                let answer = TlsAnswer {
                    digest: *digest,
                    until,
                    config,
                };
                self.configs.insert(name, answer);
            }
            ChallengeAnswer::Http { token, thumbprint } => {
                let authorization = format!("{token}.{thumbprint}").into();
                self.authorizations
                    .insert(token.clone(), (until, authorization));
            }
        }
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

#[cfg(test)]
mod tests {
    use x509_parser::prelude::{FromDer, X509Certificate};

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn by_tls(name: &str) -> Challenge {
        Challenge {
            name: name.to_owned(),
            answer: ChallengeAnswer::TlsAlpn([7; 32]),
        }
    }

    fn by_http(token: &str, thumbprint: &str) -> Challenge {
        Challenge {
            name: String::new(),
            answer: ChallengeAnswer::Http {
                token: token.to_owned(),
                thumbprint: thumbprint.to_owned(),
            },
        }
    }

    #[test]
    fn an_answer_ends_at_its_deadline_and_with_the_next_set() {
        let challenges = Challenges::default();
        let pending = [by_tls("a.test"), by_http("token", "thumb")];
        let pending = pending.map(|it| (it, MINUTE));
        let fails = |challenge: &Challenge, error| panic!("{challenge:?}: {error}");
        challenges.replace(&pending, fails);
        let before = MINUTE - Duration::from_nanos(1);
        let path = format!("{HTTP_PATH}token");
        assert!(challenges.config("a.test", before).is_some());
        assert!(challenges.config("b.test", before).is_none());
        assert!(challenges.config("a.test", MINUTE).is_none());
        let answer = challenges.http(&path, before);
        assert_eq!(answer.as_deref(), Some("token.thumb"));
        assert!(challenges.http(&path, MINUTE).is_none());
        assert!(challenges.http("/token", before).is_none());
        let first = challenges.config("a.test", before).unwrap();
        challenges.replace(&pending, fails);
        let again = challenges.config("a.test", before).unwrap();
        assert!(Arc::ptr_eq(&first, &again), "another certificate");
        challenges.replace(&[], fails);
        assert!(challenges.config("a.test", before).is_none());
        assert!(challenges.http(&path, before).is_none());
    }

    #[test]
    fn a_token_cannot_leave_its_path_or_add_lines() {
        let before = PendingAnswers::default();
        let mut answers = PendingAnswers::default();
        for token in ["", "../x", "a\r\nb", "a b", &"a".repeat(257)] {
            for challenge in [by_http(token, "x"), by_http("x", token)] {
                assert!(answers.add(&challenge, MINUTE, &before).is_err());
            }
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
        let before = PendingAnswers::default();
        let mut answers = PendingAnswers::default();
        answers.add(&by_tls("192.0.2.1"), MINUTE, &before).unwrap();
        let config = &answers.configs["1.2.0.192.in-addr.arpa"].config;
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
