//! Host names of a configuration, and what they have resolved to.
//!
//! A start and a reload wait only for names that are needed before anything can listen: those in `bind`,
//! `admin.address` and `cluster.listen`. Servers and peers are looked up by those who use them, while becket serves.
//! `becket check` asks for all, beside each other, and says what nobody knows.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use becket_config::address::Address;
use becket_config::file::File;

use crate::resolver::{Found, Resolver};

/// Whether names of servers and peers are looked up with the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerNames {
    /// They are, for `becket check`.
    Now,
    /// They are looked up while becket runs.
    Later,
}

/// What names have resolved to.
#[derive(Debug)]
pub(super) struct Names {
    resolver: Resolver,
    found: RefCell<HashMap<String, Found>>,
}

impl Names {
    /// None is known yet.
    pub(super) fn new(resolver: Resolver) -> Self {
        let found = RefCell::default();
        Self { resolver, found }
    }

    /// Looks up the names of all servers and peers. Blocks, at most for [`PATIENCE`].
    pub(super) fn look_up_servers(&self, file: &File) {
        let servers = file.backend.iter().flat_map(|backend| &backend.server);
        let servers = servers.filter_map(|server| Some(&server.address.as_ref()?.address));
        let peers = file.cluster.iter().flat_map(|cluster| &cluster.peers);
        let all = servers.chain(peers.map(|peer| &peer.address));
        let names = all.filter_map(|address| match address {
            Address::Name(name, _) => Some(name.clone()),
            _ => None,
        });
        let names: BTreeSet<String> = names.collect();
        let found = self
            .resolver
            .wait(names.iter().map(String::as_str), PATIENCE);
        self.found.borrow_mut().extend(found);
    }

    /// The addresses of a name, looked up unless it was already; or why there are none. Blocks, at most for
    /// [`PATIENCE`].
    pub(super) fn look_up(&self, name: &str) -> Found {
        let mut all = self.found.borrow_mut();
        if !all.contains_key(name) {
            all.extend(self.resolver.wait([name], PATIENCE));
        }
        let unknown = || Err("nobody was asked".to_owned());
        all.get(name).cloned().unwrap_or_else(unknown)
    }
}

/// Three names, one after the other, of a resolver that does not answer.
const PATIENCE: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[test]
    fn each_name_is_asked_for_once() {
        let text = "[[backend]]\nname = 'a'\n[[backend.server]]\naddress = 'a.test:1'\n\
            [[backend.server]]\naddress = 'a.test:2'\n[[backend.server]]\naddress = '192.0.2.1:1'\n\
            [[backend.server]]\naddress = 'b.test:1'\n[cluster]\npeers = ['b.test:7', 'c.test:7']";
        let file = File::parse(text).unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&asked);
        let names = Names::new(Resolver::by(move |name| {
            told.lock().unwrap().push(name.to_owned());
            Ok(vec![IpAddr::from([192, 0, 2, 9])])
        }));
        names.look_up_servers(&file);
        for name in ["a.test", "b.test", "c.test", "d.test", "d.test"] {
            assert_eq!(names.look_up(name).unwrap().len(), 1);
        }
        let mut asked = asked.lock().unwrap();
        asked.sort();
        assert_eq!(*asked, ["a.test", "b.test", "c.test", "d.test"]);
    }
}
