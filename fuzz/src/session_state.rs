//! The certificate chain in a session's state: it lies within the state, and certificates can be removed from it.

use becket_proto::session_state::{client_chain, with_chain};

/// Checks one input. Returns the number of certificates in it.
///
/// # Panics
///
/// If the certificates are longer in total than the state, or if removing some of them changes the others.
pub fn run(data: &[u8]) -> usize {
    let Some(chain) = client_chain(data) else {
        assert!(with_chain(data, &[]).is_none());
        return 0;
    };
    let found: usize = chain.iter().map(|one| one.len() + 3).sum();
    assert!(found <= data.len());
    let all: Vec<usize> = (0..chain.len()).collect();
    assert_eq!(with_chain(data, &all).as_deref(), Some(data));
    let every_other: Vec<usize> = all.into_iter().step_by(2).collect();
    let shorter = with_chain(data, &every_other).expect("places of the chain");
    let expected: Vec<&[u8]> = chain.iter().step_by(2).copied().collect();
    assert_eq!(client_chain(&shorter), Some(expected));
    chain.len()
}
