//! STARTTLS dialogs: results do not depend on how the input is split, and no byte after the request for TLS is used.

use becket_proto::starttls::{
    Asked, Dialog, LONGEST_COMMAND, LONGEST_GREETING, MOST_COMMANDS, NoTls, Over, Progress,
    Protocol, TlsRequest,
};

/// The first byte chooses the protocol, the second the size of pieces. The server sends the bytes up to the first zero.
///
/// Returns 1 if TLS was requested, otherwise 0.
///
/// # Panics
///
/// If the result depends on the pieces, or if the client receives more than the limit.
pub fn run(data: &[u8]) -> usize {
    let [protocol, each, said @ ..] = data else {
        return 0;
    };
    let protocol = PROTOCOLS[usize::from(*protocol) % PROTOCOLS.len()];
    let end = said.iter().position(|byte| *byte == 0).unwrap_or(0);
    let (server, client) = said.split_at(end);
    let client = client.strip_prefix(&[0]).unwrap_or(client);
    asks(protocol, server, 1 + usize::from(*each));
    let (whole, end) = talk(protocol, server, client, usize::MAX);
    let (pieces, end_of_pieces) = talk(protocol, server, client, 1 + usize::from(*each));
    if told_at_once(end) || told_at_once(end_of_pieces) {
        return 0;
    }
    // The size of pieces only affects whether bytes after the request arrive together with it.
    let began = |end| matches!(end, Progress::Begin | Progress::Over(Over::Injected));
    assert!(
        end == end_of_pieces || began(end) && began(end_of_pieces),
        "{end:?} became {end_of_pieces:?}"
    );
    // A PostgreSQL client that is rejected at once does not receive the byte that accepts TLS.
    assert!(
        end != end_of_pieces || whole == pieces,
        "{whole:?} became {pieces:?}"
    );
    usize::from(began(end))
}

/// Requests TLS from a server that sends these answers. Asserts that the size of pieces only affects whether bytes
/// after the last answer are detected.
fn asks(protocol: Protocol, said: &[u8], each: usize) {
    let run = |each: usize| {
        let mut out = Vec::new();
        let mut request = TlsRequest::new(protocol, &mut out);
        let mut asked = Asked::Waiting;
        for piece in said.chunks(each) {
            if asked == Asked::Waiting {
                asked = request.handle(piece, &mut out);
            }
        }
        assert!(out.len() < 64, "{} bytes", out.len());
        let greeting = request.into_greeting();
        assert!(greeting.len() <= 2 * said.len() + 2);
        (asked, out, greeting)
    };
    let (whole, pieces) = (run(usize::MAX), run(each));
    let began = |asked| matches!(asked, Asked::Begin | Asked::Not(NoTls::Injected));
    // The limit on length applies earlier if all bytes arrive at once.
    let is_long = said.len() > LONGEST_GREETING;
    assert!(is_long || whole == pieces || began(whole.0) && began(pieces.0));
}

/// Returns `true` for a greeting that is too long or has data after it. Both are detected earlier if all bytes arrive
/// at once.
fn told_at_once(end: Progress) -> bool {
    matches!(end, Progress::Over(Over::BadGreeting | Over::Refused))
}

fn talk(protocol: Protocol, server: &[u8], client: &[u8], each: usize) -> (Vec<u8>, Progress) {
    let mut dialog = Dialog::new(protocol);
    let (mut out, mut progress) = (Vec::new(), Progress::Talking);
    for piece in server.chunks(each) {
        if progress != Progress::Talking || !dialog.awaits_greeting() {
            break;
        }
        progress = dialog.handle_server(piece, &mut out);
    }
    for piece in client.chunks(each) {
        if progress != Progress::Talking || dialog.awaits_greeting() {
            break;
        }
        progress = dialog.handle_client(piece, &mut out);
    }
    let cancelled = progress == Progress::Over(Over::Cancel);
    assert_eq!(cancelled, dialog.cancel_request().is_some());
    assert!(
        dialog
            .cancel_request()
            .is_none_or(|request| request.len() <= 268)
    );
    let most = LONGEST_GREETING * 2 + MOST_COMMANDS as usize * (LONGEST_GREETING + LONGEST_COMMAND);
    assert!(out.len() <= most, "{} bytes", out.len());
    (out, progress)
}

const PROTOCOLS: [Protocol; 4] = [
    Protocol::Smtp,
    Protocol::Imap,
    Protocol::Pop3,
    Protocol::Postgresql,
];
