//! Records that a replaced process sends to its replacement.
//!
//! Owns the layout of a stream between two processes of this program, perhaps of different versions, perhaps with a fault. It
//! reads and writes no socket: `crates/control/src/handover/` does. A stream begins with a [`HEAD`], then frames follow:
//!
//! ```text
//! length u32 | checksum u32 | record
//! record = kind u8 | ...                      integers big-endian, texts with a length of two bytes in front
//! ```
//!
//! Another head is that of another version. A record of an unknown kind is skipped, since a newer program may send more. A frame that does
//! not parse or whose checksum differs (FNV-1a of the record) ends the stream. The records before it stay good: each stands for itself.

use std::fmt;
use std::time::Duration;

use zeroize::Zeroizing;

use crate::health::{Condition, Known};
use crate::reader::Reader;
use crate::session_name::SessionName;
use crate::session_table::{PolicyTag, Session};
use crate::ticket::{Epoch, Origin, SecretId, TicketHeader};

/// First bytes of a stream: the version of this layout and of rustls' encoding of sessions.
pub const HEAD: [u8; 8] = *b"becket\x02\x01";
const _: () = assert!(HEAD[7] == TicketHeader::VERSION);

/// Bytes in front of a record.
pub const FRAME: usize = 8;

/// Bytes of the longest record: a session has a chain of 64 KiB at most.
pub const LONGEST: usize = 256 * 1024;

/// One piece of state. Debug output leaves secrets out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// A session that clients may resume.
    Session {
        /// Policy and ID.
        name: SessionName,
        /// State and origin.
        session: Session,
        /// Remaining lifetime in whole seconds.
        remaining: Duration,
    },
    /// A session that was sent and has ended.
    Forgotten(SessionName),
    /// The ticket secrets of a host that is alone.
    Secrets(Secrets),
    /// The state of a server.
    Server(Server),
    /// Clients of a backend that stick.
    Sticks {
        /// Its name.
        backend: String,
        /// The clients.
        sticks: Vec<StickEntry>,
    },
    /// The old process does not accept any more, and has sent what there was.
    Cut,
    /// The old process has left the addresses of the cluster.
    Left,
}

/// The state of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// The name of its backend.
    pub backend: String,
    /// Its own.
    pub name: String,
    /// Health; times in whole seconds.
    pub known: Known,
    /// Connects that have failed in a row.
    pub failures: u32,
    /// Time of the last change, in whole seconds since 1970; 0 if there was none.
    pub since: Duration,
    /// Reason.
    pub reason: String,
    /// Addresses of its name at the last lookup.
    pub addresses: Vec<String>,
}

/// A client that sticks to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StickEntry {
    /// The number that stands for it.
    pub client: u64,
    /// The number of the server.
    pub server: u64,
    /// Remaining lifetime in whole seconds.
    pub remaining: Duration,
}

/// A fault in a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// Unknown kind.
    Unknown(u8),
    /// Malformed, or with a wrong checksum.
    Damaged,
}

/// Ticket secrets drawn at random, and when they change.
#[derive(Clone, PartialEq, Eq)]
pub struct Secrets {
    /// Names them in tickets.
    pub id: SecretId,
    /// Epochs before the current one.
    pub rotations: u64,
    /// Time until the next epoch.
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
                name,
                session,
                remaining,
            } => {
                out.push(SESSION);
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
            Self::Server(server) => {
                out.push(SERVER);
                server.write(out);
            }
            Self::Sticks { backend, sticks } => {
                out.push(STICKS);
                write_text(backend, out);
                for stick in sticks {
                    out.extend_from_slice(&stick.client.to_be_bytes());
                    out.extend_from_slice(&stick.server.to_be_bytes());
                    out.extend_from_slice(&seconds(stick.remaining).to_be_bytes());
                }
            }
            Self::Cut => out.push(CUT),
            Self::Left => out.push(LEFT),
        }
    }

    /// Reads a record.
    ///
    /// # Errors
    /// Fails if the bytes are not a known record.
    pub fn read(bytes: &[u8], sum: u32) -> Result<Self, Unreadable> {
        match bytes.first() {
            Some(kind) if checksum(bytes) == sum && *kind > LAST => Err(Unreadable::Unknown(*kind)),
            Some(_) if checksum(bytes) == sum => Self::parse(bytes).ok_or(Unreadable::Damaged),
            _ => Err(Unreadable::Damaged),
        }
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        let record = match reader.u8()? {
            SESSION => {
                let name = read_name(&mut reader)?;
                let (origin, _) = Origin::decode(reader.take(Origin::LEN)?)?;
                let remaining = Duration::from_secs(reader.u32()?.into());
                let state = reader.take(reader.rest().len())?.to_vec();
                Self::Session {
                    name,
                    session: Session::new(state, origin),
                    remaining,
                }
            }
            FORGOTTEN => Self::Forgotten(read_name(&mut reader)?),
            SECRETS => Self::Secrets(read_secrets(&mut reader)?),
            SERVER => Self::Server(Server::read(&mut reader)?),
            STICKS => Self::Sticks {
                backend: read_text(&mut reader)?,
                sticks: read_sticks(&mut reader)?,
            },
            CUT => Self::Cut,
            LEFT => Self::Left,
            _ => return None,
        };
        reader.is_empty().then_some(record)
    }
}

impl Server {
    fn write(&self, out: &mut Vec<u8>) {
        write_text(&self.backend, out);
        write_text(&self.name, out);
        let known = &self.known;
        out.push(match known.condition {
            Condition::Unchecked => 0,
            Condition::OnTrial => 1,
            Condition::InService => 2,
            Condition::OutOfService => 3,
        });
        for count in [known.against, known.failures_before, self.failures] {
            out.extend_from_slice(&count.to_be_bytes());
        }
        for time in [known.paused, known.returned] {
            out.extend_from_slice(&time.map_or(NEVER, seconds).to_be_bytes());
        }
        out.extend_from_slice(&self.since.as_secs().to_be_bytes());
        write_text(&self.reason, out);
        for address in self.addresses.iter().take(MOST_ADDRESSES) {
            write_text(address, out);
        }
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let (backend, name) = (read_text(reader)?, read_text(reader)?);
        let condition = match reader.u8()? {
            0 => Condition::Unchecked,
            1 => Condition::OnTrial,
            2 => Condition::InService,
            3 => Condition::OutOfService,
            _ => return None,
        };
        let (against, failures_before, failures) = (reader.u32()?, reader.u32()?, reader.u32()?);
        let known = Known {
            condition,
            against,
            paused: read_time(reader)?,
            failures_before,
            returned: read_time(reader)?,
        };
        let mut server = Self {
            backend,
            name,
            known,
            failures,
            since: Duration::from_secs(u64::from_be_bytes(reader.array()?)),
            reason: read_text(reader)?,
            addresses: Vec::new(),
        };
        while !reader.is_empty() && server.addresses.len() < MOST_ADDRESSES {
            server.addresses.push(read_text(reader)?);
        }
        Some(server)
    }
}

/// A text, cut off where it is too long.
fn write_text(text: &str, out: &mut Vec<u8>) {
    let end = end_of(text, MOST_TEXT);
    // At most `MOST_TEXT`.
    out.extend_from_slice(&(end as u16).to_be_bytes());
    out.extend_from_slice(&text.as_bytes()[..end]);
}

/// Returns the end of a text that is cut to `most` bytes at most.
fn end_of(text: &str, most: usize) -> usize {
    let whole = (0..=text.len().min(most)).rfind(|end| text.is_char_boundary(*end));
    // The start is always a boundary.
    whole.unwrap_or(0)
}

fn read_text(reader: &mut Reader<'_>) -> Option<String> {
    let length = reader.u16()?.into();
    let text = reader.take(length)?;
    if length > MOST_TEXT {
        return None;
    }
    String::from_utf8(text.to_vec()).ok()
}

fn read_time(reader: &mut Reader<'_>) -> Option<Option<Duration>> {
    let seconds = reader.u32()?;
    Some((seconds != NEVER).then(|| Duration::from_secs(seconds.into())))
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

fn read_sticks(reader: &mut Reader<'_>) -> Option<Vec<StickEntry>> {
    let mut sticks = Vec::new();
    while !reader.is_empty() {
        sticks.push(StickEntry {
            client: u64::from_be_bytes(reader.array()?),
            server: u64::from_be_bytes(reader.array()?),
            remaining: Duration::from_secs(reader.u32()?.into()),
        });
    }
    Some(sticks)
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
const SERVER: u8 = 6;
const STICKS: u8 = 7;
/// Higher kinds are a newer program's.
const LAST: u8 = STICKS;

/// Bytes of a name, a reason or an address.
const MOST_TEXT: usize = 1024;
/// Addresses of a server: more than are used.
const MOST_ADDRESSES: usize = 128;
/// A time that is not there.
const NEVER: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ticket::{OriginId, UnixSeconds};

    fn read(bytes: &[u8]) -> Option<Record> {
        let (head, record) = bytes.split_first_chunk()?;
        let (length, sum) = frame(*head)?;
        Record::read(record.get(..length)?, sum).ok()
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
        let backend = "é".repeat(LONGEST);
        Record::Sticks {
            backend,
            sticks: Vec::new(),
        }
        .write(&mut bytes);
        assert!(read(&bytes).is_some());
    }

    #[test]
    fn a_record_of_a_newer_program_is_known_to_be_unknown() {
        let newer = [LAST + 1, 1, 2, 3];
        let read = |bytes: &[u8]| Record::read(bytes, checksum(bytes));
        assert_eq!(read(&newer), Err(Unreadable::Unknown(LAST + 1)));
        assert_eq!(Record::read(&newer, 0), Err(Unreadable::Damaged));
        assert_eq!(read(&[CUT, 0]), Err(Unreadable::Damaged));
        assert_eq!(read(&[]), Err(Unreadable::Damaged));
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
