//! Certificate maps of replaced configurations, until no worker uses them.
//!
//! To free a map of a hundred thousand certificates takes milliseconds. The control thread drops
//! the last reference, so that no worker has to.

use std::sync::Arc;

use becket_keys::certificates::CertificateMap;
use becket_tls::config::Config;

#[derive(Debug, Default)]
pub struct RetiredMaps(Vec<Arc<CertificateMap>>);

impl RetiredMaps {
    /// Adds the maps that `new` does not use.
    pub(super) fn add(&mut self, old: &Config, new: &Config) {
        let maps = |config: &Config| {
            let listeners = config.listeners.iter();
            let maps = listeners.map(|listener| Arc::clone(&listener.certificates));
            maps.collect::<Vec<_>>()
        };
        let new = maps(new);
        let is_used = |map: &Arc<CertificateMap>| new.iter().any(|it| Arc::ptr_eq(it, map));
        let old = maps(old).into_iter().filter(|map| !is_used(map));
        self.0.extend(old);
    }

    /// Drops the maps to which nothing else refers.
    pub(super) fn drop_unused(&mut self) {
        self.0.retain(|map| Arc::strong_count(map) > 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn a_map_is_kept_while_it_is_used() {
        let (old, new) = (sample::config(), sample::config());
        let used = Arc::clone(&old.listeners[0].certificates);
        let mut retired = RetiredMaps::default();
        retired.add(&old, &old.clone());
        assert!(retired.0.is_empty());
        retired.add(&old, &new);
        drop(old);
        retired.drop_unused();
        assert_eq!(retired.0.len(), 1);
        drop(used);
        retired.drop_unused();
        assert!(retired.0.is_empty());
    }
}
