//! The PROXY protocol header, versions 1 and 2, which carries the addresses of a relayed client connection.
//!
//! Encodes the header that becket sends to its servers, and decodes the header that a proxy in front of becket sends.
//! The configuration decides whether a header is expected. Detecting it would be unsafe, because a client could then
//! send a header with any address (section 5 of the specification). [`decode`] therefore has no result for "no header".
//!
//! Decoding borrows from the input. The modules `v1`, `v2` and `tlv` describe choices that the specification leaves
//! open. Source: HAProxy's doc/proxy-protocol.txt.

mod header;
mod tlv;
mod v1;
mod v2;

pub use self::header::{EncodeError, Endpoints, ProxyHeader, Refusal, SslTlv, Tlvs};
pub use self::v1::MAX_V1_BYTES;
pub use self::v2::MAX_V2_BYTES;
use crate::reader::{Prefix, prefix};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Version 1: one line of text.
    V1,
    /// Version 2: binary.
    V2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Accept {
    V1,
    V2,
    #[serde(rename = "any")]
    Either,
}

impl ProxyHeader<'_> {
    /// Appends the header to `out`.
    ///
    /// If only one of the two addresses is IPv4, it is written as IPv4-mapped IPv6.
    ///
    /// # Errors
    ///
    /// Fails if a field is too long for the format; `out` is then unchanged. Version 1 never fails.
    pub fn encode(&self, format: Format, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        match format {
            Format::V1 => {
                v1::encode(&self.endpoints, out);
                Ok(())
            }
            Format::V2 => {
                let start = out.len();
                v2::encode(self, out).inspect_err(|_| out.truncate(start))
            }
        }
    }
}

/// Returns the header at the start of `input` and its length, given the bytes received so far, or `None` if they are only
/// its beginning. The input may continue after the header.
///
/// A result other than `None` stays the same when more bytes arrive; at most [`MAX_V2_BYTES`] are needed for it. Never
/// allocates, never panics.
///
/// # Errors
/// Fails if the bytes begin no acceptable header. The caller must close the connection.
pub fn decode(input: &[u8], accept: Accept) -> Result<Option<(ProxyHeader<'_>, usize)>, Refusal> {
    let v1 = match accept {
        Accept::V1 | Accept::Either => prefix(input, v1::SIGNATURE),
        Accept::V2 => Prefix::Differs,
    };
    let v2 = match accept {
        Accept::V2 | Accept::Either => prefix(input, v2::SIGNATURE),
        Accept::V1 => Prefix::Differs,
    };
    match (v1, v2) {
        (Prefix::Whole, _) => v1::decode(input),
        (_, Prefix::Whole) => v2::decode(input),
        (Prefix::Differs, Prefix::Differs) => Err(Refusal::Signature),
        _ => Ok(None),
    }
}

/// Compares the first bytes of a connection with the signatures of both versions.
pub(crate) fn signature(input: &[u8]) -> Prefix {
    match (prefix(input, v1::SIGNATURE), prefix(input, v2::SIGNATURE)) {
        (Prefix::Whole, _) | (_, Prefix::Whole) => Prefix::Whole,
        (Prefix::Differs, Prefix::Differs) => Prefix::Differs,
        _ => Prefix::Partial,
    }
}

#[cfg(test)]
mod tests;
