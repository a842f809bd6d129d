//! A peek at the TLS ClientHello in the first bytes of a connection, before the TLS engine reads them.
//!
//! [`peek`] classifies a prefix of a stream of TLS records: the beginning of a ClientHello, a
//! complete one, or something else ([`NotHello`] is the reason). It returns a final result as early
//! as the bytes allow. A hello in one record is borrowed; a hello in several records is assembled
//! in its own buffer.
//!
//! The peek selects policy and configuration; the TLS engine then reads the same bytes. So the peek
//! must never read a different hello than the engine. It either reads everything that rustls accepts
//! in the same way (name, ALPN, suites, schemes, groups) or refuses the hello; a fuzz target compares
//! the two. The peek is stricter than rustls in three points: records above 2^14 bytes, record
//! versions other than 0x03xx, and more than [`MAX_EXTENSIONS`] extensions. It accepts more in fields
//! that it does not read (compression methods, key shares, extensions without a getter), and rustls
//! then refuses those.
//!
//! The caller must limit the bytes of an unfinished hello; this module does not.
//!
//! Files: `not_hello` (refusals), `records` (record layer), `parse` (hello to spans), `hello`
//! (getters), `server_name` (SNI).
//! Sources: RFC 8446 4.1.2, 4.2 and 5.1; RFC 5246 7.4.1; RFC 6066 3; RFC 7301 3.1; RFC 5077 3.2.

mod hello;
mod not_hello;
mod parse;
mod records;
mod server_name;

pub use self::hello::ClientHello;
pub use self::not_hello::{Malformed, NotHello};
pub use self::parse::MAX_EXTENSIONS;
pub use self::records::{MAX_HELLO_BYTES, MAX_RECORD_BYTES};
pub use self::server_name::{MAX_NAME_BYTES, ServerName};

/// Returns the ClientHello at the start of a connection, given the bytes received so far, or `None` if they are only its
/// beginning. The input may continue after its [`ClientHello::wire_len`] bytes.
///
/// A result other than `None` stays the same when more bytes arrive. Costs one pass over the record headers and one over
/// the hello. Copies, with one allocation, only a complete hello that is spread over records. Never panics.
///
/// # Errors
/// Fails if the bytes do not begin a ClientHello.
pub fn peek(input: &[u8]) -> Result<Option<ClientHello<'_>>, NotHello> {
    let Some(assembled) = records::assemble(input)? else {
        return Ok(None);
    };
    let hello = ClientHello::parse(assembled.body, assembled.wire_len);
    hello.map(Some).map_err(NotHello::Malformed)
}

#[cfg(test)]
mod tests;
