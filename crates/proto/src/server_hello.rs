//! Parses the TLS ServerHello in the first bytes from a server: version and session ID.
//!
//! When becket passes TLS through without terminating it, the session ID shows which server has a session, so that a
//! TLS 1.2 client can return to that server and resume. [`ServerHello::session_to_learn`] returns only an ID that the
//! server created. An ID that merely repeats the client's ID is ignored, since clients could otherwise write any ID to
//! the table. In TLS 1.3, every ID is such a copy (RFC 8446 4.1.3).
//!
//! Parses only these fields and does not validate the remaining handshake. A ServerHello above [`MAX_HELLO_BYTES`], far
//! more than any real one, is ignored.
//! Source: RFC 8446 4.1.3 and 5.1; RFC 5246 7.4.1.3.

use crate::reader::Reader;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerHelloPeek {
    /// The beginning of a ServerHello; more bytes are needed.
    Incomplete,
    Hello(ServerHello),
    /// Not a ServerHello, for example an alert, or a malformed or oversized message. More bytes do
    /// not change this result.
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerHello {
    tls12: bool,
    session_id: Vec<u8>,
}

impl ServerHello {
    /// Returns the ID if the server issued it for a resumable session: in TLS 1.2, not empty, and different from the
    /// client's `offered` ID.
    pub fn session_to_learn(&self, offered: &[u8]) -> Option<&[u8]> {
        let made = self.tls12 && !self.session_id.is_empty() && self.session_id != offered;
        made.then_some(&self.session_id)
    }

    fn parse(body: &[u8]) -> Option<Self> {
        let mut body = Reader::new(body);
        let legacy_version = body.u16()?;
        body.take(RANDOM_BYTES)?;
        let session_id = body.vec8()?.rest();
        body.u16()?;
        body.u8()?;
        let mut version = legacy_version;
        if !body.is_empty() {
            let mut extensions = body.vec16()?;
            while !extensions.is_empty() {
                let (kind, mut data) = (extensions.u16()?, extensions.vec16()?);
                if kind == SUPPORTED_VERSIONS {
                    version = data.u16()?;
                }
            }
        }
        (body.is_empty() && session_id.len() <= MAX_ID_BYTES).then(|| Self {
            tls12: version == TLS12,
            session_id: session_id.to_vec(),
        })
    }
}

/// Parses the bytes received from a server so far.
///
/// A result other than [`ServerHelloPeek::Incomplete`] stays the same when more bytes arrive. Copies at most
/// [`MAX_HELLO_BYTES`]. Never panics.
pub fn peek(input: &[u8]) -> ServerHelloPeek {
    let mut records = Reader::new(input);
    let mut message = Vec::new();
    loop {
        if let Some(&kind) = message.first()
            && kind != SERVER_HELLO
        {
            return ServerHelloPeek::Other;
        }
        if let Some(length) = announced(&message) {
            if length > MAX_HELLO_BYTES {
                return ServerHelloPeek::Other;
            }
            if let Some(body) = message.get(4..4 + length) {
                return ServerHello::parse(body)
                    .map_or(ServerHelloPeek::Other, ServerHelloPeek::Hello);
            }
        }
        let header = records.rest();
        if matches!(header.first(), Some(kind) if *kind != HANDSHAKE)
            || matches!(header.get(1), Some(major) if *major != 3)
        {
            return ServerHelloPeek::Other;
        }
        let Some((_, length)) = records.take(3).zip(records.u16()) else {
            return ServerHelloPeek::Incomplete;
        };
        let length = usize::from(length);
        if length == 0 || length > MAX_RECORD_BYTES {
            return ServerHelloPeek::Other;
        }
        // The last record may be incomplete, since the ServerHello may end before the record does.
        let come = records.rest();
        let part = come.get(..length).unwrap_or(come);
        let room = (4 + MAX_HELLO_BYTES).saturating_sub(message.len());
        message.extend_from_slice(part.get(..room).unwrap_or(part));
        if records.take(length).is_none() {
            records.take(come.len());
        }
    }
}

/// Returns the body length in the header of a handshake message.
fn announced(message: &[u8]) -> Option<usize> {
    let mut header = Reader::new(message);
    header.u8()?;
    let (high, low) = (header.u8()?, header.u16()?);
    Some(usize::from(high) << 16 | usize::from(low))
}

/// Maximum length of a parsed ServerHello, in bytes. The largest in use has about 1.3 KB, with a
/// post-quantum key share.
pub const MAX_HELLO_BYTES: usize = 4096;
/// Maximum content of a plaintext record in bytes (RFC 8446 5.1).
const MAX_RECORD_BYTES: usize = 1 << 14;
const RANDOM_BYTES: usize = 32;
const MAX_ID_BYTES: usize = 32;
const HANDSHAKE: u8 = 22;
const SERVER_HELLO: u8 = 2;
const SUPPORTED_VERSIONS: u16 = 43;
const TLS12: u16 = 0x0303;

#[cfg(test)]
mod tests {
    use super::*;

    fn message(version: u16, id: &[u8], extensions: &[(u16, &[u8])]) -> Vec<u8> {
        let mut body = version.to_be_bytes().to_vec();
        body.extend([7; RANDOM_BYTES]);
        body.push(id.len() as u8);
        body.extend(id);
        body.extend([0xc0, 0x2f, 0]);
        let mut list = Vec::new();
        for (kind, data) in extensions {
            list.extend(kind.to_be_bytes());
            list.extend((data.len() as u16).to_be_bytes());
            list.extend(*data);
        }
        if !list.is_empty() {
            body.extend((list.len() as u16).to_be_bytes());
            body.extend(list);
        }
        let mut message = vec![SERVER_HELLO, 0];
        message.extend((body.len() as u16).to_be_bytes());
        message.extend(body);
        message
    }

    fn in_records(message: &[u8], each: usize) -> Vec<u8> {
        let mut stream = Vec::new();
        for part in message.chunks(each) {
            stream.extend([HANDSHAKE, 3, 3]);
            stream.extend((part.len() as u16).to_be_bytes());
            stream.extend(part);
        }
        stream
    }

    fn hello(peek: ServerHelloPeek) -> ServerHello {
        match peek {
            ServerHelloPeek::Hello(hello) => hello,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_tls12_session_ids_issued_by_the_server_are_learnt() {
        let old = hello(peek(&in_records(
            &message(0x0303, &[1; 32], &[(23, &[])]),
            1000,
        )));
        assert_eq!(old.session_to_learn(&[]), Some(&[1; 32][..]));
        assert_eq!(old.session_to_learn(&[2; 32]), Some(&[1; 32][..]));
        assert_eq!(old.session_to_learn(&[1; 32]), None, "an echo");
        let none = hello(peek(&in_records(&message(0x0303, &[], &[]), 1000)));
        assert_eq!(none.session_to_learn(&[1; 32]), None);
        let new = message(0x0303, &[1; 32], &[(43, &[3, 4])]);
        let new = hello(peek(&in_records(&new, 1000)));
        assert_eq!(new.session_to_learn(&[]), None);
    }

    #[test]
    fn every_prefix_is_incomplete_and_trailing_records_are_ignored() {
        let message = message(0x0303, &[9; 32], &[(65281, &[0]), (43, &[3, 3])]);
        for each in [1, 7, 50, 1000] {
            let mut stream = in_records(&message, each);
            for end in 0..stream.len() {
                assert_eq!(
                    peek(&stream[..end]),
                    ServerHelloPeek::Incomplete,
                    "{end} of {each}"
                );
            }
            let whole = peek(&stream);
            assert_eq!(hello(whole.clone()).session_id, [9; 32]);
            stream.extend([22, 3, 3, 0, 1, 11, 99, 99]);
            assert_eq!(peek(&stream), whole);
        }
    }

    #[test]
    fn a_certificate_in_the_same_record_is_ignored() {
        let mut both = message(0x0303, &[9; 32], &[]);
        both.extend([11, 0, 0, 3, 0, 0, 0]);
        assert_eq!(hello(peek(&in_records(&both, 1000))).session_id, [9; 32]);
    }

    #[test]
    fn other_messages_are_not_treated_as_server_hellos() {
        for other in [
            &b"HTTP/1.1 400"[..],
            &[21, 3, 3, 0, 2, 2, 40],
            &[22, 2],
            &[22, 3, 3, 0, 0],
            &[22, 3, 3, 0x40, 1],
            &[22, 3, 3, 0, 4, 1],
            &[22, 3, 3, 0, 4, 2, 0, 0x10, 1],
            &[22, 3, 3, 0, 6, 2, 0, 0, 2, 3, 3],
        ] {
            assert_eq!(peek(other), ServerHelloPeek::Other, "{other:?}");
        }
        let mut long = message(0x0303, &[1; 33], &[]);
        assert_eq!(peek(&in_records(&long, 1000)), ServerHelloPeek::Other);
        long = message(0x0303, &[1; 32], &[]);
        long[3] += 1;
        long.push(0);
        assert_eq!(peek(&in_records(&long, 1000)), ServerHelloPeek::Other);
    }
}
