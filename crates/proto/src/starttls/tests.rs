//! Dialogs from the RFCs and PostgreSQL's manual, divided into pieces in various ways.

use proptest::prelude::*;

use super::*;

/// Bytes from one side.
#[derive(Clone, Copy, Debug)]
enum Said<'a> {
    Server(&'a [u8]),
    Client(&'a [u8]),
}
use Said::{Client, Server};

/// Runs a dialog in pieces of `each` bytes. Returns the output for the client and the last progress.
fn talk(protocol: Protocol, said: &[Said<'_>], each: usize) -> (String, Progress) {
    let mut dialog = Dialog::new(protocol);
    let mut out = Vec::new();
    let mut progress = Progress::Talking;
    for said in said {
        let bytes = match said {
            Server(bytes) | Client(bytes) => bytes,
        };
        for part in bytes.chunks(each) {
            assert_eq!(progress, Progress::Talking, "ended before {part:?}");
            progress = match said {
                Server(_) => dialog.handle_server(part, &mut out),
                Client(_) => dialog.handle_client(part, &mut out),
            };
        }
    }
    (String::from_utf8_lossy(&out).into_owned(), progress)
}

/// Expects the same output byte by byte, in pieces, and at once.
#[track_caller]
fn told(protocol: Protocol, said: &[Said<'_>], expected: &str, end: Progress) {
    for each in [1, 3, usize::MAX] {
        let (out, progress) = talk(protocol, said, each);
        assert_eq!((&*out, progress), (expected, end), "in pieces of {each}");
    }
}

#[test]
fn smtp_offers_starttls_and_nothing_else() {
    told(
        Protocol::Smtp,
        &[
            Server(b"220-mx.example.org ESMTP\r\n220 be patient\r\n"),
            Client(b"ehlo client.example.org\r\nMAIL FROM:<a@b>\r\n"),
            Client(b"XYZZY\r\nNOOP\r\nSTARTTLS now\r\nHELO\r\nHELO me\r\n"),
            Client(b"StartTLS\r\n"),
        ],
        "220-mx.example.org ESMTP\r\n220 be patient\r\n\
         250-mx.example.org\r\n250 STARTTLS\r\n\
         530 5.7.0 must issue a STARTTLS command first\r\n\
         502 5.5.1 command not implemented\r\n250 2.0.0 OK\r\n\
         501 5.5.4 syntax error in parameters\r\n501 5.5.4 syntax error in parameters\r\n\
         250 mx.example.org\r\n220 2.0.0 ready to start TLS\r\n",
        Progress::Begin,
    );
}

#[test]
fn a_refusal_by_the_server_is_forwarded() {
    let text = "554-no service\r\n554 go away\r\n";
    told(
        Protocol::Smtp,
        &[Server(text.as_bytes())],
        text,
        Progress::Over(Over::Refused),
    );
    let text = "* BYE overloaded\r\n";
    told(
        Protocol::Imap,
        &[Server(text.as_bytes())],
        text,
        Progress::Over(Over::Refused),
    );
    let text = "-ERR overloaded\r\n";
    told(
        Protocol::Pop3,
        &[Server(text.as_bytes())],
        text,
        Progress::Over(Over::Refused),
    );
}

#[test]
fn imap_replaces_the_capabilities_of_the_greeting() {
    told(
        Protocol::Imap,
        &[
            Server(b"* OK [CAPABILITY IMAP4rev1 SASL-IR AUTH=PLAIN] Dovecot ready.\r\n"),
            Client(
                b"a1 capability\r\na2 LOGIN fred secret\r\n* NOOP\r\na3 noop\r\na4 LIST \"\" *\r\n",
            ),
            Client(b"a5 STARTTLS\r\n"),
        ],
        "* OK [CAPABILITY IMAP4rev1 STARTTLS LOGINDISABLED] Dovecot ready.\r\n\
         * CAPABILITY IMAP4rev1 STARTTLS LOGINDISABLED\r\na1 OK these\r\n\
         a2 NO [PRIVACYREQUIRED] must issue a STARTTLS command first\r\n\
         * BAD not a tag\r\na3 OK nothing done\r\na4 BAD not before STARTTLS\r\n\
         a5 OK begin TLS\r\n",
        Progress::Begin,
    );
    told(
        Protocol::Imap,
        &[Server(b"* OK hello\r\n"), Client(b"x LOGOUT\r\n")],
        "* OK hello\r\n* BYE\r\nx OK bye\r\n",
        Progress::Over(Over::Quit),
    );
    told(
        Protocol::Imap,
        &[Server(b"* PREAUTH [CAPABILITY IMAP4rev1] welcome\r\n")],
        "* BYE no TLS with this server\r\n",
        Progress::Over(Over::BadGreeting),
    );
}

#[test]
fn pop3_keeps_the_timestamp_of_the_greeting() {
    told(
        Protocol::Pop3,
        &[
            Server(b"+OK ready <1896.697170952@dbc.mtview.ca.us>\r\n"),
            Client(b"CAPA\r\nUSER fred\r\nLIST\r\nstls\r\n"),
        ],
        "+OK ready <1896.697170952@dbc.mtview.ca.us>\r\n+OK these\r\nSTLS\r\n.\r\n\
         -ERR must issue a STLS command first\r\n-ERR not before STLS\r\n+OK begin TLS\r\n",
        Progress::Begin,
    );
}

#[test]
fn quit_commands_are_answered() {
    told(
        Protocol::Smtp,
        &[Server(b"220 mx\r\n"), Client(b"QUIT\r\n")],
        "220 mx\r\n221 2.0.0 bye\r\n",
        Progress::Over(Over::Quit),
    );
    told(
        Protocol::Pop3,
        &[Server(b"+OK\n"), Client(b"QUIT\n")],
        "+OK\r\n+OK bye\r\n",
        Progress::Over(Over::Quit),
    );
}

/// An SSLRequest, a GSSENCRequest, a CancelRequest, and the beginning of a StartupMessage.
const SSL: &[u8] = &[0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f];
const GSS: &[u8] = &[0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x30];
const CANCEL: &[u8] = &[0, 0, 0, 16, 0x04, 0xd2, 0x16, 0x2e, 0, 0, 1, 2, 9, 8, 7, 6];
const STARTUP: &[u8] = &[0, 0, 0, 40, 0, 3, 0, 0];

#[test]
fn postgresql_accepts_an_ssl_request_after_at_most_one_gss_request() {
    told(Protocol::Postgresql, &[Client(SSL)], "S", Progress::Begin);
    told(
        Protocol::Postgresql,
        &[Client(GSS), Client(SSL)],
        "NS",
        Progress::Begin,
    );
    let broken = Progress::Over(Over::Broken);
    told(
        Protocol::Postgresql,
        &[Client(GSS), Client(GSS)],
        "N",
        broken,
    );
    told(Protocol::Postgresql, &[Client(b"GET / HT")], "", broken);
}

#[test]
fn postgresql_accepts_direct_tls_only_as_the_first_bytes() {
    let mut dialog = Dialog::new(Protocol::Postgresql);
    assert!(dialog.begins_with_tls(22) && !dialog.begins_with_tls(0));
    assert_eq!(
        dialog.handle_client(GSS, &mut Vec::new()),
        Progress::Talking
    );
    assert!(!dialog.begins_with_tls(22));
    assert!(!Dialog::new(Protocol::Smtp).begins_with_tls(22));
    let (_, late) = talk(
        Protocol::Postgresql,
        &[Client(GSS), Client(&[22, 3, 1, 2, 0, 0, 0, 0])],
        9,
    );
    assert_eq!(
        late,
        Progress::Over(Over::Broken),
        "clear words came before"
    );
}

#[test]
fn plaintext_postgresql_receives_a_protocol_error_message() {
    let (out, progress) = talk(Protocol::Postgresql, &[Client(STARTUP)], 1);
    assert_eq!(progress, Progress::Over(Over::Cleartext));
    let length = u32::from_be_bytes(out.as_bytes()[1..5].try_into().unwrap());
    assert_eq!(length as usize, out.len() - 1);
    assert!(out.starts_with('E') && out.contains("C28000\0M") && out.ends_with("\0\0"));
}

proptest! {
    #[test]
    fn a_cancel_request_has_a_secret_of_4_to_256_bytes(
        length in 0u32..400,
        each in 1usize..400,
        rest in proptest::collection::vec(any::<u8>(), 400),
        declined in any::<bool>(),
    ) {
        let request = [&length.to_be_bytes()[..], &CANCEL[4..8], &rest].concat();
        let mut dialog = Dialog::new(Protocol::Postgresql);
        let (mut out, mut progress) = (Vec::new(), Progress::Talking);
        if declined {
            progress = dialog.handle_client(GSS, &mut out);
            out.clear();
        }
        for part in request.chunks(each) {
            if progress == Progress::Talking {
                prop_assert_eq!(dialog.cancel_request(), None);
                progress = dialog.handle_client(part, &mut out);
            }
        }
        prop_assert!(out.is_empty(), "nothing answers it");
        if (16..=268).contains(&length) {
            prop_assert_eq!(progress, Progress::Over(Over::Cancel));
            prop_assert_eq!(dialog.cancel_request(), request.get(..length as usize));
        } else {
            prop_assert_eq!(progress, Progress::Over(Over::Broken));
            prop_assert_eq!(dialog.cancel_request(), None);
        }
    }
}

/// For each protocol: a greeting and a request for TLS.
const ASKING: [(Protocol, &[u8], &[u8]); 4] = [
    (Protocol::Smtp, b"220 mx\r\n", b"STARTTLS\r\n"),
    (Protocol::Imap, b"* OK hello\r\n", b"a STARTTLS\r\n"),
    (Protocol::Pop3, b"+OK\r\n", b"STLS\r\n"),
    (Protocol::Postgresql, b"", SSL),
];

#[test]
fn client_bytes_after_the_request_end_the_dialog() {
    for (protocol, greeting, request) in ASKING {
        for more in [&b"x"[..], b"\n", b"EHLO evil\r\n", &[22, 3, 1]] {
            let both = [request, more].concat();
            let said = [Server(greeting), Client(&both)];
            let end = talk(protocol, &said, usize::MAX).1;
            assert_eq!(end, Progress::Over(Over::Injected), "{protocol:?} {more:?}");
        }
    }
}

#[test]
fn server_bytes_after_the_greeting_end_the_dialog() {
    for (protocol, greeting, _) in ASKING {
        let mut dialog = Dialog::new(protocol);
        let mut out = Vec::new();
        let both = [greeting, b"250 accepted\r\n"].concat();
        let end = dialog.handle_server(&both, &mut out);
        assert_eq!(end, Progress::Over(Over::BadGreeting), "{protocol:?}");
        let mut dialog = Dialog::new(protocol);
        if dialog.awaits_greeting() {
            assert_eq!(dialog.handle_server(greeting, &mut out), Progress::Talking);
            assert!(!dialog.awaits_greeting());
        }
        let end = dialog.handle_server(b"2", &mut out);
        assert_eq!(end, Progress::Over(Over::BadGreeting), "{protocol:?}");
    }
}

#[test]
fn greetings_commands_and_command_counts_are_bounded() {
    for (protocol, greeting, _) in ASKING {
        let endless = vec![b'2'; LONGEST_GREETING + 1];
        if protocol.client_speaks_first() {
            continue;
        }
        let end = talk(protocol, &[Server(&endless)], usize::MAX).1;
        assert_eq!(end, Progress::Over(Over::BadGreeting), "{protocol:?}");
        let long = vec![b'a'; LONGEST_COMMAND + 1];
        let end = talk(protocol, &[Server(greeting), Client(&long)], usize::MAX).1;
        assert_eq!(end, Progress::Over(Over::Broken), "{protocol:?}");
        let many = b"NOOP\r\n".repeat(MOST_COMMANDS as usize + 1);
        let end = talk(protocol, &[Server(greeting), Client(&many)], usize::MAX).1;
        assert_eq!(end, Progress::Over(Over::Broken), "{protocol:?}");
    }
}

#[test]
fn nothing_unprintable_is_echoed() {
    let (out, _) = talk(
        Protocol::Smtp,
        &[Server(b"220 mx\x00\x1b[2J\r\n"), Client(b"EHLO a\r\n")],
        usize::MAX,
    );
    assert_eq!(out, "220 mx[2J\r\n250-mx[2J\r\n250 STARTTLS\r\n");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// The division of input into pieces matters in one case only: whether bytes after the request for TLS
    /// arrived together with it. A dialog that has ended receives no more input.
    #[test]
    fn dialogs_do_not_depend_on_segmentation(
        index in 0..ASKING.len(),
        words in prop::collection::vec(prop::sample::select(WORDS), 0..12),
        cuts in prop::collection::vec(1usize..9, 1..60),
    ) {
        let (protocol, greeting, _) = ASKING[index];
        let said = words.concat();
        let run = |pieces: &mut dyn Iterator<Item = usize>| {
            let mut dialog = Dialog::new(protocol);
            let (mut out, mut progress) = (Vec::new(), Progress::Talking);
            if dialog.awaits_greeting() {
                progress = dialog.handle_server(greeting, &mut out);
            }
            let mut rest = &said[..];
            while progress == Progress::Talking && !rest.is_empty() {
                let (piece, more) = rest.split_at(pieces.next().unwrap_or(1).min(rest.len()));
                progress = dialog.handle_client(piece, &mut out);
                rest = more;
            }
            (out, progress)
        };
        let (whole, end) = run(&mut std::iter::once(said.len().max(1)));
        let (pieces, end_of_pieces) = run(&mut cuts.iter().copied().cycle());
        let began = |end| matches!(end, Progress::Begin | Progress::Over(Over::Injected));
        if end == end_of_pieces {
            prop_assert_eq!(whole, pieces);
        } else {
            // A dialog may also begin TLS if the bytes after the request arrive separately.
            prop_assert!(began(end) && began(end_of_pieces));
        }
    }
}

const WORDS: &[&[u8]] = &[
    b"EHLO a",
    b"STARTTLS",
    b"STLS",
    b"a STARTTLS",
    b"a CAPABILITY",
    b"CAPA",
    b"QUIT",
    b"a LOGOUT",
    b"\r\n",
    b"\r\n",
    b"\n",
    b" ",
    b"\0",
    b"\xff",
    SSL,
    GSS,
    STARTUP,
    b"\x16\x03\x01",
];
