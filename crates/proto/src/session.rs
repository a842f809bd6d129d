//! A TLS 1.2 session: its name (policy and ID) and its content.
//!
//! An ID is valid only under the policy for which it was issued. The name is not secret, since IDs are sent in clear
//! text.
//!
//! Source: RFC 5246 section 7.4.1.2 (a session ID has at most 32 bytes; none is empty).

use std::fmt;

use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::ticket::{Origin, TicketPolicy};

/// Short name of a resumption policy: the first 8 bytes of its digest. A session is never resumed under
/// another policy.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
pub struct PolicyTag(pub u64);

impl PolicyTag {
    pub fn from_digest(digest: &[u8; 32]) -> Self {
        let [a, b, c, d, e, f, g, h, ..] = *digest;
        Self(u64::from_be_bytes([a, b, c, d, e, f, g, h]))
    }

    /// Returns the first 4 bytes, which identify the policy in a ticket's header.
    pub fn for_ticket(self) -> TicketPolicy {
        TicketPolicy((self.0 >> 32) as u32)
    }
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionName {
    policy: PolicyTag,
    len: u8,
    bytes: [u8; LONGEST_ID],
}

impl SessionName {
    /// Returns `None` if the ID is empty or longer than 32 bytes.
    pub fn new(policy: PolicyTag, id: &[u8]) -> Option<Self> {
        let mut bytes = [0; LONGEST_ID];
        bytes.get_mut(..id.len())?.copy_from_slice(id);
        let len = u8::try_from(id.len()).ok().filter(|len| *len > 0)?;
        Some(Self { policy, len, bytes })
    }

    pub fn policy(&self) -> PolicyTag {
        self.policy
    }

    /// Returns the ID, 1 to 32 bytes.
    pub fn id(&self) -> &[u8] {
        self.bytes.get(..self.len.into()).unwrap_or_default()
    }
}

impl fmt::Debug for SessionName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("SessionName")
            .field("policy", &self.policy)
            .field("id", &self.id())
            .finish()
    }
}

/// Data for resuming a session. Debug output omits the state, which contains a master secret.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// rustls' encoding of the session, erased on drop.
    pub state: Zeroizing<Box<[u8]>>,
    /// The full handshake from which the session descends.
    pub origin: Origin,
}

impl Session {
    /// Wraps a state. Copies a `Vec` with spare capacity and erases the original.
    pub fn new(state: Vec<u8>, origin: Origin) -> Self {
        // `into_boxed_slice` may move a vector with spare capacity, and leave a copy of the secret behind.
        let state = if state.len() == state.capacity() {
            state.into_boxed_slice()
        } else {
            Box::from(Zeroizing::new(state).as_slice())
        };
        Self {
            state: Zeroizing::new(state),
            origin,
        }
    }

    /// Returns the state without a copy. The caller must erase it.
    pub fn into_state(mut self) -> Vec<u8> {
        std::mem::take(&mut *self.state).into_vec()
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Session")
            .field("state_len", &self.state.len())
            .field("origin", &self.origin)
            .finish()
    }
}

/// Maximum length of a session ID in bytes (RFC 5246, section 7.4.1.2).
const LONGEST_ID: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_ids_of_1_to_32_bytes_are_kept_and_others_rejected() {
        let policy = PolicyTag(7);
        for len in [1, 31, 32] {
            let id = vec![5; len];
            let name = SessionName::new(policy, &id).unwrap();
            assert_eq!((name.policy(), name.id()), (policy, &id[..]));
        }
        assert_eq!(SessionName::new(policy, &[]), None);
        assert_eq!(SessionName::new(policy, &[0; 33]), None);
    }
}
