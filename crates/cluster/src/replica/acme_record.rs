//! Records with which nodes share pending ACME challenges and ordered certificates.
//!
//! Layout of the bodies, integers big-endian; `certificate` and `version` are u64:
//!
//! ```text
//! CHALLENGE 11  ttl u32 | challenge (postcard)
//! ANSWERED 12   challenge u64
//! HOLDS 13      certificate | ordered u64 | length u32 | digest 32
//! WANT 14       certificate | version | chunk u16
//! CHUNK 15      certificate | version | chunk u16 | bytes
//! ```

use std::fmt;
use std::io::{self, Write};
use std::time::Duration;

use becket_proto::acme::BundleFacts;
use becket_proto::reader::Reader;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcmeRecord<'a> {
    /// A pending challenge ([`becket_proto::acme::Challenge`]), which the receiver answers for this
    /// time.
    Challenge {
        life: Duration,
        challenge: &'a [u8],
    },
    /// The sender answers the challenge with this id.
    Answered(ChallengeId),
    /// The sender can order this certificate. A length of 0 means that it has none yet.
    Holds(CertificateTag, BundleFacts),
    /// Send this chunk of a bundle.
    Want(ChunkName),
    Chunk(ChunkName, ChunkBytes<'a>),
}

/// Hash of an encoded challenge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChallengeId(pub u64);

/// Hash of the names and the file of a certificate, identical on all nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CertificateTag(pub u64);

/// A part of a bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkName {
    pub certificate: CertificateTag,
    /// First bytes of the bundle's digest.
    pub version: u64,
    pub chunk: u16,
}

/// Part of a private key or of a chain, so debug output omits it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ChunkBytes<'a>(pub &'a [u8]);

impl fmt::Debug for ChunkBytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

impl<'a> AcmeRecord<'a> {
    /// Writes the body, and returns the kind.
    pub(super) fn write(&self, out: &mut impl Write) -> io::Result<u8> {
        match self {
            Self::Challenge { life, challenge } => {
                let seconds = u32::try_from(life.as_secs()).unwrap_or(u32::MAX);
                out.write_all(&seconds.to_be_bytes())?;
                out.write_all(challenge).map(|()| CHALLENGE)
            }
            Self::Answered(id) => out.write_all(&id.0.to_be_bytes()).map(|()| ANSWERED),
            Self::Holds(certificate, facts) => {
                out.write_all(&certificate.0.to_be_bytes())?;
                out.write_all(&facts.ordered.to_be_bytes())?;
                out.write_all(&facts.length.to_be_bytes())?;
                out.write_all(&facts.digest).map(|()| HOLDS)
            }
            Self::Want(name) => name.write(out).map(|()| WANT),
            Self::Chunk(name, bytes) => {
                name.write(out)?;
                out.write_all(bytes.0).map(|()| CHUNK)
            }
        }
    }

    /// Reads a body. Returns `None` if it is malformed or of another kind.
    pub(super) fn read(kind: u8, body: &mut Reader<'a>) -> Option<Self> {
        Some(match kind {
            CHALLENGE => Self::Challenge {
                life: Duration::from_secs(body.u32()?.into()),
                challenge: body.rest(),
            },
            ANSWERED => Self::Answered(ChallengeId(number(body)?)),
            HOLDS => Self::Holds(
                CertificateTag(number(body)?),
                BundleFacts {
                    ordered: number(body)?,
                    length: body.u32()?,
                    digest: body.array()?,
                },
            ),
            WANT => Self::Want(ChunkName::read(body)?),
            CHUNK => Self::Chunk(ChunkName::read(body)?, ChunkBytes(body.rest())),
            _ => return None,
        })
    }
}

impl ChunkName {
    fn write(self, out: &mut impl Write) -> io::Result<()> {
        out.write_all(&self.certificate.0.to_be_bytes())?;
        out.write_all(&self.version.to_be_bytes())?;
        out.write_all(&self.chunk.to_be_bytes())
    }

    fn read(body: &mut Reader<'_>) -> Option<Self> {
        Some(Self {
            certificate: CertificateTag(number(body)?),
            version: number(body)?,
            chunk: body.u16()?,
        })
    }
}

fn number(body: &mut Reader<'_>) -> Option<u64> {
    body.array().map(u64::from_be_bytes)
}

pub(super) const CHALLENGE: u8 = 11;
const ANSWERED: u8 = 12;
const HOLDS: u8 = 13;
const WANT: u8 = 14;
pub(super) const CHUNK: u8 = 15;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_survive_the_round_trip_and_show_no_key() {
        let name = ChunkName {
            certificate: CertificateTag(0x0102_0304_0506_0708),
            version: 9,
            chunk: 0x0a0b,
        };
        let facts = BundleFacts {
            ordered: 1_800_000_000,
            digest: [3; 32],
            length: 4000,
        };
        let chunk = AcmeRecord::Chunk(name, ChunkBytes(b"secret"));
        for record in [
            AcmeRecord::Challenge {
                life: Duration::from_secs(30),
                challenge: b"challenge",
            },
            AcmeRecord::Answered(ChallengeId(7)),
            AcmeRecord::Holds(name.certificate, facts),
            AcmeRecord::Want(name),
            chunk,
        ] {
            let mut body = Vec::new();
            let kind = record.write(&mut body).unwrap();
            assert_eq!(
                AcmeRecord::read(kind, &mut Reader::new(&body)),
                Some(record)
            );
        }
        assert!(format!("{chunk:?}").ends_with("6 bytes)"));
        let mut body = Vec::new();
        let kind = AcmeRecord::Want(name).write(&mut body).unwrap();
        let expected = [1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0, 9, 10, 11];
        assert_eq!((kind, &body[..]), (14, &expected[..]));
        for cut in 0..body.len() {
            assert_eq!(AcmeRecord::read(kind, &mut Reader::new(&body[..cut])), None);
        }
    }
}
