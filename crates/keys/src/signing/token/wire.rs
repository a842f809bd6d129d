//! Messages on the socket of an agent: a JSON value in each packet.
//!
//! The first packet is the supervisor's [`Setup`], which is in the socket before the serving process gets it. After that the
//! serving process sends [`TokenRequest`]s, and the agent answers. Either side may be under foreign control: a packet that is too
//! long or does not parse ends the conversation.

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

/// The keys of one token that a configuration names. Requests name a key by its index in this list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenSpec {
    /// URIs.
    pub keys: Vec<String>,
    /// Maximum number of signatures at a time.
    pub sessions: u16,
}

/// The first packet, from the supervisor. The open file of the PIN comes with it if root alone can change that file.
#[derive(Debug, Serialize, Deserialize)]
pub struct Setup {
    /// User, group and supplementary groups to run as; `None` to keep them.
    pub user: Option<(u32, u32, Vec<u32>)>,
    /// The token and its keys.
    pub token: TokenSpec,
}

/// A packet of the serving process, which asks for a signature.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenRequest {
    /// Returned with the answer.
    pub number: u64,
    /// Index of the key.
    pub key: usize,
    /// `SignatureScheme` of TLS.
    pub scheme: u16,
    /// Digest of the message, or the message if the scheme has no digest of its own.
    pub input: Vec<u8>,
}

impl TokenRequest {
    /// Encodes the request for a signature of a message.
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

/// A packet of the agent.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TokenAnswer {
    /// The first packet: the token is open.
    Opened(OpenToken),
    /// The first and last packet: the token cannot be used.
    Failed(TokenFault),
    /// The answer to a request.
    Signed {
        /// Number of the request.
        number: u64,
        /// The signature in the form of TLS, or why there is none.
        signature: Result<Vec<u8>, TokenFault>,
    },
}

/// A token that is open.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenToken {
    /// Schemes that the token supports: each a `SignatureScheme` of TLS.
    pub schemes: Vec<u16>,
    /// For each key the reason why it cannot be used.
    pub faults: Vec<Option<TokenFault>>,
}

/// Why a token, or a key of it, cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TokenFault {
    /// Another agent may succeed.
    Away(String),
    /// Configuration and token do not match. Another attempt with the same PIN may lock the token.
    Refused(String),
}

/// Encodes a message as a packet.
pub fn write(message: &impl Serialize) -> Vec<u8> {
    // No message has a map whose keys JSON lacks.
    serde_json::to_vec(message).unwrap_or_default()
}

/// Parses a packet. Returns `None` for anything but one whole message of this kind.
pub fn read<T: DeserializeOwned>(packet: &[u8]) -> Option<T> {
    let packet = Some(packet).filter(|packet| packet.len() <= LONGEST)?;
    serde_json::from_slice(packet).ok()
}

/// Waits for a message, and returns it with the descriptor that came with it. Returns `None` after the other end was closed.
///
/// # Errors
/// `InvalidData` for anything but one whole message of this kind.
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

/// Returns the tokens that a configuration names, in the order of their first keys.
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
