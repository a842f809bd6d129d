//! Makes backends.
//!
//! Names are looked up while becket runs (`backend/health/prober.rs`): a server without an address gets no connections,
//! and one that had some keeps them over a reload. `becket check` resolves them here. A name may have several addresses;
//! they are kept in the resolver's order.

use std::net::{IpAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use becket_config::address::Address;
use becket_config::backend;
use becket_config::choices::ProxyTlv;
use becket_config::key;
use becket_proto::health::{Checks, Passive, Rules};

use super::Draft;
use crate::config::{
    Backend, CheckKind, Health, MOST_ADDRESSES, ProxyTlvs, Server, ServerAddress, StickBy,
};
use crate::files::reason;

impl Draft<'_> {
    /// All backends, in the order of the file.
    pub(super) fn backends(&mut self) -> Vec<Arc<Backend>> {
        let file = self.file;
        let sections = file.backend.iter().zip(file.backend_paths());
        sections
            .map(|(backend, path)| Arc::new(self.backend(&path, backend)))
            .collect()
    }

    fn backend(&mut self, path: &str, backend: &backend::Backend) -> Backend {
        let mut servers: Vec<Server> = Vec::with_capacity(backend.server.len());
        for (index, server) in backend.server.iter().enumerate() {
            let path = format!("{path}.server[{index}]");
            if let Some(address) = &server.address {
                let path = key!(path, server.address);
                servers.push(Server {
                    name: Arc::clone(&address.text),
                    addresses: self.server_addresses(&path, &address.address),
                    weight: server.weight,
                    maxconn: server.maxconn,
                    minconn: server.minconn,
                    backup: server.backup,
                    disabled: server.disabled,
                    node: server.node,
                });
            }
        }
        let sticks = backend.stick != StickBy::None;
        let has = |tlv| backend.proxy_tlvs.contains(&tlv);
        self.check_sources(&key!(path, backend.source), &backend.source);
        Backend {
            name: backend.name.to_string(),
            tls: self.onward(&key!(path, backend.tls), backend.tls.as_ref()),
            servers,
            proxy_header: backend.proxy_header,
            proxy_tlvs: ProxyTlvs {
                checksum: has(ProxyTlv::Crc32c),
                unique_id: has(ProxyTlv::UniqueId),
                client_certificate: has(ProxyTlv::ClientCertificate),
            },
            balance: backend.balance,
            queue_length: backend.queue_length,
            queue_timeout: backend.queue_timeout.unwrap_or(self.file.timeouts.connect),
            queue: backend.queue,
            abort_on_half_close: backend.abort_on_half_close,
            retries: backend.retries,
            on_down: backend.on_down,
            stick: backend.stick,
            stick_entries: if sticks { backend.stick_entries } else { 0 },
            stick_lifetime: backend.stick_lifetime,
            health: health(&backend.health),
            resolve_interval: backend.resolve_interval,
            source: backend.source.clone(),
        }
    }

    /// Where a server is now, as far as it is known.
    fn server_addresses(&mut self, path: &str, address: &Address) -> Vec<ServerAddress> {
        if let Address::Unix(socket) = address {
            return vec![ServerAddress::Unix(socket.clone())];
        }
        let found = self.whereabouts(path, address);
        let count = found.len();
        if count > MOST_ADDRESSES {
            let fault = format!("the name has {count} addresses; {MOST_ADDRESSES} are used");
            self.report.remark(path, fault);
        }
        let used = found.into_iter().take(MOST_ADDRESSES);
        used.map(ServerAddress::Tcp).collect()
    }

    /// Whether an address is ours only the system knows; a socket that sends nothing asks it.
    fn check_sources(&mut self, path: &str, sources: &[IpAddr]) {
        for (index, source) in sources.iter().enumerate() {
            if let Err(error) = UdpSocket::bind((*source, 0)) {
                let path = format!("{path}[{index}]");
                let accepted = "an IP address of this host";
                self.report.refuse(path, reason(&error), accepted);
            }
        }
    }
}

fn health(health: &backend::Health) -> Health {
    let checks = Checks {
        interval: health.interval,
        fast_interval: health.fast_interval,
        rise: health.rise,
        fall: health.fall,
    };
    let passive = health.passive_failures.map(|failures| Passive {
        failures,
        pause: health.passive_pause,
    });
    Health {
        check: health.check,
        rules: Rules {
            checks: (health.check != CheckKind::None).then_some(checks),
            passive,
            slow_start: health.slow_start.unwrap_or(Duration::ZERO),
        },
        timeout: health.timeout,
        path: health.path.0.clone(),
        host: health.host.as_ref().map(|host| host.0.clone()),
        expect: health.expect.clone(),
    }
}
