//! Talk before a plain request that is shaped as a TLS handshake: so many bytes there, so many back.
//!
//! A relay that answers it (`becket-bench` has one) makes the system calls and round trips that any terminator of TLS
//! must make, and none of the cryptography: a floor. The sizes go over the wire, four bytes at the head of each
//! flight, so that the relay needs to know nothing of the case. After a flight that asks for no answer, the
//! request follows at once.

/// What one side says and the other answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flight {
    /// Bytes that the client sends, the four at their head included.
    pub sent: usize,
    /// Bytes that it then waits for.
    pub answer: usize,
}

impl Flight {
    /// Bytes of a flight's head.
    pub const HEAD: usize = 4;

    /// Appends the flight's bytes.
    pub fn encode(self, to: &mut Vec<u8>) {
        let size = |count: usize| u16::try_from(count).unwrap_or(u16::MAX);
        let sent = size(self.sent.max(Self::HEAD));
        let end = to.len() + usize::from(sent);
        to.extend_from_slice(&sent.to_be_bytes());
        to.extend_from_slice(&size(self.answer).to_be_bytes());
        to.resize(end, b'f');
    }

    /// Reads the head of a flight; nothing when that has not come yet, or is none.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let [a, b, c, d] = *bytes.first_chunk::<{ Self::HEAD }>()?;
        let flight = Self {
            sent: usize::from(u16::from_be_bytes([a, b])),
            answer: usize::from(u16::from_be_bytes([c, d])),
        };
        (flight.sent >= Self::HEAD).then_some(flight)
    }
}

/// The flights of a full handshake, and those of a resumed one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preface {
    /// In the place of a full handshake.
    pub full: Vec<Flight>,
    /// In the place of a resumed one.
    pub resumed: Vec<Flight>,
}

/// Where one connection is in its preface.
#[derive(Clone, Debug, Default)]
pub struct PrefaceState {
    left: Vec<Flight>,
    /// Bytes of the answer that are still to come.
    awaited: usize,
}

impl PrefaceState {
    /// Begins.
    pub fn new(flights: &[Flight]) -> Self {
        Self {
            left: flights.iter().rev().copied().collect(),
            awaited: 0,
        }
    }

    /// Takes so many bytes of answers in, and appends what is to be sent then. Returns whether it is over, and how many
    /// of the bytes were its own.
    pub fn advance(&mut self, received: usize, to: &mut Vec<u8>) -> (bool, usize) {
        let own = received.min(self.awaited);
        self.awaited -= own;
        while self.awaited == 0 {
            let Some(flight) = self.left.pop() else {
                return (true, own);
            };
            flight.encode(to);
            self.awaited = flight.answer;
        }
        (false, own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flight_says_its_own_length_and_the_answers() {
        let flight = Flight {
            sent: 250,
            answer: 900,
        };
        let mut bytes = Vec::new();
        flight.encode(&mut bytes);
        assert_eq!(bytes.len(), 250);
        assert_eq!(Flight::decode(&bytes), Some(flight));
        assert_eq!(Flight::decode(&bytes[..3]), None);
        assert_eq!(Flight::decode(&[0, 0, 0, 0]), None);
    }

    #[test]
    fn each_flight_waits_for_its_answer_and_the_last_lets_the_request_follow() {
        let flights = [(10, 5), (20, 0)].map(|(sent, answer)| Flight { sent, answer });
        let mut progress = PrefaceState::new(&flights);
        let mut out = Vec::new();
        assert_eq!(progress.advance(0, &mut out), (false, 0));
        assert_eq!(out.len(), 10);
        assert_eq!(progress.advance(3, &mut out), (false, 3));
        assert_eq!(progress.advance(9, &mut out), (true, 2));
        assert_eq!(out.len(), 30);
    }
}
