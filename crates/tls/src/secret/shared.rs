//! A cluster secret in memory, and the values derived from it.

use std::fmt;
use std::path::{Path, PathBuf};

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{Context, SHA256};
use aws_lc_rs::hkdf::{HKDF_SHA256, Prk, Salt};
use becket_proto::private_key::SecretNumbers;
use becket_proto::ticket::{Epoch, SecretId};
use rustls_pki_types::PrivateKeyDer;
use zeroize::Zeroizing;

/// 32 secret bytes: erased on drop, never displayed, compared in constant time.
#[derive(Clone)]
pub struct SecretBytes(Zeroizing<[u8; 32]>);

impl SecretBytes {
    pub fn new(bytes: Zeroizing<[u8; 32]>) -> Self {
        Self(bytes)
    }

    /// Generates random bytes.
    ///
    /// # Errors
    /// Fails if the system provides no random bytes.
    pub fn draw() -> Result<Self, NoRandomness> {
        let mut bytes = Zeroizing::new([0; 32]);
        aws_lc_rs::rand::fill(&mut bytes[..]).map_err(|_| NoRandomness)?;
        Ok(Self(bytes))
    }

    pub fn expose(&self) -> &[u8; 32] {
        &self.0
    }

    /// Derives 32 bytes by HKDF-Expand with SHA-256 (RFC 5869, section 2.3). HKDF-Extract is not
    /// needed, because the secret bytes are uniformly random.
    ///
    /// # Errors
    /// Fails only if the library rejects the output length, which it does not for 32 bytes.
    pub fn derive(&self, info: &[&[u8]]) -> Result<Self, NotDerived> {
        let mut out = Zeroizing::new([0; 32]);
        Prk::new_less_safe(HKDF_SHA256, self.expose())
            .expand(info, HKDF_SHA256)
            .and_then(|okm| okm.fill(&mut out[..]))
            .map_err(|_| NotDerived)?;
        Ok(Self(out))
    }
}

impl PartialEq for SecretBytes {
    fn eq(&self, other: &Self) -> bool {
        verify_slices_are_equal(self.expose(), other.expose()).is_ok()
    }
}

impl Eq for SecretBytes {}

impl fmt::Debug for SecretBytes {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("(secret)")
    }
}

#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("no random bytes from the system")]
pub struct NoRandomness;

#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the key cannot be derived")]
pub struct NotDerived;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedSecret {
    pub id: SecretId,
    pub path: PathBuf,
    /// Key that authenticates nodes. The keys of each pair of nodes are derived from it. It never
    /// changes.
    pub replication: SecretBytes,
    pub root: TicketRoot,
}

/// Secret from which the ticket secrets of all epochs are derived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TicketRoot(SecretBytes);

impl TicketRoot {
    /// Derives the secret of a rotation period (epoch), which may be in the past.
    ///
    /// # Errors
    /// Fails only if the library rejects the output length, which it does not for 32 bytes.
    pub fn epoch_secret(&self, epoch: Epoch) -> Result<SecretBytes, NotDerived> {
        self.0.derive(&[TICKETS, &epoch.0.to_be_bytes()])
    }
}

impl SharedSecret {
    /// Derives a secret from a private key by HKDF with SHA-256 (RFC 5869), for hosts that share
    /// only this private key. The result does not depend on the encoding of the private key and
    /// reveals nothing about it.
    ///
    /// Returns `None` unless the key is RSA, ECDSA or Ed25519.
    pub fn of_private_key(key: &PrivateKeyDer<'_>, path: &Path) -> Option<Self> {
        let numbers = match key {
            PrivateKeyDer::Pkcs1(key) => SecretNumbers::of_pkcs1(key.secret_pkcs1_der()),
            PrivateKeyDer::Sec1(key) => SecretNumbers::of_sec1(key.secret_sec1_der()),
            PrivateKeyDer::Pkcs8(key) => SecretNumbers::of_pkcs8(key.secret_pkcs8_der()),
            _ => None,
        };
        let (kind, parts): (&[u8], [&[u8]; 2]) = match numbers? {
            SecretNumbers::Rsa(primes) => (b"rsa", primes),
            SecretNumbers::Ecdsa(scalar) => (b"ecdsa", [scalar, &[]]),
            SecretNumbers::Ed25519(seed) => (b"ed25519", [seed, &[]]),
        };
        let all = Zeroizing::new(parts.concat());
        let mut root = Zeroizing::new([0; 32]);
        let extracted = Salt::new(HKDF_SHA256, PRIVATE_KEY).extract(&all);
        let info = [kind];
        let expanded = extracted.expand(&info, HKDF_SHA256).ok()?;
        expanded.fill(&mut root[..]).ok()?;
        Self::of_root(SecretBytes::new(root), path).ok()
    }

    /// Creates a secret from its 32 root bytes.
    ///
    /// # Errors
    /// Fails only if the library rejects the output length, which it does not for 32 bytes.
    pub fn of_root(root: SecretBytes, path: &Path) -> Result<Self, NotDerived> {
        let replication = root.derive(&[REPLICATION])?;
        Ok(Self {
            id: id_of(&replication),
            path: path.to_owned(),
            replication,
            root: TicketRoot(root),
        })
    }
}

/// Returns the ID of a secret: the first four bytes of a SHA-256 hash of a label and the
/// replication key.
fn id_of(replication: &SecretBytes) -> SecretId {
    let mut context = Context::new(&SHA256);
    context.update(ID);
    context.update(replication.expose());
    let digest = context.finish();
    let first = digest.as_ref().first_chunk::<4>();
    SecretId(u32::from_be_bytes(first.copied().unwrap_or_default()))
}

// Labels for key derivation. They are distinct, and none is a prefix of another.
const TICKETS: &[u8] = b"becket epoch 1";
const REPLICATION: &[u8] = b"becket replication 1";
const ID: &[u8] = b"becket secret id 1";
const PRIVATE_KEY: &[u8] = b"becket cluster secret of a private key 1";

#[cfg(test)]
mod tests {
    use rustls_pki_types::PrivatePkcs8KeyDer;
    use rustls_pki_types::pem::PemObject;

    use super::*;

    fn root(byte: u8) -> SharedSecret {
        let bytes = SecretBytes::new(Zeroizing::new([byte; 32]));
        SharedSecret::of_root(bytes, Path::new("secret")).expect("derived")
    }

    #[test]
    fn the_id_identifies_the_secret_without_revealing_it() {
        assert_eq!(root(1).id, root(1).id);
        assert_ne!(root(1).id, root(2).id);
        assert_ne!(root(1).id.0.to_be_bytes(), [1; 4]);
        assert_ne!(
            root(1).replication.expose()[..4],
            root(1).id.0.to_be_bytes()
        );
    }

    #[test]
    fn every_epoch_has_its_own_secret() {
        let root = root(1).root;
        let of = |start| root.epoch_secret(Epoch(start)).expect("derived");
        assert_eq!(of(28_800), of(28_800));
        assert_ne!(of(28_800), of(57_600));
    }

    #[test]
    fn secrets_are_equal_only_if_all_bytes_are_equal() {
        let bytes = |at: usize| {
            let mut bytes = Zeroizing::new([7; 32]);
            bytes[at] ^= 1;
            SecretBytes::new(bytes)
        };
        assert_eq!(bytes(0), bytes(0));
        for at in 1..32 {
            assert_ne!(bytes(0), bytes(at));
        }
    }

    #[test]
    fn debug_output_contains_no_secret_bytes() {
        let shown = format!("{:?}", root(0xab));
        assert!(!shown.contains("171") && !shown.to_lowercase().contains("abab"));
    }

    #[test]
    fn every_encoding_of_a_private_key_yields_the_same_secret() {
        let of = |der: PrivateKeyDer<'_>| {
            SharedSecret::of_private_key(&der, Path::new("site.pem")).map(|secret| secret.id)
        };
        let key = |kind| rcgen::KeyPair::generate_for(kind).expect("a key");
        for kind in [&rcgen::PKCS_ECDSA_P256_SHA256, &rcgen::PKCS_ED25519] {
            let (one, other) = (key(kind), key(kind));
            let [one, same, other] = [&one, &one, &other]
                .map(|key| of(PrivatePkcs8KeyDer::from(key.serialize_der()).into()));
            assert!(one.is_some() && one == same);
            assert_ne!(one, other);
        }
        let keys = concat!(env!("CARGO_MANIFEST_DIR"), "/../becket/tests/config/keys");
        let [pkcs1, pkcs8] = ["pkcs1.pem", "pkcs8.pem"]
            .map(|file| PrivateKeyDer::from_pem_file(format!("{keys}/{file}")).expect("a key"));
        let id = of(pkcs1);
        assert!(id.is_some());
        assert_eq!(id, of(pkcs8));
    }
}
