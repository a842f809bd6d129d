//! What the serving process and the agent of a token send to each other: a packet is one whole message or none. Either side may be
//! under foreign control.

use becket_keys::signing::token::wire::{LONGEST, TokenAnswer, TokenRequest, read, write};

/// Reads one packet as either side would. Returns how many messages it is.
///
/// # Panics
/// When a packet is a message that is longer than may be, or that is another one after it was written and read again.
pub fn run(packet: &[u8]) -> usize {
    let request = read::<TokenRequest>(packet);
    if let Some(request) = &request {
        assert_eq!(read(&write(request)).as_ref(), Some(request));
    }
    let answer = read::<TokenAnswer>(packet);
    if let Some(answer) = &answer {
        assert_eq!(read(&write(answer)).as_ref(), Some(answer));
    }
    let read = usize::from(request.is_some()) + usize::from(answer.is_some());
    assert!(read == 0 || packet.len() <= LONGEST);
    read
}
