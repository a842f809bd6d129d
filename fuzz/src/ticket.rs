//! Tickets and the base64 text of secret files. Only becket's own tickets open, every rejection has a cause, and decoded
//! text is unchanged after encoding.

use std::time::Duration;

use becket_control::rotation::Rotation;
use becket_proto::ticket::UnixSeconds;
use becket_sys::clock::Clock;
use becket_tls::resumption::Resumption;
use becket_tls::secret::base64;
use becket_tls::sessions::context::{HandshakeContext, lend};
use becket_tls::sessions::tickets::Ticketer;
use rustls::server::ProducesTickets;

/// Decodes the input as a secret file, and offers it as a ticket. Then XORs the input over a genuine ticket and offers
/// the result. Returns `true` if the second ticket opened, which is correct only if it is unchanged.
///
/// # Panics
///
/// If a ticket opens that is not genuine, if a rejection has no cause, or if decoded text changes when it is encoded.
pub fn run(data: &[u8]) -> bool {
    files(data);
    let now = Clock::start().now();
    let rotation = Rotation::start(Duration::from_secs(3600), now).expect("random");
    let ticketer = Ticketer::new(rotation.secrets(), [7; 32], DAY).expect("a secret");
    let handshake = || {
        let mut handshake = HandshakeContext::new(None);
        handshake.clock.unix = UnixSeconds(now.unix.as_secs());
        Some(handshake)
    };
    let offer = |ticket: &[u8]| {
        let mut handshake = handshake();
        let state = lend(&mut handshake, || ticketer.decrypt(ticket));
        let outcome = handshake.and_then(|handshake| handshake.resumption.outcome);
        let outcome = outcome.expect("every offer has an outcome");
        assert_eq!(state.is_some(), outcome == Resumption::Opened);
        outcome
    };
    assert_ne!(offer(data), Resumption::Opened, "a forged ticket opened");

    let genuine = lend(&mut handshake(), || ticketer.encrypt(b"state")).expect("sealed");
    let mut altered = genuine.clone();
    let length = data.first().map_or(0, |first| usize::from(*first));
    altered.resize(genuine.len().min(length.max(1)), 0);
    let (at, over) = data
        .get(1..)
        .and_then(<[u8]>::split_first)
        .unwrap_or((&0, &[]));
    for (place, byte) in altered.iter_mut().skip(usize::from(*at)).zip(over) {
        *place ^= byte;
    }
    let outcome = offer(&altered);
    assert_eq!(outcome == Resumption::Opened, altered == genuine);
    outcome == Resumption::Opened
}

fn files(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    if let Ok(bytes) = base64::decode(text) {
        assert_eq!(*base64::encode(&bytes), text);
    }
}

const DAY: Duration = Duration::from_secs(86_400);
