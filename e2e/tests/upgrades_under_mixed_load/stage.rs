//! A becket with a listener for each kind of client, and the servers behind it.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;

use becket_e2e::{
    Backend, Becket, Bundle, Key, Place, Shape, fresh_address, read_head, read_proxy_header,
};
use fastrand::Rng;

use crate::slots_are_shared_in_an_upgrade::Counting;
use crate::upgrades_lose_nothing::{TWO_WORKERS, start};

/// Everything that runs. The place is dropped last, because a failure prints its logs.
pub(super) struct Stage {
    pub(super) becket: Becket,
    pub(super) sites: Sites,
    pub(super) servers: Servers,
    /// A client certificate with its intermediate certificate.
    pub(super) member: Bundle,
    pub(super) place: Place,
}

/// Addresses of listeners. The address of `web` is in `Becket`.
pub(super) struct Sites {
    /// Requires a client certificate.
    pub(super) members: SocketAddr,
    /// Has `stick = "source"`.
    pub(super) sticky: SocketAddr,
    /// Has one server with `maxconn`, and a queue.
    pub(super) narrow: SocketAddr,
    /// Sends large bodies.
    pub(super) bulk: SocketAddr,
    /// Has a server without clients.
    spare: SocketAddr,
}

pub(super) struct Servers {
    pub(super) app: Backend,
    pub(super) members: Backend,
    pub(super) sticky: [Backend; 3],
    pub(super) narrow: Counting,
    pub(super) bulk: Backend,
    /// Body that `bulk` sends: the first half at once, the second half after another byte from the client.
    pub(super) body: Arc<Vec<u8>>,
}

impl Servers {
    fn start() -> Self {
        let mut body = vec![0; BODY];
        Rng::with_seed(1).fill(&mut body);
        let body = Arc::new(body);
        let sent = Arc::clone(&body);
        Self {
            app: Backend::http("well met"),
            members: Backend::new(|mut stream| {
                let header = read_proxy_header(&mut stream)?;
                read_head(&mut stream)?;
                let is_alice = header.windows(5).any(|word| word == b"alice");
                stream.write_all(if is_alice { MEMBER } else { b"stranger" })
            }),
            sticky: ["one", "two", "six"].map(Backend::http),
            narrow: Counting::new(),
            bulk: Backend::new(move |mut stream| {
                read_head(&mut stream)?;
                stream.write_all(&sent[..BODY / 2])?;
                stream.read_exact(&mut [0])?;
                stream.write_all(&sent[BODY / 2..])
            }),
            body,
        }
    }

    /// Connections accepted so far.
    pub(super) fn served(&self) -> usize {
        let sticky: usize = self.sticky.iter().map(Backend::served).sum();
        let others = [&self.app, &self.members, &self.bulk].map(Backend::served);
        sticky + others.iter().sum::<usize>() + self.narrow.served()
    }

    fn shape(&self, sites: &Sites) -> Shape {
        let mut shape = Shape::new(self.app.address)
            .process(TWO_WORKERS)
            .listener("defer-accept = \"0s\"")
            .timeouts(PATIENT)
            .sessions("id-lifetime = \"1d\"")
            .section(POLICY);
        let sticky = self.sticky.each_ref().map(|server| server.address);
        let sites: [(&str, SocketAddr, &str, &[SocketAddr], &str); 5] = [
            (
                "members",
                sites.members,
                "proxy-header = \"v2\"",
                &[self.members.address],
                "",
            ),
            ("sticky", sites.sticky, "stick = \"source\"", &sticky, ""),
            (
                "narrow",
                sites.narrow,
                "queue-timeout = \"10m\"",
                &[self.narrow.address()],
                "maxconn = 2",
            ),
            ("bulk", sites.bulk, "", &[self.bulk.address], ""),
            ("spare", sites.spare, "", &[SPARE.parse().unwrap()], ""),
        ];
        for (name, at, backend, servers, keys) in sites {
            let servers = servers
                .iter()
                .map(|address| format!("[[backend.server]]\naddress = \"{address}\"\n{keys}\n"));
            shape = shape.section(&format!(
                "[[listener]]\nname = \"{name}\"\nbind = [\"{at}\"]\nbackend = \"{name}\"\ncertificates = [\"site.pem\"]\n\
                 defer-accept = \"0s\"\n[[backend]]\nname = \"{name}\"\n{backend}\n{}",
                servers.collect::<String>()
            ));
        }
        shape
    }
}

impl Stage {
    #[track_caller]
    pub(super) fn start() -> Self {
        let (place, servers) = (Place::new(), Servers::start());
        let sites = Sites {
            members: fresh_address(),
            sticky: fresh_address(),
            narrow: fresh_address(),
            bulk: fresh_address(),
            spare: fresh_address(),
        };
        let intermediate = place.authority.intermediate("Members of Becket");
        let mut member = intermediate.issue(&["alice"], Key::Ecdsa);
        member.certificate.push_str(intermediate.pem());
        Self {
            becket: start(&place, &servers.shape(&sites)),
            sites,
            servers,
            member,
            place,
        }
    }
}

/// The answer to a client with a certificate.
pub(super) const MEMBER: &[u8] = b"well met, alice";
/// A server without clients.
pub(super) const SPARE: &str = "127.0.0.1:9";

const POLICY: &str =
    "[[policy]]\nname = \"members\"\nclient-certificates = \"required\"\nclient-ca = \"ca.pem\"\n";
/// Time limits so long that a slow machine exceeds none of them.
const PATIENT: &str = "hello = \"10m\"\nhandshake = \"10m\"\nconnect = \"1m\"\nhalf-closed = \"10m\"\nlinger = \"1m\"\n\
    drain = \"10m\"\ndrain-idle = \"10m\"\nupgrade = \"10m\"";
/// Size of a large body, in bytes.
const BODY: usize = 16 * 1024 * 1024;
