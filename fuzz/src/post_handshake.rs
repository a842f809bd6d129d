//! What a peer says beside data where the kernel opens its records: however records cut its messages, each is shown once and whole.

use becket_proto::post_handshake::{Alert, MOST, Message, Messages, Unexpected};

/// Checks one input: records, each behind a byte that says how long it is. Each is read as an alert, too. Returns how many messages
/// were shown.
///
/// # Panics
/// When a message is not what the records say, more is kept than may be, or a key changes within a record.
pub fn run(data: &[u8]) -> usize {
    let (mut messages, mut count) = (Messages::default(), 0);
    // What was said and not shown yet.
    let mut open: Vec<u8> = Vec::new();
    let mut rest = data;
    while let Some((length, after)) = rest.split_first() {
        // Long ones too, for which the fuzzer would have to grow its inputs: what repeats.
        let (record, after) = after.split_at(usize::from(*length & 0x7f).min(after.len()));
        let record = record.repeat(if *length & 0x80 == 0 { 1 } else { 64 });
        rest = after;
        alert(&record);
        open.extend(&record);
        let mut ends_record = false;
        let taken = messages.take(&record, |message| {
            assert!(!ends_record, "something is shown behind a KeyUpdate");
            let [kind, high, middle, low] = open[..4] else {
                unreachable!("four bytes");
            };
            let length = u32::from_be_bytes([0, high, middle, low]) as usize;
            let body: Vec<u8> = open.drain(..4 + length).skip(4).collect();
            match message {
                Message::Ticket(ticket) => assert_eq!((kind, ticket), (4, &body[..])),
                Message::Renegotiation => assert!(kind < 2),
                Message::KeyUpdate { requested } => {
                    assert_eq!((kind, body), (24, vec![u8::from(requested)]));
                    ends_record = true;
                }
            }
            count += 1;
            Ok::<_, Unexpected>(())
        });
        if taken.is_err() {
            assert!(!messages.is_begun());
            return count;
        }
        assert!(!ends_record || open.is_empty());
        assert!(open.len() <= MOST && messages.is_begun() != open.is_empty());
    }
    count
}

fn alert(content: &[u8]) {
    let [before, after] = [false, true].map(|tls13| Alert::read(content, tls13));
    assert_eq!(before.is_some(), after.is_some());
    assert!(before.is_none() || content.len() == 2);
    // TLS 1.3 forgives less.
    assert!(after != Some(Alert::Warning) || before == after);
}
