//! Dialogs before TLS: how input is cut changes nothing, and nothing behind the request for TLS is taken.

use becket_proto::starttls::{
    Asked, Dialog, LONGEST_COMMAND, LONGEST_GREETING, MOST_COMMANDS, NoTls, Over, Progress,
    Protocol, TlsRequest,
};

/// The first byte chooses the protocol, the second how the rest is cut; up to the first zero it is the server's.
///
/// Returns 1 when TLS was asked for, else 0.
///
/// # Panics
///
/// When pieces lead elsewhere than the whole, or the client is told more than the bounds allow.
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
    // Whether bytes behind the request came with it is all that pieces decide.
    let began = |end| matches!(end, Progress::Begin | Progress::Over(Over::Injected));
    assert!(
        end == end_of_pieces || began(end) && began(end_of_pieces),
        "{end:?} became {end_of_pieces:?}"
    );
    // A PostgreSQL client that is cut off at once is not told first that TLS begins.
    assert!(
        end != end_of_pieces || whole == pieces,
        "{whole:?} became {pieces:?}"
    );
    usize::from(began(end))
}

/// Asks a server for TLS that says this: how it is cut changes nothing but whether bytes behind its answer are seen.
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
    // All that is too much is seen at once where it comes at once.
    let is_long = said.len() > LONGEST_GREETING;
    assert!(is_long || whole == pieces || began(whole.0) && began(pieces.0));
}

/// A greeting that is too long or not alone is found earlier when it comes in one piece.
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
