//! What the terminator and the process that speaks with a token say to each other, and the terminator and the process that starts those.
//!
//! One message is one packet of a `SOCK_SEQPACKET` socket, so none needs a length. Each begins with the [`VERSION`], what it is, and
//! a number: the asker's for a [`Request`], and the same for the [`Answer`]. Numbers are big-endian; what is left of the packet is
//! the last field. Either side may be in another's hands: what is too long, too short or unknown is no message.

use crate::reader::Reader;

/// Bytes of the longest message.
pub const LONGEST: usize = 2048;
/// Of this form; both sides are one program, so another one is a fault.
const VERSION: u8 = 1;

/// What the terminator wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// Load a module, look for a token, and log in if there is a PIN: its file comes with this message. The first request, and there
    /// only.
    Open {
        /// How many signatures may be made at a time.
        sessions: u16,
        /// Whether the process first gives up what a module does not need.
        is_confined: bool,
        /// A URI of a key on it.
        uri: &'a str,
    },
    /// Look for a private key, to be called by a number from now on.
    Find {
        /// The number.
        key: u32,
        /// Its URI.
        uri: &'a str,
    },
    /// Sign.
    Sign {
        /// With this key.
        key: u32,
        /// As this `SignatureScheme` of TLS does it.
        scheme: u16,
        /// The digest of the message; the message itself where the scheme has no digest of its own.
        input: &'a [u8],
    },
    /// Start the process that speaks with a token. Its socket comes with this message, whose number is its from now on. Asked of the
    /// process that starts them; what follows, too.
    Start {
        /// What it will be told to load.
        module: &'a str,
    },
    /// End the process with this number. There is no answer.
    End,
    /// From now on start processes for modules only for which one was started before. There is no answer.
    Seal,
}

/// What came of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer<'a> {
    /// The token is there, or the process that speaks with it.
    Opened,
    /// The key is there, and its token has these mechanisms.
    Found(Mechanisms),
    /// The signature, as TLS has it.
    Signed(&'a [u8]),
    /// Why nothing came of it.
    Failed(&'a str),
    /// Why the token let nobody in: asking again may lock it.
    Refused(&'a str),
}

/// What a token can do, as far as TLS needs it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mechanisms(u8);

impl Mechanisms {
    /// CKM_RSA_PKCS.
    pub const RSA_PKCS1: Self = Self(1);
    /// CKM_RSA_PKCS_PSS.
    pub const RSA_PSS: Self = Self(2);
    /// CKM_ECDSA.
    pub const ECDSA: Self = Self(4);
    /// CKM_EDDSA.
    pub const EDDSA: Self = Self(8);

    /// These and those.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all of those are among these.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    const fn of(bits: u8) -> Option<Self> {
        if bits < 16 { Some(Self(bits)) } else { None }
    }
}

impl<'a> Request<'a> {
    /// The message.
    pub fn write(&self, number: u64) -> Vec<u8> {
        match self {
            Self::Open {
                sessions,
                is_confined,
                uri,
            } => {
                let [a, b] = sessions.to_be_bytes();
                let fields = [a, b, u8::from(*is_confined)];
                packet(1, number, &fields, uri.as_bytes())
            }
            Self::Find { key, uri } => packet(2, number, &key.to_be_bytes(), uri.as_bytes()),
            Self::Sign { key, scheme, input } => {
                let [a, b, c, d] = key.to_be_bytes();
                let [e, f] = scheme.to_be_bytes();
                packet(3, number, &[a, b, c, d, e, f], input)
            }
            Self::Start { module } => packet(4, number, &[], module.as_bytes()),
            Self::End => packet(5, number, &[], &[]),
            Self::Seal => packet(6, number, &[], &[]),
        }
    }

    /// Reads a message, and its number.
    pub fn read(packet: &'a [u8]) -> Option<(u64, Self)> {
        let (kind, number, mut rest) = open(packet)?;
        let request = match kind {
            1 => Self::Open {
                sessions: rest.u16()?,
                is_confined: match rest.u8()? {
                    0 => false,
                    1 => true,
                    _ => return None,
                },
                uri: text(rest)?,
            },
            2 => Self::Find {
                key: rest.u32()?,
                uri: text(rest)?,
            },
            3 => Self::Sign {
                key: rest.u32()?,
                scheme: rest.u16()?,
                input: rest.rest(),
            },
            4 => Self::Start {
                module: text(rest)?,
            },
            5 if rest.is_empty() => Self::End,
            6 if rest.is_empty() => Self::Seal,
            _ => return None,
        };
        Some((number, request))
    }
}

impl<'a> Answer<'a> {
    /// The message. A reason is cut where the message would be too long.
    pub fn write(&self, number: u64) -> Vec<u8> {
        match self {
            Self::Opened => packet(1, number, &[], &[]),
            Self::Found(mechanisms) => packet(2, number, &[mechanisms.0], &[]),
            Self::Signed(signature) => packet(3, number, &[], signature),
            Self::Failed(why) => packet(4, number, &[], cut(why).as_bytes()),
            Self::Refused(why) => packet(5, number, &[], cut(why).as_bytes()),
        }
    }

    /// Reads a message, and its number.
    pub fn read(packet: &'a [u8]) -> Option<(u64, Self)> {
        let (kind, number, mut rest) = open(packet)?;
        let answer = match kind {
            1 => Self::Opened,
            2 => Self::Found(Mechanisms::of(rest.u8()?)?),
            3 => Self::Signed(rest.rest()),
            4 | 5 => {
                let why = text(rest).filter(|why| why.len() <= LONGEST_REASON)?;
                return Some((
                    number,
                    if kind == 4 {
                        Self::Failed(why)
                    } else {
                        Self::Refused(why)
                    },
                ));
            }
            _ => return None,
        };
        let is_whole = rest.is_empty() || matches!(answer, Self::Signed(_));
        is_whole.then_some((number, answer))
    }
}

fn packet(kind: u8, number: u64, fields: &[u8], last: &[u8]) -> Vec<u8> {
    [&[VERSION, kind][..], &number.to_be_bytes(), fields, last].concat()
}

fn open(packet: &[u8]) -> Option<(u8, u64, Reader<'_>)> {
    let mut reader = Reader::new(Some(packet).filter(|packet| packet.len() <= LONGEST)?);
    let version = reader.u8()?;
    let kind = reader.u8()?;
    let number = u64::from_be_bytes(reader.array()?);
    (version == VERSION).then_some((kind, number, reader))
}

fn text<'a>(reader: Reader<'a>) -> Option<&'a str> {
    std::str::from_utf8(reader.rest()).ok()
}

fn cut(why: &str) -> &str {
    let ends = (0..=LONGEST_REASON.min(why.len())).rev();
    let end = ends.into_iter().find(|end| why.is_char_boundary(*end));
    why.get(..end.unwrap_or_default()).unwrap_or_default()
}

/// Of what goes to a log.
const LONGEST_REASON: usize = 300;

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn requests_are_read_as_they_were_written(
            number: u64, key: u32, sessions: u16, is_confined: bool, scheme: u16, uri in "\\PC{0,300}", input in vec(any::<u8>(), 0..300),
        ) {
            for request in [
                Request::Open { sessions, is_confined, uri: &uri },
                Request::Find { key, uri: &uri },
                Request::Sign { key, scheme, input: &input },
                Request::Start { module: &uri },
                Request::End,
                Request::Seal,
            ] {
                let packet = request.write(number);
                prop_assert_eq!(Request::read(&packet), Some((number, request)));
            }
        }

        #[test]
        fn answers_are_read_as_they_were_written(
            number: u64, bits in 0..16_u8, why in "\\PC{0,60}", signature in vec(any::<u8>(), 0..1000),
        ) {
            for answer in [
                Answer::Opened,
                Answer::Found(Mechanisms(bits)),
                Answer::Signed(&signature),
                Answer::Failed(&why),
                Answer::Refused(&why),
            ] {
                let packet = answer.write(number);
                prop_assert_eq!(Answer::read(&packet), Some((number, answer)));
            }
        }

        #[test]
        fn whatever_is_read_is_written_as_it_was(packet in vec(any::<u8>(), 0..64), kind in 0..7_u8) {
            let known = [&[VERSION, kind][..], &packet].concat();
            for packet in [&packet, &known] {
                if let Some((number, request)) = Request::read(packet) {
                    prop_assert_eq!(&request.write(number), packet);
                }
                if let Some((number, answer)) = Answer::read(packet) {
                    prop_assert_eq!(&answer.write(number), packet);
                }
            }
        }
    }

    #[test]
    fn a_long_reason_is_cut_between_characters_and_a_long_message_is_none() {
        let long = "ä".repeat(LONGEST_REASON);
        let packet = Answer::Failed(&long).write(1);
        let Some((1, Answer::Failed(why))) = Answer::read(&packet) else {
            panic!("not read");
        };
        assert_eq!(why.len(), LONGEST_REASON);
        let uri = "a".repeat(LONGEST);
        assert_eq!(
            Request::read(&Request::Find { key: 1, uri: &uri }.write(1)),
            None
        );
    }
}
