//! The PROXY protocol header, versions 1 and 2: who the client of a relayed connection is.
//!
//! Encodes what becket tells its servers, and decodes what stands in front of becket when it is itself behind a proxy.
//! Whether a header is expected is configuration, never guesswork: whoever may send one may claim any address
//! (section 5 of the specification). [`decode`] therefore knows no answer "no header".
//!
//! Borrows everything; the header is a value that both ends can be tested against: what [`ProxyHeader::encode`] writes,
//! [`decode`] reads back. Where the specification leaves a choice, see `v1`, `v2` and `tlv`.
//! Source: HAProxy's doc/proxy-protocol.txt.

mod header;
mod tlv;
mod v1;
mod v2;

pub use self::header::{EncodeError, Endpoints, ProxyHeader, Refusal, SslTlv, Tlvs};
pub use self::v1::MAX_V1_BYTES;
pub use self::v2::MAX_V2_BYTES;
use crate::reader::{Prefix, prefix};

/// How a header is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Version 1: one line of text.
    V1,
    /// Version 2: binary.
    V2,
}

/// Which versions a receiver takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Accept {
    /// Version 1 only.
    V1,
    /// Version 2 only.
    V2,
    /// Both.
    #[serde(rename = "any")]
    Either,
}

/// What the first bytes of a connection are to a receiver that expects a header.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "made once per connection and taken apart at once"
)]
pub enum Decoded<'a> {
    /// The beginning of a header; more bytes are needed.
    Incomplete,
    /// A whole header. The input may go on behind it.
    Header {
        /// The header.
        header: ProxyHeader<'a>,
        /// Bytes that it took at the start of the input.
        len: usize,
    },
    /// No acceptable header: the connection must be closed. More bytes cannot change that.
    Refused(Refusal),
}

impl ProxyHeader<'_> {
    /// Appends the header to `out`.
    ///
    /// An IPv4 and an IPv6 end together are written as two IPv6 addresses, the first one mapped.
    ///
    /// # Errors
    ///
    /// Something is longer than the format allows; `out` is then as before. Version 1 never fails.
    pub fn encode(&self, format: Format, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        match format {
            Format::V1 => v1::encode(&self.endpoints, out),
            Format::V2 => {
                let start = out.len();
                return v2::encode(self, out).inspect_err(|_| out.truncate(start));
            }
        }
        Ok(())
    }
}

/// Reads the header at the start of `input`, given the bytes that came until now.
///
/// An answer other than [`Decoded::Incomplete`] stays the same when more bytes come. Never allocates, never panics;
/// at most [`MAX_V2_BYTES`] are needed for a decision.
pub fn decode(input: &[u8], accept: Accept) -> Decoded<'_> {
    let v1 = match accept {
        Accept::V1 | Accept::Either => prefix(input, v1::SIGNATURE),
        Accept::V2 => Prefix::Differs,
    };
    let v2 = match accept {
        Accept::V2 | Accept::Either => prefix(input, v2::SIGNATURE),
        Accept::V1 => Prefix::Differs,
    };
    let decoded = match (v1, v2) {
        (Prefix::Whole, _) => v1::decode(input),
        (_, Prefix::Whole) => v2::decode(input),
        (Prefix::Differs, Prefix::Differs) => Err(Refusal::Signature),
        _ => Ok(None),
    };
    match decoded {
        Ok(Some((header, len))) => Decoded::Header { header, len },
        Ok(None) => Decoded::Incomplete,
        Err(refusal) => Decoded::Refused(refusal),
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
