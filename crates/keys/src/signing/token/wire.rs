//! Messages on the socket of an agent: a JSON value in each packet.
//!
//! The first packet is the supervisor's [`Setup`], which is in the socket before the serving process gets it. From then on the
//! serving process sends [`TokenRequest`]s, and the agent answers. Either side may be under foreign control: a packet that is too
//! long or does not parse ends the conversation.

use becket_config::file::File;
use becket_config::key_source::{KeySource, KeyUri};
use becket_config::listener::Certificate;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Maximum length of a packet in bytes.
pub const LONGEST: usize = 64 * 1024;

/// The keys of one token that a configuration names. A key is known by its index in this list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenSpec {
    /// URIs.
    pub keys: Vec<String>,
    /// Signatures that the token makes at a time.
    pub sessions: u16,
}

/// The first packet: from the supervisor.
#[derive(Debug, Serialize, Deserialize)]
pub struct Setup {
    /// User, group and supplementary groups to run as.
    pub user: Option<(u32, u32, Vec<u32>)>,
    /// The token and its keys.
    pub token: TokenSpec,
}

/// A packet of the serving process: asks for a signature.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenRequest {
    /// Returned with the answer.
    pub number: u64,
    /// Index of the key.
    pub key: usize,
    /// `SignatureScheme` of TLS.
    pub scheme: u16,
    /// Digest of the message; the message itself if the scheme has no digest of its own.
    pub input: Vec<u8>,
}

/// A packet of the agent.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TokenAnswer {
    /// The first one: the token is open.
    Opened {
        /// Mechanisms of the token.
        mechanisms: Mechanisms,
        /// For each key why it cannot be used.
        faults: Vec<Option<String>>,
    },
    /// The first one, and the last: the token cannot be used.
    Failed(TokenFault),
    /// The answer to a request.
    Signed {
        /// The number of the request.
        number: u64,
        /// The signature as TLS has it, or why there is none.
        signature: Result<Vec<u8>, String>,
    },
}

/// Why a token, or a key of it, cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TokenFault {
    /// Another agent may do better.
    Away(String),
    /// Not as it is configured: another attempt with the same PIN may lock the token.
    Refused(String),
}

/// Mechanisms of a token that TLS can use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mechanisms(u8);

impl Mechanisms {
    /// CKM_RSA_PKCS.
    pub const RSA_PKCS1: Self = Self(1);
    /// CKM_RSA_PKCS_PSS.
    pub const RSA_PSS: Self = Self(2);
    /// CKM_ECDSA.
    pub const ECDSA: Self = Self(4);
    /// CKM_EDDSA.
    pub const EDDSA: Self = Self(8);

    /// The union of both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns `true` if `other` is a part of these.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// The packet of a message.
pub fn write(message: &impl Serialize) -> Vec<u8> {
    // There are no maps with keys that JSON lacks.
    serde_json::to_vec(message).unwrap_or_default()
}

/// Parses a packet; `None` for anything but a whole message of this kind.
pub fn read<T: DeserializeOwned>(packet: &[u8]) -> Option<T> {
    let packet = Some(packet).filter(|packet| packet.len() <= LONGEST)?;
    serde_json::from_slice(packet).ok()
}

/// The tokens that a configuration names, in the order of their first keys.
pub fn tokens(file: &File) -> Vec<TokenSpec> {
    let listeners = file.listener.iter();
    let certificates = listeners.flat_map(|listener| &listener.certificates);
    let mut tokens: Vec<(&KeyUri, TokenSpec)> = Vec::new();
    for certificate in certificates {
        let Certificate::Pair(pair) = certificate else {
            continue;
        };
        let Some(KeySource::Token(uri)) = &pair.key else {
            continue;
        };
        let key = uri.to_string();
        match tokens.iter_mut().find(|(of, _)| of.token == uri.token) {
            Some((_, spec)) if spec.keys.contains(&key) => {}
            Some((_, spec)) => spec.keys.push(key),
            None => tokens.push((
                uri,
                TokenSpec {
                    keys: vec![key],
                    sessions: file.process.token_sessions,
                },
            )),
        }
    }
    tokens.into_iter().map(|(_, spec)| spec).collect()
}
