//! The client's certificate chain in a session state that rustls has encoded.
//!
//! Finds the chain without verifying it, and can remove certificates that a later verification does
//! not need. The remaining state is opaque. States come from tables and tickets of becket, but also
//! from peers of a cluster, so the parser must not panic on any input. The encoding is private to
//! rustls and may change with any version; tests that resume sessions with a client's certificate
//! then fail.
//!
//! Source: rustls 0.23.46, `msgs/persist.rs`, `ServerSessionValue`.

use crate::reader::Reader;

/// Returns the client's certificate chain, leaf first, or `None` if the bytes are not a session state of rustls. The
/// chain is empty if the client sent no certificate.
pub fn client_chain(state: &[u8]) -> Option<Vec<&[u8]>> {
    Some(parts(state)?.chain)
}

/// Returns a copy of the state that contains only the certificates at the indices `places` of the
/// chain. Returns `None` if the bytes are not a session state of rustls, or if an index is out of range.
pub fn with_chain(state: &[u8], places: &[usize]) -> Option<Vec<u8>> {
    let parts = parts(state)?;
    let kept = places.iter().map(|at| parts.chain.get(*at).copied());
    let kept: Vec<&[u8]> = kept.collect::<Option<_>>()?;
    // Allocated in full: growing would leave a copy of the master secret in the freed memory.
    let mut out = Vec::with_capacity(state.len());
    out.extend(parts.before);
    if parts.is_shown {
        out.extend(length24(kept.iter().map(|one| one.len() + 3).sum())?);
    }
    for one in kept {
        out.extend(length24(one.len())?);
        out.extend(one);
    }
    out.extend(parts.behind);
    Some(out)
}

struct Parts<'a> {
    /// All bytes before the chain, including the flag for its presence.
    before: &'a [u8],
    is_shown: bool,
    chain: Vec<&'a [u8]>,
    behind: &'a [u8],
}

fn parts(state: &[u8]) -> Option<Parts<'_>> {
    let mut reader = Reader::new(state);
    if flag(&mut reader)? {
        reader.vec8()?;
    }
    // Skips version and suite.
    reader.take(4)?;
    // Skips the master secret, and the flag for an extended master secret.
    reader.vec8()?;
    reader.take(1)?;
    let is_shown = flag(&mut reader)?;
    let before = state.get(..state.len().checked_sub(reader.rest().len())?)?;
    let mut chain = Vec::new();
    if is_shown {
        let mut listed = vec24(&mut reader)?;
        while !listed.is_empty() {
            chain.push(vec24(&mut listed)?.rest());
        }
    }
    Some(Parts {
        before,
        is_shown,
        chain,
        behind: reader.rest(),
    })
}

fn length24(length: usize) -> Option<[u8; 3]> {
    match u32::try_from(length).map(u32::to_be_bytes) {
        Ok([0, length @ ..]) => Some(length),
        _ => None,
    }
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
        fn a_client_chain_is_found_in_a_complete_state_only(
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
            prop_assert_eq!(client_chain(&state), Some(expected));
            for cut in 0..whole {
                prop_assert_eq!(client_chain(&state[..cut]), None);
            }
        }
    }

    proptest! {
        #[test]
        fn a_state_is_unchanged_except_for_the_omitted_certificates(
            name in proptest::option::of(proptest::collection::vec(any::<u8>(), 0..256)),
            chain in proptest::collection::vec(
                proptest::collection::vec(any::<u8>(), 0..400), 0..7),
            places in proptest::collection::vec(0..7_usize, 0..7),
            behind in proptest::collection::vec(any::<u8>(), 0..50),
        ) {
            let name = name.as_deref();
            let shown = [encode(name, Some(&chain)), behind.clone()].concat();
            let kept: Option<Vec<_>> = places.iter().map(|at| chain.get(*at).cloned()).collect();
            let expected = kept.map(|kept| [encode(name, Some(&kept)), behind].concat());
            prop_assert_eq!(with_chain(&shown, &places), expected);
            let all: Vec<usize> = (0..chain.len()).collect();
            prop_assert_eq!(with_chain(&shown, &all), Some(shown));
        }
    }

    #[test]
    fn a_state_without_a_chain_has_no_certificate_to_keep() {
        let state = encode(None, None);
        assert_eq!(with_chain(&state, &[]), Some(state.clone()));
        assert_eq!(with_chain(&state, &[0]), None);
        assert_eq!(with_chain(&state[1..], &[]), None);
    }

    #[test]
    fn an_invalid_flag_is_rejected() {
        let mut state = encode(None, None);
        state[0] = 2;
        assert_eq!(client_chain(&state), None);
    }
}
