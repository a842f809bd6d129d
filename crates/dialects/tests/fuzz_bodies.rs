//! Runs the bodies of the fuzz targets without a fuzzer, on seeded inputs, with any compiler.
//!
//! A failure prints the input; `cargo +nightly fuzz run` searches deeper.

#[path = "../../../fuzz/src/dialect.rs"]
#[expect(unreachable_pub, reason = "public in the fuzz crate, where it lives")]
mod dialect;

use std::panic::catch_unwind;

use fastrand::Rng;

#[test]
fn a_configuration_of_another_program_survives_mutation() {
    let mut random = Rng::with_seed(0x9e37_79b9_7f4a_7c15);
    let hitch = "--config\0f\0-q\0a.pem\0\0frontend = \"[*]:443\"\nfrontend = { port = \"1\" pem-file = { cert = \"a\" }\n\
                 ciphers = \"HIGH:!RSA\" }\ntls-protos = TLSv1.2 TLSv1.0\nkeepalive = 7 # x\nwrite-proxy-v2 = on\n";
    let stud = "--config=f\0-t\0\0frontend = *,443\nbackend = [::1]:80\npem-file = \"a.pem\"\nwrite-proxy = on\nfoo = 1\n";
    let stunnel = "f\0\0include = parts\ncert = a.pem\n[x]\naccept = 1\nconnect = 2\nsslVersionMin = TLSv1\n[y]\nsni = x:*.b.test\n\
                   connect = 3\n[z]\nclient = yes\naccept = :::4\nconnect = a:5\nsocket = l:TCP_KEEPIDLE=3\n";
    let mut read = 0;
    for (which, text) in [hitch, stud, stunnel].iter().enumerate() {
        let whole = [&[which as u8], text.as_bytes()].concat();
        for round in 0..500 {
            let mut input = whole.clone();
            for _ in 0..round.min(random.usize(..4)) {
                let at = random.usize(..input.len());
                match random.u8(..3) {
                    0 => input[at] = random.u8(..),
                    1 => drop(input.remove(at)),
                    _ => input.extend_from_within(at..),
                }
            }
            let result = catch_unwind(|| dialect::run(&input));
            read += result.unwrap_or_else(|_| panic!("failed on {}", input.escape_ascii()));
        }
    }
    assert!(read > 300, "only {read} were left as they were");
}
