//! Alerts and handshake messages of a peer on an established connection whose records rustls no
//! longer decrypts.
//!
//! The kernel, or `crates/tls/src/direct.rs`, delivers the type and the content of a record. A record may
//! contain several messages, and a long message may span several records ([`Messages`]); an alert is a
//! record of its own ([`Alert`]). The caller decides which messages a version allows, and how to react.
//! Sources: RFC 8446 sections 4, 4.6, 5.1 and 6;
//! RFC 5246 sections 7.2 and 7.4.

use std::mem;

/// An alert, classified by its effect on the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alert {
    CloseNotify,
    Warning,
    /// The connection must be closed.
    Fatal,
}

impl Alert {
    /// Parses the content of an alert record. Returns `None` if it is not an alert.
    ///
    /// TLS 1.3 treats all but two alerts as fatal, regardless of their level (RFC 8446, section 6).
    pub fn read(content: &[u8], tls13: bool) -> Option<Self> {
        let [level, description] = *content else {
            return None;
        };
        match (level, description) {
            (_, CLOSE_NOTIFY) => Some(Self::CloseNotify),
            (_, USER_CANCELED) => Some(Self::Warning),
            (1, _) if !tls13 => Some(Self::Warning),
            (1 | 2, _) => Some(Self::Fatal),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// The peer encrypts with a new key after this message.
    KeyUpdate {
        /// `true` if the peer requests that the receiver change its sending key as well.
        requested: bool,
    },
    /// A NewSessionTicket message, without the message header.
    Ticket(&'a [u8]),
    /// A request for a second handshake in TLS 1.2: HelloRequest or ClientHello.
    Renegotiation,
}

/// A message that is not allowed after the handshake, or that is too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unexpected;

/// Reassembles handshake messages from records. Buffers an incomplete message until the next record
/// arrives.
#[derive(Debug, Default)]
pub struct Messages {
    begun: Vec<u8>,
}

impl Messages {
    /// Parses the content of a record and passes each complete message to `each`.
    ///
    /// # Errors
    ///
    /// Returns the error of `each`, or [`Unexpected`]: for a message that is not a [`Message`], for
    /// a message longer than [`MOST`] bytes, and for a KeyUpdate that is not the end of its record,
    /// since the bytes after it would be encrypted with the new key (RFC 8446, section 5.1).
    pub fn take<E: From<Unexpected>>(
        &mut self,
        content: &[u8],
        mut each: impl FnMut(Message<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut begun = mem::take(&mut self.begun);
        let all = if begun.is_empty() {
            content
        } else {
            begun.extend_from_slice(content);
            &begun
        };
        if content.is_empty() {
            return Err(Unexpected.into());
        }
        let mut rest = all;
        while let Some((kind, body, behind)) = split(rest) {
            let message = match (kind, body) {
                (KEY_UPDATE_TYPE, [requested @ (0 | 1)]) if behind.is_empty() => {
                    Message::KeyUpdate {
                        requested: *requested == 1,
                    }
                }
                (TICKET, body) => Message::Ticket(body),
                (HELLO_REQUEST | CLIENT_HELLO, _) => Message::Renegotiation,
                _ => return Err(Unexpected.into()),
            };
            each(message)?;
            rest = behind;
        }
        if rest.len() > MOST {
            return Err(Unexpected.into());
        }
        self.begun = rest.to_vec();
        Ok(())
    }

    /// Returns whether an incomplete message is buffered.
    pub fn is_begun(&self) -> bool {
        !self.begun.is_empty()
    }
}

/// Splits off the first message. Returns its type, its body, and the bytes after it.
fn split(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let ([kind, len @ ..], rest) = bytes.split_first_chunk::<4>()?;
    let [high, middle, low] = *len;
    let len = u32::from_be_bytes([0, high, middle, low]);
    let (body, behind) = rest.split_at_checked(len as usize)?;
    Some((*kind, body, behind))
}

/// Maximum message length in bytes, equal to the maximum record length and to the limit of the TLS
/// engine.
pub const MOST: usize = 16 * 1024;
/// A KeyUpdate message that requests none in return (RFC 8446, section 4.6.3).
pub const KEY_UPDATE: [u8; 5] = [KEY_UPDATE_TYPE, 0, 0, 1, 0];
// Alert descriptions (RFC 8446, section 6).
const CLOSE_NOTIFY: u8 = 0;
const USER_CANCELED: u8 = 90;
// Message types (RFC 8446, section 4).
const HELLO_REQUEST: u8 = 0;
const CLIENT_HELLO: u8 = 1;
const TICKET: u8 = 4;
const KEY_UPDATE_TYPE: u8 = 24;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the messages in consecutive records with these contents.
    fn said(records: &[&[u8]]) -> Result<Vec<String>, Unexpected> {
        let (mut messages, mut said) = (Messages::default(), Vec::new());
        for record in records {
            messages.take(record, |message| {
                said.push(format!("{message:?}"));
                Ok::<_, Unexpected>(())
            })?;
        }
        Ok(said)
    }

    #[test]
    fn alerts_are_classified_by_tls_version() {
        for (content, tls13, alert) in [
            (&[1, 0][..], true, Some(Alert::CloseNotify)),
            (&[2, 0], false, Some(Alert::CloseNotify)),
            (&[1, 90], true, Some(Alert::Warning)),
            (&[1, 100], false, Some(Alert::Warning)),
            (&[1, 100], true, Some(Alert::Fatal)),
            (&[2, 20], true, Some(Alert::Fatal)),
            (&[3, 20], true, None),
            (&[1], true, None),
            (&[1, 0, 1, 0], true, None),
            (&[], false, None),
        ] {
            assert_eq!(Alert::read(content, tls13), alert, "{content:?}");
        }
    }

    #[test]
    fn a_key_update_must_be_the_last_message_of_its_record() {
        let requested = "KeyUpdate { requested: true }".to_owned();
        assert_eq!(said(&[&[24, 0, 0, 1, 1]]), Ok(vec![requested]));
        assert_eq!(said(&[&[24, 0, 0, 1, 0, 24]]), Err(Unexpected));
        assert_eq!(said(&[&[24, 0, 0, 1, 2]]), Err(Unexpected));
        assert_eq!(said(&[&[24, 0, 0, 0]]), Err(Unexpected));
        assert_eq!(said(&[&[20, 0, 0, 1, 1]]), Err(Unexpected));
        assert_eq!(said(&[&[]]), Err(Unexpected));
    }

    #[test]
    fn an_endless_message_is_rejected_at_the_limit() {
        let mut messages = Messages::default();
        let mut take = |record: &[u8]| messages.take(record, |_| Ok::<_, Unexpected>(()));
        assert_eq!(take(&[4, 0xff, 0xff, 0xff]), Ok(()));
        let taken = (0..100).find(|_| take(&[0; 1000]).is_err());
        assert_eq!(taken, Some(16));
    }

    proptest! {
        #[test]
        fn messages_are_read_across_record_boundaries(
            tickets in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 1..6),
            cuts in prop::collection::vec(1..400usize, 0..20),
        ) {
            let mut laid = Vec::new();
            for ticket in &tickets {
                laid.extend([4, 0]);
                laid.extend((ticket.len() as u16).to_be_bytes());
                laid.extend(ticket);
            }
            let (mut records, mut rest) = (Vec::new(), laid.as_slice());
            for cut in cuts {
                let (record, behind) = rest.split_at(cut.min(rest.len()));
                records.push(record);
                rest = behind;
            }
            records.push(rest);
            records.retain(|record| !record.is_empty());
            let expected = tickets.iter().map(|ticket| format!("{:?}", Message::Ticket(ticket)));
            prop_assert_eq!(said(&records), Ok(expected.collect()));
        }

        #[test]
        fn the_buffer_never_exceeds_its_limit(
            records in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..2000), 0..40),
        ) {
            let mut messages = Messages::default();
            for record in &records {
                let took = messages.take(record, |_| Ok::<_, Unexpected>(()));
                prop_assert!(messages.begun.len() <= MOST);
                if took.is_err() {
                    prop_assert!(!messages.is_begun());
                }
            }
        }
    }
}
