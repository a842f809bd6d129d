//! Base64 (RFC 4648, section 4) of exactly 32 bytes: 44 characters, the last one `=`.
//!
//! Strict both ways: no blanks, no line breaks, no missing padding, no set bits behind the end, so that one secret is
//! written in one way only. The intermediate values are erased.

use zeroize::Zeroizing;

/// Writes 32 bytes as 44 characters.
pub fn encode(bytes: &[u8; 32]) -> Zeroizing<String> {
    // Room for all of it and a line end: a string that grows leaves its former bytes behind.
    let mut text = Zeroizing::new(String::with_capacity(LEN + 1));
    for group in bytes.chunks(3) {
        let mut word = 0;
        for byte in group {
            word = word << 8 | u32::from(*byte);
        }
        word <<= 8 * (3 - group.len());
        for place in 0..=group.len() {
            text.push(letter(word >> (18 - 6 * place) & 63));
        }
    }
    text.push('=');
    text
}

/// Reads 44 characters.
///
/// # Errors
/// What is wrong, in words and without a character of the text.
pub fn decode(text: &str) -> Result<Zeroizing<[u8; 32]>, &'static str> {
    match text.len() {
        0 => return Err("empty"),
        1..LEN => return Err("too short"),
        LEN => {}
        _ => return Err("too long"),
    }
    let body = text.strip_suffix('=').ok_or(NOT_BASE64)?;
    let mut bytes = Zeroizing::new([0; 32]);
    let mut places = bytes.iter_mut();
    let (mut word, mut bits) = (0u32, 0);
    for character in body.bytes() {
        word = word << 6 | value(character).ok_or(NOT_BASE64)?;
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            if let Some(place) = places.next() {
                *place = (word >> bits) as u8;
            }
            word &= (1 << bits) - 1;
        }
    }
    match word {
        0 => Ok(bytes),
        _ => Err(NOT_BASE64),
    }
}

fn letter(value: u32) -> char {
    let value = value as u8;
    char::from(match value {
        0..26 => b'A' + value,
        26..52 => b'a' + (value - 26),
        52..62 => b'0' + (value - 52),
        62 => b'+',
        _ => b'/',
    })
}

fn value(letter: u8) -> Option<u32> {
    let value = match letter {
        b'A'..=b'Z' => letter - b'A',
        b'a'..=b'z' => letter - b'a' + 26,
        b'0'..=b'9' => letter - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    };
    Some(value.into())
}

const LEN: usize = 44;
const NOT_BASE64: &str = "not base64 of 32 bytes";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values_are_written_as_everybody_writes_them() {
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
    fn other_texts_are_refused() {
        let good = encode(&[7; 32]);
        assert_eq!(decode(""), Err("empty"));
        assert_eq!(decode(&good[..43]), Err("too short"));
        assert_eq!(decode(&format!("{}=", *good)), Err("too long"));
        let altered = [
            good.replacen('B', "-", 1),
            good.replace('=', "A"),
            // The four bits behind the last byte must be unset.
            good.replace("c=", "d="),
        ];
        for text in altered {
            assert_eq!(decode(&text), Err(NOT_BASE64), "{text}");
        }
    }

    #[test]
    fn every_byte_in_every_place_comes_back() {
        for place in 0..32 {
            for byte in 0..=255 {
                let mut bytes = [0x5a; 32];
                bytes[place] = byte;
                assert_eq!(decode(&encode(&bytes)).map(|bytes| *bytes), Ok(bytes));
            }
        }
    }
}
