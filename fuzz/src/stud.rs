//! Datagrams of stud and hitch with OpenSSL sessions, as a sender with the right key could make them.

use becket_cluster::stud::{Datagram, SessionFault, StudSession};

/// Checks one input as a datagram and as a session. Returns the number of valid forms.
///
/// # Panics
///
/// If a parsed part does not occur in the input, or if missing or trailing bytes are accepted.
pub fn run(data: &[u8]) -> usize {
    let mut read = 0;
    if let Some(datagram) = Datagram::parse(data) {
        let parts = [datagram.id.as_slice(), datagram.der];
        let time = datagram.time.to_be_bytes();
        let parts = [parts[0], parts[1], &time, datagram.mac].concat();
        assert_eq!(parts, data, "the parts are not the whole");
        read += 1;
        session(datagram.der);
        if let Ok(session) = StudSession::parse(datagram.der) {
            let zeros = datagram.id.iter().rev().take_while(|byte| **byte == 0);
            let shortest = datagram.id.len() - zeros.count();
            assert!(!datagram.is_of(session.id) || session.id.len() >= shortest);
        }
    }
    read + usize::from(session(data))
}

fn session(der: &[u8]) -> bool {
    let Ok(session) = StudSession::parse(der) else {
        return false;
    };
    assert!((1..=32).contains(&session.id.len()));
    for part in [session.id, session.master_secret] {
        assert!(der.windows(part.len()).any(|found| found == part));
    }
    let shorter = der.split_last().map_or(der, |(_, rest)| rest);
    assert_eq!(StudSession::parse(shorter), Err(SessionFault::Malformed));
    let longer = [der, &[0]].concat();
    assert_eq!(StudSession::parse(&longer), Err(SessionFault::Malformed));
    true
}
