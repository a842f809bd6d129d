//! Checks a certificate with its issuers and its key.
//!
//! The first certificate of a chain belongs to the private key, and each certificate is signed by
//! the next. Errors in the files go into the report. An expired certificate is only a warning,
//! because an error would turn a late renewal into an outage. [`texts`](crate::texts) reads and
//! decodes the files, [`loading`](crate::loading) does so with many of them, and
//! [`certificates`](crate::certificates) maps names to chains.
//!
//! The signatures and the key of files are not checked again if their contents were checked
//! earlier ([`checked`](crate::checked)).

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use becket_multibuffer::PrivateKey;
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::server::ParsedCertificate;
use rustls::sign::SigningKey;
use rustls::{CertificateError, Error};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use x509_parser::prelude::{FromDer, X509Certificate, X509Version};

use super::checked::CheckedFiles;
use super::facts::{self, expiry, names_of, renew_by};
use super::issuers::{IssuerTable, Issuers};
use super::job::{ChainSource, Job, LoadOutcome};
use super::loaded::{Extras, HeldKey, Loaded, LoadedParts, Names};
use super::ocsp;
use super::pem::Pem;
use super::stored_key::{self, StoredKey, StoredKind};
use super::texts::{Texts, warn_of_readers};
use crate::files::{Files, shown};
use crate::signing::Offload;
use crate::signing::token::wire::TokenFault;
use crate::signing::token::{PublicKey, Tokens};
use becket_config::error::{Problem, Report};
use becket_config::key_source::KeyUri;
use becket_proto::ticket::UnixSeconds;

#[derive(Debug)]
pub struct Loader {
    pub provider: CryptoProvider,
    /// Time for which certificates are checked.
    pub now: UnixTime,
    pub files: Files,
    pub batches: bool,
    /// `true` if crypto threads sign with expensive keys.
    pub crypto_threads: bool,
    pub tokens: Tokens,
    pub issuers: IssuerTable,
    pub checked: CheckedFiles,
    /// `true` to verify every signature, also those of many certificates.
    pub verifies_all: bool,
}

/// Which signatures of chains are verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verified {
    All,
    /// One chain for each list of issuers. Others must name the key of their issuer.
    OnePerIssuers,
}

/// A chain to check, and what was read from its first certificate.
struct Chain<'a> {
    job: &'a Job,
    pem: &'a Pem,
    leaf: &'a CertificateDer<'static>,
    parsed: X509Certificate<'a>,
    issuers: Arc<Issuers>,
    verified: Verified,
}

impl Loader {
    /// Returns `true` if the certificate that was loaded earlier stays in use without a look at its
    /// files.
    pub fn is_unchanged(&self, job: &Job) -> bool {
        self.unchanged(job).is_some()
    }

    /// Returns the certificate that was loaded earlier. Returns `None` if a file may have changed, or
    /// if the time decides about an OCSP response.
    fn unchanged<'a>(&self, job: &'a Job) -> Option<&'a Arc<Loaded>> {
        let before = job.before.as_ref()?;
        if job.ocsp.is_some()
            || before.policy() != job.policy.as_ref()
            || before.managed() != job.managed.as_ref()
        {
            return None;
        }
        let stamp = self.files.stamp(job.file())?;
        let stamp = match (&job.source, before.token()) {
            (ChainSource::Pair { key, .. }, _) => stamp.and(self.files.stamp(key)?),
            (ChainSource::Bundle(_), None) => stamp,
            (ChainSource::Token { uri, .. }, Some(key)) if self.tokens.has(key, uri) => stamp,
            _ => return None,
        };
        before.has_stamp(stamp).then_some(before)
    }

    /// Returns the certificate that was loaded earlier, with warnings about its dates.
    pub(super) fn reuse(&self, job: &Job) -> Option<LoadOutcome> {
        let before = self.unchanged(job)?;
        let mut outcome = LoadOutcome {
            loaded: Some(Arc::clone(before)),
            ..LoadOutcome::default()
        };
        if before.dates_need_check(self.now.as_secs())
            && let Some(leaf) = facts::certificate(&before.leaf())
        {
            let at = (&*job.path, job.file());
            self.check_dates(at, &leaf, before.issuers(), &mut outcome.report);
        }
        Some(outcome)
    }

    /// Checks the files of a job. Blocks only for a key on a token.
    pub(super) fn check(&self, job: &Job, mut texts: Texts, verified: Verified) -> LoadOutcome {
        let mut report = std::mem::take(&mut texts.report);
        let pem = texts.parse(job, &self.issuers, &mut report);
        let chain = pem
            .as_ref()
            .and_then(|pem| self.chain(job, pem, verified, &mut report));
        let (loaded, names) = match chain {
            Some(chain) => self.loaded(&chain, texts, &mut report),
            None => (None, None),
        };
        LoadOutcome {
            loaded,
            names,
            report,
        }
    }

    fn chain<'a>(
        &self,
        job: &'a Job,
        pem: &'a Pem,
        verified: Verified,
        report: &mut Report,
    ) -> Option<Chain<'a>> {
        let (path, file) = (&*job.path, job.file());
        let (leaf, issuers) = pem.certificates.split_first()?;
        let parsed = parse(path, file, leaf, report)?;
        let issuers = match &pem.issuers {
            Some(known) => Ok(Arc::clone(known)),
            None => self.issuers.find(issuers, &pem.issuers_text),
        };
        let issuers = issuers.map_err(|fault| report.error(shown(path, file, fault)));
        Some(Chain {
            job,
            pem,
            leaf,
            parsed,
            issuers: issuers.ok()?,
            verified,
        })
    }

    /// Returns the certificate with its names, or without names if it was loaded earlier.
    fn loaded(
        &self,
        chain: &Chain<'_>,
        mut texts: Texts,
        report: &mut Report,
    ) -> (Option<Arc<Loaded>>, Option<Names>) {
        let (job, file) = (chain.job, chain.job.file());
        let warnings = report.warnings.len();
        let key = self.checked_key(chain, &texts, report);
        self.check_dates((&*job.path, file), &chain.parsed, &chain.issuers, report);
        let (mut names, unusable) = names_of(&chain.parsed);
        if let Some(managed) = &job.managed {
            names.retain(|name| managed.contains(name));
        }
        for name in unusable {
            let fault = format!("the certificate has a name that no client can ask for: {name:?}");
            report.warn(shown(&job.path, file, fault));
        }
        if chain.parsed.version() != X509Version::V3 {
            let fault = "the certificate is older than X.509 version 3, and many clients reject it";
            report.warn(shown(&job.path, file, fault));
        }
        let staple = texts.ocsp.take();
        let staple = staple.and_then(|response| {
            let path = format!("{}.ocsp", job.path);
            let at = (&*path, job.ocsp.as_deref()?);
            let now = UnixSeconds(self.now.as_secs());
            ocsp::staple(at, response, chain.leaf, now, report)
        });
        let Some(key) = key else {
            return (None, None);
        };
        let batch_key = self.batch_key(chain, &key);
        let parts = LoadedParts {
            leaf: chain.leaf,
            parsed: &chain.parsed,
            shared: self.issuers.in_folder(file, &chain.issuers),
            offload: self.offload(&key, chain, batch_key.is_some()),
            key,
            file,
        };
        let extras = Extras {
            policy: job.policy.clone(),
            staple,
            batch_key,
            managed: job.managed.clone(),
            is_temporary: false,
        };
        let stamp = texts.stamp(job, self.now);
        let loaded = Loaded::new(parts, stamp, extras);
        if let Some(before) = job.before.as_ref().filter(|it| it.is_same(&loaded)) {
            before.set_stamp(stamp);
            report.warnings.truncate(warnings);
            self.check_dates((&*job.path, file), &chain.parsed, &chain.issuers, report);
            return (Some(Arc::clone(before)), None);
        }
        (Some(Arc::new(loaded)), Some(names.into()))
    }

    /// Returns the key after the checks of the key and of the signatures. Omits these checks if
    /// they succeeded earlier. Returns `None` if one fails.
    fn checked_key(
        &self,
        chain: &Chain<'_>,
        texts: &Texts,
        report: &mut Report,
    ) -> Option<HeldKey> {
        if let ChainSource::Token { uri, .. } = &chain.job.source {
            return self.on_token(chain, uri, report);
        }
        if let Some((path, file)) = chain.job.key_file()
            && texts.has_readers()
        {
            warn_of_readers(&path, file, report);
        }
        let der = chain.pem.keys.first()?;
        let kind = StoredKind::of(chain.parsed.public_key().raw);
        let stored = kind.map(|kind| StoredKey::new(kind, der));
        let digest = texts.digest(&self.checked);
        if let Some(stored) = &stored
            && (chain.has_loaded(stored)
                || digest.is_some_and(|digest| self.checked.contains(&digest)))
        {
            return Some(HeldKey::Stored(stored.clone()));
        }
        let warnings = report.warnings.len();
        let key = match_key(chain, kind, der, report);
        let is_signed = self.check_chain(chain, report);
        let key = key.filter(|_| is_signed)?;
        let is_warned = report.warnings.len() > warnings;
        if let Some(digest) = digest.filter(|_| stored.is_some() && !is_warned) {
            self.checked.insert(digest);
        }
        Some(stored.map_or(HeldKey::Parsed(key), HeldKey::Stored))
    }

    /// Returns the key on a token, which must prove possession of the key. May block for seconds.
    fn on_token(&self, chain: &Chain<'_>, uri: &KeyUri, report: &mut Report) -> Option<HeldKey> {
        let before = chain.job.before.as_ref();
        let before = before.filter(|it| it.has_parts(chain.leaf, &chain.issuers));
        if let Some(key) = before.and_then(|before| before.token())
            && self.tokens.has(key, uri)
        {
            return Some(HeldKey::Token(key.clone()));
        }
        let refused = |why: &str| TokenFault::Refused(why.to_owned());
        let public = PublicKey::of(chain.parsed.public_key().raw)
            .ok_or_else(|| refused("tokens sign with RSA, P-256, P-384 and Ed25519 only"));
        let key = public.and_then(|public| self.tokens.key(uri, public));
        let key = key.map_err(|fault| {
            let path = format!("{}.key", chain.job.path);
            report.error(Problem::new(path, fault.to_string()).text(&uri.to_string()));
        });
        let is_signed = self.check_chain(chain, report);
        key.ok().filter(|_| is_signed).map(HeldKey::Token)
    }

    fn offload(&self, key: &HeldKey, chain: &Chain<'_>, in_batches: bool) -> Offload {
        if matches!(key, HeldKey::Token(_)) {
            return Offload::Token;
        }
        let public = chain.parsed.public_key().raw;
        match Offload::of(&*key.signing_key(), public, in_batches) {
            Offload::Batches | Offload::Always if !self.crypto_threads => Offload::Never,
            offload => offload,
        }
    }

    /// Returns the RSA key for batched signatures. Returns `None` if the key's type, length or
    /// exponent is not supported. To parse it takes milliseconds.
    fn batch_key(&self, chain: &Chain<'_>, key: &HeldKey) -> Option<Arc<PrivateKey>> {
        if !self.batches {
            return None;
        }
        if let HeldKey::Stored(key) = key
            && chain.has_loaded(key)
        {
            return chain.job.before.as_ref()?.batch_key().cloned();
        }
        let key = match &**chain.pem.keys.first()? {
            PrivateKeyDer::Pkcs1(der) => PrivateKey::from_pkcs1(der.secret_pkcs1_der()),
            PrivateKeyDer::Pkcs8(der) => PrivateKey::from_pkcs8(der.secret_pkcs8_der()),
            _ => return None,
        };
        key.ok().map(Arc::new)
    }

    /// Checks that each certificate is issued and signed by the next one.
    fn check_chain(&self, chain: &Chain<'_>, report: &mut Report) -> bool {
        let (path, file) = (&*chain.job.path, chain.job.file());
        let accepted = "each certificate followed by its issuer's";
        if let Some(at) = chain.first_out_of_order() {
            report.error(shown(path, file, chain.order_fault(at)).accepted(accepted));
            return false;
        }
        match self.verify(chain) {
            Some(Error::InvalidCertificate(CertificateError::BadSignature)) => {
                let fault = "a certificate of the chain is not signed by the next one";
                report.error(shown(path, file, fault).accepted(accepted));
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
    fn verify(&self, chain: &Chain<'_>) -> Option<Error> {
        if chain.verified == Verified::OnePerIssuers
            && chain.issuers.is_verified.load(Ordering::Relaxed)
            && chain.names_issuers_key()
        {
            return None;
        }
        let roots = match chain.issuers.anchor()? {
            Ok(roots) => roots,
            Err(error) => return Some(error),
        };
        let leaf = match ParsedCertificate::try_from(chain.leaf) {
            Ok(leaf) => leaf,
            Err(error) => return Some(error),
        };
        let (_, between) = chain.issuers.certificates().split_last()?;
        let not_before = chain.parsed.validity().not_before.timestamp();
        let at = UnixTime::since_unix_epoch(std::time::Duration::from_secs(
            u64::try_from(not_before).unwrap_or_default(),
        ));
        let algorithms = self.provider.signature_verification_algorithms.all;
        let verified =
            verify_server_cert_signed_by_trust_anchor(&leaf, &roots, between, at, algorithms);
        let Err(fault) = verified else {
            chain.issuers.is_verified.store(true, Ordering::Relaxed);
            return None;
        };
        match fault {
            Error::InvalidCertificate(
                CertificateError::Expired
                | CertificateError::ExpiredContext { .. }
                | CertificateError::NotValidYet
                | CertificateError::NotValidYetContext { .. },
            ) => None,
            error => Some(error),
        }
    }

    fn check_dates(
        &self,
        (path, file): (&str, &Path),
        leaf: &X509Certificate<'_>,
        issuers: &Issuers,
        report: &mut Report,
    ) {
        let now = i64::try_from(self.now.as_secs()).unwrap_or(i64::MAX);
        let of_issuers = issuers.facts.iter().map(|facts| &facts.validity);
        let validities = std::iter::once(leaf.validity()).chain(of_issuers);
        for (at, validity) in validities.enumerate() {
            let fault = if validity.not_before.timestamp() > now {
                "is not valid yet".to_owned()
            } else if renew_by(validity) <= now {
                expiry(validity.not_after.timestamp().saturating_sub(now))
            } else {
                continue;
            };
            let subject = subject(leaf, issuers, at);
            let fault = format!("certificate {} ({subject}) {fault}", at + 1);
            report.warn(shown(path, file, fault));
        }
    }
}

impl Chain<'_> {
    /// Returns `true` if the certificate that was loaded earlier has the same chain and key.
    fn has_loaded(&self, key: &StoredKey) -> bool {
        let before = self.job.before.as_ref();
        before.is_some_and(|before| {
            before.has_parts(self.leaf, &self.issuers)
                && matches!(&before.key(), HeldKey::Stored(known) if known == key)
        })
    }

    /// Returns the index of the first certificate whose issuer is not the next certificate.
    fn first_out_of_order(&self) -> Option<usize> {
        let facts = &self.issuers.facts;
        let of_issuers = facts.iter().map(|facts| &*facts.issuer);
        let issuers = std::iter::once(self.parsed.issuer().as_raw()).chain(of_issuers);
        let mut pairs = issuers.zip(facts.iter().map(|facts| &*facts.subject));
        pairs.position(|(issuer, subject)| issuer != subject)
    }

    /// Returns `true` if the first certificate names the public key of the second one as its
    /// issuer's.
    fn names_issuers_key(&self) -> bool {
        let named = facts::issuer_key_identifier(&self.parsed);
        let issuer = self.issuers.facts.first();
        named.is_some_and(|named| issuer.and_then(|it| it.key_identifier.as_deref()) == Some(named))
    }

    /// Returns all certificates of the chain.
    fn certificates(&self) -> impl Iterator<Item = &CertificateDer<'static>> {
        std::iter::once(self.leaf).chain(self.issuers.certificates())
    }

    fn order_fault(&self, at: usize) -> String {
        let issuer = self.certificates().nth(at);
        let issuer = issuer.and_then(|it| facts::certificate(it));
        let issuer = issuer.map(|it| it.issuer().to_string());
        let [of, by] = [at, at + 1].map(|at| subject(&self.parsed, &self.issuers, at));
        format!(
            "the chain is out of order: certificate {} ({of}) is issued by {}, but certificate {} is {by}",
            at + 1,
            issuer.unwrap_or_default(),
            at + 2,
        )
    }
}

/// Returns the subject of a certificate of the chain as text.
fn subject(leaf: &X509Certificate<'_>, issuers: &Issuers, at: usize) -> String {
    let Some(at) = at.checked_sub(1) else {
        return leaf.subject().to_string();
    };
    let issuer = issuers.certificates().get(at);
    let issuer = issuer.and_then(|it| facts::certificate(it));
    issuer.map_or_else(String::new, |it| it.subject().to_string())
}

/// Parses the key, and checks that it belongs to the first certificate.
fn match_key(
    chain: &Chain<'_>,
    kind: Option<StoredKind>,
    der: &PrivateKeyDer<'_>,
    report: &mut Report,
) -> Option<Arc<dyn SigningKey>> {
    let (path, file) = (&*chain.job.path, chain.job.file());
    let of_kind = kind.and_then(|kind| stored_key::parse(kind, der).ok());
    // A key of another kind than the certificate's is parsed for the error message.
    let key = of_kind.map_or_else(|| any_supported_type(der), Ok);
    let key = match key {
        Ok(key) => key,
        Err(error) => {
            let fault = format!("a private key that cannot be used: {error}");
            report.error(shown(path, file, fault).accepted(
                "RSA of at least 2048 bits, P-256, P-384, P-521, Ed25519 or ML-DSA; PKCS#8, PKCS#1 or SEC1",
            ));
            return None;
        }
    };
    let public = key.public_key();
    let public = public.as_deref();
    if public.is_some_and(|key| key == chain.parsed.public_key().raw) {
        return Some(key);
    }
    // The function `keys_match` of rustls cannot parse X.509 version 1 certificates, but becket
    // accepts them.
    let owner = chain.certificates().position(|certificate| {
        let parsed = facts::certificate(certificate);
        parsed.is_some_and(|it| public.is_some_and(|key| key == it.public_key().raw))
    });
    let fault = match owner {
        Some(at) => format!(
            "the private key belongs to certificate {}, not to the first",
            at + 1
        ),
        None => "the private key belongs to another certificate".to_owned(),
    };
    report.error(shown(path, file, fault).accepted("the key of the first certificate"));
    None
}

fn parse<'c>(
    path: &str,
    file: &Path,
    certificate: &'c CertificateDer<'_>,
    report: &mut Report,
) -> Option<X509Certificate<'c>> {
    let parsed = X509Certificate::from_der(certificate);
    parsed
        .map(|(_, parsed)| parsed)
        .map_err(|error| report.error(shown(path, file, format!("not a certificate: {error}"))))
        .ok()
}
