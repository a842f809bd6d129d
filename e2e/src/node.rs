//! A becket of a cluster, on a host of a [`Network`] of its own.
//!
//! It serves `www.example.org` at [`Node::web`], where clients on the hub reach it, and sends them
//! to a server on its own host. Keys of `[cluster]` are the test's; its number is that of the host.

use std::fs;
use std::net::SocketAddr;

use serde_json::Value;

use crate::backend::Backend;
use crate::becket::{Becket, Signal};
use crate::network::{Host, Network};
use crate::openssl::OpenSsl;
use crate::place::Place;
use crate::scrape::Metrics;
use crate::shape::Shape;
use crate::time::eventually;
use crate::tool::{Finished, finish};

/// A becket on a host of the network, or what is needed to start one.
#[derive(Debug)]
pub struct Node<'n> {
    pub hub: &'n Host,
    pub host: &'n Host,
    /// Its number, and that of its host, from 1.
    pub number: usize,
    pub place: Place,
    /// Its configuration, without `[cluster]`.
    pub shape: Shape,
    /// What starts it, in place of nothing; see [`Becket::start_by`].
    pub launcher: Vec<String>,
    backend: Backend,
    becket: Option<Becket>,
}

impl<'n> Node<'n> {
    /// Prepares a node in front of a server that says "well met".
    pub fn new(network: &'n Network, number: usize) -> Self {
        Self::serving(network, number, || Backend::http("well met"))
    }

    /// The same in front of another server, which is made on the node's host.
    pub fn serving(
        network: &'n Network,
        number: usize,
        server: impl FnOnce() -> Backend + Send,
    ) -> Self {
        let host = &network.hosts[number - 1];
        let backend = host.within(server);
        let mut shape = Shape::new(backend.address);
        shape.web = (host.address, HTTPS).into();
        Self {
            hub: &network.hub,
            host,
            number,
            place: Place::new(),
            shape,
            launcher: Vec::new(),
            backend,
            becket: None,
        }
    }

    /// So many nodes that replicate, and know each other by one list.
    #[track_caller]
    pub fn cluster(network: &'n Network, nodes: usize) -> Vec<Self> {
        let mut all: Vec<Self> = (1..=nodes).map(|n| Self::new(network, n)).collect();
        let addresses: Vec<SocketAddr> = all.iter().map(Self::address).collect();
        let (first, rest) = all.split_first_mut().expect("a first node");
        first.secret("secret");
        rest.iter().for_each(|node| first.give("secret", node));
        for node in &mut all {
            node.replicate(&Self::peers(&addresses));
        }
        for node in &all {
            node.has_peers(nodes - 1);
        }
        all
    }

    /// The key of `[cluster]` that lists these addresses.
    pub fn peers(addresses: &[SocketAddr]) -> String {
        let texts: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        format!("peers = {texts:?}")
    }

    /// Where it talks with its peers.
    pub fn address(&self) -> SocketAddr {
        (self.host.address, REPLICATION).into()
    }

    /// Where clients reach it.
    pub fn web(&self) -> SocketAddr {
        self.shape.web
    }

    /// Connections that its server has had.
    pub fn served(&self) -> usize {
        self.backend.served()
    }

    /// Makes a secret in `file`; `flags` of `becket secret` may say which kind.
    #[track_caller]
    pub fn secret(&self, file: &str) {
        let run = finish(Becket::command(&self.place, &["secret", file]), "");
        assert_eq!(run.code, 0, "{}", run.all());
    }

    /// Copies a file with its mode to another node, as `scp -p` would.
    #[track_caller]
    pub fn give(&self, file: &str, to: &Self) {
        fs::copy(self.place.path(file), to.place.path(file)).expect("a copy");
    }

    /// Starts with these keys of `[cluster]` beside `node`.
    #[track_caller]
    pub fn start(&mut self, keys: &str) {
        let shape = self.shape_of(keys);
        // The lines of an earlier process are not those of this one.
        fs::remove_file(self.place.path("access.log")).ok();
        let (host, place, launcher) = (self.host, &self.place, &self.launcher);
        self.becket = Some(host.within(|| Becket::start_by(place, &shape, launcher)));
    }

    /// The same with the secret in `secret`, and with replication.
    #[track_caller]
    pub fn replicate(&mut self, keys: &str) {
        let keys = self.replication(keys);
        self.start(&keys);
    }

    /// The keys of `[cluster]` with which [`Self::replicate`] starts.
    pub fn replication(&self, keys: &str) -> String {
        format!(
            "secret = \"secret\"\nlisten = \"{}\"\n{keys}",
            self.address()
        )
    }

    /// Gives a running becket other keys of `[cluster]`; whether it takes them.
    #[track_caller]
    pub fn reload(&self, keys: &str) -> bool {
        self.place.write("becket.toml", &self.shape_of(keys).text());
        self.host.within(|| self.becket().reload())
    }

    fn shape_of(&self, keys: &str) -> Shape {
        let section = format!("[cluster]\nnode = {}\n{keys}", self.number);
        self.shape.clone().section(&section)
    }

    #[track_caller]
    pub fn becket(&self) -> &Becket {
        self.becket.as_ref().expect("a becket that was started")
    }

    /// Ends the becket in order.
    #[track_caller]
    pub fn stop(&mut self) {
        let mut becket = self.becket.take().expect("a becket");
        becket.signal(Signal::TERM);
        assert_eq!(becket.ended(), Some(0));
    }

    /// Ends the becket as the end of its host would: all its processes at once.
    #[track_caller]
    pub fn kill(&mut self) {
        let mut becket = self.becket.take().expect("a becket");
        becket.kill_all();
        assert_eq!(becket.ended(), None);
    }

    #[track_caller]
    pub fn status(&self) -> Value {
        self.host.within(|| self.becket().status())
    }

    #[track_caller]
    pub fn metrics(&self) -> Metrics {
        self.host.within(|| self.becket().metrics())
    }

    /// What clients offered to resume came to this, so often.
    #[track_caller]
    pub fn offered(&self, outcome: &str) -> u64 {
        let label = format!("outcome=\"{outcome}\"");
        let metrics = self.metrics();
        metrics.sum("becket_resumptions_offered_total", &[&label]) as u64
    }

    /// How many peers are live.
    #[track_caller]
    pub fn live_peers(&self) -> usize {
        let cluster = self.status()["cluster"].clone();
        let peers = cluster["peers"].as_array().expect("peers").iter();
        peers.filter(|peer| peer["state"] == "live").count()
    }

    /// Waits until so many peers are live.
    #[track_caller]
    pub fn has_peers(&self, number: usize) {
        eventually("the peers are there", || self.live_peers() == number);
    }

    /// How many sessions are in the table.
    #[track_caller]
    pub fn holds(&self) -> u64 {
        self.metrics().sum("becket_sessions", &[]) as u64
    }

    /// Asks as openssl does, from the hub.
    #[track_caller]
    pub fn ask(&self, openssl: &OpenSsl, flags: &[&str]) -> Finished {
        let (place, web) = (&self.place, self.web());
        self.hub.within(|| openssl.ask(place, web, flags))
    }

    /// The same, and says how becket saw the handshake.
    #[track_caller]
    pub fn visit(&self, openssl: &OpenSsl, flags: &[&str]) -> String {
        let run = self.ask(openssl, flags);
        assert!(run.stdout.contains("well met"), "{}", run.all());
        let line = self.becket().next_access();
        line["handshake"].as_str().expect("a kind").to_owned()
    }
}

/// Port of clients, on every host.
const HTTPS: u16 = 443;
/// Port of replication, on every host.
const REPLICATION: u16 = 7443;
