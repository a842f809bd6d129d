//! Host names of a configuration, looked up beside each other.
//!
//! A resolver that does not answer takes ten seconds for each name (resolv.conf(5): five, twice), and
//! a name that does not resolve keeps nothing from starting. One after the other, ten servers would
//! delay a start by minutes, and one of two backends at the same host would ask twice.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::thread;

use super::file::File;
use super::pem::reason;
use super::prepare::Resolve;
use super::values::{self, Address};

/// What names have resolved to.
#[derive(Debug, Default)]
pub(super) struct Names(Mutex<HashMap<String, Found>>);

/// Addresses, at least one; or why there are none.
type Found = Result<Vec<IpAddr>, String>;

impl Names {
    /// Looks up the names of all servers and peers. Takes as long as the slowest, where there are
    /// not more than [`AT_A_TIME`].
    pub(super) fn of(file: &File, resolve: &Resolve<'_>) -> Self {
        let servers = file.backend.iter().flat_map(|backend| &backend.server);
        let servers = servers.filter_map(|server| server.address.as_ref());
        let peers = file.cluster.iter().flat_map(|cluster| &cluster.peers);
        // What is no address is said where it stands.
        let parsed = servers
            .chain(peers)
            .map(|text| values::server_address(text));
        let names = parsed.filter_map(|parsed| match parsed {
            Ok(Address::Name(name, _)) => Some(name),
            _ => None,
        });
        let names: BTreeSet<String> = names.collect();
        let (all, next) = (Self::default(), Mutex::new(names.iter()));
        thread::scope(|scope| {
            // The last one is looked up here.
            for _ in 1..names.len().min(AT_A_TIME) {
                let look_up = || all.look_up_each(&next, resolve);
                // A thread that is not to be had is not needed: it only takes longer.
                let _fewer = thread::Builder::new().spawn_scoped(scope, look_up);
            }
            all.look_up_each(&next, resolve);
        });
        all
    }

    fn look_up_each<'n>(
        &self,
        next: &Mutex<impl Iterator<Item = &'n String>>,
        resolve: &Resolve<'_>,
    ) {
        let take = || next.lock().unwrap_or_else(PoisonError::into_inner).next();
        while let Some(name) = take() {
            drop(self.look_up(name, resolve));
        }
    }

    /// The addresses of a name, looked up unless it was already; or why there are none.
    pub(super) fn look_up(&self, name: &str, resolve: &Resolve<'_>) -> Found {
        let known = |names: &Self| {
            let held = names.0.lock().unwrap_or_else(PoisonError::into_inner);
            held.get(name).cloned()
        };
        known(self).unwrap_or_else(|| {
            let found = match resolve(name) {
                Ok(found) if found.is_empty() => Err("it has no address".to_owned()),
                Ok(found) => Ok(found),
                Err(error) => Err(reason(&error)),
            };
            let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            held.insert(name.to_owned(), found.clone());
            found
        })
    }
}

/// Threads that wait for a resolver, and questions that it has to bear at once.
const AT_A_TIME: usize = 16;

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Condvar;
    use std::time::Duration;

    use super::*;

    #[test]
    fn all_names_are_asked_for_at_a_time_and_each_once() {
        let text = "[[backend]]\nname = 'a'\n[[backend.server]]\naddress = 'a.test:1'\n\
            [[backend.server]]\naddress = 'a.test:2'\n[[backend.server]]\naddress = '192.0.2.1:1'\n\
            [[backend.server]]\naddress = 'b.test:1'\n[cluster]\npeers = ['b.test:7', 'c.test:7']";
        let file = File::parse(text).unwrap();
        let (asked, all_there) = (Mutex::new(Vec::new()), Condvar::new());
        // Whoever asks waits for the others: one after the other, nobody would be answered.
        let resolve = |name: &str| {
            let mut held = asked.lock().unwrap();
            held.push(name.to_owned());
            all_there.notify_all();
            let few = |names: &mut Vec<String>| names.len() < 3;
            let patience = Duration::from_secs(30);
            let waited = all_there.wait_timeout_while(held, patience, few).unwrap();
            match waited.1.timed_out() {
                true => Err(io::ErrorKind::TimedOut.into()),
                false => Ok(vec![IpAddr::from([192, 0, 2, 9])]),
            }
        };
        let names = Names::of(&file, &resolve);
        for name in ["a.test", "b.test", "c.test"] {
            let never = |_: &str| unreachable!("it is known");
            assert_eq!(names.look_up(name, &never).unwrap().len(), 1);
        }
        assert_eq!(asked.lock().unwrap().len(), 3);
    }
}
