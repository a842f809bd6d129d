//! Traffic before a plain request that has the shape of a TLS handshake: flights of given sizes in both directions.
//!
//! A relay that answers the flights (`becket-bench` has one) makes the same system calls and round trips as any TLS terminator, but no
//! cryptographic operations. The result is a lower bound for the cost of a handshake. Each flight starts with four bytes that contain
//! its own size and the size of the answer, so the relay needs no configuration. If a flight has no answer, the next flight
//! or the request follows immediately.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flight {
    /// Number of bytes that the client sends, including the header of the flight.
    pub sent: usize,
    /// Length of the peer's answer in bytes; 0 for no answer.
    pub answer: usize,
}

impl Flight {
    pub const HEAD: usize = 4;

    pub fn encode(self, to: &mut Vec<u8>) {
        let size = |count: usize| u16::try_from(count).unwrap_or(u16::MAX);
        let sent = size(self.sent.max(Self::HEAD));
        let end = to.len() + usize::from(sent);
        to.extend_from_slice(&sent.to_be_bytes());
        to.extend_from_slice(&size(self.answer).to_be_bytes());
        to.resize(end, b'f');
    }

    /// Parses the header of a flight. Returns `None` if the header is incomplete or invalid.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let [a, b, c, d] = *bytes.first_chunk::<{ Self::HEAD }>()?;
        let flight = Self {
            sent: usize::from(u16::from_be_bytes([a, b])),
            answer: usize::from(u16::from_be_bytes([c, d])),
        };
        (flight.sent >= Self::HEAD).then_some(flight)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preface {
    /// Flights that replace a full handshake.
    pub full: Vec<Flight>,
    /// Flights that replace a resumed handshake.
    pub resumed: Vec<Flight>,
}

#[derive(Clone, Debug, Default)]
pub struct PrefaceState {
    left: Vec<Flight>,
    /// Number of bytes still missing from the current answer.
    awaited: usize,
}

impl PrefaceState {
    pub fn new(flights: &[Flight]) -> Self {
        Self {
            left: flights.iter().rev().copied().collect(),
            awaited: 0,
        }
    }

    /// Consumes up to `received` bytes of answers, and appends the next flights to `to`. Returns `true` if the preface
    /// is complete, and the number of consumed bytes.
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
    fn a_flight_contains_its_own_length_and_the_length_of_the_answer() {
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
    fn each_flight_waits_for_its_answer_and_the_preface_ends_after_the_last_one() {
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
