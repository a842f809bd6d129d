//! Splits input that arrives in pieces into lines of bounded length. A line ends with LF or CRLF.
//!
//! Also contains the code that the mail protocols share: it passes a client's lines to the dialog, limits their number,
//! and rejects data after the request for TLS.

use super::progress::{LONGEST_COMMAND, MOST_COMMANDS, Over, Progress};

/// An incomplete line, and the number of commands received so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Lines {
    begun: Vec<u8>,
    commands: u32,
}

impl Lines {
    /// Takes the next line from `input`, without its line ending. Returns `None` and stores the
    /// received part if the line is incomplete.
    ///
    /// # Errors
    ///
    /// Fails if a line is longer than `most` bytes.
    pub(super) fn next(&mut self, input: &mut &[u8], most: usize) -> Result<Option<Vec<u8>>, ()> {
        let end = input.iter().position(|byte| *byte == b'\n');
        let (part, rest) = match end {
            Some(end) => input.split_at_checked(end + 1).unwrap_or((input, &[])),
            None => (*input, &[][..]),
        };
        if self.begun.len() + part.len() > most {
            return Err(());
        }
        self.begun.extend_from_slice(part);
        *input = rest;
        if end.is_none() {
            return Ok(None);
        }
        let mut line = std::mem::take(&mut self.begun);
        line.pop();
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        Ok(Some(line))
    }

    /// Passes each line of a client to `answer` until one of them ends the dialog.
    pub(super) fn each_command(
        &mut self,
        mut input: &[u8],
        mut answer: impl FnMut(&[u8]) -> Progress,
    ) -> Progress {
        loop {
            let line = match self.next(&mut input, LONGEST_COMMAND) {
                Ok(Some(line)) => line,
                Ok(None) => return Progress::Talking,
                Err(()) => return Progress::Over(Over::Broken),
            };
            self.commands += 1;
            if self.commands > MOST_COMMANDS {
                return Progress::Over(Over::Broken);
            }
            match answer(&line) {
                Progress::Talking => {}
                Progress::Begin if !input.is_empty() => return Progress::Over(Over::Injected),
                other => return other,
            }
        }
    }
}

/// Splits a line at its first space into the command in upper case and its trimmed arguments.
pub(super) fn command(line: &[u8]) -> (Vec<u8>, &[u8]) {
    let line = line.trim_ascii();
    let end = line.iter().position(|byte| *byte == b' ');
    let (word, rest) = line
        .split_at_checked(end.unwrap_or(line.len()))
        .unwrap_or((line, &[]));
    (word.to_ascii_uppercase(), rest.trim_ascii())
}

/// Returns the text behind the capabilities in an IMAP greeting, if it lists any.
pub(super) fn behind_capabilities(text: &[u8]) -> Option<&[u8]> {
    let is_list = text.get(..12)?.eq_ignore_ascii_case(b"[CAPABILITY ");
    let end = text.iter().position(|byte| *byte == b']')?;
    text.get(end + 1..).filter(|_| is_list)
}

/// Appends a line and its line ending. Omits control characters, which could be misread as a line ending.
pub(super) fn put(line: &[u8], out: &mut Vec<u8>) {
    let printable = line.iter().filter(|byte| **byte >= b' ' && **byte != 0x7f);
    out.extend(printable);
    out.extend(b"\r\n");
}
