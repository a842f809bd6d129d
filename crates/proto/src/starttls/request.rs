//! Client side of the clear-text dialog before TLS with a mail or database server ("STARTTLS").
//!
//! A [`TlsRequest`] asks a server to start TLS. Order of use: send the bytes that [`TlsRequest::new`] appends to `out`.
//! Pass bytes from the server to [`TlsRequest::handle`] and send the bytes that it appends, until it returns
//! [`Asked::Begin`]. Then start TLS. [`TlsRequest::into_greeting`] returns the server's greeting, for a client that
//! expects one.
//!
//! Invariants: no bytes of a client are sent before TLS. The server's agreement to start TLS is the last clear text: a
//! server that sends more is refused, because an attacker on the path may have inserted it (CVE-2021-23222). The
//! lengths of lines, of the greeting and of the whole dialog are limited. Input may arrive in pieces of any size.
//!
//! Sources: as for [`super::Dialog`].

use super::line::{Lines, behind_capabilities, put};
use super::progress::{LONGEST_GREETING, Protocol};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Asked {
    /// More bytes from the server are needed.
    Waiting,
    /// The server agreed; the next byte that the caller sends belongs to TLS.
    Begin,
    Not(NoTls),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoTls {
    /// The server refuses service.
    #[error("the server refuses service before TLS")]
    Closed,
    /// The server refuses TLS.
    #[error("the server refuses TLS")]
    Refused,
    /// The server sent more clear text after it agreed to start TLS.
    #[error("the server sent more clear text after its response that TLS begins")]
    Injected,
    /// The server's response violates the protocol, or is too long.
    #[error("invalid response of the server to the request for TLS")]
    Broken,
}

#[derive(Clone, Debug)]
pub struct TlsRequest {
    protocol: Protocol,
    step: Step,
    lines: Lines,
    greeting: Vec<u8>,
    heard: usize,
}

/// Kind of line that the server is expected to send next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Greeting,
    /// Response to EHLO.
    Hello,
    /// Response to the request for TLS.
    Request,
}

impl TlsRequest {
    /// Starts a request. Appends an SSLRequest to `out` for PostgreSQL, and nothing for protocols
    /// in which the server speaks first.
    pub fn new(protocol: Protocol, out: &mut Vec<u8>) -> Self {
        let step = match protocol {
            Protocol::Postgresql => {
                out.extend(SSL_REQUEST);
                Step::Request
            }
            Protocol::Smtp | Protocol::Imap | Protocol::Pop3 => Step::Greeting,
        };
        Self {
            protocol,
            step,
            lines: Lines::default(),
            greeting: Vec::new(),
            heard: 0,
        }
    }

    /// Parses bytes from the server, and appends the next command to `out`.
    pub fn handle(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) -> Asked {
        self.heard += bytes.len();
        if self.heard > LONGEST_TALK {
            return Asked::Not(NoTls::Broken);
        }
        if self.protocol == Protocol::Postgresql {
            return match bytes {
                [] => Asked::Waiting,
                [b'S'] => Asked::Begin,
                [b'S', ..] => Asked::Not(NoTls::Injected),
                [b'N' | b'E', ..] => Asked::Not(NoTls::Refused),
                _ => Asked::Not(NoTls::Broken),
            };
        }
        loop {
            let line = match self.lines.next(&mut bytes, LONGEST_GREETING) {
                Ok(Some(line)) => line,
                Ok(None) => return Asked::Waiting,
                Err(()) => return Asked::Not(NoTls::Broken),
            };
            let asked = match self.protocol {
                Protocol::Smtp => self.smtp(&line, out),
                Protocol::Imap => self.imap(&line, out),
                Protocol::Pop3 | Protocol::Postgresql => self.pop3(&line, out),
            };
            match asked {
                Asked::Waiting => {}
                Asked::Begin if !bytes.is_empty() => return Asked::Not(NoTls::Injected),
                other => return other,
            }
        }
    }

    /// Returns the server's greeting, to be sent to the client.
    pub fn into_greeting(self) -> Vec<u8> {
        self.greeting
    }

    fn smtp(&mut self, line: &[u8], out: &mut Vec<u8>) -> Asked {
        let Some((code, rest)) = line.split_at_checked(3) else {
            return Asked::Not(NoTls::Broken);
        };
        if self.step == Step::Greeting {
            put(line, &mut self.greeting);
        }
        match (self.step, code) {
            (Step::Greeting | Step::Request, b"220") | (Step::Hello, b"250") => {}
            (_, [b'4' | b'5', b'0'..=b'9', b'0'..=b'9']) if self.step == Step::Greeting => {
                return Asked::Not(NoTls::Closed);
            }
            (_, [b'4' | b'5', b'0'..=b'9', b'0'..=b'9']) => return Asked::Not(NoTls::Refused),
            _ => return Asked::Not(NoTls::Broken),
        }
        match rest.first() {
            Some(b'-') => return Asked::Waiting,
            Some(b' ') | None => {}
            Some(_) => return Asked::Not(NoTls::Broken),
        }
        let (next, said): (_, &[u8]) = match self.step {
            Step::Greeting => (Step::Hello, b"EHLO localhost"),
            Step::Hello => (Step::Request, b"STARTTLS"),
            Step::Request => return Asked::Begin,
        };
        put(said, out);
        self.step = next;
        Asked::Waiting
    }

    fn imap(&mut self, line: &[u8], out: &mut Vec<u8>) -> Asked {
        let upper = line.to_ascii_uppercase();
        if self.step == Step::Greeting {
            if upper.starts_with(b"* BYE") {
                return Asked::Not(NoTls::Closed);
            }
            let Some(text) = line.get(5..).filter(|_| upper.starts_with(b"* OK ")) else {
                // This includes PREAUTH, since STARTTLS is not allowed after it.
                return Asked::Not(NoTls::Broken);
            };
            put(
                &[b"* OK ", without_capabilities(text)].concat(),
                &mut self.greeting,
            );
            put(b"becket STARTTLS", out);
            self.step = Step::Request;
            return Asked::Waiting;
        }
        match &upper[..] {
            line if line.starts_with(b"BECKET OK") => Asked::Begin,
            line if line.starts_with(b"BECKET ") => Asked::Not(NoTls::Refused),
            line if line.starts_with(b"* BYE") => Asked::Not(NoTls::Closed),
            line if line.starts_with(b"* ") => Asked::Waiting,
            _ => Asked::Not(NoTls::Broken),
        }
    }

    fn pop3(&mut self, line: &[u8], out: &mut Vec<u8>) -> Asked {
        let is = |word: &[u8]| {
            let rest = line.strip_prefix(word);
            rest.is_some_and(|rest| matches!(rest, [] | [b' ', ..]))
        };
        match (self.step, is(b"+OK"), is(b"-ERR")) {
            (Step::Request, true, _) => Asked::Begin,
            (Step::Request, _, true) => Asked::Not(NoTls::Refused),
            (_, true, _) => {
                put(line, &mut self.greeting);
                put(b"STLS", out);
                self.step = Step::Request;
                Asked::Waiting
            }
            (_, _, true) => Asked::Not(NoTls::Closed),
            _ => Asked::Not(NoTls::Broken),
        }
    }
}

/// Removes the capabilities from a greeting, since they are valid only before TLS. The client can
/// request the new ones after TLS has begun.
fn without_capabilities(text: &[u8]) -> &[u8] {
    behind_capabilities(text).map_or(text, <[u8]>::trim_ascii_start)
}

/// Length 8 and the code of an SSLRequest.
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 0xd2, 0x16, 0x2f];
/// Maximum clear-text bytes accepted from a server: enough for its greeting and two responses.
const LONGEST_TALK: usize = 2 * LONGEST_GREETING;

#[cfg(test)]
mod tests {
    use super::*;

    const TALKS: [(Protocol, &[&str], &str, &str); 4] = [
        (
            Protocol::Smtp,
            &[
                "220-mx.test\r\n220 ESMTP\r\n",
                "250-mx.test\r\n250-STARTTLS\r\n250 HELP\r\n",
                "220 go ahead\r\n",
            ],
            "EHLO localhost\r\nSTARTTLS\r\n",
            "220-mx.test\r\n220 ESMTP\r\n",
        ),
        (
            Protocol::Imap,
            &[
                "* OK [CAPABILITY IMAP4rev1 STARTTLS LOGINDISABLED] ready\r\n",
                "* NOTICE wait\r\nbecket OK begin\r\n",
            ],
            "becket STARTTLS\r\n",
            "* OK ready\r\n",
        ),
        (
            Protocol::Pop3,
            &["+OK <1@mx.test>\r\n", "+OK\r\n"],
            "STLS\r\n",
            "+OK <1@mx.test>\r\n",
        ),
        (
            Protocol::Postgresql,
            &["S"],
            "\0\0\0\u{8}\u{4}\u{d2}\u{16}/",
            "",
        ),
    ];

    /// Lets a server send `said` in pieces of `each` bytes.
    fn talk(protocol: Protocol, said: &str, each: usize) -> (Asked, Vec<u8>, Vec<u8>) {
        let mut out = Vec::new();
        let mut request = TlsRequest::new(protocol, &mut out);
        let mut asked = Asked::Waiting;
        for piece in said.as_bytes().chunks(each) {
            if asked == Asked::Waiting {
                asked = request.handle(piece, &mut out);
            }
        }
        (asked, out, request.into_greeting())
    }

    #[test]
    fn each_protocol_requests_tls_and_keeps_the_greeting() {
        for (protocol, said, heard, greeting) in TALKS {
            for each in [1, 3, 1000] {
                let (asked, out, kept) = talk(protocol, &said.concat(), each);
                assert_eq!(asked, Asked::Begin, "{protocol:?}");
                let heard: Vec<u8> = heard.chars().map(|c| c as u8).collect();
                assert_eq!(out, heard, "{protocol:?}");
                assert_eq!(kept, greeting.as_bytes(), "{protocol:?}");
            }
        }
    }

    #[test]
    fn data_injected_after_the_starttls_response_is_rejected() {
        for (protocol, said, ..) in TALKS {
            let more = said.concat() + "250 injected\r\n";
            let (asked, ..) = talk(protocol, &more, 1000);
            assert_eq!(asked, Asked::Not(NoTls::Injected), "{protocol:?}");
        }
    }

    #[test]
    fn refusals_are_distinguished_from_invalid_responses() {
        for (protocol, said, why) in [
            (Protocol::Smtp, "554 no service\r\n", NoTls::Closed),
            (Protocol::Smtp, "220 a\r\n502 what\r\n", NoTls::Refused),
            (
                Protocol::Smtp,
                "220 a\r\n250 b\r\n454 not now\r\n",
                NoTls::Refused,
            ),
            (Protocol::Smtp, "HTTP/1.1 400\r\n", NoTls::Broken),
            (Protocol::Smtp, "22\r\n", NoTls::Broken),
            (Protocol::Smtp, "220_\r\n", NoTls::Broken),
            (Protocol::Imap, "* BYE busy\r\n", NoTls::Closed),
            (Protocol::Imap, "* PREAUTH hello\r\n", NoTls::Broken),
            (
                Protocol::Imap,
                "* OK\u{20}\r\nbecket BAD\r\n",
                NoTls::Refused,
            ),
            (Protocol::Pop3, "-ERR busy\r\n", NoTls::Closed),
            (Protocol::Pop3, "+OK\r\n-ERR no\r\n", NoTls::Refused),
            (Protocol::Pop3, "+OKAY\r\n", NoTls::Broken),
            (Protocol::Postgresql, "N", NoTls::Refused),
            (Protocol::Postgresql, "E..", NoTls::Refused),
            (Protocol::Postgresql, "x", NoTls::Broken),
        ] {
            for each in [1, 1000] {
                let (asked, ..) = talk(protocol, said, each);
                assert_eq!(asked, Asked::Not(why), "{protocol:?}: {said}");
            }
        }
    }

    #[test]
    fn the_length_of_the_server_dialog_is_bounded() {
        for said in ["220-a\r\n".repeat(LONGEST_TALK), "2".repeat(LONGEST_TALK)] {
            let (asked, _, greeting) = talk(Protocol::Smtp, &said, 100);
            assert_eq!(asked, Asked::Not(NoTls::Broken));
            assert!(greeting.len() <= LONGEST_TALK);
        }
    }
}
