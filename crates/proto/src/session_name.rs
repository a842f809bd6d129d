//! What a TLS 1.2 session is called: its policy and its ID, small enough to be copied.
//!
//! An ID means nothing without the policy under which it was made. The name is not secret: IDs
//! travel in clear.
//!
//! Source: RFC 5246 section 7.4.1.2 (a session ID has at most 32 bytes; none is empty).

use std::fmt;

use crate::session_table::PolicyTag;

/// The name of one session.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct SessionName {
    policy: PolicyTag,
    len: u8,
    bytes: [u8; LONGEST_ID],
}

impl SessionName {
    /// Puts policy and ID together; nothing for an ID that no session can have.
    pub fn new(policy: PolicyTag, id: &[u8]) -> Option<Self> {
        let mut bytes = [0; LONGEST_ID];
        bytes.get_mut(..id.len())?.copy_from_slice(id);
        let len = u8::try_from(id.len()).ok().filter(|len| *len > 0)?;
        Some(Self { policy, len, bytes })
    }

    /// The policy under which it was made.
    pub fn policy(&self) -> PolicyTag {
        self.policy
    }

    /// The ID, 1 to 32 bytes.
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

/// RFC 5246, section 7.4.1.2.
const LONGEST_ID: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_keeps_its_id_and_no_other_length_is_one() {
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
