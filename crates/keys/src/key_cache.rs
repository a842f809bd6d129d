//! The certificates in use: a bounded number of chains with parsed keys, shared by all workers.
//!
//! The chain of a certificate is stored in [`Loaded`] itself, so a hit takes only the lock of that
//! certificate, for a few instructions. Each worker remembers the chains that it used last
//! ([`WorkerKeys`]), so busy certificates take no lock that workers share. The cache lists the
//! certificates with a stored chain. At the limit it drops the oldest one that was not used since
//! its last turn (the CLOCK algorithm). A certificate that a renewal replaces takes its chain with
//! it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use becket_proto::ticket::UnixSeconds;
use rustls::sign::{CertifiedKey, SigningKey};

use super::loaded::Loaded;

#[derive(Debug)]
pub struct KeyCache {
    listed: Mutex<VecDeque<Weak<Loaded>>>,
    most: usize,
}

impl Default for KeyCache {
    fn default() -> Self {
        Self::of(MOST)
    }
}

impl KeyCache {
    /// Creates a cache for at most `most` certificates.
    pub fn of(most: usize) -> Self {
        Self {
            listed: Mutex::default(),
            most,
        }
    }

    /// Returns the chain of a certificate, without an OCSP response that has expired at `now`. If
    /// no chain is stored, stores one with the key that `key` returns; this takes about a
    /// microsecond and parses no key.
    pub fn get(
        &self,
        loaded: &Arc<Loaded>,
        now: UnixSeconds,
        key: impl FnOnce(&Loaded) -> Arc<dyn SigningKey>,
    ) -> Arc<CertifiedKey> {
        if let Some(chain) = loaded.ready_at(now) {
            return chain;
        }
        let chain = Arc::new(loaded.certified(key(loaded), now));
        if loaded.set_ready(&chain) {
            self.list(loaded);
        }
        chain
    }

    fn list(&self, loaded: &Arc<Loaded>) {
        // The list stays valid if another lock holder panics.
        let mut listed = self.listed.lock().unwrap_or_else(PoisonError::into_inner);
        listed.push_back(Arc::downgrade(loaded));
        for turn in 0..=MOST_TURNS {
            if listed.len() <= self.most {
                return;
            }
            let oldest = listed.pop_front();
            let Some(oldest) = oldest.and_then(|it| it.upgrade()) else {
                continue;
            };
            if !oldest.forget_ready(turn < MOST_TURNS) {
                listed.push_back(Arc::downgrade(&oldest));
            }
        }
    }
}

/// The cache as one worker uses it for one listener, with the chains that it used last.
#[derive(Debug, Default)]
pub struct WorkerKeys {
    shared: Arc<KeyCache>,
    /// The address of a certificate determines its place. Only the worker takes the lock.
    recent: Mutex<[Option<RecentChain>; RECENT]>,
}

#[derive(Debug)]
struct RecentChain {
    of: Arc<Loaded>,
    chain: Arc<CertifiedKey>,
}

impl WorkerKeys {
    pub fn new(shared: &Arc<KeyCache>) -> Self {
        Self {
            shared: Arc::clone(shared),
            recent: Mutex::default(),
        }
    }

    /// As [`KeyCache::get`].
    pub fn get(
        &self,
        loaded: &Arc<Loaded>,
        now: UnixSeconds,
        key: impl FnOnce(&Loaded) -> Arc<dyn SigningKey>,
    ) -> Arc<CertifiedKey> {
        // The list stays valid if another lock holder panics.
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let place = Arc::as_ptr(loaded).addr() / size_of::<Loaded>() % RECENT;
        let mut place = recent.get_mut(place);
        if let Some(Some(known)) = &place
            && Arc::ptr_eq(&known.of, loaded)
            && loaded.use_again(&known.chain, now)
        {
            return Arc::clone(&known.chain);
        }
        let chain = self.shared.get(loaded, now, key);
        if let Some(place) = &mut place {
            let (of, chain) = (Arc::clone(loaded), Arc::clone(&chain));
            **place = Some(RecentChain { of, chain });
        }
        chain
    }
}

/// Number of chains that a worker remembers for a listener.
const RECENT: usize = 16;
/// Default number of certificates. Each takes about 5 KiB with a P-256 key.
const MOST: usize = 10_000;
/// Maximum number of certificates that keep their chain although they were looked at, so that one
/// handshake does not pay for all.
const MOST_TURNS: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::issuers::IssuerTable;
    use crate::loaded::tests::{loaded, staple};

    /// Compares the cache with a plain list of the same algorithm.
    #[test]
    fn the_cache_keeps_used_certificates_and_is_bounded() {
        let issuers = IssuerTable::default();
        let all: Vec<_> = (0..20)
            .map(|number| Arc::new(loaded(&[&format!("{number}.test")], &issuers)))
            .collect();
        for seed in 0..50 {
            all.iter().for_each(|one| {
                one.forget_ready(false);
            });
            let mut random = fastrand::Rng::with_seed(seed);
            let cache = KeyCache::of(6);
            let mut model: VecDeque<(usize, bool)> = VecDeque::new();
            for _ in 0..500 {
                let asked = random.usize(0..all.len()).min(random.usize(0..all.len()));
                let mut is_hit = true;
                cache.get(&all[asked], UnixSeconds(0), |one| {
                    is_hit = false;
                    one.key().signing_key()
                });
                let known = model.iter_mut().find(|(of, _)| *of == asked);
                assert_eq!(known.is_some(), is_hit, "seed {seed}");
                match known {
                    Some((_, is_used)) => *is_used = true,
                    None => model.push_back((asked, false)),
                }
                let mut turns = 0;
                while model.len() > 6 {
                    let (of, is_used) = model.pop_front().unwrap();
                    if is_used && turns < MOST_TURNS {
                        model.push_back((of, false));
                    }
                    turns += 1;
                }
                for (number, one) in all.iter().enumerate() {
                    let is_kept = model.iter().any(|(of, _)| *of == number);
                    assert_eq!(one.has_ready(), is_kept, "seed {seed}");
                }
            }
        }
    }

    #[test]
    fn a_replaced_certificate_is_freed_with_its_chain() {
        let cache = KeyCache::of(2);
        let issuers = IssuerTable::default();
        let one = Arc::new(loaded(&["a.test"], &issuers));
        let chain = cache.get(&one, UnixSeconds(0), |one| one.key().signing_key());
        let again = cache.get(&one, UnixSeconds(0), |_| panic!("the chain is stored"));
        assert!(Arc::ptr_eq(&chain, &again));
        drop(again);
        drop(one);
        assert_eq!(Arc::strong_count(&chain), 1);
    }

    #[test]
    fn a_worker_remembers_some_chains_and_notes_their_use() {
        let issuers = IssuerTable::default();
        let all: Vec<_> = (0..4 * RECENT)
            .map(|number| Arc::new(loaded(&[&format!("{number}.test")], &issuers)))
            .collect();
        let keys = WorkerKeys::default();
        let get = |of| keys.get(of, UnixSeconds(0), |one| one.key().signing_key());
        for one in &all {
            let chain = get(one);
            one.forget_ready(false);
            assert!(Arc::ptr_eq(&chain, &get(one)) && !one.has_ready());
            assert!(!one.forget_ready(true), "the chain was used");
        }
        all.iter().for_each(|one| {
            get(one);
        });
        let kept = all.iter().filter(|one| Arc::strong_count(one) > 1);
        assert!(kept.count() <= RECENT);
    }

    #[test]
    fn a_stapled_response_is_sent_until_it_expires() {
        let mut one = loaded(&["a.test"], &IssuerTable::default());
        staple(&mut one, 10);
        let one = Arc::new(one);
        let cache = WorkerKeys::default();
        let sends = |now| {
            let chain = cache.get(&one, UnixSeconds(now), |it| it.key().signing_key());
            chain.ocsp.is_some()
        };
        assert_eq!([9, 9, 10, 11].map(sends), [true, true, false, false]);
    }
}
