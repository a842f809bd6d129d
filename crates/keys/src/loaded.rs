//! A certificate with its issuers and its private key, as [`keys`](crate::keys) loads them.
//!
//! A [`Loaded`] certificate that is not in use takes the bytes of its certificate and of its key, and about 120 bytes: no
//! parsed key, no copy of its issuers or of the path of its folder, and no names. The first handshake makes the
//! rest, and [`KeyCache`](crate::key_cache::KeyCache) bounds how many certificates keep it.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use becket_multibuffer::PrivateKey;
use becket_proto::ticket::UnixSeconds;
use rustls::sign::{CertifiedKey, SigningKey};
use rustls::{DistinguishedName, SignatureAlgorithm, SignatureScheme};
use rustls_pki_types::CertificateDer;
use x509_parser::prelude::{ASN1Time, Validity, X509Certificate};
use zeroize::Zeroizing;

use super::digest::digest;
use super::facts;
use super::issuers::{FileParts, FolderIssuers, Issuers, file_parts};
use super::presented::Presented;
use super::stamp::Stamp;
use super::stored_key::{KeyEncoding, LazyKey, StoredKey, StoredKind};
use crate::signing::Offload;
use crate::signing::token::TokenKey;

/// Names of a certificate in lower case, wildcards with `*.`.
pub type Names = Box<[Box<str>]>;

#[derive(Debug)]
pub struct Loaded {
    /// DER of the certificate, the name of the chain's file, and the bytes of a stored key: one
    /// block of memory, which is erased on drop.
    block: Zeroizing<Box<[u8]>>,
    name_length: u16,
    key_length: u16,
    shared: Arc<FolderIssuers>,
    key: KeyPlace,
    pub offload: Offload,
    validity: LeafValidity,
    /// Stamp of all files; 0 if a file has changed too recently for a stamp.
    stamp: AtomicU64,
    extras: Option<Box<Extras>>,
    presented: Presented,
    /// The chain that an earlier handshake made.
    ready: Mutex<Option<Arc<CertifiedKey>>>,
    is_used: AtomicBool,
}

#[derive(Debug)]
enum KeyPlace {
    /// A stored key, with its bytes in the block.
    Block(StoredKind, KeyEncoding),
    /// A box, because few keys are of this kind and the other variants are smaller.
    Parsed(Box<Arc<dyn SigningKey>>),
    Token(TokenKey),
}

#[derive(Clone, Debug)]
pub enum HeldKey {
    Stored(StoredKey),
    /// A key of a kind that must be parsed when it is loaded.
    Parsed(Arc<dyn SigningKey>),
    /// A key on a token.
    Token(TokenKey),
}

impl HeldKey {
    /// Returns a key that signs. A stored key is parsed at its first signature.
    pub fn signing_key(&self) -> Arc<dyn SigningKey> {
        match self {
            Self::Stored(key) => Arc::new(LazyKey::new(key.clone())),
            Self::Parsed(key) => Arc::clone(key),
            Self::Token(key) => Arc::new(key.clone()),
        }
    }
}

/// Validity of a certificate in seconds since 1970, at most the year 2106.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LeafValidity {
    from: u32,
    until: u32,
}

impl LeafValidity {
    fn of(validity: &Validity) -> Self {
        let seconds = |at: ASN1Time| u32::try_from(at.timestamp().max(0)).unwrap_or(u32::MAX);
        Self {
            from: seconds(validity.not_before),
            until: seconds(validity.not_after),
        }
    }
}

/// Properties that few certificates have.
#[derive(Clone, Debug, Default)]
pub struct Extras {
    /// Policy name for clients that receive this certificate; `None` if not configured.
    pub policy: Option<Arc<str>>,
    pub staple: Option<Staple>,
    /// RSA key for batched signatures; `None` if this key does not sign in batches.
    pub batch_key: Option<Arc<PrivateKey>>,
    /// Names for which the ACME companion maintains the file; `None` for a file of the operator.
    pub managed: Option<Arc<[Box<str>]>>,
    /// `true` until the ACME companion has obtained the certificate.
    pub is_temporary: bool,
}

/// Precedence among the certificates of one name, the highest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Precedence {
    Operator,
    Issued,
    Temporary,
}

/// A stapled OCSP response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Staple {
    pub response: Vec<u8>,
    pub until: Option<UnixSeconds>,
}

/// The parts that every certificate has, for [`Loaded::new`].
#[derive(Debug)]
pub struct LoadedParts<'a> {
    pub leaf: &'a CertificateDer<'a>,
    /// The leaf.
    pub parsed: &'a X509Certificate<'a>,
    /// The folder of the file, and the issuers.
    pub shared: Arc<FolderIssuers>,
    pub key: HeldKey,
    pub offload: Offload,
    /// File of the chain.
    pub file: &'a Path,
}

struct BlockParts<'a> {
    leaf: &'a [u8],
    name: &'a [u8],
    key: &'a [u8],
}

impl Loaded {
    pub fn new(parts: LoadedParts<'_>, stamp: Option<Stamp>, extras: Extras) -> Self {
        let LoadedParts {
            leaf,
            parsed,
            shared,
            key,
            offload,
            file,
        } = parts;
        let (_, name) = file_parts(file);
        // The kernel limits paths to 4096 bytes.
        let name_length = u16::try_from(name.len()).unwrap_or_default();
        let name = name.get(..name_length.into()).unwrap_or_default();
        let (key, bytes) = match &key {
            HeldKey::Stored(stored) => {
                let (encoding, bytes) = stored.parts();
                (KeyPlace::Block(stored.kind, encoding), bytes)
            }
            HeldKey::Parsed(key) => (KeyPlace::Parsed(Box::new(Arc::clone(key))), &[][..]),
            HeldKey::Token(key) => (KeyPlace::Token(key.clone()), &[][..]),
        };
        // Keys that AWS-LC accepts are shorter.
        let key_length = u16::try_from(bytes.len()).unwrap_or_default();
        let bytes = bytes.get(..key_length.into()).unwrap_or_default();
        let has_extras = extras.policy.is_some()
            || extras.staple.is_some()
            || extras.batch_key.is_some()
            || extras.managed.is_some();
        Self {
            validity: LeafValidity::of(parsed.validity()),
            presented: Presented::of(parsed),
            block: Zeroizing::new([leaf.as_ref(), name, bytes].concat().into()),
            name_length,
            key_length,
            shared,
            key,
            offload,
            stamp: AtomicU64::new(stamp.map_or(0, |stamp| stamp.0)),
            extras: has_extras.then(|| Box::new(extras)),
            ready: Mutex::default(),
            is_used: AtomicBool::new(false),
        }
    }

    pub fn leaf(&self) -> CertificateDer<'_> {
        CertificateDer::from(self.parts().leaf)
    }

    fn parts(&self) -> BlockParts<'_> {
        let at = self.block.len() - usize::from(self.key_length);
        let (rest, key) = self.block.split_at(at);
        let (leaf, name) = rest.split_at(rest.len() - usize::from(self.name_length));
        BlockParts { leaf, name, key }
    }

    /// Returns the key. Copies the bytes of a stored key.
    pub fn key(&self) -> HeldKey {
        match &self.key {
            KeyPlace::Block(kind, encoding) => {
                HeldKey::Stored(StoredKey::of_parts(*kind, *encoding, self.parts().key))
            }
            KeyPlace::Parsed(key) => HeldKey::Parsed(Arc::clone(&**key)),
            KeyPlace::Token(key) => HeldKey::Token(key.clone()),
        }
    }

    pub(super) fn token(&self) -> Option<&TokenKey> {
        match &self.key {
            KeyPlace::Token(key) => Some(key),
            KeyPlace::Block(..) | KeyPlace::Parsed(_) => None,
        }
    }

    pub fn algorithm(&self) -> SignatureAlgorithm {
        match &self.key {
            KeyPlace::Block(kind, _) => kind.algorithm(),
            KeyPlace::Parsed(key) => key.algorithm(),
            KeyPlace::Token(key) => key.algorithm(),
        }
    }

    /// Returns `true` if the key supports at least one of the schemes.
    pub fn supports(&self, schemes: &[SignatureScheme]) -> bool {
        match &self.key {
            KeyPlace::Block(kind, _) => {
                let mut own = kind.schemes().iter();
                own.any(|scheme| schemes.contains(scheme))
            }
            KeyPlace::Parsed(key) => key.choose_scheme(schemes).is_some(),
            KeyPlace::Token(key) => key.choose_scheme(schemes).is_some(),
        }
    }

    pub fn issuers(&self) -> &Issuers {
        &self.shared.issuers
    }

    /// Returns the path of the chain's file.
    pub fn file(&self) -> PathBuf {
        let (folder, name) = self.file_parts();
        OsString::from_vec([folder, name].concat()).into()
    }

    pub(super) fn file_parts(&self) -> FileParts<'_> {
        (&self.shared.folder, self.parts().name)
    }

    /// Copies all certificates of the chain, the leaf first.
    pub fn chain(&self) -> Vec<CertificateDer<'static>> {
        let leaf = self.leaf().into_owned();
        let issuers = self.issuers().certificates().iter().cloned();
        std::iter::once(leaf).chain(issuers).collect()
    }

    /// Digest of the certificates of the chain.
    pub fn digest(&self) -> [u8; 32] {
        let issuers = self.issuers().certificates().iter().map(AsRef::as_ref);
        let parts: Vec<&[u8]> = std::iter::once(self.parts().leaf).chain(issuers).collect();
        digest(&parts)
    }

    /// Returns `true` if one of these names in DER is the issuer of a certificate of the chain.
    pub fn is_issued_by(&self, authorities: &[DistinguishedName]) -> bool {
        let is_named = |issuer: &[u8]| authorities.iter().any(|name| name.as_ref() == issuer);
        let issuers = &self.issuers().facts;
        let of_leaf = match issuers.first() {
            // The subject of the next certificate is the issuer of the leaf.
            Some(next) => is_named(&next.subject),
            None => {
                facts::certificate(&self.leaf()).is_some_and(|it| is_named(it.issuer().as_raw()))
            }
        };
        of_leaf || issuers.iter().any(|it| is_named(&it.issuer))
    }

    /// Parses the certificate for the names that it serves.
    pub fn names(&self) -> Vec<Box<str>> {
        let leaf = self.leaf();
        let parsed = facts::certificate(&leaf);
        let mut names = parsed.map_or_else(Vec::new, |leaf| facts::names_of(&leaf).0);
        if let Some(managed) = self.managed() {
            names.retain(|name| managed.contains(name));
        }
        names
    }

    /// Returns when the certificate expires, at most 2106.
    pub fn not_after(&self) -> UnixSeconds {
        UnixSeconds(self.validity.until.into())
    }

    /// Returns `true` if a warning about the dates of the certificate may be due at `now`, in
    /// seconds since 1970.
    pub fn dates_need_check(&self, now: u64) -> bool {
        let LeafValidity { from, until } = self.validity;
        now < from.into() || now.saturating_add(facts::LONGEST_WARNING) >= until.into()
    }

    pub fn policy(&self) -> Option<&Arc<str>> {
        self.extras.as_ref()?.policy.as_ref()
    }

    pub fn batch_key(&self) -> Option<&Arc<PrivateKey>> {
        self.extras.as_ref()?.batch_key.as_ref()
    }

    pub fn staple(&self) -> Option<&Staple> {
        self.extras.as_ref()?.staple.as_ref()
    }

    /// Returns the names for which the ACME companion maintains the file. `None` for a file of the
    /// operator, which takes precedence.
    pub fn managed(&self) -> Option<&Arc<[Box<str>]>> {
        self.extras.as_ref()?.managed.as_ref()
    }

    /// Returns `true` for a certificate of [`Loader::temporary`](crate::keys::Loader::temporary).
    pub fn is_temporary(&self) -> bool {
        self.extras.as_ref().is_some_and(|it| it.is_temporary)
    }

    pub fn precedence(&self) -> Precedence {
        match self.managed() {
            None => Precedence::Operator,
            Some(_) if self.is_temporary() => Precedence::Temporary,
            Some(_) => Precedence::Issued,
        }
    }

    /// Returns the OCSP response, unless it has expired.
    fn staple_at(&self, now: UnixSeconds) -> Option<&Staple> {
        let is_current = |staple: &&Staple| staple.until.is_none_or(|until| until > now);
        self.staple().filter(is_current)
    }

    /// Returns `true` if this certificate was loaded from files with this stamp.
    pub fn has_stamp(&self, stamp: Stamp) -> bool {
        stamp.0 == self.stamp.load(Relaxed)
    }

    /// Records the stamp of files that were read again with equal contents.
    pub fn set_stamp(&self, stamp: Option<Stamp>) {
        self.stamp.store(stamp.map_or(0, |it| it.0), Relaxed);
    }

    /// Returns `true` if this certificate and its issuers are equal to others.
    pub(super) fn has_parts(&self, leaf: &CertificateDer<'_>, issuers: &Issuers) -> bool {
        self.leaf() == *leaf && self.issuers().certificates() == issuers.certificates()
    }

    /// Returns `true` if both have equal certificates, keys and other properties.
    pub fn is_same(&self, other: &Self) -> bool {
        let is_same_key = match (&self.key(), &other.key()) {
            (HeldKey::Stored(one), HeldKey::Stored(other)) => one == other,
            // The certificate contains the public key.
            (HeldKey::Parsed(_), HeldKey::Parsed(_)) => true,
            (HeldKey::Token(one), HeldKey::Token(other)) => one.is_same(other),
            _ => false,
        };
        is_same_key
            && self.has_parts(&other.leaf(), other.issuers())
            && (self.staple(), self.policy()) == (other.staple(), other.policy())
            && self.managed() == other.managed()
    }

    /// Returns the chain with a key, and the OCSP response unless it has expired.
    pub fn certified(&self, key: Arc<dyn SigningKey>, now: UnixSeconds) -> CertifiedKey {
        let mut certified = CertifiedKey::new(self.chain(), key);
        certified.ocsp = self.staple_at(now).map(|staple| staple.response.clone());
        certified
    }

    fn ready(&self) -> MutexGuard<'_, Option<Arc<CertifiedKey>>> {
        // The state stays valid if another lock holder panics.
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the chain that an earlier handshake made, if its OCSP response has not expired.
    pub(super) fn ready_at(&self, now: UnixSeconds) -> Option<Arc<CertifiedKey>> {
        let chain = Arc::clone(self.ready().as_ref()?);
        let is_current = self.use_again(&chain, now);
        is_current.then_some(chain)
    }

    /// Returns `true` if a chain that an earlier handshake made is current, and notes its use.
    pub(super) fn use_again(&self, chain: &CertifiedKey, now: UnixSeconds) -> bool {
        let sends = chain.ocsp.is_some();
        let is_current = self.extras.is_none() || sends == self.staple_at(now).is_some();
        if is_current && !self.is_used.load(Relaxed) {
            self.is_used.store(true, Relaxed);
        }
        is_current
    }

    #[cfg(test)]
    pub(super) fn has_ready(&self) -> bool {
        self.ready().is_some()
    }

    /// Stores a chain for later handshakes. Returns `true` if none was stored.
    pub(super) fn set_ready(&self, chain: &Arc<CertifiedKey>) -> bool {
        self.ready().replace(Arc::clone(chain)).is_none()
    }

    /// Drops the stored chain. With `unless_used`, keeps it if it was used since the last call.
    /// Returns `true` if no chain is stored afterwards.
    pub(super) fn forget_ready(&self, unless_used: bool) -> bool {
        let was_used = self.is_used.swap(false, Relaxed);
        if unless_used && was_used {
            return false;
        }
        let _dropped_after_the_lock = self.ready().take();
        true
    }

    /// Returns the algorithm names of the certificate.
    pub fn presented(&self) -> Presented {
        self.presented
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use rcgen::{CertificateParams, KeyPair};
    use rustls_pki_types::PrivateKeyDer;

    use super::*;
    use crate::issuers::IssuerTable;

    /// Creates a self-signed certificate for these names, in the file `NAME.pem`.
    pub(crate) fn loaded(names: &[&str], issuers: &IssuerTable) -> Loaded {
        let file = format!("{}.pem", names.first().unwrap_or(&"none"));
        loaded_from(Path::new(&file), names, issuers)
    }

    pub(crate) fn loaded_from(file: &Path, names: &[&str], issuers: &IssuerTable) -> Loaded {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let pair = KeyPair::generate().unwrap();
        let params = CertificateParams::new(names).unwrap();
        let signed = params.self_signed(&pair).unwrap();
        let der = PrivateKeyDer::Pkcs8(pair.serialize_der().into());
        let parsed = facts::certificate(signed.der()).unwrap();
        let parts = LoadedParts {
            leaf: signed.der(),
            parsed: &parsed,
            shared: issuers.in_folder(file, &issuers.find(&[], b"").unwrap()),
            key: HeldKey::Stored(StoredKey::new(StoredKind::P256, &der)),
            offload: Offload::Pointless,
            file,
        };
        Loaded::new(parts, None, Extras::default())
    }

    /// Adds an OCSP response that expires at `until`.
    pub(crate) fn staple(to: &mut Loaded, until: u64) {
        let staple = Staple {
            response: vec![1],
            until: Some(UnixSeconds(until)),
        };
        to.extras = Some(Box::new(Extras {
            staple: Some(staple),
            ..Extras::default()
        }));
    }

    #[test]
    fn an_unused_certificate_is_small() {
        // With its counters it fits into a block of 112 bytes.
        assert!(size_of::<Loaded>() <= 96, "{}", size_of::<Loaded>());
    }
}
