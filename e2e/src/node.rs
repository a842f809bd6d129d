//! A cluster node: a becket on a separate host of a [`Network`].
//!
//! It serves `www.example.org` at [`Node::web`] for clients on the hub, with a backend on its own host. The test chooses the keys of
//! `[cluster]`. The number of a node is the number of its host.

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

/// Cluster node, running or prepared.
#[derive(Debug)]
pub struct Node<'n> {
    pub hub: &'n Host,
    pub host: &'n Host,
    /// Number of the node and of its host, from 1.
    pub number: usize,
    /// Dropped before its folder, so that a failed test shows its logs.
    becket: Option<Becket>,
    pub place: Place,
    /// Configuration without `[cluster]`.
    pub shape: Shape,
    /// Launcher of becket, empty for a direct start; see [`Becket::start_by`].
    pub launcher: Vec<String>,
    backend: Backend,
}

impl<'n> Node<'n> {
    /// Prepares a node with a backend that answers "well met".
    pub fn new(network: &'n Network, number: usize) -> Self {
        Self::serving(network, number, || Backend::http("well met"))
    }

    /// Prepares a node with another backend, which `server` creates on the node's host.
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

    /// Starts this number of nodes with replication between all of them.
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

    /// Returns the key of `[cluster]` that lists these addresses.
    pub fn peers(addresses: &[SocketAddr]) -> String {
        let texts: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        format!("peers = {texts:?}")
    }

    /// Returns the address for replication.
    pub fn address(&self) -> SocketAddr {
        (self.host.address, REPLICATION).into()
    }

    /// Returns the address for clients.
    pub fn web(&self) -> SocketAddr {
        self.shape.web
    }

    /// Returns the number of connections to the node's backend.
    pub fn served(&self) -> usize {
        self.backend.served()
    }

    /// Creates a secret in `file` with `becket secret`.
    #[track_caller]
    pub fn secret(&self, file: &str) {
        let run = finish(Becket::command(&self.place, &["secret", file]), "");
        assert_eq!(run.code, 0, "{}", run.all());
    }

    /// Copies a file with its mode to another node, as `scp -p` does.
    #[track_caller]
    pub fn give(&self, file: &str, to: &Self) {
        fs::copy(self.place.path(file), to.place.path(file)).expect("a copy");
    }

    /// Starts becket with `node` and these keys in `[cluster]`.
    #[track_caller]
    pub fn start(&mut self, keys: &str) {
        let shape = self.shape_of(keys);
        // The log of an earlier process must not be read as the log of the new process.
        fs::remove_file(self.place.path("access.log")).ok();
        let (host, place, launcher) = (self.host, &self.place, &self.launcher);
        self.becket = Some(host.within(|| Becket::start_by(place, &shape, launcher)));
    }

    /// Starts becket with replication and the secret in the file `secret`.
    #[track_caller]
    pub fn replicate(&mut self, keys: &str) {
        let keys = self.replication(keys);
        self.start(&keys);
    }

    /// Returns the keys of `[cluster]` that [`Self::replicate`] uses.
    pub fn replication(&self, keys: &str) -> String {
        format!(
            "secret = \"secret\"\nlisten = \"{}\"\n{keys}",
            self.address()
        )
    }

    /// Reloads becket with other keys of `[cluster]`. Returns whether it accepts them.
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

    /// Stops becket gracefully.
    #[track_caller]
    pub fn stop(&mut self) {
        let mut becket = self.becket.take().expect("a becket");
        becket.signal(Signal::TERM);
        assert_eq!(becket.ended(), Some(0));
    }

    /// Kills all processes of becket at once, as a failure of the host would.
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

    /// Returns the number of offered resumptions with this outcome.
    #[track_caller]
    pub fn offered(&self, outcome: &str) -> u64 {
        let label = format!("outcome=\"{outcome}\"");
        let metrics = self.metrics();
        metrics.sum("becket_resumptions_offered_total", &[&label]) as u64
    }

    /// Returns the number of live peers.
    #[track_caller]
    pub fn live_peers(&self) -> usize {
        let cluster = self.status()["cluster"].clone();
        let peers = cluster["peers"].as_array().expect("peers").iter();
        peers.filter(|peer| peer["state"] == "live").count()
    }

    /// Waits until this number of peers is live.
    #[track_caller]
    pub fn has_peers(&self, number: usize) {
        eventually("all peers are connected", || self.live_peers() == number);
    }

    /// Returns the number of sessions in the table.
    #[track_caller]
    pub fn holds(&self) -> u64 {
        self.metrics().sum("becket_sessions", &[]) as u64
    }

    /// Sends a request with openssl from the hub.
    #[track_caller]
    pub fn ask(&self, openssl: &OpenSsl, flags: &[&str]) -> Finished {
        let (place, web) = (&self.place, self.web());
        self.hub.within(|| openssl.ask(place, web, flags))
    }

    /// Sends a request with openssl and returns the kind of handshake in becket's access log.
    #[track_caller]
    pub fn visit(&self, openssl: &OpenSsl, flags: &[&str]) -> String {
        let run = self.ask(openssl, flags);
        assert!(run.stdout.contains("well met"), "{}", run.all());
        let line = self.becket().next_access();
        line["handshake"].as_str().expect("a kind").to_owned()
    }
}

/// Port for clients on every host.
const HTTPS: u16 = 443;
/// Port for replication on every host.
const REPLICATION: u16 = 7443;
