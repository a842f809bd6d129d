//! Servers with host names are followed when their address changes, and keep their address when the lookup fails.

use std::io;
use std::net::{IpAddr, SocketAddr};

use becket_e2e::{
    Answer, Backend, Becket, Client, Dns, Host, Network, Place, REQUEST, Shape, Trust, answer_all,
    eventually,
};
use serde_json::Value;

/// Port of servers on every host.
const HTTP: u16 = 8080;
/// Failures of a lookup.
const FAILURES: [Answer; 4] = [
    Answer::NoSuchName,
    Answer::Addresses(Vec::new()),
    Answer::Failure,
    Answer::Silence,
];

/// A becket on the first host, with clients and a DNS server on the hub.
struct Stage<'n> {
    network: &'n Network,
    place: Place,
    becket: Becket,
}

impl<'n> Stage<'n> {
    /// Starts a becket that uses `dns`. Returns `None` if this is not possible here.
    #[track_caller]
    fn start(network: &'n Network, dns: &Dns, shape: Shape) -> Option<Self> {
        let place = Place::new();
        let launcher = dns.launcher(&place)?;
        let mut shape = shape.backend("resolve-interval = \"1s\"");
        shape.web = (network.hosts[0].address, 443).into();
        let start = || Becket::start_by(&place, &shape, &launcher);
        let becket = network.hosts[0].within(start);
        Some(Self {
            network,
            place,
            becket,
        })
    }

    /// Sends a request and returns the name of the server that answered.
    fn ask(&self) -> io::Result<String> {
        let trust = Trust::new(&self.place);
        let ask = || Client::connect(self.becket.web, &trust)?.ask(REQUEST);
        let answer = self.network.hub.within(ask)?;
        let text = String::from_utf8_lossy(&answer).into_owned();
        let body = text.rsplit("\r\n\r\n").next();
        Ok(body.unwrap_or_default().to_owned())
    }

    /// Returns the status of the first server.
    fn server(&self) -> Value {
        let status = self.network.hosts[0].within(|| self.becket.status());
        status["backends"][0]["servers"][0].clone()
    }

    fn metric(&self, name: &str) -> u64 {
        let metrics = self.network.hosts[0].within(|| self.becket.metrics());
        metrics.sum(name, &["server=\"app.test:8080\""]) as u64
    }

    fn reload(&self) -> bool {
        self.network.hosts[0].within(|| self.becket.reload())
    }
}

/// Starts a server on a host that answers with its name.
fn server(host: &Host, name: &'static str) -> Backend {
    server_at((host.address, HTTP).into(), host, name)
}

fn server_at(address: SocketAddr, host: &Host, name: &'static str) -> Backend {
    host.within(|| Backend::at(address, move |stream| answer_all(stream, name)))
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_new_server_address_is_used_and_kept_if_resolution_fails() {
    let Some(network) = Network::of(3) else {
        return;
    };
    let dns = Dns::on(&network.hub);
    let at = |host: usize| [IpAddr::from(network.hosts[host].address)];
    let _two = server(&network.hosts[1], "two");
    let _three = server(&network.hosts[2], "three");
    dns.points("app.test", &at(1));
    let Some(stage) = Stage::start(&network, &dns, Shape::new("app.test:8080")) else {
        return;
    };
    assert_eq!(stage.ask().unwrap(), "two");
    dns.points("app.test", &at(2));
    let is_now = |name: &str| {
        eventually("becket uses the new address", || {
            stage.ask().unwrap() == name
        });
    };
    is_now("three");
    for failure in FAILURES {
        dns.set("app.test", failure);
        eventually("the name does not resolve", || {
            stage.server()["dns_stale"] == true
        });
        assert_eq!(stage.metric("becket_server_dns_stale"), 1);
        assert_eq!(stage.server()["state"], "passing");
        assert_eq!(stage.ask().unwrap(), "three");
        // A reload cannot resolve the name either, and keeps the address.
        assert!(stage.reload(), "{}", stage.becket.log());
        assert_eq!(stage.server()["dns_stale"], true);
        assert_eq!(stage.server()["state"], "passing");
        assert_eq!(stage.ask().unwrap(), "three");
        dns.points("app.test", &at(2));
        eventually("the name resolves again", || {
            stage.server()["dns_stale"] == false
        });
    }
    dns.points("app.test", &at(1));
    is_now("two");
    let lost = "DNS lookup failed; keeping the last addresses";
    stage.becket.says(lost);
    let log = stage.becket.log();
    assert!((1..=4).contains(&log.matches(lost).count()), "{log}");
}
