//! Base64 (RFC 4648, section 4) of exactly 32 bytes: 44 characters with one `=` at the end.
//!
//! The codec is strict, so that each secret has exactly one encoding: it rejects blanks, line
//! breaks, missing padding and non-zero trailing bits. Intermediate values are erased.

use base64ct::{Base64, Encoding};
use zeroize::Zeroizing;

pub fn encode(bytes: &[u8; 32]) -> Zeroizing<String> {
    // The capacity includes a line end that the caller may append, because a string that grows
    // leaves a copy of its bytes in memory.
    let mut text = Zeroizing::new(String::with_capacity(LEN + 1));
    let mut letters = Zeroizing::new([0; LEN]);
    text.push_str(Base64::encode(bytes, &mut *letters).unwrap_or_default());
    text
}

/// Decodes 44 characters.
///
/// # Errors
/// Returns a description of the problem that does not contain the text.
pub fn decode(text: &str) -> Result<Zeroizing<[u8; 32]>, &'static str> {
    match text.len() {
        0 => return Err("empty"),
        1..LEN => return Err("too short"),
        LEN => {}
        _ => return Err("too long"),
    }
    let mut bytes = Zeroizing::new([0; 32]);
    match Base64::decode(text, &mut *bytes) {
        Ok(all) if all.len() == 32 => Ok(bytes),
        _ => Err("not base64 of 32 bytes"),
    }
}

const LEN: usize = 44;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values_have_their_standard_encoding() {
        let zeros = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
        assert_eq!(*encode(&[0; 32]), zeros);
        let ones = "//////////////////////////////////////////8=";
        assert_eq!(*encode(&[255; 32]), ones);
        let mut counting = [0; 32];
        (0u8..).zip(&mut counting).for_each(|(n, at)| *at = n);
        let text = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
        assert_eq!(*encode(&counting), text);
        assert_eq!(decode(text).map(|bytes| *bytes), Ok(counting));
    }

    #[test]
    fn malformed_base64_is_rejected() {
        let good = encode(&[7; 32]);
        assert_eq!(decode(""), Err("empty"));
        assert_eq!(decode(&good[..43]), Err("too short"));
        assert_eq!(decode(&format!("{}=", *good)), Err("too long"));
        let altered = [
            good.replacen('B', "-", 1),
            good.replace('=', "A"),
            // The four padding bits after the last byte must be zero.
            good.replace("c=", "d="),
        ];
        for text in altered {
            assert_eq!(decode(&text), Err("not base64 of 32 bytes"), "{text}");
        }
    }
}
