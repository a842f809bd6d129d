//! The client's chain of certificates in a session as rustls encodes it.
//!
//! Only found, not judged; the rest of the state is rustls' own. States come out of our tables and tickets, but also from
//! the peers of a cluster, so nothing in them is believed. The encoding is private to rustls: it may change with any
//! version, and tests that resume with a client's certificate then fail.
//!
//! Source: rustls 0.23.46, `msgs/persist.rs`, `ServerSessionValue`.

use crate::reader::Reader;

/// Finds the chain, leaf first: nothing in it where the client showed none.
///
/// # Errors
///
/// When the bytes are no state that rustls could have made.
pub fn client_chain(state: &[u8]) -> Result<Vec<&[u8]>, NotAState> {
    chain(state).ok_or(NotAState)
}

/// The bytes are no state of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAState;

fn chain(state: &[u8]) -> Option<Vec<&[u8]>> {
    let mut reader = Reader::new(state);
    if flag(&mut reader)? {
        reader.vec8()?;
    }
    // Version, suite.
    reader.take(4)?;
    // The master secret, and whether it is extended.
    reader.vec8()?;
    reader.take(1)?;
    let mut found = Vec::new();
    if flag(&mut reader)? {
        let mut chain = vec24(&mut reader)?;
        while !chain.is_empty() {
            found.push(vec24(&mut chain)?.rest());
        }
    }
    Some(found)
}

fn flag(reader: &mut Reader<'_>) -> Option<bool> {
    match reader.u8()? {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

fn vec24<'a>(reader: &mut Reader<'a>) -> Option<Reader<'a>> {
    let [a, b, c] = reader.array()?;
    reader.sub(u32::from_be_bytes([0, a, b, c]) as usize)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encode(name: Option<&[u8]>, chain: Option<&[Vec<u8>]>) -> Vec<u8> {
        let mut state = Vec::new();
        match name {
            None => state.push(0),
            Some(name) => {
                state.extend([1, name.len() as u8]);
                state.extend(name);
            }
        }
        state.extend([3, 3, 0xc0, 0x2b, 48]);
        state.extend([7; 48]);
        state.push(1);
        match chain {
            None => state.push(0),
            Some(chain) => {
                let listed: Vec<u8> = chain.iter().flat_map(|one| in24(one)).collect();
                state.push(1);
                state.extend(in24(&listed));
            }
        }
        state
    }

    fn in24(bytes: &[u8]) -> Vec<u8> {
        let [_, length @ ..] = (bytes.len() as u32).to_be_bytes();
        [&length, bytes].concat()
    }

    proptest! {
        #[test]
        fn what_was_put_in_is_found(
            name in proptest::option::of(proptest::collection::vec(any::<u8>(), 0..256)),
            chain in proptest::option::of(proptest::collection::vec(
                proptest::collection::vec(any::<u8>(), 0..400), 0..7)),
            behind in proptest::collection::vec(any::<u8>(), 0..50),
        ) {
            let mut state = encode(name.as_deref(), chain.as_deref());
            let whole = state.len();
            state.extend(behind);
            let chain = chain.unwrap_or_default();
            let expected: Vec<&[u8]> = chain.iter().map(Vec::as_slice).collect();
            prop_assert_eq!(client_chain(&state), Ok(expected));
            for cut in 0..whole {
                prop_assert_eq!(client_chain(&state[..cut]), Err(NotAState));
            }
        }
    }

    #[test]
    fn a_flag_is_one_of_two() {
        let mut state = encode(None, None);
        state[0] = 2;
        assert_eq!(client_chain(&state), Err(NotAState));
    }
}
