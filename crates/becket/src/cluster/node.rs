//! This becket as a node of its cluster: the state machine of replication with its secrets, the
//! shelf that it fills and empties, the directory of peers.
//!
//! Lives on the control thread behind a lock for which nobody ever waits: the task that speaks
//! with the peers ([`super::exchange`]) and the pages that show them take turns.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use becket_proto::replica::{Boot, Limits, Replica};
use becket_proto::session_table::SessionTable;

use super::directory::{Directory, Found, Lookups};
use super::news::News;
use super::outbox::OutboxReader;
use super::shelf::Shelf;
use super::status::ClusterStatus;
use super::vault::ClusterVault;
use crate::backend::registry::Backends;
use crate::clock::Now;
use crate::config::{Cluster, Config};
use crate::resolver::Resolver;

/// This becket among its peers.
pub struct Node(Mutex<Inner>);

/// What the lock guards.
pub(super) struct Inner {
    pub(super) replica: Replica<ClusterVault>,
    pub(super) shelf: Shelf,
    pub(super) directory: Directory,
    news: News,
    pub(super) cluster: Cluster,
}

/// The system gave no random bytes.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("no random bytes from the system")]
pub struct NoBoot;

impl Node {
    /// Starts without having spoken with anybody. `cluster` is the configuration's.
    ///
    /// # Errors
    /// When the system gives no random bytes.
    pub fn start(
        cluster: &Cluster,
        config: &Config,
        table: Arc<SessionTable>,
        now: Now,
    ) -> Result<Self, NoBoot> {
        let mut boot = [0; 8];
        aws_lc_rs::rand::fill(&mut boot).map_err(|_| NoBoot)?;
        let vault = vault(cluster).ok_or(NoBoot)?;
        let boot = Boot(u64::from_ne_bytes(boot));
        let mut inner = Inner {
            replica: Replica::new(cluster.node, boot, limits(cluster, config), vault),
            shelf: Shelf::new(table, config, now),
            directory: Directory::default(),
            news: News::default(),
            cluster: cluster.clone(),
        };
        inner
            .directory
            .set(&cluster.peers, cluster.resolve_interval);
        inner.readdress();
        Ok(Self(Mutex::new(inner)))
    }

    /// From now on it is remembered where peers have sent clients.
    pub fn remember_in(&self, backends: Arc<Backends>) {
        self.lock().shelf.backends = Some(backends);
    }

    /// Everything at one moment, for pages.
    pub fn status(&self, now: Now) -> ClusterStatus {
        ClusterStatus::of(&mut self.lock(), now)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        // Whatever panicked, a page most likely: it must not end replication.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Takes over a reloaded configuration. Live pairs stay, unless their secret is no longer
    /// accepted. What a reload cannot change is left as it was.
    pub(super) fn reload(&mut self, config: &Config) {
        let Some(cluster) = &config.cluster else {
            return;
        };
        self.replica.set_limits(limits(cluster, config));
        if self.cluster.secrets != cluster.secrets
            && let Some(vault) = vault(cluster)
        {
            self.replica.set_vault(vault);
        }
        self.shelf.reload(config);
        self.directory.set(&cluster.peers, cluster.resolve_interval);
        self.cluster = Cluster {
            node: self.cluster.node,
            listen: self.cluster.listen,
            multicast: self.cluster.multicast.clone(),
            ..cluster.clone()
        };
        self.readdress();
    }

    /// Takes a datagram.
    pub(super) fn receive(&mut self, from: SocketAddr, datagram: &mut [u8], now: Now) {
        self.shelf.now = now;
        let shelf = &mut self.shelf;
        self.replica.receive(from, datagram, now.mono, shelf);
    }

    /// Offers what the workers left to the peers. Returns whether there was anything.
    pub(super) fn tell(&mut self, reader: &OutboxReader, now: Now) -> bool {
        self.shelf.now = now;
        let (shelf, replica) = (&mut self.shelf, &mut self.replica);
        reader.drain(|event| shelf.tell(&event, |record| replica.offer(record, now.mono))) > 0
    }

    /// Datagrams that one turn receives at most.
    pub(super) fn datagrams_per_turn(&self) -> usize {
        self.cluster.limits.datagrams_per_turn
    }

    /// Sends what is due, and tells the log what is new.
    pub(super) fn send(&mut self, now: Now, mut send: impl FnMut(SocketAddr, &[u8]) -> bool) {
        self.shelf.now = now;
        self.replica.poll(now.mono, &mut self.shelf, &mut send);
        if self.news.is_due(now.mono) {
            self.news.tell(&self.replica.status(now.mono), now);
        }
    }

    /// Says goodbye to the peers.
    pub(super) fn leave(&mut self, now: Now, mut send: impl FnMut(SocketAddr, &[u8]) -> bool) {
        self.replica.leave(now.mono, &mut send);
    }

    /// When there is something to do, if nothing comes before.
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        let deadlines = [self.replica.next_deadline(), self.directory.due()];
        deadlines.into_iter().flatten().min()
    }

    /// Looks names up when it is time to.
    pub(super) fn look_up(&mut self, now: Now, resolver: &Resolver, lookups: &mut Lookups) {
        if self.directory.due().is_some_and(|due| due <= now.mono) {
            self.directory.look_up(now.mono, resolver, lookups);
        }
    }

    /// Takes the outcome of a lookup.
    pub(super) fn found(&mut self, found: Found) {
        if self.directory.found(found) {
            self.readdress();
        }
    }

    /// Tells the state machine where peers are, and which group to call.
    fn readdress(&mut self) {
        let mut addresses = self.directory.addresses();
        addresses.extend(self.cluster.multicast.iter().map(|group| group.group));
        self.replica.set_peers(&addresses);
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = self.lock();
        out.debug_struct("Node")
            .field("cluster", &inner.cluster)
            .finish_non_exhaustive()
    }
}

fn vault(cluster: &Cluster) -> Option<ClusterVault> {
    let secrets = cluster.secrets.iter();
    ClusterVault::new(secrets.map(|secret| (secret.id, secret.replication.expose())))
}

fn limits(cluster: &Cluster, config: &Config) -> Limits {
    let limits = &cluster.limits;
    let bytes_per_second = limits.bytes_per_second as u64;
    Limits {
        datagrams_per_turn: limits.datagrams_per_turn,
        bytes_per_second,
        sync_bytes_per_second: bytes_per_second / SYNC_SHARE,
        entries_per_peer: limits.entries_per_peer,
        sticks_per_peer: limits.entries_per_peer,
        hellos_per_second: u32::try_from(limits.hellos_per_second).unwrap_or(u32::MAX),
        max_ttl: config.sessions.id_lifetime,
        max_stick_ttl: config
            .backends
            .iter()
            .map(|backend| backend.stick_lifetime)
            .max()
            .unwrap_or_default(),
        // The workers' events were gathered already.
        flush: Duration::ZERO,
        ..Limits::default()
    }
}

/// Of the bytes that may be sent, one in so many may be a dump's: what is new goes before what is
/// old.
const SYNC_SHARE: u64 = 4;
