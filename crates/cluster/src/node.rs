//! Represents this host as a node of its cluster. A node owns the state machine of replication with its secrets, the
//! access to the session table, and the addresses of peers.
//!
//! The node is used only on the control thread, by the task that communicates with the peers ([`crate::exchange`]) and
//! by the status pages. Its lock is therefore never contended.

use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use becket_proto::session_table::SessionTable;
use becket_sys::clock::{Clock, Now};
use tokio::sync::mpsc::UnboundedSender;

use crate::addresses::{Lookups, NameLookup, PeerAddresses, Resolve};
use crate::outbox::OutboxReader;
use crate::peer_log::PeerLog;
use crate::replica::{Boot, PeerRecord, Replica, ReplicaLimits};
use crate::settings::Settings;
use crate::sharing::{CertificateSharing, SharingOutput};
use crate::sink::SessionSink;
use crate::status::{ClusterStatus, UnknownPolicy};
use crate::sticks::StickMemory;
use crate::vault::ClusterVault;

pub struct Node(Mutex<NodeState>);

/// Resources of this host that replication uses.
#[derive(Debug)]
pub struct Host {
    /// Session table that all workers share.
    pub table: Arc<SessionTable>,
    /// Server to which each client was last assigned.
    pub sticks: Arc<dyn StickMemory>,
    pub resolver: Arc<dyn Resolve>,
    pub clock: Clock,
    /// Number of workers that send events.
    pub workers: usize,
    /// Receives requests to the ACME companion.
    pub sharing: UnboundedSender<SharingOutput>,
}

pub(crate) struct NodeState {
    pub(crate) replica: Replica<ClusterVault>,
    pub(crate) sink: SessionSink,
    pub(crate) addresses: PeerAddresses,
    log: PeerLog,
    pub(crate) settings: Arc<Settings>,
}

#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("no random bytes from the system")]
pub struct NoBoot;

impl Node {
    /// Creates a node that has not communicated with any peer yet.
    ///
    /// # Errors
    /// Fails if the system provides no random bytes.
    pub(crate) fn new(settings: Settings, host: Host) -> Result<Self, NoBoot> {
        let mut boot = [0; 8];
        aws_lc_rs::rand::fill(&mut boot).map_err(|_| NoBoot)?;
        let boot = Boot(u64::from_ne_bytes(boot));
        let settings = Arc::new(settings);
        let vault = ClusterVault::new(&settings.secrets).ok_or(NoBoot)?;
        let now = host.clock.now();
        let mut inner = NodeState {
            replica: Replica::new(settings.node, boot, ReplicaLimits::default(), vault),
            sink: SessionSink::new(
                host.table,
                host.sticks,
                Arc::clone(&settings),
                CertificateSharing::new(
                    settings.node,
                    (settings.certificates.clone(), settings.has_on_demand),
                    host.sharing,
                ),
                now,
            ),
            addresses: PeerAddresses::new(host.resolver),
            log: PeerLog::default(),
            settings,
        };
        inner.readdress_all();
        Ok(Self(Mutex::new(inner)))
    }

    pub fn status(&self, now: Now) -> ClusterStatus {
        self.lock().status(now)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, NodeState> {
        // Ignore poisoning, because a panic in a status page must not end replication.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl NodeState {
    fn status(&self, now: Now) -> ClusterStatus {
        let mut replica = self.replica.status(now.mono);
        let name = |address| self.addresses.name_of(address);
        for peer in &mut replica.peers {
            peer.name = name(peer.address);
        }
        for unanswered in &mut replica.unanswered {
            unanswered.name = name(unanswered.address);
        }
        for refused in &mut replica.refused {
            refused.name = name(refused.address);
        }
        let settings = &self.settings;
        let secrets = settings.secrets.iter().map(|secret| secret.id).collect();
        let unknown = self.sink.unknown.iter();
        let mut status = ClusterStatus {
            replica,
            listen: settings.listen,
            secrets,
            faults: Vec::new(),
            names: self.addresses.peers().cloned().collect(),
            unknown_policies: unknown.map(UnknownPolicy::of).collect(),
            sessions: self.sink.numbers,
        };
        status.faults = status.find_faults();
        status
    }

    /// Applies reloaded settings, except settings that a reload cannot change. Peers stay connected unless their secret is
    /// no longer accepted.
    pub(crate) fn reload(&mut self, settings: Settings) {
        let before = &self.settings;
        let settings = Arc::new(Settings {
            node: before.node,
            listen: before.listen,
            ..settings
        });
        let ids = |settings: &Settings| -> Vec<_> {
            let secrets = settings.secrets.iter();
            secrets.map(|secret| secret.id).collect()
        };
        if ids(before) != ids(&settings)
            && let Some(vault) = ClusterVault::new(&settings.secrets)
        {
            self.replica.set_vault(vault);
        }
        self.sink.reload(Arc::clone(&settings));
        self.settings = settings;
        self.readdress_all();
    }

    pub(crate) fn receive(&mut self, from: SocketAddr, datagram: &mut [u8], now: Now) {
        self.sink.now = now;
        self.replica
            .receive(from, datagram, now.mono, &mut self.sink);
    }

    /// Passes queued worker events to the state machine. Returns whether there were any.
    pub(crate) fn tell(&mut self, events: &OutboxReader, now: Now) -> bool {
        self.sink.now = now;
        let (sink, replica) = (&mut self.sink, &mut self.replica);
        let told = events.drain(|event| {
            sink.tell(&event, |record| replica.offer(record));
        });
        sink.numbers.untold = events.untold();
        told > 0
    }

    /// Sends due datagrams, and logs changes of the peers.
    pub(crate) fn send(&mut self, now: Now, mut send: impl FnMut(SocketAddr, &[u8]) -> bool) {
        self.sink.now = now;
        self.share(now.mono);
        self.replica.poll(now.mono, &mut self.sink, &mut send);
        if self.log.is_due(now.mono) {
            self.log.tell(&self.replica.status(now.mono), now.mono);
        }
    }

    /// Queues the due records about ACME certificates.
    fn share(&mut self, now: Duration) {
        if self.sink.sharing.next_deadline().is_none_or(|at| at > now) {
            return;
        }
        let live: BTreeSet<_> = self.replica.live_peers().collect();
        let replica = &mut self.replica;
        self.sink.sharing.poll(now, live, |to, record| {
            let record = PeerRecord::Acme(record);
            match to {
                Some(peer) => replica.offer_to(peer, &record),
                None => replica.offer(&record),
            }
        });
    }

    /// Returns the time at which work is due even if no datagram or event arrives.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        let deadlines = [
            self.replica.next_deadline(),
            self.addresses.due(),
            self.sink.sharing.next_deadline(),
        ];
        deadlines.into_iter().flatten().min()
    }

    pub(crate) fn look_up(&mut self, now: Duration, lookups: &mut Lookups) {
        if self.addresses.due().is_some_and(|due| due <= now) {
            self.addresses.look_up(now, lookups);
        }
    }

    /// Stores the result of a lookup, and passes changed addresses to the state machine.
    pub(crate) fn found(&mut self, name: &str, found: NameLookup) {
        if self.addresses.found(name, found) {
            self.readdress();
        }
    }

    fn readdress_all(&mut self) {
        let Settings {
            peers,
            resolve_interval,
            ..
        } = &*self.settings;
        self.addresses.set(peers, *resolve_interval);
        self.readdress();
    }

    fn readdress(&mut self) {
        self.replica.set_peers(&self.addresses.all());
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Node").finish_non_exhaustive()
    }
}
