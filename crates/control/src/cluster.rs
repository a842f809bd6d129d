//! Connects the terminator to replication and to the store: settings, sticks, and names of peers.

use std::io;
use std::net::UdpSocket;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use becket_cluster::replica::CertificateTag;
use becket_cluster::sharing::{SharedCertificate, SharingInput, SharingOutput};
use becket_cluster::{Host, Membership, NameLookup, NoBoot, Outbox, Resolve, Secret, Settings};
use becket_config::error::Problem;
use becket_keys::digest::digest;
use becket_proto::session::PolicyTag;
use tokio::sync::mpsc::UnboundedSender;
use zeroize::Zeroizing;

use crate::health::prober;
use crate::sockets::bindable;
use becket_prepare::resolver::HostResolver;
use becket_proxy::backend::registry::Backends;
use becket_proxy::shared::SharedState;
use becket_store::{Lifetimes, Store, StoreHost, StoreServer, StoreSettings};
use becket_tls::config::{Cluster, Config};

/// The ways in which this host shares sessions with others.
#[derive(Debug, Default)]
pub struct SessionSharing {
    pub peers: Option<Membership>,
    pub store: Option<Store>,
}

impl SessionSharing {
    /// Returns the outboxes of the workers; an empty list if sessions stay on this host.
    pub fn outboxes(&self) -> Vec<Outbox> {
        let peers = self.peers.as_ref().map(Membership::outboxes);
        let store = self.store.as_ref().map(Store::outboxes);
        Outbox::joined(peers.unwrap_or_default(), store.unwrap_or_default())
    }

    /// Passes an event of the ACME companion to the other hosts, through the store if there is one. Returns `false`
    /// without other hosts.
    pub fn share(&self, input: SharingInput) -> bool {
        match (&self.store, &self.peers) {
            (Some(store), _) => store.share(input),
            (None, Some(peers)) => peers.share(input),
            (None, None) => return false,
        }
        true
    }

    /// Returns the store for `config`: this one if its settings are the same, or a new one.
    ///
    /// # Errors
    /// Fails if the thread of the store cannot be started.
    pub fn store_for(
        &mut self,
        config: &Config,
        shared: &SharedState,
        sharing: &UnboundedSender<SharingOutput>,
    ) -> io::Result<Option<Store>> {
        let settings = store_settings(config);
        let same = |store: &mut Store| settings.as_ref() == Some(store.settings());
        if let Some(store) = self.store.take_if(same) {
            return Ok(Some(store));
        }
        let host = || StoreHost {
            table: Arc::clone(&shared.table),
            clock: shared.clock,
            workers: shared.workers,
            sharing: sharing.clone(),
        };
        settings.map(|it| Store::start(it, host())).transpose()
    }
}

fn store_settings(config: &Config) -> Option<StoreSettings> {
    let cluster = config.cluster.as_ref()?;
    Some(StoreSettings {
        server: StoreServer {
            address: cluster.keys.store.clone()?,
            user: cluster.keys.store_user.clone(),
            password: cluster.store.password.clone(),
            authorities: cluster.store.authorities.clone(),
        },
        timeout: cluster.keys.store_timeout,
        secrets: secrets(cluster),
        lifetimes: Lifetimes {
            id_lifetime: config.file.sessions.id_lifetime,
            max_age: config.file.session_max_age(),
        },
        certificates: shared_certificates(config),
        has_on_demand: shares_on_demand(config),
    })
}

fn shares_on_demand(config: &Config) -> bool {
    let acme = config.file.acme.as_ref();
    acme.is_some_and(|acme| acme.share && acme.on_demand.is_some())
}

fn secrets(cluster: &Cluster) -> Vec<Secret> {
    let secrets = cluster.secrets.iter();
    secrets
        .map(|secret| Secret {
            id: secret.id,
            key: Zeroizing::new(*secret.replication.expose()),
        })
        .collect()
}

/// Returns the settings of replication, or `None` if replication is not configured.
pub fn settings(config: &Config) -> Option<Settings> {
    let cluster = config.cluster.as_ref()?;
    let routes = config
        .listeners
        .iter()
        .flat_map(|listener| &listener.routes);
    let sticks = config
        .backends
        .iter()
        .map(|backend| backend.keys.stick_lifetime);
    Some(Settings {
        node: cluster.node,
        listen: cluster.listen?,
        secrets: secrets(cluster),
        peers: cluster.peers.clone(),
        resolve_interval: cluster.keys.resolve_interval,
        policies: routes
            .filter_map(|route| route.policy.as_ref())
            .map(|policy| PolicyTag::from_digest(&policy.digest))
            .collect(),
        id_lifetime: config.file.sessions.id_lifetime,
        max_age: config.file.session_max_age(),
        stick_lifetime: sticks.max().unwrap_or_default(),
        certificates: shared_certificates(config),
        has_on_demand: shares_on_demand(config),
    })
}

fn shared_certificates(config: &Config) -> Vec<SharedCertificate> {
    let acme = config.file.acme.as_ref().filter(|acme| acme.share);
    let certificates = acme.map_or(&[][..], |acme| &acme.certificate);
    let shared = certificates.iter().map(|certificate| {
        let names = certificate.names.iter().map(ToString::to_string);
        shared_certificate(config, &certificate.stem(), names.collect())
    });
    shared.collect()
}

/// Returns the on-demand certificates with these names.
pub fn on_demand(config: &Config, names: Vec<Option<String>>) -> Vec<SharedCertificate> {
    let names = names.into_iter().map(|name| {
        let stem = name.clone().unwrap_or_default();
        shared_certificate(config, &stem, name.into_iter().collect())
    });
    names.collect()
}

fn shared_certificate(config: &Config, stem: &str, names: Vec<String>) -> SharedCertificate {
    let authorities = config.file.acme.as_ref().map(|acme| {
        let urls = acme.authority.iter().map(|it| it.directory(acme.staging));
        urls.map(Option::unwrap_or_default)
            .collect::<Vec<_>>()
            .join(" ")
    });
    let authorities = authorities.unwrap_or_default();
    let names_text = names.join(" ");
    let digest = digest(&[stem, &names_text, &authorities].map(str::as_bytes));
    let first = digest.first_chunk().copied().unwrap_or_default();
    SharedCertificate {
        tag: CertificateTag(u64::from_be_bytes(first)),
        names,
    }
}

/// Returns the UDP socket of replication: `given`, or a newly bound socket. Returns `None` if
/// replication is not configured.
///
/// # Errors
/// Fails if the address cannot be bound.
pub fn bind(
    config: &Config,
    given: Option<io::Result<UdpSocket>>,
) -> Result<Option<UdpSocket>, Problem> {
    let Some(settings) = settings(config) else {
        return Ok(None);
    };
    let bound = becket_cluster::bind(&settings, given);
    bound.map(Some).map_err(|error| {
        let unused = "an address and UDP port that no other program uses";
        Problem::new("cluster.listen", error.to_string())
            .value(settings.listen.to_string())
            .accepted(bindable(&error, unused))
    })
}

/// Returns this node's membership in the cluster, or `None` without a socket.
///
/// # Errors
/// Fails if the system provides no random bytes.
pub fn membership(
    socket: Option<UdpSocket>,
    config: &Config,
    shared: &SharedState,
    sharing: UnboundedSender<SharingOutput>,
) -> Result<Option<Membership>, NoBoot> {
    let (Some(socket), Some(settings)) = (socket, settings(config)) else {
        return Ok(None);
    };
    let host = Host {
        table: Arc::clone(&shared.table),
        sticks: Arc::<Backends>::clone(&shared.backends),
        resolver: Arc::new(PeerResolver(HostResolver::system())),
        clock: shared.clock,
        workers: shared.workers,
        sharing,
    };
    Membership::new(socket, settings, host).map(Some)
}

/// Resolves the names of peers, with the resolver and the schedule that are used for names of
/// servers.
#[derive(Debug)]
struct PeerResolver(HostResolver);

impl Resolve for PeerResolver {
    fn look_up(&self, host: &str) -> Pin<Box<dyn Future<Output = NameLookup> + Send>> {
        Box::pin(self.0.look_up(host))
    }

    fn again(&self, interval: Option<Duration>, is_known: bool) -> Option<Duration> {
        prober::again(interval, is_known)
    }
}
