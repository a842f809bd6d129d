//! IMAP before STARTTLS (RFC 9051 6.2.1, RFC 3501 6.2.1), after the server's greeting.
//!
//! The capabilities in a server's greeting may offer login without TLS, so they are replaced. A
//! greeting with PREAUTH is refused, since STARTTLS is not allowed after it.

use super::line::{Lines, command, put};
use super::progress::{LONGEST_GREETING, Over, Progress};

#[derive(Clone, Debug, Default)]
pub struct Imap {
    lines: Lines,
    greeted: bool,
}

impl Imap {
    pub(super) fn awaits_greeting(&self) -> bool {
        !self.greeted
    }

    pub(super) fn handle_server(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) -> Progress {
        if self.greeted {
            return Progress::Over(Over::BadGreeting);
        }
        let line = match self.lines.next(&mut bytes, LONGEST_GREETING) {
            Ok(Some(line)) => line,
            Ok(None) => return Progress::Talking,
            Err(()) => return Progress::Over(Over::BadGreeting),
        };
        let status = line.get(..5).unwrap_or_default().to_ascii_uppercase();
        if status == b"* BYE" {
            put(&line, out);
            return Progress::Over(Over::Refused);
        }
        if status != b"* OK " || !bytes.is_empty() {
            put(b"* BYE no TLS with this server", out);
            return Progress::Over(Over::BadGreeting);
        }
        let text = line.get(5..).unwrap_or_default();
        put(&[b"* OK ", &with_our_capabilities(text)[..]].concat(), out);
        self.greeted = true;
        Progress::Talking
    }

    pub(super) fn handle_client(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Progress {
        self.lines.each_command(bytes, |line| {
            let (tag, rest) = line
                .iter()
                .position(|byte| *byte == b' ')
                .and_then(|end| line.split_at_checked(end))
                .unwrap_or((line, &[]));
            if !is_tag(tag) {
                put(b"* BAD not a tag", out);
                return Progress::Talking;
            }
            let mut tagged = |answer: &[u8]| put(&[tag, b" ", answer].concat(), out);
            let (word, rest) = command(rest);
            match (&word[..], rest) {
                (b"STARTTLS", []) => {
                    tagged(b"OK begin TLS");
                    return Progress::Begin;
                }
                (b"NOOP", []) => tagged(b"OK nothing done"),
                (b"CAPABILITY", []) => {
                    put(&[b"* CAPABILITY ", CAPABILITIES].concat(), out);
                    put(&[tag, b" OK these"].concat(), out);
                }
                (b"LOGOUT", []) => {
                    put(b"* BYE", out);
                    put(&[tag, b" OK bye"].concat(), out);
                    return Progress::Over(Over::Quit);
                }
                (b"LOGIN" | b"AUTHENTICATE", _) => {
                    tagged(b"NO [PRIVACYREQUIRED] must issue a STARTTLS command first");
                }
                _ => tagged(b"BAD not before STARTTLS"),
            }
            Progress::Talking
        })
    }
}

/// Replaces the capabilities in the greeting, if it lists any.
fn with_our_capabilities(text: &[u8]) -> Vec<u8> {
    let code = text.get(..12).unwrap_or_default().to_ascii_uppercase();
    let end = text.iter().position(|byte| *byte == b']');
    match end.and_then(|end| text.get(end + 1..)) {
        Some(rest) if code == b"[CAPABILITY " => {
            [b"[CAPABILITY ", CAPABILITIES, b"]", rest].concat()
        }
        _ => text.to_vec(),
    }
}

/// RFC 9051 9: a tag has no spaces, quotes, wildcards, parentheses or plus signs.
fn is_tag(tag: &[u8]) -> bool {
    let fits = |byte: &u8| byte.is_ascii_graphic() && !b"(){%*\"\\+".contains(byte);
    !tag.is_empty() && tag.len() <= LONGEST_TAG && tag.iter().all(fits)
}

const CAPABILITIES: &[u8] = b"IMAP4rev1 STARTTLS LOGINDISABLED";
/// Maximum length of a tag; the RFCs set none. Usual tags have about five characters.
const LONGEST_TAG: usize = 64;
