//! Runs the bodies of the fuzz targets without a fuzzer, on seeded inputs, with any compiler.
//!
//! The bodies are in `fuzz/src` and are shared by path, so `cargo test` checks every change like a
//! short fuzzer run. A failure prints the input; `cargo +nightly fuzz run` searches deeper.

#[path = "../../../fuzz/src/config.rs"]
#[expect(unreachable_pub, reason = "public in the fuzz crate, where it lives")]
mod config;
#[path = "../../../fuzz/src/connection.rs"]
#[expect(unreachable_pub, reason = "public in the fuzz crate, where it lives")]
mod connection;
#[path = "../../../fuzz/src/ja4.rs"]
#[expect(unreachable_pub, reason = "public in the fuzz crate, where it lives")]
mod ja4;
#[path = "../../../fuzz/src/mutations.rs"]
#[expect(unreachable_pub, reason = "public in the fuzz crate, where it lives")]
mod mutations;
#[path = "../../../fuzz/src/ocsp.rs"]
#[expect(unreachable_pub, reason = "public in the fuzz crate, where it lives")]
mod ocsp;
#[path = "../../../fuzz/src/pem.rs"]
#[expect(unreachable_pub, reason = "public in the fuzz crate, where it lives")]
mod pem;
#[expect(dead_code, reason = "shared with the tests of connections")]
mod script;
#[path = "../../../fuzz/src/ticket.rs"]
#[expect(unreachable_pub, reason = "public in the fuzz crate, where it lives")]
mod ticket;
#[path = "../../../fuzz/src/token.rs"]
#[expect(unreachable_pub, reason = "public in the fuzz crate, where it lives")]
mod token;

use std::alloc::System;
use std::panic::catch_unwind;

use cap::Cap;
use fastrand::Rng;

#[global_allocator]
static HEAP: Cap<System> = Cap::new(System, usize::MAX);

#[test]
fn a_connection_survives_any_script() {
    let mut random = Rng::with_seed(0x9e37_79b9_7f4a_7c15);
    let mut relaying = 0;
    for round in 0..2000 {
        let mut script = Vec::new();
        if round % 2 == 0 {
            // Any client, followed by enough rounds for a handshake.
            script.push(random.u8(..) | 0b0001_1000);
            script.extend([TALK; 32]);
        }
        script.extend((0..random.usize(..400)).map(|_| random.u8(..)));
        let heap = || HEAP.allocated();
        let result = catch_unwind(|| connection::run(&script, heap));
        relaying += result.unwrap_or_else(|_| panic!("failed on {script:?}"));
    }
    assert!(
        relaying > 100,
        "only {relaying} scripts got as far as a server"
    );
}

#[test]
fn only_unmodified_tickets_are_opened() {
    let mut random = Rng::with_seed(0x9e37_79b9_7f4a_7c15);
    let state = "becket secret state 1\nrotation 28800\nepoch 59624\n\
                 chain AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n\
                 replication //////////////////////////////////////////8=\n";
    let mut opened = 0;
    for round in 0..2000 {
        let mut input = match round % 3 {
            0 => state.as_bytes().to_vec(),
            // Long enough for a whole ticket; only zeros leave the ticket unchanged.
            1 => vec![255, 0, 0, 0],
            _ => vec![255],
        };
        for _ in 0..random.usize(..4) {
            let at = random.usize(..input.len());
            input[at] = random.u8(..);
        }
        if round % 3 == 2 {
            input.extend((0..random.usize(..100)).map(|_| random.u8(..)));
        }
        let result = catch_unwind(|| ticket::run(&input));
        opened += usize::from(result.unwrap_or_else(|_| panic!("failed on {input:?}")));
    }
    assert!(opened > 100, "only {opened} tickets were left as they were");
}

#[test]
fn a_configuration_survives_mutation() {
    let mut random = Rng::with_seed(0x9e37_79b9_7f4a_7c15);
    for text in [
        include_str!("../../../examples/full.toml"),
        "[[listener]]\nname='a'\nbind=':1'",
    ] {
        for _ in 0..200 {
            let mut input = text.as_bytes().to_vec();
            for _ in 0..random.usize(..5) {
                let at = random.usize(..input.len());
                input[at] = random.u8(..) & 0x7f;
            }
            let result = catch_unwind(|| config::run(&input));
            result.unwrap_or_else(|_| panic!("failed on {}", input.escape_ascii()));
        }
    }
}

#[test]
fn a_pem_survives_mutation() {
    let mut random = Rng::with_seed(0x9e37_79b9_7f4a_7c15);
    let key = rcgen::generate_simple_self_signed(["a.test".to_owned()]).expect("a certificate");
    let text = key.cert.pem() + &key.signing_key.serialize_pem();
    assert_eq!(pem::run(text.as_bytes()), 2);
    for _ in 0..500 {
        let mut input = text.clone().into_bytes();
        for _ in 0..=random.usize(..3) {
            let at = random.usize(..input.len());
            input[at] = random.u8(..);
        }
        let result = catch_unwind(|| pem::run(&input));
        result.unwrap_or_else(|_| panic!("failed on {}", input.escape_ascii()));
    }
}

#[test]
fn fingerprints_of_mutated_hellos_are_well_formed() {
    let hellos = [
        &include_bytes!("../../proto/testdata/client_hello/curl-h2.bin")[..],
        include_bytes!("../../proto/testdata/client_hello/gnutls.bin"),
        include_bytes!("../../proto/testdata/client_hello/openssl-tls12.bin"),
    ];
    mutations::run_on_mutations(&hellos.map(<[u8]>::to_vec), ja4::run);
}

#[test]
fn an_ocsp_response_survives_mutation() {
    let mut random = Rng::with_seed(0x9e37_79b9_7f4a_7c15);
    let digits = OCSP_RESPONSE.as_bytes().chunks(2);
    let digits = digits.map(|two| std::str::from_utf8(two).unwrap());
    let response: Vec<u8> = digits
        .map(|two| u8::from_str_radix(two, 16).unwrap())
        .collect();
    assert_eq!(ocsp::run(&response), 1);
    for _ in 0..2000 {
        let mut input = response.clone();
        for _ in 0..=random.usize(..3) {
            let at = random.usize(..input.len());
            input[at] = random.u8(..);
        }
        let result = catch_unwind(|| ocsp::run(&input));
        result.unwrap_or_else(|_| panic!("failed on {}", input.escape_ascii()));
    }
}

#[test]
fn messages_of_tokens_survive_mutation() {
    let packets = [
        r#"{"number":5,"key":1,"scheme":2052,"input":[7,7,7]}"#,
        r#"{"Opened":{"schemes":[1027],"faults":[null,{"Refused":"the token has no such private key"}]}}"#,
        r#"{"Failed":{"Away":"no such token"}}"#,
        r#"{"Failed":{"Refused":"C_Login: PinIncorrect"}}"#,
        r#"{"Signed":{"number":5,"signature":{"Ok":[9,9,9]}}}"#,
        r#"{"Signed":{"number":5,"signature":{"Err":{"Away":"C_Sign: DeviceRemoved"}}}}"#,
    ];
    for packet in packets {
        assert_eq!(token::run(packet.as_bytes()), 1, "{packet}");
    }
    mutations::run_on_mutations(&packets.map(|it| it.as_bytes().to_vec()), token::run);
}

/// The event and its amount with which a script's client sends everything it has.
const TALK: u8 = 4;

/// An OCSP response with one entry and without a signature.
const OCSP_RESPONSE: &str = "\
    3081af0a0100a081a93081a606092b0601050507300101048198308195308192a21604146b6b6b6b6b6b6b6b6b6b6b6b\
    6b6b6b6b6b6b6b6b180f32303236313132323136303033395a30673065303d300906052b0e03021a050004146e6e6e6e\
    6e6e6e6e6e6e6e6e6e6e6e6e6e6e6e6e04146b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b02040080aabb8000180f\
    32303236313132323136303033395aa011180f32303236313132343136303033395a";
