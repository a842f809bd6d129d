//! A value of the store: as received, and as the text inside a genuine value.

use std::sync::LazyLock;
use std::time::Duration;

use becket_proto::session::{PolicyTag, SessionName};
use becket_proto::ticket::{SecretId, UnixSeconds};
use becket_store::{Lifetimes, Live, StoreVault, decode};

static VAULT: LazyLock<StoreVault> = LazyLock::new(|| {
    let secret = becket_cluster::Secret {
        id: SecretId(1),
        key: [1; 32].into(),
    };
    StoreVault::new(&[secret]).expect("keys")
});

/// Checks one input. Returns 1 if it is the text of a live session, otherwise 0.
///
/// # Panics
///
/// If a value opens that was not sealed, if a session lives too long, or if it is not equal after it was stored again.
pub fn run(data: &[u8]) -> usize {
    let name = SessionName::new(PolicyTag(7), b"id").expect("a name");
    let most = Lifetimes {
        id_lifetime: Duration::from_secs(300),
        max_age: Duration::from_secs(3600),
    };
    let now = UnixSeconds(1_000_000);
    assert!(VAULT.open(0, &name, data.to_vec(), (now, most)).is_none());
    let Some(live) = decode(data, now, most) else {
        return 0;
    };
    assert!(!live.ttl.is_zero() && live.ttl <= most.id_lifetime);
    if let Some(value) = VAULT.seal(&name, &live, now) {
        let Live { session, ttl } = VAULT.open(0, &name, value, (now, most)).expect("genuine");
        assert!(session == live.session && ttl == live.ttl);
    }
    1
}
