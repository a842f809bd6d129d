//! State records that an old process sends to its replacement.
//!
//! Defines the format of a stream between two processes, possibly of different program versions, and does no I/O:
//! `crates/control/src/handover/` does. A stream starts with a [`HEAD`], followed by records in the format of
//! [postcard](https://postcard.jamesmunns.com/). Each record has a length prefix (32 bits, big-endian).
//!
//! A different head means an incompatible version. The receiver skips a record that it cannot read, since a newer
//! program may send new kinds; no record depends on another.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::health::Known;
use crate::session::{Session, SessionName};
use crate::ticket::{Epoch, SecretId, TicketHeader};

/// First bytes of a stream: the version of this layout and of rustls' encoding of sessions.
pub const HEAD: [u8; 8] = *b"becket\x03\x01";
const _: () = assert!(HEAD[7] == TicketHeader::VERSION);

/// Size of a record's length prefix in bytes.
pub const LENGTH: usize = 4;

/// Maximum record length in bytes. The longest record, a session, contains a certificate chain of
/// at most 64 KiB.
pub const LONGEST: usize = 256 * 1024;

/// A part of the state of the old process. New variants must be added at the end, because the
/// encoding contains the index of the variant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Record {
    Session {
        name: SessionName,
        session: Session,
        remaining: Duration,
    },
    /// Session that was removed after its record had been sent.
    Forgotten(SessionName),
    /// Ticket secrets of a host outside a cluster.
    Secrets(Secrets),
    Server(Server),
    /// Stick table entries of a backend.
    Sticks {
        backend: String,
        sticks: Vec<StickEntry>,
    },
    /// The old process has stopped accepting, and has sent all of its state.
    Cut,
    /// The old process has closed its sockets for cluster messages.
    Left,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Server {
    pub backend: String,
    pub name: String,
    pub known: Known,
    /// Number of consecutive failed connects.
    pub failures: u32,
    /// Unix time of the last change of the server's state, or 0 if it never changed.
    pub since: Duration,
    pub reason: String,
    /// Addresses from the last DNS lookup of the server's host name.
    pub addresses: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StickEntry {
    pub client: u64,
    pub server: u64,
    pub remaining: Duration,
}

/// Randomly generated ticket secrets and the time until the next rotation.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Secrets {
    pub id: SecretId,
    /// Number of rotations so far.
    pub rotations: u64,
    /// Time until the next rotation.
    pub due: Duration,
    /// Epochs and their secrets, at least one; the last one seals new tickets.
    pub epochs: Vec<(Epoch, Zeroizing<[u8; 32]>)>,
}

impl fmt::Debug for Secrets {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Secrets")
            .field("id", &self.id)
            .field("rotations", &self.rotations)
            .finish_non_exhaustive()
    }
}

/// Decodes a record's length prefix. Returns `None` if the length exceeds [`LONGEST`].
pub fn length(head: [u8; LENGTH]) -> Option<usize> {
    let length = usize::try_from(u32::from_be_bytes(head)).ok()?;
    (length <= LONGEST).then_some(length)
}

impl Record {
    /// Appends the length prefix and the record. Appends nothing if the record is longer than
    /// [`LONGEST`].
    pub fn write(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&[0; LENGTH]);
        let written = postcard::serialize_with_flavor(self, Append(out));
        let length = out.len() - start - LENGTH;
        if written.is_err() || length > LONGEST {
            out.truncate(start);
            return;
        }
        out[start..start + LENGTH].copy_from_slice(&(length as u32).to_be_bytes());
    }

    pub fn read(bytes: &[u8]) -> Option<Self> {
        let (record, rest) = postcard::take_from_bytes(bytes).ok()?;
        let is_whole = rest.is_empty()
            && match &record {
                Self::Secrets(secrets) => !secrets.epochs.is_empty(),
                _ => true,
            };
        is_whole.then_some(record)
    }
}

/// A postcard output that appends to the caller's vector, so that the caller can erase the secrets
/// in it.
struct Append<'a>(&'a mut Vec<u8>);

impl postcard::ser_flavors::Flavor for Append<'_> {
    type Output = ();

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.push(byte);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::health::Condition;
    use crate::session::PolicyTag;
    use crate::ticket::{Origin, OriginId, UnixSeconds};

    fn read(bytes: &[u8]) -> Option<Record> {
        let (head, record) = bytes.split_first_chunk()?;
        Record::read(record.get(..length(*head)?)?)
    }

    fn whole(seconds: u32) -> Duration {
        Duration::from_secs(seconds.into())
    }

    fn server() -> impl Strategy<Value = Record> {
        let text = || ".{0,20}".prop_map(String::from);
        let time = || proptest::option::of((0..u32::MAX).prop_map(whole));
        let conditions = [
            Condition::Unchecked,
            Condition::OnTrial,
            Condition::InService,
            Condition::OutOfService,
        ];
        let counts = any::<(u32, u32, u32)>();
        let known = (
            prop::sample::select(conditions.to_vec()),
            counts,
            time(),
            time(),
        );
        let texts = (
            text(),
            text(),
            text(),
            proptest::collection::vec(text(), 0..4),
        );
        let server = (known, any::<u32>(), texts);
        server.prop_map(|((condition, counts, paused, returned), since, texts)| {
            let (backend, name, reason, addresses) = texts;
            let (against, failures_before, failures) = counts;
            Record::Server(Server {
                backend,
                name,
                known: Known {
                    condition,
                    against,
                    paused,
                    failures_before,
                    returned,
                },
                failures,
                since: whole(since),
                reason,
                addresses,
            })
        })
    }

    fn record() -> impl Strategy<Value = Record> {
        let id = proptest::collection::vec(any::<u8>(), 1..=32);
        let name = (any::<u64>(), id)
            .prop_map(|(policy, id)| SessionName::new(PolicyTag(policy), &id).unwrap());
        let state = proptest::collection::vec(any::<u8>(), 0..200);
        let session = (name.clone(), any::<(u64, u64, u32)>(), state);
        let session = session.prop_map(|(name, (id, at, remaining), state)| {
            let (id, at) = (OriginId(id), UnixSeconds(at));
            Record::Session {
                name,
                session: Session::new(state, Origin { id, at }),
                remaining: Duration::from_secs(remaining.into()),
            }
        });
        let epochs = proptest::collection::vec(any::<(u32, [u8; 32])>(), 1..4);
        let secrets = (any::<(u32, u64, u32)>(), epochs);
        let secrets = secrets.prop_map(|((id, rotations, due), epochs)| {
            let epochs = epochs.into_iter();
            Record::Secrets(Secrets {
                id: SecretId(id),
                rotations,
                due: Duration::from_secs(due.into()),
                epochs: epochs
                    .map(|(epoch, secret)| (Epoch(epoch), Zeroizing::new(secret)))
                    .collect(),
            })
        });
        let stick = any::<(u64, u64, u32)>().prop_map(|(client, server, remaining)| StickEntry {
            client,
            server,
            remaining: whole(remaining),
        });
        let sticks = (".{0,20}", proptest::collection::vec(stick, 0..5));
        let sticks = sticks.prop_map(|(backend, sticks)| Record::Sticks { backend, sticks });
        prop_oneof![
            session,
            sticks,
            server(),
            name.prop_map(Record::Forgotten),
            secrets,
            Just(Record::Cut),
            Just(Record::Left),
        ]
    }

    proptest! {
        #[test]
        fn a_written_record_is_read_back_and_a_truncated_one_rejected(record in record()) {
            let mut bytes = Vec::new();
            record.write(&mut bytes);
            prop_assert_eq!(read(&bytes), Some(record));
            prop_assert_eq!(Record::read(&bytes[LENGTH..bytes.len() - 1]), None);
        }
    }

    #[test]
    fn an_oversized_record_is_neither_written_nor_read() {
        let too_long = u32::try_from(LONGEST + 1).unwrap().to_be_bytes();
        assert_eq!(length(too_long), None);
        let mut bytes = vec![7];
        let (backend, sticks) = ("é".repeat(LONGEST), Vec::new());
        Record::Sticks { backend, sticks }.write(&mut bytes);
        assert_eq!(bytes, [7]);
    }

    #[test]
    fn debug_output_shows_no_secret() {
        let secrets = Secrets {
            id: SecretId(1),
            rotations: 2,
            due: Duration::ZERO,
            epochs: vec![(Epoch(3), Zeroizing::new([77; 32]))],
        };
        assert!(!format!("{secrets:?}").contains("77"));
    }
}
