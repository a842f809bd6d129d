//! Messages on the socket of an agent: one JSON value per packet.
//!
//! The first packet is the supervisor's [`Setup`], sent before the serving process gets the socket.
//! After that, the serving process sends [`TokenRequest`]s, and the agent answers. Either side may
//! be compromised, so a packet that is too long or does not parse ends the connection.

use std::io;
use std::os::fd::OwnedFd;

use aws_lc_rs::digest::digest;
use becket_config::file::File;
use becket_config::key_source::{KeySource, TokenId};
use becket_config::listener::{Certificate, Pair};
use becket_sys::seqpacket::Seqpacket;
use rustls::SignatureScheme;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::public::digest_of;

/// Maximum length of a packet in bytes.
pub const LONGEST: usize = 64 * 1024;

/// The configured keys of one token. A request contains the index of its key in this list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenSpec {
    pub keys: Vec<String>,
    /// Maximum number of concurrent signatures on the token.
    pub sessions: u16,
}

/// First packet, from the supervisor. The open PIN file is attached if only root can change this
/// file.
#[derive(Debug, Serialize, Deserialize)]
pub struct Setup {
    /// User ID, group ID and supplementary groups to change to; `None` keeps them.
    pub user: Option<(u32, u32, Vec<u32>)>,
    pub token: TokenSpec,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenRequest {
    /// Request number, which the answer repeats.
    pub number: u64,
    pub key: usize,
    /// Code point of the TLS `SignatureScheme`.
    pub scheme: u16,
    /// Digest of the message, or the message if the scheme has no separate digest.
    pub input: Vec<u8>,
}

impl TokenRequest {
    pub(super) fn packet(
        number: u64,
        key: usize,
        scheme: SignatureScheme,
        message: &[u8],
    ) -> Vec<u8> {
        let input = match digest_of(scheme) {
            Some(algorithm) => digest(algorithm, message).as_ref().to_vec(),
            None => message.to_vec(),
        };
        let scheme = scheme.into();
        write(&Self {
            number,
            key,
            scheme,
            input,
        })
    }
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TokenAnswer {
    /// The token is open. Sent as the first packet.
    Opened(OpenToken),
    /// The token cannot be used. Sent as the first packet, after which the agent exits.
    Failed(TokenFault),
    Signed {
        number: u64,
        signature: Result<Vec<u8>, TokenFault>,
    },
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenToken {
    /// Code points of the TLS `SignatureScheme`s that the token supports.
    pub schemes: Vec<u16>,
    /// One entry for each key: `None` if the key can be used, otherwise the reason.
    pub faults: Vec<Option<TokenFault>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TokenFault {
    /// The token is unavailable. A new agent may succeed.
    Away(String),
    /// The configuration does not match the token, so a new agent would also fail. Repeating a
    /// wrong PIN may lock the token.
    Refused(String),
}

pub fn write(message: &impl Serialize) -> Vec<u8> {
    // Serialization cannot fail, because no message contains a map with non-string keys.
    serde_json::to_vec(message).unwrap_or_default()
}

/// Parses a packet. Returns `None` if it is not exactly one message of this type.
pub fn read<T: DeserializeOwned>(packet: &[u8]) -> Option<T> {
    let packet = Some(packet).filter(|packet| packet.len() <= LONGEST)?;
    serde_json::from_slice(packet).ok()
}

/// Waits for a message and its descriptor. Returns `None` after the peer closed its end.
///
/// # Errors
/// Returns `InvalidData` if the packet is not exactly one message of this type.
pub(super) fn receive<T: DeserializeOwned>(
    socket: &Seqpacket,
    room: &mut [u8],
) -> io::Result<Option<(T, Option<OwnedFd>)>> {
    let (length, fd) = socket.receive(room)?;
    if length == 0 {
        return Ok(None);
    }
    match room.get(..length).and_then(read) {
        Some(message) => Ok(Some((message, fd))),
        None => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the other process sent an unexpected message",
        )),
    }
}

/// Returns the tokens of a configuration, in the order in which its certificates first use them.
pub fn tokens(file: &File) -> Vec<TokenSpec> {
    let listeners = file.listener.iter();
    let certificates = listeners.flat_map(|listener| &listener.certificates);
    let mut tokens: Vec<(&TokenId, TokenSpec)> = Vec::new();
    for certificate in certificates {
        let Certificate::Pair(Pair {
            key: Some(KeySource::Token(uri)),
            ..
        }) = certificate
        else {
            continue;
        };
        let key = uri.to_string();
        match tokens.iter_mut().find(|(id, _)| **id == uri.token) {
            Some((_, spec)) if spec.keys.contains(&key) => {}
            Some((_, spec)) => spec.keys.push(key),
            None => {
                let sessions = file.process.pkcs11_sessions;
                let keys = vec![key];
                tokens.push((&uri.token, TokenSpec { keys, sessions }));
            }
        }
    }
    tokens.into_iter().map(|(_, spec)| spec).collect()
}
