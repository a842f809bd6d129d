//! Values of the ACME companion that the serving process and other nodes use.

use serde::{Deserialize, Serialize};

/// A pending challenge of an ACME authority for a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Challenge {
    /// Host name or IP address.
    pub name: String,
    pub answer: ChallengeAnswer,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChallengeAnswer {
    /// SHA-256 digest of the key authorization (RFC 8737).
    TlsAlpn([u8; 32]),
    /// Token and account thumbprint, both base64url (RFC 8555, section 8.3).
    Http { token: String, thumbprint: String },
}

/// Facts about a bundle (certificate chain with private key) that decide which of two is newer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BundleFacts {
    /// Time of the order, in seconds since 1970. Compared first.
    pub ordered: u64,
    /// SHA-256 digest of the bundle.
    pub digest: [u8; 32],
    /// Length of the bundle in bytes.
    pub length: u32,
}

impl ChallengeAnswer {
    /// Returns `false` for a token or a thumbprint that is not base64url (RFC 4648 section 5), and
    /// could leave its path or add lines.
    pub fn is_valid(&self) -> bool {
        let is_base64url = |text: &String| {
            let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
            (1..=LONGEST_TOKEN).contains(&text.len()) && text.bytes().all(is_valid)
        };
        match self {
            Self::TlsAlpn(_) => true,
            Self::Http { token, thumbprint } => is_base64url(token) && is_base64url(thumbprint),
        }
    }
}

impl Challenge {
    /// Returns the encoding for other nodes. Returns `None` if a part is too long.
    pub fn encode(&self) -> Option<Vec<u8>> {
        let encoded = postcard::to_allocvec(self).ok()?;
        (encoded.len() <= LONGEST_CHALLENGE).then_some(encoded)
    }

    /// Decodes a challenge. Ignores trailing bytes, which are for newer nodes.
    pub fn decode(encoded: &[u8]) -> Option<Self> {
        let encoded = encoded.get(..LONGEST_CHALLENGE).unwrap_or(encoded);
        postcard::from_bytes(encoded).ok()
    }
}

/// Maximum length of an encoded challenge in bytes: a name of 253, token and thumbprint of 256 each.
pub const LONGEST_CHALLENGE: usize = 800;
/// Maximum length of a token. Authorities send 43 characters.
pub const LONGEST_TOKEN: usize = 256;
/// Maximum length of a bundle in bytes. Usual bundles have less than 8 KiB.
pub const LONGEST_BUNDLE: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_survive_the_round_trip_and_long_ones_are_refused() {
        let http = |length: usize| Challenge {
            name: "a".repeat(253),
            answer: ChallengeAnswer::Http {
                token: "b".repeat(length),
                thumbprint: "c".repeat(256),
            },
        };
        let digest = Challenge {
            name: "192.0.2.1".to_owned(),
            answer: ChallengeAnswer::TlsAlpn([7; 32]),
        };
        for challenge in [http(256), digest] {
            let mut encoded = challenge.encode().unwrap();
            for cut in 0..encoded.len() {
                assert_eq!(Challenge::decode(&encoded[..cut]), None);
            }
            encoded.push(1);
            assert_eq!(Challenge::decode(&encoded), Some(challenge));
        }
        assert_eq!(http(600).encode(), None);
    }
}
