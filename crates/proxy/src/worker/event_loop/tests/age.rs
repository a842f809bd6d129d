//! Connections that outlive their alarms.

use rustls::RootCertStore;
use rustls::version::{TLS12, TLS13};

use super::soak::{Client, trust};
use super::*;

#[test]
fn connections_leave_rustls_at_their_second_alarm_in_parts() {
    for version in [&TLS12, &TLS13] {
        let ((mut worker, web), _server, certificate) = tls_worker(&rcgen::PKCS_ECDSA_P256_SHA256);
        let mut roots = RootCertStore::empty();
        roots.add(certificate.der().clone()).unwrap();
        let trust = Arc::new(trust(version, &roots));
        let mut clients: Vec<_> = (0..MANY).map(|_| Client::new(web, &trust)).collect();
        let relayed = |worker: &Worker| {
            let servers = worker.shared.backends.by_name("app").unwrap();
            servers.servers()[0].connections()
        };
        while relayed(&worker) < MANY as u64 || worker.newcomers.handshakes > 0 {
            turn(&mut worker);
            assert!(clients.iter_mut().all(Client::talk));
        }
        let connect = worker.served.config.file.timeouts.connect + TICK;
        let due =
            |worker: &Worker, entry: &ConnectionEntry| entry.alarm_at <= worker.clocks.now.running;
        let age = |worker: &Worker| {
            let mut ages = worker.connections.iter().map(|(_, entry)| entry.age);
            let first = ages.next().unwrap();
            assert!(ages.all(|age| age == first));
            first
        };
        // Releases held tickets, which is a step of its own.
        worker.clocks.now.running += Duration::from_secs(1);
        (0..MANY).for_each(|_| worker.expire());
        worker.clocks.now.running += connect;
        (0..MANY).for_each(|_| worker.expire());
        assert_eq!(age(&worker), Age::Survivor);
        worker.clocks.now.running += connect;
        let parts = parts(&mut worker, due, Worker::expire);
        assert!(
            parts.len() > 1 && parts.iter().all(|part| *part <= 64),
            "{parts:?}"
        );
        assert_eq!(age(&worker), Age::Old);
        for (_, entry) in &mut worker.connections {
            assert_eq!(entry.connection.leave_rustls(), Ok(false));
        }
        assert!(clients.iter_mut().all(Client::talk));
    }
}
