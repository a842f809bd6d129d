//! What a process that is about to be replaced tells its successor, and one thing that the successor says back.
//!
//! Owns the layout of a stream between two processes of this program, perhaps of different versions, perhaps with a fault. It
//! reads and writes no socket: `becket/succession` does. A stream begins with a [`HEAD`], then come frames:
//!
//! ```text
//! length u32 | checksum u32 | record
//! record = kind u8 | ...                      integers big-endian, texts with a length of two bytes in front
//! ```
//!
//! A stream with another head is one of another version, and a frame that does not parse or whose checksum differs (FNV-1a of
//! the record) ends it: what came before stays good, since each record stands for itself.

use std::fmt;
use std::time::Duration;

use zeroize::Zeroizing;

use crate::reader::Reader;
use crate::session_name::SessionName;
use crate::session_table::{PolicyTag, Session};
use crate::ticket::{Epoch, Origin, SecretId, TicketHeader};

/// How a stream begins: the version of this layout, and that of rustls' encoding of sessions.
pub const HEAD: [u8; 8] = *b"becket\x01\x01";
const _: () = assert!(HEAD[7] == TicketHeader::VERSION);

/// Bytes in front of a record.
pub const FRAME: usize = 8;

/// Bytes of the longest record: a session has a chain of 64 KiB at most.
pub const LONGEST: usize = 256 * 1024;

/// One thing that is told. Debug output leaves secrets out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// A session that clients may resume here from now on.
    Session {
        /// It admits early data, and opens once: it is no longer where it was.
        is_early: bool,
        /// Policy and ID.
        name: SessionName,
        /// State and origin.
        session: Session,
        /// How long it may live still, in whole seconds.
        remaining: Duration,
    },
    /// A session that was told and has ended.
    Forgotten(SessionName),
    /// The ticket secrets of a host that is alone.
    Secrets(Secrets),
    /// From now on the old process accepts nobody.
    Cut,
    /// The old process has left the addresses of the cluster.
    Left,
    /// Why the new process does not start; said by that one.
    Failed(String),
}

/// Ticket secrets drawn at random, and when they change.
#[derive(Clone, PartialEq, Eq)]
pub struct Secrets {
    /// Names them in tickets.
    pub id: SecretId,
    /// Epochs before the current one.
    pub rotations: u64,
    /// When the next epoch begins, from now.
    pub due: Duration,
    /// The last one seals.
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

/// Length and checksum of the record behind a frame's first bytes. Nothing for one that is too long.
pub fn frame(head: [u8; FRAME]) -> Option<(usize, u32)> {
    let mut reader = Reader::new(&head);
    let length = usize::try_from(reader.u32()?).ok()?;
    let sum = reader.u32()?;
    (length <= LONGEST).then_some((length, sum))
}

impl Record {
    /// Appends the frame of this record.
    pub fn write(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&[0; FRAME]);
        self.write_record(out);
        let record = start + FRAME;
        let length = (out.len() - record) as u32;
        let sum = checksum(&out[record..]);
        out[start..start + 4].copy_from_slice(&length.to_be_bytes());
        out[start + 4..record].copy_from_slice(&sum.to_be_bytes());
    }

    fn write_record(&self, out: &mut Vec<u8>) {
        match self {
            Self::Session {
                is_early,
                name,
                session,
                remaining,
            } => {
                out.extend_from_slice(&[SESSION, u8::from(*is_early)]);
                write_name(name, out);
                out.extend_from_slice(&session.origin.encode());
                out.extend_from_slice(&seconds(*remaining).to_be_bytes());
                out.extend_from_slice(&session.state);
            }
            Self::Forgotten(name) => {
                out.push(FORGOTTEN);
                write_name(name, out);
            }
            Self::Secrets(secrets) => {
                out.push(SECRETS);
                out.extend_from_slice(&secrets.id.0.to_be_bytes());
                out.extend_from_slice(&secrets.rotations.to_be_bytes());
                out.extend_from_slice(&seconds(secrets.due).to_be_bytes());
                for (epoch, secret) in &secrets.epochs {
                    out.extend_from_slice(&epoch.0.to_be_bytes());
                    out.extend_from_slice(&secret[..]);
                }
            }
            Self::Cut => out.push(CUT),
            Self::Left => out.push(LEFT),
            Self::Failed(reason) => {
                out.push(FAILED);
                let longest = reason.len().min(LONGEST - 1);
                let end = (0..=longest).rfind(|end| reason.is_char_boundary(*end));
                out.extend_from_slice(&reason.as_bytes()[..end.unwrap_or(0)]);
            }
        }
    }

    /// Reads a record; nothing where the bytes are none, or not those that the checksum is of.
    pub fn read(bytes: &[u8], sum: u32) -> Option<Self> {
        if checksum(bytes) != sum {
            return None;
        }
        let mut reader = Reader::new(bytes);
        let record = match reader.u8()? {
            SESSION => {
                let is_early = match reader.u8()? {
                    0 => false,
                    1 => true,
                    _ => return None,
                };
                let name = read_name(&mut reader)?;
                let (origin, _) = Origin::decode(reader.take(Origin::LEN)?)?;
                let remaining = Duration::from_secs(reader.u32()?.into());
                let state = reader.take(reader.rest().len())?.to_vec();
                Self::Session {
                    is_early,
                    name,
                    session: Session::new(state, origin),
                    remaining,
                }
            }
            FORGOTTEN => Self::Forgotten(read_name(&mut reader)?),
            SECRETS => Self::Secrets(read_secrets(&mut reader)?),
            CUT => Self::Cut,
            LEFT => Self::Left,
            FAILED => {
                let reason = reader.take(reader.rest().len())?;
                Self::Failed(String::from_utf8(reason.to_vec()).ok()?)
            }
            _ => return None,
        };
        reader.is_empty().then_some(record)
    }
}

fn write_name(name: &SessionName, out: &mut Vec<u8>) {
    out.extend_from_slice(&name.policy().0.to_be_bytes());
    // At most 32.
    out.push(name.id().len() as u8);
    out.extend_from_slice(name.id());
}

fn read_name(reader: &mut Reader<'_>) -> Option<SessionName> {
    let policy = PolicyTag(u64::from_be_bytes(reader.array()?));
    SessionName::new(policy, reader.vec8()?.rest())
}

fn read_secrets(reader: &mut Reader<'_>) -> Option<Secrets> {
    let mut secrets = Secrets {
        id: SecretId(reader.u32()?),
        rotations: u64::from_be_bytes(reader.array()?),
        due: Duration::from_secs(reader.u32()?.into()),
        epochs: Vec::new(),
    };
    while !reader.is_empty() {
        let epoch = Epoch(reader.u32()?);
        secrets
            .epochs
            .push((epoch, Zeroizing::new(reader.array()?)));
    }
    (!secrets.epochs.is_empty()).then_some(secrets)
}

fn seconds(time: Duration) -> u32 {
    u32::try_from(time.as_secs()).unwrap_or(u32::MAX)
}

fn checksum(bytes: &[u8]) -> u32 {
    let step = |sum: u32, byte: &u8| (sum ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    bytes.iter().fold(0x811c_9dc5, step)
}

const SESSION: u8 = 1;
const FORGOTTEN: u8 = 2;
const SECRETS: u8 = 3;
const CUT: u8 = 4;
const LEFT: u8 = 5;
const FAILED: u8 = 6;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ticket::{OriginId, UnixSeconds};

    fn read(bytes: &[u8]) -> Option<Record> {
        let (head, record) = bytes.split_first_chunk()?;
        let (length, sum) = frame(*head)?;
        Record::read(record.get(..length)?, sum)
    }

    fn record() -> impl Strategy<Value = Record> {
        let id = proptest::collection::vec(any::<u8>(), 1..=32);
        let name = (any::<u64>(), id)
            .prop_map(|(policy, id)| SessionName::new(PolicyTag(policy), &id).unwrap());
        let state = proptest::collection::vec(any::<u8>(), 0..200);
        let session = (any::<bool>(), name.clone(), any::<(u64, u64, u32)>(), state);
        let session = session.prop_map(|(is_early, name, (id, at, remaining), state)| {
            let (id, at) = (OriginId(id), UnixSeconds(at));
            Record::Session {
                is_early,
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
        prop_oneof![
            session,
            name.prop_map(Record::Forgotten),
            secrets,
            Just(Record::Cut),
            Just(Record::Left),
            ".{0,40}".prop_map(Record::Failed),
        ]
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_and_every_changed_byte_is_noticed(
            record in record(), at in any::<prop::sample::Index>(), bits in 1_u8..
        ) {
            let mut bytes = Vec::new();
            record.write(&mut bytes);
            prop_assert_eq!(read(&bytes), Some(record));
            let at = at.index(bytes.len());
            bytes[at] ^= bits;
            prop_assert_eq!(read(&bytes), None);
        }
    }

    #[test]
    fn a_record_that_is_too_long_is_none() {
        let length = u32::try_from(LONGEST + 1).unwrap().to_be_bytes();
        let head = [length, [0; 4]].concat();
        assert_eq!(frame(head.try_into().unwrap()), None);
        let mut bytes = Vec::new();
        Record::Failed("é".repeat(LONGEST)).write(&mut bytes);
        assert!(read(&bytes).is_some());
    }

    #[test]
    fn secrets_are_not_shown() {
        let secrets = Secrets {
            id: SecretId(1),
            rotations: 2,
            due: Duration::ZERO,
            epochs: vec![(Epoch(3), Zeroizing::new([77; 32]))],
        };
        assert!(!format!("{secrets:?}").contains("77"));
    }
}
