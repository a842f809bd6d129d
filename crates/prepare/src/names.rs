//! Resolves the host names of servers and peers for `becket check`.
//!
//! A start and a reload do not wait for names: servers and peers resolve their names at run time.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use becket_config::address::Address;
use becket_config::file::File;

use crate::resolver::{HostAddresses, HostResolver};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadPurpose {
    /// `becket check`: names are resolved during the preparation, and no earlier check is trusted.
    Check,
    /// Names are resolved at run time, and signatures of many certificates are not verified.
    Serve,
}

/// Resolves the names of all servers and peers, each once. Blocks for at most [`PATIENCE`].
pub(super) fn look_up(file: &File, resolver: &HostResolver) -> HashMap<String, HostAddresses> {
    let servers = file.backend.iter().flat_map(|backend| &backend.server);
    let servers = servers.filter_map(|server| Some(&server.address.as_ref()?.address));
    let peers = file.cluster.iter().flat_map(|cluster| &cluster.peers);
    let all = servers.chain(peers.map(|peer| &peer.address));
    let names = all.filter_map(|address| match address {
        Address::Name(name, _) => Some(name.as_str()),
        _ => None,
    });
    resolver.wait(names.collect::<BTreeSet<_>>(), PATIENCE)
}

/// Time limit: three sequential lookups with a resolver that does not answer.
const PATIENCE: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[test]
    fn each_name_is_looked_up_once() {
        let text = "[[backend]]\nname = 'a'\n[[backend.server]]\naddress = 'a.test:1'\n\
            [[backend.server]]\naddress = 'a.test:2'\n[[backend.server]]\naddress = '192.0.2.1:1'\n\
            [[backend.server]]\naddress = 'b.test:1'\n[cluster]\npeers = ['b.test:7', 'c.test:7']";
        let file = File::parse(text).unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&asked);
        let resolver = HostResolver::by(move |name| {
            sink.lock().unwrap().push(name.to_owned());
            Ok(vec![IpAddr::from([192, 0, 2, 9])])
        });
        let found = look_up(&file, &resolver);
        assert!(
            found
                .values()
                .all(|found| found.as_ref().unwrap().len() == 1)
        );
        let mut asked = asked.lock().unwrap();
        asked.sort();
        assert_eq!(*asked, ["a.test", "b.test", "c.test"]);
    }
}
