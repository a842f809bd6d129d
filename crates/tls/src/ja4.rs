//! JA4 fingerprints, which identify a client's software by its ClientHello.
//!
//! A fingerprint has three parts. Ten readable characters contain the version, the presence of a
//! server name, the numbers of suites and extensions, and the first ALPN protocol. Twelve
//! hexadecimal digits are the hash of the suites, and twelve more are the hash of extensions and
//! signature schemes. Suites and extensions are sorted, because some clients shuffle them. GREASE
//! values are ignored.
//!
//! A client can imitate any fingerprint, so a fingerprint proves nothing. Source: FoxIO's
//! technical_details/JA4.md. This module implements only JA4 itself, which has the BSD licence.

use std::fmt::{self, Write};

use aws_lc_rs::digest::{SHA256, digest};
use becket_proto::client_hello::ClientHello;

/// Fingerprint of a client, such as `t13d1516h2_8daaf6152771_e5627efa2ab1`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Ja4([u8; 36]);

impl Ja4 {
    /// Computes the fingerprint of a ClientHello. Returns `None` if a list has more than [`MOST`]
    /// entries, which no real client sends.
    ///
    /// Does not allocate.
    pub fn of(hello: &ClientHello<'_>) -> Option<Self> {
        let mut suites = Numbers::gather(hello.cipher_suites())?;
        let mut extensions = Numbers::gather(hello.extension_types())?;
        let schemes = Numbers::gather(hello.signature_schemes())?;
        suites.known_mut().sort_unstable();
        extensions.known_mut().sort_unstable();
        let name = if extensions.known().contains(&SERVER_NAME) {
            b'd'
        } else {
            b'i'
        };
        let extension_count = extensions.known().len();
        extensions.drop_named_elsewhere();
        let mut out = Text::<36>::default();
        out.push(b"t");
        out.push(version(hello));
        out.push(&[name]);
        out.push(&two_digits(suites.known().len()));
        out.push(&two_digits(extension_count));
        out.push(&protocol(hello.alpn().next()));
        out.push(b"_");
        out.push(&hash(suites.known(), &[]));
        out.push(b"_");
        out.push(&hash(extensions.known(), schemes.known()));
        Some(Self(out.bytes))
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for Ja4 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0
            .iter()
            .try_for_each(|byte| f.write_char((*byte).into()))
    }
}

impl fmt::Debug for Ja4 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

struct Numbers {
    all: [u16; MOST],
    count: usize,
}

impl Numbers {
    /// Collects a list of numbers. Returns `None` if it has more than [`MOST`] entries.
    fn gather(list: impl Iterator<Item = u16>) -> Option<Self> {
        let mut numbers = Self {
            all: [0; MOST],
            count: 0,
        };
        for number in list.filter(|number| !is_grease(*number)) {
            *numbers.all.get_mut(numbers.count)? = number;
            numbers.count += 1;
        }
        Some(numbers)
    }

    fn known(&self) -> &[u16] {
        &self.all[..self.count]
    }

    fn known_mut(&mut self) -> &mut [u16] {
        &mut self.all[..self.count]
    }

    /// Removes server_name and ALPN, because the readable part of the fingerprint already contains
    /// them.
    fn drop_named_elsewhere(&mut self) {
        let mut kept = 0;
        for at in 0..self.count {
            let number = self.all[at];
            if number != SERVER_NAME && number != ALPN {
                self.all[kept] = number;
                kept += 1;
            }
        }
        self.count = kept;
    }
}

struct Text<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Default for Text<N> {
    fn default() -> Self {
        Self {
            bytes: [0; N],
            len: 0,
        }
    }
}

impl<const N: usize> Text<N> {
    fn push(&mut self, part: &[u8]) {
        self.bytes[self.len..][..part.len()].copy_from_slice(part);
        self.len += part.len();
    }
}

/// Returns `true` for GREASE values (RFC 8701, section 2): 0x0a0a, 0x1a1a and so on.
fn is_grease(number: u16) -> bool {
    let [high, low] = number.to_be_bytes();
    high == low && low & 0x0f == 0x0a
}

/// Returns the two characters of the fingerprint for the highest offered version.
fn version(hello: &ClientHello<'_>) -> &'static [u8; 2] {
    let offered = hello.supported_versions().filter(|one| !is_grease(*one));
    match offered.max().unwrap_or(hello.legacy_version()) {
        0x0304 => b"13",
        0x0303 => b"12",
        0x0302 => b"11",
        0x0301 => b"10",
        0x0300 => b"s3",
        0x0002 => b"s2",
        _ => b"00",
    }
}

fn two_digits(count: usize) -> [u8; 2] {
    [count / 10, count % 10].map(|digit| match count {
        0..100 => DIGITS[digit],
        _ => b'9',
    })
}

/// Returns the first and last character of the first ALPN protocol, or of its hexadecimal form if
/// one of these characters is not alphanumeric.
fn protocol(first: Option<&[u8]>) -> [u8; 2] {
    let Some(&[start, ..]) = first else {
        return *b"00";
    };
    let end = first.and_then(<[u8]>::last).copied().unwrap_or(start);
    if start.is_ascii_alphanumeric() && end.is_ascii_alphanumeric() {
        [start, end]
    } else {
        [start >> 4, end & 0x0f].map(|half| DIGITS[usize::from(half)])
    }
}

/// Returns the first twelve hexadecimal digits of the hash of two lists, or zeros if the first list
/// is empty.
fn hash(first: &[u16], second: &[u16]) -> [u8; 12] {
    if first.is_empty() {
        return [b'0'; 12];
    }
    let mut text = Text::<{ 2 * MOST * 5 }>::default();
    for (at, number) in first.iter().chain(second).enumerate() {
        match at {
            0 => {}
            at if at == first.len() => text.push(b"_"),
            _ => text.push(b","),
        }
        let [high, low] = number.to_be_bytes();
        let halves = [high >> 4, high & 0x0f, low >> 4, low & 0x0f];
        text.push(&halves.map(|half| DIGITS[usize::from(half)]));
    }
    let sum = digest(&SHA256, &text.bytes[..text.len]);
    let sum = sum.as_ref();
    std::array::from_fn(|at| {
        let half = match at % 2 {
            0 => sum[at / 2] >> 4,
            _ => sum[at / 2] & 0x0f,
        };
        DIGITS[usize::from(half)]
    })
}

/// Maximum number of entries in a list. About 350 suites are registered.
pub const MOST: usize = 400;

const DIGITS: &[u8; 16] = b"0123456789abcdef";
const SERVER_NAME: u16 = 0;
const ALPN: u16 = 16;

#[cfg(test)]
mod tests {
    use becket_proto::client_hello::peek;
    use proptest::prelude::*;

    use super::*;

    /// Returns a record with a ClientHello.
    fn record(version: u16, suites: &[u16], extensions: &[(u16, Vec<u8>)]) -> Vec<u8> {
        let list: Vec<u8> = (extensions.iter())
            .flat_map(|(kind, content)| {
                let len = u16::try_from(content.len()).unwrap();
                [&kind.to_be_bytes()[..], &len.to_be_bytes(), content].concat()
            })
            .collect();
        let length = |of: &[u8]| u16::try_from(of.len()).unwrap().to_be_bytes();
        let suites = bytes(suites);
        let body = [
            &version.to_be_bytes()[..],
            &[7; 32],
            &[0],
            &length(&suites),
            &suites,
            &[1, 0],
            &length(&list),
            &list,
        ]
        .concat();
        let message = [&[1, 0], &length(&body)[..], &body].concat();
        [&[22, 3, 1], &length(&message)[..], &message].concat()
    }

    fn bytes(numbers: &[u16]) -> Vec<u8> {
        numbers.iter().flat_map(|one| one.to_be_bytes()).collect()
    }

    fn list16(content: Vec<u8>) -> Vec<u8> {
        let len = u16::try_from(content.len()).unwrap();
        [&len.to_be_bytes()[..], &content].concat()
    }

    fn ja4(record: &[u8]) -> String {
        let Ok(Some(hello)) = peek(record) else {
            panic!("no hello");
        };
        Ja4::of(&hello).unwrap().to_string()
    }

    const SUITES: [u16; 15] = [
        0x1301, 0x1302, 0x1303, 0xc02b, 0xc02f, 0xc02c, 0xc030, 0xcca9, 0xcca8, 0xc013, 0xc014,
        0x009c, 0x009d, 0x002f, 0x0035,
    ];
    const SCHEMES: [u16; 8] = [
        0x0403, 0x0804, 0x0401, 0x0503, 0x0805, 0x0501, 0x0806, 0x0601,
    ];
    const TYPES: [u16; 16] = [
        0x001b, 0x0000, 0x0033, 0x0010, 0x4469, 0x0017, 0x002d, 0x000d, 0x0005, 0x0023, 0x0012,
        0x002b, 0xff01, 0x000b, 0x000a, 0x0015,
    ];

    /// Returns the extensions of the published example.
    fn extensions() -> Vec<(u16, Vec<u8>)> {
        let content = |kind| match kind {
            0x0000 => list16([&[0][..], &list16(b"a.test".to_vec())].concat()),
            0x000a => list16(bytes(&[0x2a2a, 29])),
            0x000d => list16(bytes(&SCHEMES)),
            0x0010 => list16(b"\x02h2\x08http/1.1".to_vec()),
            0x002b => [&[6][..], &bytes(&[0xfafa, 0x0304, 0x0303])].concat(),
            0x002d => vec![1, 1],
            _ => Vec::new(),
        };
        TYPES.map(|kind| (kind, content(kind))).to_vec()
    }

    #[test]
    fn the_published_example_has_its_fingerprint() {
        assert_eq!(
            ja4(&record(0x0303, &SUITES, &extensions())),
            "t13d1516h2_8daaf6152771_e5627efa2ab1"
        );
        let mut types = TYPES.to_vec();
        types.retain(|kind| ![0, 16].contains(kind));
        types.sort_unstable();
        assert_eq!(&hash(&types, &[]), b"6d807ffa2a79");
    }

    /// The expected fingerprints were computed by an independent script.
    #[test]
    fn recorded_client_hellos_have_the_expected_fingerprints() {
        macro_rules! sample {
            ($name:literal) => {
                include_bytes!(concat!("../../proto/testdata/client_hello/", $name, ".bin"))
            };
        }
        let known: [(&[u8], &str); 6] = [
            (sample!("curl-h2"), "t13d3112h2_e8f1e7e78f70_b26ce05bbdd6"),
            (sample!("gnutls"), "t13d291300_723694b0fccc_2cc26d266019"),
            (
                sample!("openssl-no-sni"),
                "t13i310900_e8f1e7e78f70_1f22a2ca17c4",
            ),
            (
                sample!("openssl-ip-literal"),
                "t13d311000_e8f1e7e78f70_1f22a2ca17c4",
            ),
            (
                sample!("openssl-tls10"),
                "t10d230600_44099cda8a52_195413a0cc0f",
            ),
            (
                sample!("openssl-tls12"),
                "t12d2808h2_d943125447b4_e7e480e5a997",
            ),
        ];
        for (bytes, fingerprint) in known {
            assert_eq!(ja4(bytes), fingerprint);
        }
    }

    #[test]
    fn an_alpn_protocol_is_encoded_by_its_first_and_last_character() {
        let published: [(&[u8], &[u8; 2]); 8] = [
            (b"h2", b"h2"),
            (b"http/1.1", b"h1"),
            (b"x", b"xx"),
            (b"\xab", b"ab"),
            (b"\xab\xcd", b"ad"),
            (b"\x30\xab", b"3b"),
            (b"\x30\x31\xab\xcd", b"3d"),
            (b"\x30\xab\xcd\x31", b"01"),
        ];
        for (name, letters) in published {
            assert_eq!(protocol(Some(name)), *letters, "{name:?}");
        }
        assert_eq!(protocol(None), *b"00");
    }

    #[test]
    fn empty_lists_become_zeros_and_oversized_ones_have_no_fingerprint() {
        assert_eq!(
            ja4(&record(0x0302, &[0x0a0a], &[])),
            "t11i000000_000000000000_000000000000"
        );
        let many: Vec<u16> = (0..=MOST as u16).filter(|one| !is_grease(*one)).collect();
        assert!(ja4(&record(0x0303, &many[..150], &[])).starts_with("t12i9900"));
        let long = record(0x0303, &[many.as_slice(), &[1, 2]].concat(), &[]);
        let Ok(Some(hello)) = peek(&long) else {
            panic!("no hello");
        };
        assert_eq!(Ja4::of(&hello), None);
    }

    proptest! {
        #[test]
        fn order_and_grease_do_not_change_the_fingerprint(
            suites in Just(SUITES.to_vec()).prop_shuffle(),
            mut extensions in Just(extensions()).prop_shuffle(),
            places in (0..=SUITES.len(), 0..=TYPES.len()),
            grease in 0..16_u16,
        ) {
            let grease = 0x0a0a + 0x1010 * grease;
            let mut suites = suites;
            suites.insert(places.0, grease);
            extensions.insert(places.1, (grease, vec![0]));
            prop_assert_eq!(
                ja4(&record(0x0303, &suites, &extensions)),
                "t13d1516h2_8daaf6152771_e5627efa2ab1"
            );
        }
    }
}
