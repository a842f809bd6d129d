//! SMTP before STARTTLS (RFC 3207), after the server's greeting.
//!
//! The server's greeting (220) is forwarded to the client. The dialog then answers EHLO itself, and
//! offers only STARTTLS. After the TLS handshake, the client must send EHLO again (RFC 3207 4.2),
//! and only this EHLO reaches the server.

use super::line::{command, put};
use super::progress::{Over, Progress};

/// Handles a line of the greeting. Returns `true` after the last one.
pub(super) fn greet(line: &[u8], host: &mut Vec<u8>, out: &mut Vec<u8>) -> Result<bool, Over> {
    let Some((code, [separator @ (b' ' | b'-'), text @ ..])) = line.split_at_checked(3) else {
        return Err(Over::BadGreeting);
    };
    if !code.iter().all(u8::is_ascii_digit) {
        return Err(Over::BadGreeting);
    }
    put(line, out);
    if host.is_empty() {
        let name = text.split(|byte| *byte == b' ').next();
        *host = name.unwrap_or_default().to_vec();
    }
    match (separator, code) {
        (b'-', _) => Ok(false),
        (_, b"220") => Ok(true),
        _ => Err(Over::Refused),
    }
}

pub(super) fn answer(line: &[u8], host: &[u8], out: &mut Vec<u8>) -> Progress {
    let (word, rest) = command(line);
    let answer: &[u8] = match &word[..] {
        b"EHLO" if !rest.is_empty() => {
            put(&[b"250-", host].concat(), out);
            b"250 STARTTLS"
        }
        b"HELO" if !rest.is_empty() => {
            put(&[b"250 ", host].concat(), out);
            return Progress::Talking;
        }
        b"STARTTLS" if rest.is_empty() => {
            put(b"220 2.0.0 ready to start TLS", out);
            return Progress::Begin;
        }
        b"EHLO" | b"HELO" | b"STARTTLS" => b"501 5.5.4 syntax error in parameters",
        b"NOOP" | b"RSET" => b"250 2.0.0 OK",
        b"QUIT" => {
            put(b"221 2.0.0 bye", out);
            return Progress::Over(Over::Quit);
        }
        b"MAIL" | b"RCPT" | b"DATA" | b"BDAT" | b"AUTH" | b"VRFY" | b"EXPN" | b"HELP" | b"ETRN"
        | b"BURL" => b"530 5.7.0 must issue a STARTTLS command first",
        _ => b"502 5.5.1 command not implemented",
    };
    put(answer, out);
    Progress::Talking
}
