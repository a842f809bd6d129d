//! A complete ClientHello and its getters.
//!
//! Parsing checks everything, so the getters cannot fail. Each returns a slice or walks a short list;
//! none allocates. They return what the client sent, not what will be negotiated: policy and rustls
//! decide that. Sources are named at the getters; the numbers are those of the IANA TLS registries.

use std::borrow::Cow;

use super::not_hello::Malformed;
use super::parse::Fields;
use super::server_name::ServerName;
use crate::reader::{Reader, Span};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientHello<'a> {
    pub(super) body: Cow<'a, [u8]>,
    wire_len: usize,
    fields: Fields,
}

impl<'a> ClientHello<'a> {
    pub(super) fn parse(body: Cow<'a, [u8]>, wire_len: usize) -> Result<Self, Malformed> {
        let fields = Fields::read(&body)?;
        Ok(Self {
            body,
            wire_len,
            fields,
        })
    }

    /// Returns the length of the hello in the input, record headers included.
    pub fn wire_len(&self) -> usize {
        self.wire_len
    }

    /// Returns the version field, which is 0x0303 in every TLS 1.3 hello (RFC 8446 4.1.2).
    pub fn legacy_version(&self) -> u16 {
        self.fields.legacy_version
    }

    /// Returns the session ID, 0 to 32 bytes: an offer to resume in TLS 1.2, without meaning in TLS 1.3.
    pub fn session_id(&self) -> &[u8] {
        self.fields.session_id.of(&self.body)
    }

    /// Returns the requested host name (SNI), or `None` if it is absent or an IP address.
    pub fn server_name(&self) -> Option<ServerName<'_>> {
        ServerName::of(self.fields.extensions.server_name?, &self.body)
    }

    /// Iterates over the ALPN protocols in the client's order; empty without ALPN (RFC 7301).
    pub fn alpn(&self) -> impl Iterator<Item = &[u8]> {
        let mut list = Reader::new(self.at(self.fields.extensions.alpn));
        std::iter::from_fn(move || Some(list.vec8()?.rest()))
    }

    /// Returns `true` if the client offers TLS 1.3 (RFC 8446 4.2.1).
    pub fn offers_tls13(&self) -> bool {
        self.supported_versions().any(|version| version == TLS13)
    }

    /// Returns `true` if the client offers TLS 1.2. Without supported_versions, the version field
    /// decides.
    pub fn offers_tls12(&self) -> bool {
        match self.fields.extensions.supported_versions {
            Some(_) => self.supported_versions().any(|version| version == TLS12),
            None => self.fields.legacy_version >= TLS12,
        }
    }

    /// Iterates over the supported_versions extension; empty if it is absent.
    pub fn supported_versions(&self) -> impl Iterator<Item = u16> {
        u16s(self.at(self.fields.extensions.supported_versions))
    }

    /// Iterates over the cipher suites in the client's order, including signalling values and GREASE.
    pub fn cipher_suites(&self) -> impl Iterator<Item = u16> {
        u16s(self.fields.cipher_suites.of(&self.body))
    }

    /// Iterates over the signature schemes in the client's order; empty without the extension
    /// (RFC 8446 4.2.3).
    pub fn signature_schemes(&self) -> impl Iterator<Item = u16> {
        u16s(self.at(self.fields.extensions.signature_schemes))
    }

    /// Iterates over the named groups in the client's order; empty without the extension
    /// (RFC 8446 4.2.7).
    pub fn groups(&self) -> impl Iterator<Item = u16> {
        u16s(self.at(self.fields.extensions.groups))
    }

    /// Returns the content of the session_ticket extension. Empty content requests a ticket
    /// (RFC 5077 3.2).
    pub fn session_ticket(&self) -> Option<&[u8]> {
        let span = self.fields.extensions.session_ticket?;
        Some(span.of(&self.body))
    }

    /// Iterates over the identities of the offered pre-shared keys (RFC 8446 4.2.11), which in practice are tickets of
    /// TLS 1.3 sessions. None is empty.
    pub fn psk_identities(&self) -> impl Iterator<Item = &[u8]> {
        let mut list = Reader::new(self.at(self.fields.extensions.psk_identities));
        std::iter::from_fn(move || {
            let identity = list.vec16()?.rest();
            let _obfuscated_age = list.u32()?;
            Some(identity)
        })
    }

    /// Iterates over the extension types in the client's order, including GREASE; at most
    /// [`super::MAX_EXTENSIONS`].
    pub fn extension_types(&self) -> impl Iterator<Item = u16> {
        let mut list = Reader::new(self.at(self.fields.extensions.all));
        std::iter::from_fn(move || {
            let kind = list.u16()?;
            list.vec16()?;
            Some(kind)
        })
    }

    /// Returns `true` if early data (0-RTT) follows the hello, RFC 8446 4.2.10.
    pub fn offers_early_data(&self) -> bool {
        self.fields.extensions.early_data
    }

    fn at(&self, span: Option<Span>) -> &[u8] {
        span.map_or(&[], |span| span.of(&self.body))
    }
}

fn u16s(list: &[u8]) -> impl Iterator<Item = u16> {
    let mut list = Reader::new(list);
    std::iter::from_fn(move || list.u16())
}

const TLS12: u16 = 0x0303;
const TLS13: u16 = 0x0304;
