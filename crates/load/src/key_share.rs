//! Key exchange groups whose private key is generated once per thread and reused for every handshake.
//!
//! A fresh key for each handshake would take a third of the client's handshake time. A load tool has no secret to protect, so each
//! thread generates one key per group on first use. Servers cannot detect this and do the same work as with a fresh key.
//! **Never do this where secrecy matters.**
//!
//! The groups are X25519, secp256r1, secp384r1 (RFC 8446, 4.2.8.2) and X25519MLKEM768
//! (draft-ietf-tls-ecdhe-mlkem: ML-KEM first, then X25519).

use std::cell::RefCell;
use std::sync::Arc;

use aws_lc_rs::agreement::{self, PrivateKey, UnparsedPublicKey};
use aws_lc_rs::kem::{self, DecapsulationKey};
use rustls::crypto::{ActiveKeyExchange, SharedSecret, SupportedKxGroup};
use rustls::ffdhe_groups::FfdheGroup;
use rustls::{Error, NamedGroup, PeerMisbehaved, ProtocolVersion};

/// Group with one key share per thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Group {
    X25519,
    P256,
    P384,
    #[value(name = "x25519mlkem768")]
    X25519MlKem768,
}

impl SupportedKxGroup for Group {
    fn start(&self) -> Result<Box<dyn ActiveKeyExchange>, Error> {
        let share = SHARES.with_borrow_mut(|shares| match &mut shares[*self as usize] {
            Some(share) => Ok(Arc::clone(share)),
            none => Ok(Arc::clone(none.insert(Arc::new(Share::new(*self)?)))),
        });
        share.map(|share| Box::new(Exchange(share)) as Box<dyn ActiveKeyExchange>)
    }

    fn ffdhe_group(&self) -> Option<FfdheGroup<'static>> {
        None
    }

    fn name(&self) -> NamedGroup {
        match self {
            Self::X25519 => NamedGroup::X25519,
            Self::P256 => NamedGroup::secp256r1,
            Self::P384 => NamedGroup::secp384r1,
            Self::X25519MlKem768 => NamedGroup::X25519MLKEM768,
        }
    }

    fn usable_for_version(&self, version: ProtocolVersion) -> bool {
        *self != Self::X25519MlKem768 || version == ProtocolVersion::TLSv1_3
    }
}

impl Group {
    /// Returns the group as a rustls `SupportedKxGroup`.
    pub fn of_library(self) -> &'static dyn SupportedKxGroup {
        match self {
            Self::X25519 => &Self::X25519,
            Self::P256 => &Self::P256,
            Self::P384 => &Self::P384,
            Self::X25519MlKem768 => &Self::X25519MlKem768,
        }
    }

    fn algorithm(self) -> &'static agreement::Algorithm {
        match self {
            Self::X25519 | Self::X25519MlKem768 => &agreement::X25519,
            Self::P256 => &agreement::ECDH_P256,
            Self::P384 => &agreement::ECDH_P384,
        }
    }
}

/// Private keys and public key share of a group.
struct Share {
    kind: Group,
    classical: PrivateKey,
    post_quantum: Option<DecapsulationKey<kem::AlgorithmId>>,
    /// Public keys; the classical one is at the end.
    public: Vec<u8>,
}

impl Share {
    fn new(kind: Group) -> Result<Self, Error> {
        let classical = PrivateKey::generate(kind.algorithm()).map_err(|_| no_key())?;
        let classical_public = classical.compute_public_key().map_err(|_| no_key())?;
        let post_quantum = match kind {
            Group::X25519MlKem768 => {
                Some(DecapsulationKey::generate(&kem::ML_KEM_768).map_err(|_| no_key())?)
            }
            _ => None,
        };
        let mut public = Vec::new();
        if let Some(key) = &post_quantum {
            let encapsulation = key.encapsulation_key().map_err(|_| no_key())?;
            public.extend_from_slice(encapsulation.key_bytes().map_err(|_| no_key())?.as_ref());
        }
        public.extend_from_slice(classical_public.as_ref());
        Ok(Self {
            kind,
            classical,
            post_quantum,
            public,
        })
    }

    fn agree(&self, peer: &[u8]) -> Result<Vec<u8>, Error> {
        let peer = UnparsedPublicKey::new(self.kind.algorithm(), peer);
        agreement::agree(&self.classical, peer, bad_share(), |secret| {
            Ok(secret.to_vec())
        })
    }

    fn complete(&self, peer: &[u8]) -> Result<SharedSecret, Error> {
        let Some(post_quantum) = &self.post_quantum else {
            return Ok(SharedSecret::from(self.agree(peer)?));
        };
        let (ciphertext, classical) = peer
            .split_at_checked(ML_KEM_768_CIPHERTEXT_LEN)
            .ok_or_else(bad_share)?;
        let secret = post_quantum
            .decapsulate(ciphertext.into())
            .map_err(|_| bad_share())?;
        let mut both = secret.as_ref().to_vec();
        both.extend_from_slice(&self.agree(classical)?);
        Ok(SharedSecret::from(both))
    }
}

/// Key exchange of one handshake with the thread's [`Share`].
struct Exchange(Arc<Share>);

impl ActiveKeyExchange for Exchange {
    fn complete(self: Box<Self>, peer_pub_key: &[u8]) -> Result<SharedSecret, Error> {
        self.0.complete(peer_pub_key)
    }

    fn hybrid_component(&self) -> Option<(NamedGroup, &[u8])> {
        self.0.post_quantum.as_ref()?;
        let classical = self.0.public.last_chunk::<X25519_LEN>()?;
        Some((NamedGroup::X25519, classical))
    }

    fn complete_hybrid_component(self: Box<Self>, peer: &[u8]) -> Result<SharedSecret, Error> {
        self.0.agree(peer).map(SharedSecret::from)
    }

    fn pub_key(&self) -> &[u8] {
        &self.0.public
    }

    fn ffdhe_group(&self) -> Option<FfdheGroup<'static>> {
        None
    }

    fn group(&self) -> NamedGroup {
        self.0.kind.name()
    }
}

fn no_key() -> Error {
    Error::FailedToGetRandomBytes
}

fn bad_share() -> Error {
    PeerMisbehaved::InvalidKeyShare.into()
}

thread_local! {
    static SHARES: RefCell<[Option<Arc<Share>>; 4]> = const { RefCell::new([const { None }; 4]) };
}

/// Length of a public key in bytes (RFC 7748, 6.1).
const X25519_LEN: usize = 32;
/// Ciphertext length in bytes (FIPS 203, table 3).
const ML_KEM_768_CIPHERTEXT_LEN: usize = 1088;

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::crypto::aws_lc_rs::kx_group;

    #[test]
    fn every_group_agrees_with_rustls_own_implementation() {
        let pairs: [(Group, &dyn SupportedKxGroup); 4] = [
            (Group::X25519, kx_group::X25519),
            (Group::P256, kx_group::SECP256R1),
            (Group::P384, kx_group::SECP384R1),
            (Group::X25519MlKem768, kx_group::X25519MLKEM768),
        ];
        for (ours, theirs) in pairs {
            assert_eq!(ours.name(), theirs.name());
            let client = ours.start().unwrap();
            let server = theirs.start_and_complete(client.pub_key()).unwrap();
            let secret = client.complete(&server.pub_key).unwrap();
            assert_eq!(
                secret.secret_bytes(),
                server.secret.secret_bytes(),
                "{ours:?}"
            );
        }
    }

    #[test]
    fn the_share_is_made_once_per_thread() {
        let first = Group::X25519.start().unwrap().pub_key().to_vec();
        assert_eq!(Group::X25519.start().unwrap().pub_key(), first);
        let elsewhere = std::thread::spawn(|| Group::X25519.start().unwrap().pub_key().to_vec());
        assert_ne!(elsewhere.join().unwrap(), first);
    }

    #[test]
    fn a_malformed_share_is_an_error_not_a_panic() {
        for group in [Group::X25519, Group::P256, Group::X25519MlKem768] {
            for length in [0, 1, 31, 1087, 1088, 1119, 2000] {
                assert!(group.start().unwrap().complete(&vec![1; length]).is_err());
            }
        }
    }
}
