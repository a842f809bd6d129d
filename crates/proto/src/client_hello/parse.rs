//! Parser of the ClientHello body: one pass that checks every length and records the positions of the fields.
//!
//! Stores [`Span`]s instead of slices, so that an owned hello costs no more than a borrowed one. An extension is
//! checked only as far as a getter of `ClientHello` reads it, with the grammar that rustls applies. Extensions without
//! a getter are skipped, but no extension may occur twice. Any version, suite or group is accepted: policy and rustls
//! choose among them.
//!
//! Sources: RFC 8446 4.1.2 and 4.2, RFC 5246 7.4.1.2.

use super::not_hello::Malformed;
use super::server_name;
use crate::reader::{Reader, Span};

/// Positions of a hello's fields within its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fields {
    pub(super) legacy_version: u16,
    pub(super) session_id: Span,
    pub(super) cipher_suites: Span,
    pub(super) extensions: Extensions,
}

/// Positions of the extensions' contents, without their length prefixes; `None` if absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extensions {
    pub(super) server_name: Option<Span>,
    pub(super) groups: Option<Span>,
    pub(super) signature_schemes: Option<Span>,
    pub(super) alpn: Option<Span>,
    pub(super) session_ticket: Option<Span>,
    pub(super) psk_identities: Option<Span>,
    pub(super) supported_versions: Option<Span>,
    pub(super) early_data: bool,
    /// Position of the whole list, with the type and length of each extension.
    pub(super) all: Option<Span>,
}

impl Fields {
    /// Reads the body of a ClientHello, which follows the handshake header.
    pub(super) fn read(body: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(body);
        let (mut fields, extensions) = Self::read_fixed(&mut reader).ok_or(Malformed::Length)?;
        if let Some(extensions) = extensions {
            fields.extensions.read(extensions)?;
        }
        Ok(fields)
    }

    /// Reads the fields before the extensions. Very old clients send no extensions.
    fn read_fixed<'a>(reader: &mut Reader<'a>) -> Option<(Self, Option<Reader<'a>>)> {
        let legacy_version = reader.u16()?;
        reader.take(RANDOM_LEN)?;
        let session_id = reader
            .vec8()
            .filter(|id| id.rest().len() <= MAX_SESSION_ID_BYTES)?;
        let cipher_suites = u16_list(reader.vec16()?)?;
        let compression_methods = reader.vec8()?;
        let extensions = if reader.is_empty() {
            None
        } else {
            Some(reader.vec16()?)
        };
        if compression_methods.is_empty() || !reader.is_empty() {
            return None;
        }
        let fields = Self {
            legacy_version,
            session_id: session_id.span()?,
            cipher_suites,
            extensions: Extensions::NONE,
        };
        Some((fields, extensions))
    }
}

impl Extensions {
    const NONE: Self = Self {
        server_name: None,
        groups: None,
        signature_schemes: None,
        alpn: None,
        session_ticket: None,
        psk_identities: None,
        supported_versions: None,
        early_data: false,
        all: None,
    };

    fn read(&mut self, mut reader: Reader<'_>) -> Result<(), Malformed> {
        self.all = Some(reader.span().ok_or(Malformed::Length)?);
        let mut seen = Seen::default();
        while !reader.is_empty() {
            let kind = reader.u16().ok_or(Malformed::Length)?;
            let content = reader.vec16().ok_or(Malformed::Length)?;
            seen.insert(kind)?;
            self.read_one(kind, content).ok_or(match kind {
                SERVER_NAME => Malformed::ServerName,
                _ => Malformed::Extension(kind),
            })?;
            if kind == PRE_SHARED_KEY && !reader.is_empty() {
                return Err(Malformed::PskNotLast);
            }
        }
        Ok(())
    }

    /// Reads the content of one extension. Returns `None` if it does not decode or has trailing bytes.
    fn read_one(&mut self, kind: u16, mut content: Reader<'_>) -> Option<()> {
        match kind {
            SERVER_NAME => self.server_name = server_name::read(content.vec16()?).ok()?,
            SUPPORTED_GROUPS => self.groups = Some(u16_list(content.vec16()?)?),
            SIGNATURE_ALGORITHMS => self.signature_schemes = Some(u16_list(content.vec16()?)?),
            ALPN => self.alpn = Some(alpn_list(content.vec16()?)?),
            SUPPORTED_VERSIONS => self.supported_versions = Some(u16_list(content.vec8()?)?),
            PSK_KEY_EXCHANGE_MODES => drop(non_empty(content.vec8()?)?),
            PRE_SHARED_KEY => {
                self.psk_identities = Some(identity_list(content.vec16()?)?);
                binder_list(content.vec16()?)?;
            }
            EXTENDED_MASTER_SECRET => {}
            EARLY_DATA => self.early_data = true,
            SESSION_TICKET => {
                self.session_ticket = Some(content.span()?);
                return Some(());
            }
            _ => return Some(()),
        }
        content.is_empty().then_some(())
    }
}

/// Extension types read so far in one hello. A hello has about 20, for which a linear search is
/// faster than a set; [`MAX_EXTENSIONS`] bounds the cost of a hostile hello.
struct Seen {
    kinds: [u16; MAX_EXTENSIONS],
    count: usize,
}

impl Default for Seen {
    fn default() -> Self {
        Self {
            kinds: [0; MAX_EXTENSIONS],
            count: 0,
        }
    }
}

impl Seen {
    fn insert(&mut self, kind: u16) -> Result<(), Malformed> {
        if self.kinds.iter().take(self.count).any(|seen| *seen == kind) {
            return Err(Malformed::DuplicateExtension(kind));
        }
        let slot = self
            .kinds
            .get_mut(self.count)
            .ok_or(Malformed::TooManyExtensions)?;
        *slot = kind;
        self.count += 1;
        Ok(())
    }
}

fn non_empty(list: Reader<'_>) -> Option<Span> {
    if list.is_empty() { None } else { list.span() }
}

/// Checks a non-empty list of two-byte numbers.
fn u16_list(list: Reader<'_>) -> Option<Span> {
    if list.rest().len().is_multiple_of(2) {
        non_empty(list)
    } else {
        None
    }
}

/// Checks `ProtocolName protocol_name_list<2..2^16-1>`, RFC 7301 3.1.
fn alpn_list(mut list: Reader<'_>) -> Option<Span> {
    let span = non_empty(list)?;
    while !list.is_empty() {
        non_empty(list.vec8()?)?;
    }
    Some(span)
}

/// Checks `PskIdentity identities<7..2^16-1>`, RFC 8446 4.2.11.
fn identity_list(mut list: Reader<'_>) -> Option<Span> {
    let span = non_empty(list)?;
    while !list.is_empty() {
        non_empty(list.vec16()?)?;
        list.u32()?;
    }
    Some(span)
}

/// Checks `PskBinderEntry binders<33..2^16-1>`, RFC 8446 4.2.11. Like rustls, accepts shorter
/// binders.
fn binder_list(mut list: Reader<'_>) -> Option<()> {
    non_empty(list)?;
    while !list.is_empty() {
        non_empty(list.vec8()?)?;
    }
    Some(())
}

/// Maximum number of extensions in a hello. Browsers send about 20.
pub const MAX_EXTENSIONS: usize = 128;

const RANDOM_LEN: usize = 32;
const MAX_SESSION_ID_BYTES: usize = 32;

// Extension types, from the IANA registry "TLS ExtensionType Values".
const SERVER_NAME: u16 = 0;
const SUPPORTED_GROUPS: u16 = 10;
const SIGNATURE_ALGORITHMS: u16 = 13;
const ALPN: u16 = 16;
const EXTENDED_MASTER_SECRET: u16 = 23;
const SESSION_TICKET: u16 = 35;
const PRE_SHARED_KEY: u16 = 41;
const EARLY_DATA: u16 = 42;
const SUPPORTED_VERSIONS: u16 = 43;
const PSK_KEY_EXCHANGE_MODES: u16 = 45;
