//! What the terminator and the process of a token say to each other: whatever a packet is, it is read as it would be written, or not
//! at all. Either side may be in another's hands.

use becket_proto::token::{Answer, LONGEST, Request};

/// Reads one packet as either side would. Returns how many messages it is.
///
/// # Panics
/// When a message is not written as it was read, or is longer than may be.
pub fn run(packet: &[u8]) -> usize {
    let request = Request::read(packet);
    if let Some((number, request)) = &request {
        assert!(packet.len() <= LONGEST);
        assert_eq!(request.write(*number), packet, "{request:?}");
    }
    let answer = Answer::read(packet);
    if let Some((number, answer)) = &answer {
        assert!(packet.len() <= LONGEST);
        assert_eq!(answer.write(*number), packet, "{answer:?}");
        if let Answer::Failed(why) | Answer::Refused(why) = answer {
            // It goes to a log.
            assert!(why.len() <= 300);
        }
    }
    usize::from(request.is_some()) + usize::from(answer.is_some())
}
