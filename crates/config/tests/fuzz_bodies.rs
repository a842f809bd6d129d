//! Runs the bodies of the fuzz targets without a fuzzer, on seeded inputs, with any compiler.
//!
//! A failure prints the input; `cargo +nightly fuzz run` searches deeper.

#[path = "../../../fuzz/src/key_uri.rs"]
#[expect(unreachable_pub, reason = "public in the fuzz crate, where it lives")]
mod key_uri;
#[path = "../../../fuzz/src/mutations.rs"]
#[expect(unreachable_pub, reason = "public in the fuzz crate, where it lives")]
mod mutations;

use mutations::run_on_mutations;

#[test]
fn uris_of_keys_survive_mutation() {
    let inputs = [
        "pkcs11:token=My%20token;serial=1%3b2;slot-id=7;type=private;object=a&b;id=%00%fF\
         ?pin-source=file:///etc/pin%3F&module-path=/usr/lib/x.so",
        "PKCS11:model=m;manufacturer=%C3%A4;slot-description=s;slot-manufacturer=t;id=a?module-path=/x",
    ];
    let inputs = inputs.map(|text| text.as_bytes().to_vec());
    run_on_mutations(&inputs, key_uri::run);
}
