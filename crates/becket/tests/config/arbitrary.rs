//! No text and no file makes the configuration panic.

use becket_config::file::File;
use becket_keys::pem::Pem;
use proptest::prelude::*;

use crate::common::{Folder, Made};

const FULL: &str = include_str!("../../../../examples/full.toml");

/// The full example with some of its bytes replaced, doubled or lost.
fn damaged(edits: &[(usize, u8, u8)]) -> String {
    let mut text = FULL.as_bytes().to_vec();
    for (at, kind, byte) in edits {
        let at = at % text.len();
        match kind % 3 {
            0 => text[at] = *byte,
            1 => text.insert(at, *byte),
            _ => drop(text.remove(at)),
        }
    }
    String::from_utf8_lossy(&text).into_owned()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn a_damaged_configuration_is_refused_or_used(
        edits in prop::collection::vec((any::<usize>(), any::<u8>(), 0x20u8..0x7f), 1..12),
    ) {
        let text = damaged(&edits);
        if File::parse(&text).is_ok() {
            drop(Folder::new().prepare(&text));
        }
    }

    #[test]
    fn any_text_is_read(text in "[a-z\\[\\]{}=\"'#.,\n 0-9]{0,80}") {
        drop(File::parse(&text));
    }

    #[test]
    fn any_bytes_are_read_as_pem(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        drop(Pem::parse(&bytes));
    }
}

#[test]
fn a_certificate_with_any_byte_changed_is_refused_or_used() {
    let folder = Folder::new();
    let made = Made::new(&["a.test"], &rcgen::PKCS_ECDSA_P256_SHA256);
    let text = made.bundle();
    for at in (0..text.len()).step_by(7) {
        let mut bytes = text.clone().into_bytes();
        bytes[at] ^= 1;
        folder.write("a.pem", &String::from_utf8_lossy(&bytes));
        drop(folder.prepare(&crate::common::site("['a.pem']")));
    }
}
