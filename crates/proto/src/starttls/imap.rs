//! IMAP before STARTTLS (RFC 9051 6.2.1, RFC 3501 6.2.1), after the server's greeting.
//!
//! The capabilities in a server's greeting may offer login without TLS, so they are replaced. A
//! greeting with PREAUTH is refused, since STARTTLS is not allowed after it.

use super::line::{behind_capabilities, command, put};
use super::progress::{Over, Progress};

/// Handles the greeting, which is one line.
pub(super) fn greet(line: &[u8], is_last: bool, out: &mut Vec<u8>) -> Result<bool, Over> {
    let status = line.get(..5).unwrap_or_default().to_ascii_uppercase();
    if status == b"* BYE" {
        put(line, out);
        return Err(Over::Refused);
    }
    if status != b"* OK " || !is_last {
        put(b"* BYE no TLS with this server", out);
        return Err(Over::BadGreeting);
    }
    let text = line.get(5..).unwrap_or_default();
    put(&[b"* OK ", &with_our_capabilities(text)[..]].concat(), out);
    Ok(true)
}

pub(super) fn answer(line: &[u8], out: &mut Vec<u8>) -> Progress {
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
}

/// Replaces the capabilities in the greeting, if it lists any.
fn with_our_capabilities(text: &[u8]) -> Vec<u8> {
    match behind_capabilities(text) {
        Some(rest) => [b"[CAPABILITY ", CAPABILITIES, b"]", rest].concat(),
        None => text.to_vec(),
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
