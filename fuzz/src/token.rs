//! Messages between the worker process and the agent of a token: a packet is one complete message or invalid. An attacker may
//! control either side.

use becket_keys::signing::token::wire::{LONGEST, TokenAnswer, TokenRequest, read, write};

/// Parses one packet as each of the two sides would. Returns the number of valid messages.
///
/// # Panics
/// If a message is too long, or changes when it is written and read again.
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
