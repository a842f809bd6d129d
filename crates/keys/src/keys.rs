//! Loads certificates with their keys from files, and verifies that they belong together.
//!
//! The first certificate of a [`Loaded`] chain belongs to the private key, and each certificate is
//! signed by the next. Errors in the files go into the report. An expired certificate is only a
//! warning, because an error would turn a late renewal into an outage. [`pem`](crate::pem) decodes
//! the files, and [`certificates`](crate::certificates) maps names to chains.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use becket_config::address::NamePattern;
use becket_multibuffer::PrivateKey;
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::CryptoProvider;
use rustls::server::ParsedCertificate;
use rustls::sign::{CertifiedKey, SigningKey};
use rustls::{CertificateError, Error, RootCertStore};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate, X509Version};

use becket_config::notation::Text;

use super::digest::digest;
use super::facts::{expiry, renew_by};
use super::pem::Pem;
use crate::files::{Files, clean};
use crate::signing::Offload;
use crate::signing::token::wire::TokenFault;
use crate::signing::token::{PublicKey, TokenKey, Tokens};
use becket_config::error::{Problem, Report};
use becket_config::key_source::KeyUri;

#[derive(Clone, Debug)]
pub struct Loaded {
    pub key: Arc<CertifiedKey>,
    /// RSA key for batched signatures; `None` if this key does not sign in batches.
    pub batch_key: Option<Arc<PrivateKey>>,
    pub offload: Offload,
    /// Server names in lower case; may be empty.
    pub names: Arc<[NamePattern]>,
    pub file: Arc<Path>,
    /// Key on a token; `None` if the private key is in a file.
    pub token: Option<TokenKey>,
    /// Digest of the paths and contents of the chain and key files.
    pub digest: [u8; 32],
    /// Digest of the stapled OCSP response; `None` without one.
    pub ocsp: Option<[u8; 32]>,
    /// Policy name for clients that receive this certificate; `None` if not configured.
    pub policy: Option<Arc<str>>,
    /// `true` if the ACME companion maintains the file. Certificates of the operator take
    /// precedence.
    pub is_managed: bool,
}

impl Loaded {
    /// Returns `true` if both chains were loaded from the same paths with equal contents.
    pub fn is_same(&self, other: &Self) -> bool {
        (self.digest, self.ocsp) == (other.digest, other.ocsp)
    }
}

struct Private {
    key: Arc<dyn SigningKey>,
    batch_key: Option<Arc<PrivateKey>>,
    offload: Offload,
    token: Option<TokenKey>,
}

#[derive(Debug)]
pub struct Loader {
    pub provider: CryptoProvider,
    /// Time for which certificates are checked.
    pub now: UnixTime,
    pub files: Files,
    pub batches: bool,
    pub tokens: Tokens,
    /// Loaded chains that can be reused, by digest. Includes the chains of the running
    /// configuration.
    pub known: HashMap<[u8; 32], Loaded>,
}

impl Loader {
    /// Loads chain and key from one file. Problems refer to the configuration key `path`.
    pub fn bundle(&self, path: &str, file: &Path, report: &mut Report) -> Option<Loaded> {
        let pem = read(&self.files, path, file, report)?;
        if needs_password(path, file, &pem, report) {
            return None;
        }
        let digest = digest(&[file.as_os_str().as_bytes(), &pem.digest]);
        self.warn_if_readable((path, file, digest), &pem, report);
        self.check(path, (file, digest), pem, report)
    }

    /// Loads chain and key from two files. Problems refer to the configuration key `path`.
    pub fn pair(
        &self,
        path: &str,
        chain: &Path,
        key: &Path,
        report: &mut Report,
    ) -> Option<Loaded> {
        let of_chain = read(&self.files, &format!("{path}.chain"), chain, report);
        let of_key = read(&self.files, &format!("{path}.key"), key, report);
        let (of_chain, of_key) = (of_chain?, of_key?);
        if needs_password(&format!("{path}.key"), key, &of_key, report) {
            return None;
        }
        let paths = [chain, key].map(|path| path.as_os_str().as_bytes());
        let digest = digest(&[paths[0], paths[1], &of_chain.digest, &of_key.digest]);
        let pem = Pem {
            certificates: of_chain.certificates,
            ..of_key
        };
        self.warn_if_readable((path, key, digest), &pem, report);
        self.check(path, (chain, digest), pem, report)
    }

    fn warn_if_readable(
        &self,
        (path, file, digest): (&str, &Path, [u8; 32]),
        pem: &Pem,
        report: &mut Report,
    ) {
        if !self.known.contains_key(&digest) {
            warn_if_readable(path, file, pem, report);
        }
    }

    /// Loads a chain whose key is on a token. The token must prove possession of the key. Problems
    /// refer to the configuration key `path`.
    pub fn on_token(
        &self,
        path: &str,
        chain: &Path,
        uri: &KeyUri,
        report: &mut Report,
    ) -> Option<Loaded> {
        let mut pem = read(&self.files, &format!("{path}.chain"), chain, report)?;
        let file = chain.as_os_str().as_bytes();
        let digest = digest(&[file, uri.to_string().as_bytes(), &pem.digest]);
        if let Some(known) = self.known.get(&digest) {
            return Some(known.clone());
        }
        pem.keys.clear();
        if pem.certificates.is_empty() {
            let problem = shown(path, chain, "no certificate");
            report.error(problem.accepted("certificates, the server's own first, PEM"));
            return None;
        }
        parse(path, chain, &pem.certificates, report)?;
        let key = match self.find(&pem, uri) {
            Ok(key) => key,
            Err(fault) => {
                let problem =
                    Problem::new(format!("{path}.key"), fault.to_string()).text(&uri.to_string());
                report.error(problem);
                return None;
            }
        };
        let private = Private {
            key: Arc::new(key.clone()),
            batch_key: None,
            offload: Offload::Token,
            token: Some(key),
        };
        let at = (path, chain, digest);
        self.finish(at, pem.certificates, Some(private), report)
    }

    fn find(&self, pem: &Pem, uri: &KeyUri) -> Result<TokenKey, TokenFault> {
        let refused = |why: &str| TokenFault::Refused(why.to_owned());
        let leaf = pem.certificates.first().and_then(|leaf| {
            let (_, leaf) = X509Certificate::from_der(leaf).ok()?;
            Some(PublicKey::of(leaf.public_key().raw))
        });
        let public = leaf.ok_or_else(|| refused("the certificate cannot be read"))?;
        let public =
            public.ok_or_else(|| refused("tokens sign with RSA, P-256, P-384 and Ed25519 only"))?;
        self.tokens.key(uri, public)
    }

    fn check(
        &self,
        path: &str,
        (file, digest): (&Path, [u8; 32]),
        mut pem: Pem,
        report: &mut Report,
    ) -> Option<Loaded> {
        if let Some(known) = self.known.get(&digest) {
            return Some(known.clone());
        }
        let fault = match (pem.certificates.len(), pem.keys.len()) {
            (0, _) => "no certificate",
            (_, 0) => "no private key",
            (_, 1) => "",
            _ => "more than one private key",
        };
        if !fault.is_empty() {
            report.error(
                shown(path, file, fault)
                    .accepted("certificates, the server's own first, and one private key, PEM"),
            );
            return None;
        }
        parse(path, file, &pem.certificates, report)?;
        let batch_key = pem.keys.first().and_then(|key| self.batch_key(key));
        let key = self.match_key(path, file, &mut pem, report);
        let private = key.map(|key| Private {
            offload: Offload::of(&*key, batch_key.is_some()),
            key,
            batch_key,
            token: None,
        });
        let at = (path, file, digest);
        self.finish(at, pem.certificates, private, report)
    }

    fn finish(
        &self,
        (path, file, digest): (&str, &Path, [u8; 32]),
        chain: Vec<CertificateDer<'static>>,
        private: Option<Private>,
        report: &mut Report,
    ) -> Option<Loaded> {
        let parsed = parse(path, file, &chain, report)?;
        let ordered = self.check_chain(path, file, (&chain, &parsed), report);
        self.check_dates(path, file, &parsed, report);
        let leaf = parsed.first()?;
        let (names, unusable) = names_of(leaf);
        for name in unusable {
            let fault = format!("the certificate has a name that no client can ask for: {name:?}");
            report.warn(shown(path, file, fault));
        }
        if leaf.version() != X509Version::V3 {
            let fault = "the certificate is older than X.509 version 3, and many clients reject it";
            report.warn(shown(path, file, fault));
        }
        let Private {
            key,
            batch_key,
            offload,
            token,
        } = private?;
        ordered.then_some(Loaded {
            offload,
            batch_key,
            key: Arc::new(CertifiedKey::new(chain, key)),
            names: names.into(),
            file: file.into(),
            token,
            digest,
            ocsp: None,
            policy: None,
            is_managed: false,
        })
    }

    /// Returns the RSA key for batched signatures. Returns `None` if the key's type, length or
    /// exponent is not supported.
    fn batch_key(&self, der: &PrivateKeyDer<'_>) -> Option<Arc<PrivateKey>> {
        let key = match der {
            _ if !self.batches => return None,
            PrivateKeyDer::Pkcs1(der) => PrivateKey::from_pkcs1(der.secret_pkcs1_der()),
            PrivateKeyDer::Pkcs8(der) => PrivateKey::from_pkcs8(der.secret_pkcs8_der()),
            _ => return None,
        };
        key.ok().map(Arc::new)
    }

    fn match_key(
        &self,
        path: &str,
        file: &Path,
        pem: &mut Pem,
        report: &mut Report,
    ) -> Option<Arc<dyn SigningKey>> {
        let mut der = pem.keys.pop()?;
        let der = std::mem::replace(&mut *der, PrivateKeyDer::Pkcs8(Vec::new().into()));
        // The crypto provider erases the key bytes after parsing them.
        let key = match self.provider.key_provider.load_private_key(der) {
            Ok(key) => key,
            Err(error) => {
                report.error(
                    shown(path, file, format!("a private key that cannot be used: {error}"))
                        .accepted("RSA of at least 2048 bits, P-256, P-384, P-521, Ed25519 or ML-DSA; PKCS#8, PKCS#1 or SEC1"),
                );
                return None;
            }
        };
        let public = key.public_key();
        // The function `keys_match` of rustls cannot parse X.509 version 1 certificates, but becket
        // accepts them.
        let owner = pem.certificates.iter().position(|certificate| {
            let parsed = X509Certificate::from_der(certificate);
            let public = public.as_deref();
            parsed.is_ok_and(|(_, it)| public.is_some_and(|key| key == it.public_key().raw))
        });
        let fault = match owner {
            Some(0) => return Some(key),
            Some(at) => format!(
                "the private key belongs to certificate {}, not to the first",
                at + 1
            ),
            None => "the private key belongs to another certificate".to_owned(),
        };
        report.error(shown(path, file, fault).accepted("the key of the first certificate"));
        None
    }

    /// Checks that each certificate is issued and signed by the next one.
    fn check_chain(
        &self,
        path: &str,
        file: &Path,
        (chain, parsed): (&[CertificateDer<'_>], &[X509Certificate<'_>]),
        report: &mut Report,
    ) -> bool {
        for (at, (of, by)) in parsed.iter().zip(parsed.iter().skip(1)).enumerate() {
            if of.issuer().as_raw() != by.subject().as_raw() {
                let fault = format!(
                    "the chain is out of order: certificate {} ({}) is issued by {}, but certificate {} is {}",
                    at + 1,
                    of.subject(),
                    of.issuer(),
                    at + 2,
                    by.subject(),
                );
                report.error(
                    shown(path, file, fault).accepted("each certificate followed by its issuer's"),
                );
                return false;
            }
        }
        match self.verify(chain, parsed) {
            Some(Error::InvalidCertificate(CertificateError::BadSignature)) => {
                let fault = "a certificate of the chain is not signed by the next one";
                report.error(
                    shown(path, file, fault).accepted("each certificate followed by its issuer's"),
                );
                false
            }
            Some(error) => {
                let fault = format!("clients may reject this chain: {error}");
                report.warn(shown(path, file, fault));
                true
            }
            None => true,
        }
    }

    /// Verifies the signatures, with the last certificate as the trust anchor. Ignores expiry,
    /// because an expired certificate is only a warning.
    fn verify(
        &self,
        chain: &[CertificateDer<'_>],
        parsed: &[X509Certificate<'_>],
    ) -> Option<Error> {
        let [leaf, between @ .., last] = chain else {
            return None;
        };
        let mut roots = RootCertStore::empty();
        if let Err(error) = roots.add(last.clone()) {
            return Some(error);
        }
        let leaf = match ParsedCertificate::try_from(leaf) {
            Ok(leaf) => leaf,
            Err(error) => return Some(error),
        };
        let not_before = parsed.first()?.validity().not_before.timestamp();
        let at = UnixTime::since_unix_epoch(std::time::Duration::from_secs(
            u64::try_from(not_before).unwrap_or_default(),
        ));
        let algorithms = self.provider.signature_verification_algorithms.all;
        let verified =
            verify_server_cert_signed_by_trust_anchor(&leaf, &roots, between, at, algorithms);
        match verified.err()? {
            Error::InvalidCertificate(
                CertificateError::Expired
                | CertificateError::ExpiredContext { .. }
                | CertificateError::NotValidYet
                | CertificateError::NotValidYetContext { .. },
            ) => None,
            error => Some(error),
        }
    }

    /// Checks the validity dates of a chain that was loaded earlier.
    pub fn check_known(&self, path: &str, known: &Loaded, report: &mut Report) {
        if let Some(parsed) = parse(path, &known.file, &known.key.cert, report) {
            self.check_dates(path, &known.file, &parsed, report);
        }
    }

    fn check_dates(
        &self,
        path: &str,
        file: &Path,
        parsed: &[X509Certificate<'_>],
        report: &mut Report,
    ) {
        let now = i64::try_from(self.now.as_secs()).unwrap_or(i64::MAX);
        for (at, certificate) in parsed.iter().enumerate() {
            let validity = certificate.validity();
            let fault = if validity.not_before.timestamp() > now {
                "is not valid yet".to_owned()
            } else if renew_by(validity) <= now {
                expiry(validity.not_after.timestamp().saturating_sub(now))
            } else {
                continue;
            };
            let fault = format!("certificate {} ({}) {fault}", at + 1, certificate.subject());
            report.warn(shown(path, file, fault));
        }
    }
}

/// Returns the DNS names and IP addresses of a certificate, and in the second list the names that
/// no ClientHello can contain. Uses the common name if the certificate contains no alternative
/// names.
pub fn names_of(certificate: &X509Certificate<'_>) -> (Vec<NamePattern>, Vec<String>) {
    let (mut names, mut unusable) = (Vec::new(), Vec::new());
    let mut addresses = BTreeSet::new();
    let mut add = |name: &str| match NamePattern::parse(name) {
        Ok(name) if !names.contains(&name) => names.push(name),
        Ok(_) => {}
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
    names.extend(addresses.into_iter().map(NamePattern::Exact));
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

fn parse<'c>(
    path: &str,
    file: &Path,
    chain: &'c [CertificateDer<'_>],
    report: &mut Report,
) -> Option<Vec<X509Certificate<'c>>> {
    let parsed = chain
        .iter()
        .map(|certificate| X509Certificate::from_der(certificate));
    let parsed: Result<Vec<_>, _> = parsed.map(|one| one.map(|(_, parsed)| parsed)).collect();
    parsed
        .map_err(|error| report.error(shown(path, file, format!("not a certificate: {error}"))))
        .ok()
}

/// Reads a PEM file. Reports an error for the configuration key `path` and returns `None` on
/// failure.
pub fn read(files: &Files, path: &str, file: &Path, report: &mut Report) -> Option<Pem> {
    Pem::read(files, file)
        .map_err(|fault| {
            let problem = shown(path, file, fault.to_string());
            report.error(problem.accepted("a readable PEM file"));
        })
        .ok()
}

/// Warns if all users can read the file of a private key.
pub fn warn_if_readable(path: &str, file: &Path, pem: &Pem, report: &mut Report) {
    if pem.world_readable && !pem.keys.is_empty() {
        let fault = "all users of this host can read this private key";
        report.warn(shown(path, file, fault).accepted("chmod o-r"));
    }
}

/// Returns `true` and reports an error if every private key of the file is encrypted.
pub fn needs_password(path: &str, file: &Path, pem: &Pem, report: &mut Report) -> bool {
    let needs = pem.encrypted && pem.keys.is_empty();
    if needs {
        let named = clean(file);
        let problem = shown(path, file, "the private key needs a password");
        report.error(problem.accepted(format!(
            "a key without a password: openssl pkey -in {0} -out {0}.decrypted",
            named.display()
        )));
    }
    needs
}

pub fn shown(path: &str, file: &Path, fault: impl Into<String>) -> Problem {
    Problem::new(path, fault).text(&clean(file).to_string_lossy())
}
