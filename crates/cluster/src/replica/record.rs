//! Messages between nodes: the records inside a datagram, and their encoding.
//!
//! Layout, integers big-endian: `kind u8 | len u16 | body`, one record after the other. A record of an unknown
//! kind is skipped by its length, so that a newer node can send more kinds.
//!
//! ```text
//! NEW 1, SYNC 4   policy u64 | ttl u32 | age u32 | origin u64 | id len u8 | id | state
//! DEL 2           policy u64 | id len u8 | id
//! STICK 3, STUCK 9  server u64 | ttl u32 | origin u64
//! ECHO 5          nonce 16
//! ALIVE 6         sessions held u32
//! ASK 7           youngest seconds u32
//! END 8, BYE 10   empty
//! 11 to 15        ACME records ([`super::acme_record`])
//! ```
//!
//! Times are sent as durations in whole seconds, rounded so that no session lives longer by being
//! sent: no clocks are compared. A body of a fixed layout may be longer than this version knows:
//! further bytes are for newer nodes.

use std::fmt;
use std::io::{self, Write};
use std::time::Duration;

use super::acme_record::{self, AcmeRecord};
use super::datagram::{HEADER_LEN, MAX_DATAGRAM};
use super::status::DropCause;
use super::vault::{NONCE_LEN, TAG_LEN};
use becket_proto::reader::Reader;
use becket_proto::session::PolicyTag;
use becket_proto::ticket::OriginId;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerRecord<'a> {
    New(SessionRecord<'a>),
    /// A session ended with a fatal alert (RFC 5246 section 7.2.2) and must not be resumed.
    Del {
        policy: PolicyTag,
        id: &'a [u8],
    },
    Stick(PeerStick),
    /// Session in a dump for a joining node. Never replaces a session in the receiver's table.
    Sync(SessionRecord<'a>),
    /// Assignment of a client to a server, in a dump for a joining node.
    Stuck(PeerStick),
    Acme(AcmeRecord<'a>),
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SessionRecord<'a> {
    pub policy: PolicyTag,
    /// Session ID, 1 to 32 bytes.
    pub id: &'a [u8],
    pub ttl: Duration,
    /// Time since the session's full handshake.
    pub age: Duration,
    /// Identifies the full handshake that created the session or the session that it resumed.
    pub origin: OriginId,
    /// Session as encoded by rustls. Contains a master secret, so debug output omits it.
    pub state: &'a [u8],
}

/// Assignment of a client to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerStick {
    /// Origin of the client's sessions, which identifies the client.
    pub origin: OriginId,
    pub server: ServerTag,
    /// Remaining time for which the assignment is valid.
    pub life: Duration,
}

/// Hash of the backend's name and the server's name, identical on all nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServerTag(pub u64);

/// Content of a datagram: a record, or a message that maintains the pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Frame<'a> {
    Record(PeerRecord<'a>),
    /// Echoes the nonce of the peer's WELCOME, to prove that this node received it.
    Echo([u8; NONCE_LEN]),
    /// Keep-alive, with the number of sessions in the sender's table.
    Alive {
        held: u32,
    },
    /// Requests all sessions whose full handshake is at most `youngest` seconds old.
    Ask {
        youngest: u32,
    },
    /// The dump is complete.
    End,
    /// The sender exits or leaves the cluster.
    Bye,
}

impl<'a> PeerRecord<'a> {
    /// Writes the record to the start of `out` and returns its length. Returns `None` if it does not fit into
    /// `out` or into a datagram, or if its ID is empty or longer than 32 bytes.
    pub fn encode(&self, out: &mut [u8]) -> Option<usize> {
        Frame::Record(*self).encode(out)
    }

    /// Decodes the record at the start of `text`. Returns the record and its encoded length, or `None` if it is
    /// truncated, malformed, or a message that maintains a pair.
    pub fn decode(text: &'a [u8]) -> Option<(Self, usize)> {
        let mut reader = Reader::new(text);
        match Frame::next(&mut reader)? {
            Ok(Frame::Record(record)) => Some((record, text.len() - reader.rest().len())),
            _ => None,
        }
    }
}

impl<'a> Frame<'a> {
    pub(super) fn encode(&self, out: &mut [u8]) -> Option<usize> {
        let room = out.len().min(MAX_RECORD);
        let (head, mut body) = out.get_mut(..room)?.split_first_chunk_mut::<3>()?;
        let room = body.len();
        let kind = self.write(&mut body).ok()?;
        let len = room - body.len();
        let [high, low] = u16::try_from(len).ok()?.to_be_bytes();
        *head = [kind, high, low];
        Some(head.len() + len)
    }

    /// Writes the body, and returns the kind.
    fn write(&self, out: &mut impl Write) -> io::Result<u8> {
        match self {
            Self::Record(PeerRecord::New(session)) => write_session(session, out).map(|()| NEW),
            Self::Record(PeerRecord::Sync(session)) => write_session(session, out).map(|()| SYNC),
            Self::Record(PeerRecord::Del { policy, id }) => {
                out.write_all(&policy.0.to_be_bytes())?;
                write_id(id, out).map(|()| DEL)
            }
            Self::Record(PeerRecord::Stick(stick)) => write_stick(stick, out).map(|()| STICK),
            Self::Record(PeerRecord::Stuck(stick)) => write_stick(stick, out).map(|()| STUCK),
            Self::Record(PeerRecord::Acme(record)) => record.write(out),
            Self::Echo(nonce) => out.write_all(nonce).map(|()| ECHO),
            Self::Alive { held } => out.write_all(&held.to_be_bytes()).map(|()| ALIVE),
            Self::Ask { youngest } => out.write_all(&youngest.to_be_bytes()).map(|()| ASK),
            Self::End => Ok(END),
            Self::Bye => Ok(BYE),
        }
    }

    /// Reads one record. Returns `None` if the record is truncated, and the cause to drop it if its
    /// kind is unknown or its body is invalid.
    pub(super) fn next(reader: &mut Reader<'a>) -> Option<Result<Self, DropCause>> {
        let kind = reader.u8()?;
        let mut body = reader.vec16()?;
        let frame = match kind {
            NEW => session(&mut body).map(|session| Self::Record(PeerRecord::New(session))),
            SYNC => session(&mut body).map(|session| Self::Record(PeerRecord::Sync(session))),
            DEL => name(&mut body).map(|(policy, id)| Self::Record(PeerRecord::Del { policy, id })),
            STICK => stick(&mut body).map(|stick| Self::Record(PeerRecord::Stick(stick))),
            STUCK => stick(&mut body).map(|stick| Self::Record(PeerRecord::Stuck(stick))),
            ECHO => body.array().map(Self::Echo),
            ALIVE => body.u32().map(|held| Self::Alive { held }),
            ASK => body.u32().map(|youngest| Self::Ask { youngest }),
            END => Some(Self::End),
            BYE => Some(Self::Bye),
            acme_record::CHALLENGE..=acme_record::CHUNK => {
                let record = AcmeRecord::read(kind, &mut body);
                record.map(|record| Self::Record(PeerRecord::Acme(record)))
            }
            _ => return Some(Err(DropCause::UnknownKind)),
        };
        Some(frame.ok_or(DropCause::Malformed))
    }
}

impl fmt::Debug for SessionRecord<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("SessionRecord")
            .field("policy", &self.policy)
            .field("ttl", &self.ttl)
            .field("age", &self.age)
            .field("origin", &self.origin)
            .field("state_len", &self.state.len())
            .finish_non_exhaustive()
    }
}

fn session<'a>(body: &mut Reader<'a>) -> Option<SessionRecord<'a>> {
    let policy = PolicyTag(number(body)?);
    let ttl = seconds(body)?;
    let age = seconds(body)?;
    let origin = OriginId(number(body)?);
    Some(SessionRecord {
        policy,
        id: id(body)?,
        ttl,
        age,
        origin,
        state: body.rest(),
    })
}

fn stick(body: &mut Reader<'_>) -> Option<PeerStick> {
    Some(PeerStick {
        server: ServerTag(number(body)?),
        life: seconds(body)?,
        origin: OriginId(number(body)?),
    })
}

fn name<'a>(body: &mut Reader<'a>) -> Option<(PolicyTag, &'a [u8])> {
    Some((PolicyTag(number(body)?), id(body)?))
}

fn id<'a>(body: &mut Reader<'a>) -> Option<&'a [u8]> {
    let id = body.vec8()?.rest();
    is_id(id).then_some(id)
}

fn is_id(id: &[u8]) -> bool {
    (1..=32).contains(&id.len())
}

fn number(body: &mut Reader<'_>) -> Option<u64> {
    body.array().map(u64::from_be_bytes)
}

fn seconds(body: &mut Reader<'_>) -> Option<Duration> {
    Some(Duration::from_secs(body.u32()?.into()))
}

fn write_session(session: &SessionRecord<'_>, out: &mut impl Write) -> io::Result<()> {
    out.write_all(&session.policy.0.to_be_bytes())?;
    out.write_all(&floor(session.ttl).to_be_bytes())?;
    out.write_all(&ceiling(session.age).to_be_bytes())?;
    out.write_all(&session.origin.0.to_be_bytes())?;
    write_id(session.id, out)?;
    out.write_all(session.state)
}

fn write_stick(stick: &PeerStick, out: &mut impl Write) -> io::Result<()> {
    out.write_all(&stick.server.0.to_be_bytes())?;
    out.write_all(&floor(stick.life).to_be_bytes())?;
    out.write_all(&stick.origin.0.to_be_bytes())
}

fn write_id(id: &[u8], out: &mut impl Write) -> io::Result<()> {
    if !is_id(id) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    out.write_all(&[id.len() as u8])?;
    out.write_all(id)
}

fn floor(time: Duration) -> u32 {
    u32::try_from(time.as_secs()).unwrap_or(u32::MAX)
}

fn ceiling(time: Duration) -> u32 {
    floor(time).saturating_add(u32::from(time.subsec_nanos() > 0))
}

/// Maximum plaintext of a datagram in bytes, without header and tag.
pub(super) const MAX_TEXT: usize = MAX_DATAGRAM - HEADER_LEN - TAG_LEN;

/// Maximum length of a record in bytes. A record of this length and an echo fit into one datagram.
pub(super) const MAX_RECORD: usize = MAX_TEXT - (3 + NONCE_LEN);

const NEW: u8 = 1;
const DEL: u8 = 2;
const STICK: u8 = 3;
const SYNC: u8 = 4;
const ECHO: u8 = 5;
const ALIVE: u8 = 6;
const ASK: u8 = 7;
const END: u8 = 8;
const STUCK: u8 = 9;
const BYE: u8 = 10;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn small() -> SessionRecord<'static> {
        SessionRecord {
            policy: PolicyTag(0x0102_0304_0506_0708),
            id: &[0xaa, 0xbb],
            ttl: Duration::from_millis(300_999),
            age: Duration::from_millis(1_001),
            origin: OriginId(0x1112_1314_1516_1718),
            state: b"state",
        }
    }

    #[test]
    fn a_session_has_the_documented_wire_format() {
        let mut out = [0; 64];
        let len = PeerRecord::New(small()).encode(&mut out).unwrap();
        let mut expected = vec![1, 0, 32, 1, 2, 3, 4, 5, 6, 7, 8];
        expected.extend([0, 0, 1, 0x2c, 0, 0, 0, 2]);
        expected.extend([
            0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 2, 0xaa, 0xbb,
        ]);
        expected.extend(b"state");
        assert_eq!(&out[..len], expected);
    }

    #[test]
    fn the_largest_state_is_encoded_and_one_byte_more_is_rejected() {
        let state = [7; 1400];
        let with = |len: usize| SessionRecord {
            id: &[1; 32],
            state: &state[..len],
            ..small()
        };
        let largest = MAX_RECORD - 3 - (8 + 4 + 4 + 8 + 1 + 32);
        let mut out = [0; 1500];
        assert_eq!(
            PeerRecord::New(with(largest)).encode(&mut out),
            Some(MAX_RECORD)
        );
        assert_eq!(PeerRecord::New(with(largest + 1)).encode(&mut out), None);
    }

    #[test]
    fn invalid_session_ids_are_neither_encoded_nor_parsed() {
        let mut out = [0; 128];
        for id in [&[][..], &[1; 33]] {
            let record = PeerRecord::Del {
                policy: PolicyTag(1),
                id,
            };
            assert_eq!(record.encode(&mut out), None);
        }
        let text = [2, 0, 9, 0, 0, 0, 0, 0, 0, 0, 1, 0];
        assert_eq!(
            Frame::next(&mut Reader::new(&text)),
            Some(Err(DropCause::Malformed))
        );
    }

    #[test]
    fn an_unknown_kind_is_skipped_by_its_length() {
        let text = [200, 0, 2, 9, 9, 6, 0, 4, 0, 0, 0, 5];
        let mut reader = Reader::new(&text);
        assert_eq!(Frame::next(&mut reader), Some(Err(DropCause::UnknownKind)));
        assert_eq!(Frame::next(&mut reader), Some(Ok(Frame::Alive { held: 5 })));
        assert!(reader.is_empty());
    }

    #[test]
    fn unknown_trailing_bytes_of_a_body_are_ignored() {
        let text = [6, 0, 6, 0, 0, 0, 5, 9, 9];
        let parsed = Frame::next(&mut Reader::new(&text));
        assert_eq!(parsed, Some(Ok(Frame::Alive { held: 5 })));
    }

    #[test]
    fn a_goodbye_has_no_body_and_tolerates_one() {
        let mut out = [0; 8];
        assert_eq!(Frame::Bye.encode(&mut out), Some(3));
        assert_eq!(out[..3], [10, 0, 0]);
        for text in [&[10, 0, 0][..], &[10, 0, 1, 7]] {
            let parsed = Frame::next(&mut Reader::new(text));
            assert_eq!(parsed, Some(Ok(Frame::Bye)));
        }
    }

    #[test]
    fn debug_output_shows_no_state() {
        assert!(!format!("{:?}", PeerRecord::New(small())).contains("115"));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn records_survive_the_round_trip(
            which in 0..5, policy: u64, id in proptest::collection::vec(any::<u8>(), 1..=32), ttl: u32, age: u32,
            origin: u64, state in proptest::collection::vec(any::<u8>(), 0..200), more: Vec<u8>,
        ) {
            let (policy, origin) = (PolicyTag(policy), OriginId(origin));
            let (ttl, age) = (Duration::from_secs(ttl.into()), Duration::from_secs(age.into()));
            let session = SessionRecord { policy, id: &id, ttl, age, origin, state: &state };
            let stick = PeerStick { origin, server: ServerTag(policy.0 ^ 1), life: ttl };
            let record = match which {
                0 => PeerRecord::New(session),
                1 => PeerRecord::Sync(session),
                2 => PeerRecord::Del { policy, id: &id },
                3 => PeerRecord::Stick(stick),
                _ => PeerRecord::Stuck(stick),
            };
            let mut text = vec![0; 400];
            let len = record.encode(&mut text).unwrap();
            text.truncate(len);
            prop_assert!((0..len).all(|cut| PeerRecord::decode(&text[..cut]).is_none()));
            text.extend(more);
            prop_assert_eq!(PeerRecord::decode(&text), Some((record, len)));
        }

        #[test]
        fn parsed_records_can_be_encoded(text in proptest::collection::vec(any::<u8>(), 0..100), kind in 1_u8..16) {
            let mut text = text;
            text.splice(..0, [kind, 0, text.len() as u8]);
            if let Some((record, _)) = PeerRecord::decode(&text) {
                let mut out = [0; 200];
                let len = record.encode(&mut out).unwrap();
                prop_assert_eq!(PeerRecord::decode(&out[..len]), Some((record, len)));
            }
        }
    }
}
