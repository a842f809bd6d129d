//! Post-handshake messages of a peer when the kernel decrypts: each message is delivered once and whole, however it is split into
//! records.

use becket_proto::post_handshake::{Alert, MOST, Message, Messages, Unexpected};

/// Checks one input: records, each after a byte with its length. Each record is also parsed as an alert. Returns the number of
/// messages.
///
/// # Panics
/// If a message differs from the records, if too much is buffered, or if keys change within a record.
pub fn run(data: &[u8]) -> usize {
    let (mut messages, mut count) = (Messages::default(), 0);
    // Bytes received but not delivered yet.
    let mut open: Vec<u8> = Vec::new();
    let mut rest = data;
    while let Some((length, after)) = rest.split_first() {
        // The high bit repeats the content, so that short inputs make long records.
        let (record, after) = after.split_at(usize::from(*length & 0x7f).min(after.len()));
        let record = record.repeat(if *length & 0x80 == 0 { 1 } else { 64 });
        rest = after;
        alert(&record);
        open.extend(&record);
        let mut ends_record = false;
        let taken = messages.take(&record, |message| {
            assert!(!ends_record, "a message follows a KeyUpdate in its record");
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
    // TLS 1.3 permits fewer warnings.
    assert!(after != Some(Alert::Warning) || before == after);
}
