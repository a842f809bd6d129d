//! JA4 fingerprints of hellos: each is well formed and agrees with its hello.

use becket_proto::client_hello::peek;
use becket_tls::ja4::Ja4;

/// Checks one stream. Returns how many fingerprints it has.
///
/// # Panics
///
/// If a fingerprint is malformed or disagrees with the hello.
pub fn run(data: &[u8]) -> usize {
    let Ok(Some(hello)) = peek(data) else {
        return 0;
    };
    let Some(ja4) = Ja4::of(&hello) else {
        return 0;
    };
    let text = ja4.to_string();
    assert_eq!(text.as_bytes(), ja4.as_bytes());
    let parts: Vec<&str> = text.split('_').collect();
    let [readable, suites, extensions] = parts[..] else {
        panic!("{text}");
    };
    assert_eq!(
        (readable.len(), suites.len(), extensions.len()),
        (10, 12, 12)
    );
    let is_digest = |part: &str| part.bytes().all(|byte| b"0123456789abcdef".contains(&byte));
    assert!(is_digest(suites) && is_digest(extensions), "{text}");
    assert!(readable.bytes().all(|byte| byte.is_ascii_alphanumeric()));
    let has_name = hello.extension_types().any(|kind| kind == 0);
    assert_eq!(&readable[3..4], if has_name { "d" } else { "i" });
    1
}
