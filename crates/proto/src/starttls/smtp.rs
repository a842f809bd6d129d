//! SMTP before STARTTLS (RFC 3207), after the server's greeting.
//!
//! The server receives nothing until the client has TLS: the server's 220 is forwarded to the
//! client, and the dialog answers EHLO itself, offering only STARTTLS. After the handshake the
//! client must send EHLO again (RFC 3207 4.2), which then reaches the server.

use super::line::{Lines, command, put};
use super::progress::{LONGEST_GREETING, Over, Progress};

#[derive(Clone, Debug, Default)]
pub struct Smtp {
    lines: Lines,
    greeted: bool,
    /// Number of greeting bytes received so far.
    greeting: usize,
    /// Server name from the greeting.
    host: Vec<u8>,
}

impl Smtp {
    pub(super) fn awaits_greeting(&self) -> bool {
        !self.greeted
    }

    pub(super) fn handle_server(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) -> Progress {
        self.greeting += bytes.len();
        if self.greeted || self.greeting > LONGEST_GREETING {
            return Progress::Over(Over::BadGreeting);
        }
        while let Ok(Some(line)) = self.lines.next(&mut bytes, LONGEST_GREETING) {
            let Some((code, [separator, text @ ..])) = line.split_at_checked(3) else {
                return Progress::Over(Over::BadGreeting);
            };
            if !code.iter().all(u8::is_ascii_digit) || !matches!(separator, b' ' | b'-') {
                return Progress::Over(Over::BadGreeting);
            }
            put(&line, out);
            if self.host.is_empty() {
                let (_, host) = (code, text.split(|byte| *byte == b' ').next());
                self.host = host.unwrap_or_default().to_vec();
            }
            if *separator == b'-' {
                continue;
            }
            self.greeted = code == b"220";
            return if !self.greeted {
                Progress::Over(Over::Refused)
            } else if bytes.is_empty() {
                Progress::Talking
            } else {
                Progress::Over(Over::BadGreeting)
            };
        }
        Progress::Talking
    }

    pub(super) fn handle_client(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Progress {
        let host = &self.host;
        self.lines.each_command(bytes, |line| {
            let (word, rest) = command(line);
            let answer: &[u8] = match &word[..] {
                b"EHLO" if !rest.is_empty() => {
                    put(&[b"250-", &host[..]].concat(), out);
                    b"250 STARTTLS"
                }
                b"HELO" if !rest.is_empty() => {
                    put(&[b"250 ", &host[..]].concat(), out);
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
                b"MAIL" | b"RCPT" | b"DATA" | b"BDAT" | b"AUTH" | b"VRFY" | b"EXPN" | b"HELP"
                | b"ETRN" | b"BURL" => b"530 5.7.0 must issue a STARTTLS command first",
                _ => b"502 5.5.1 command not implemented",
            };
            put(answer, out);
            Progress::Talking
        })
    }
}
