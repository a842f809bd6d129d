//! The chain in a session's state: whatever the bytes, it lies within them.

use becket_proto::session_state::client_chain;

/// Checks one input. Returns how many certificates were found in it.
///
/// # Panics
///
/// When certificates are found that are longer together than the state.
pub fn run(data: &[u8]) -> usize {
    let Ok(chain) = client_chain(data) else {
        return 0;
    };
    let found: usize = chain.iter().map(|one| one.len() + 3).sum();
    assert!(found <= data.len());
    chain.len()
}
