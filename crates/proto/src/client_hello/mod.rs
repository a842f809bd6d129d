//! A peek at the TLS ClientHello in the first bytes of a connection, before any of them is given to the TLS engine.
//!
//! [`peek`] reads a prefix of a stream of TLS records and says what it is: the beginning of a ClientHello, a whole one,
//! or something else ([`NotHello`] says what came instead), as early as the bytes allow and never taking it back.
//! A hello in one record is borrowed; one that is spread over several records is put together in a buffer of its own.
//!
//! The peek picks policy and configuration; the TLS engine then sees the same bytes. So the peek must never read
//! another hello than the engine: whatever rustls accepts, the peek reads alike (name, ALPN, suites, schemes, groups)
//! or refuses, and a fuzz target holds the two together. It is stricter than rustls in these: records above 2^14 bytes, record versions
//! other than 0x03xx, more than [`MAX_EXTENSIONS`] extensions. It is laxer where nothing that it reads is concerned
//! (compression methods, key shares, contents of extensions it has no getter for): there rustls refuses.
//!
//! Nothing here limits how many bytes of an unfinished hello a connection may hold: that is the caller's limit.
//! Files: `not_hello` (refusals), `records` (record layer), `parse` (hello to spans), `hello` (getters), `server_name` (SNI).
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

/// What the first bytes of a connection are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peek<'a> {
    /// A ClientHello as far as can be told; more bytes are needed.
    Incomplete,
    /// A whole ClientHello. The input may go on behind it; [`ClientHello::wire_len`] says where it ended.
    Hello(ClientHello<'a>),
    /// Something else. More bytes cannot change that.
    Refused(NotHello),
}

/// Says what the first bytes of a connection are, given those that came until now.
///
/// An answer other than [`Peek::Incomplete`] stays the same when more bytes come. Costs one pass over the record
/// headers and one over the hello; copies (and allocates, once) only a complete hello that is spread over records.
/// Never panics.
pub fn peek(input: &[u8]) -> Peek<'_> {
    let assembled = match records::assemble(input) {
        Ok(Some(assembled)) => assembled,
        Ok(None) => return Peek::Incomplete,
        Err(not_hello) => return Peek::Refused(not_hello),
    };
    match ClientHello::parse(assembled.body, assembled.wire_len) {
        Ok(hello) => Peek::Hello(hello),
        Err(malformed) => Peek::Refused(NotHello::Malformed(malformed)),
    }
}

#[cfg(test)]
mod tests;
