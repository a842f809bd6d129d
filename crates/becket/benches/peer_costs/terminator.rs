//! Starts becket with a listener for each kind of peer, and reads the CPU time of its threads.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use std::{fs, thread};

use crate::flights;
use crate::supervised::Supervised;

/// becket process that ends with the bench.
pub(crate) struct Terminator(Supervised);

pub(crate) struct Places {
    tcp: BTreeMap<&'static str, SocketAddr>,
    /// UDP address on which becket receives sessions from cluster peers.
    pub(crate) node: SocketAddr,
    /// Socket of the configured peer node.
    pub(crate) peer: UdpSocket,
}

impl Places {
    /// Finds free ports, because the configuration must contain them.
    pub(crate) fn find() -> Self {
        let bind = || UdpSocket::bind(ANY).expect("a free port");
        let held_node = bind();
        let node = held_node.local_addr().expect("bound");
        let names = LISTENERS.iter().map(|(name, _)| *name).chain(["admin"]);
        let names = names.chain(flights::KINDS.map(|(kind, _)| kind));
        let held: Vec<_> = names
            .map(|name| (name, TcpListener::bind(ANY).expect("a free port")))
            .collect();
        let tcp = held.iter();
        let tcp = tcp.map(|(name, socket)| (*name, socket.local_addr().expect("bound")));
        Self {
            tcp: tcp.collect(),
            node,
            peer: bind(),
        }
    }

    /// Returns the address of the listener with this name, or of the admin pages.
    pub(crate) fn of(&self, name: &str) -> SocketAddr {
        self.tcp[name]
    }

    /// Starts a second node of the cluster, and returns the first datagram that it sends to the
    /// configured peer.
    pub(crate) fn greeting_of_another(
        &self,
        folder: &Path,
        servers: [SocketAddr; SERVERS],
    ) -> Vec<u8> {
        let _other = Terminator::start(folder, &self.text(2, servers));
        let mut datagram = vec![0; 2048];
        let received = self.peer.recv(&mut datagram);
        datagram.truncate(received.expect("a greeting"));
        datagram
    }

    /// Returns the configuration. `servers` are in the order of [`SERVERS`].
    pub(crate) fn text(&self, node: u16, servers: [SocketAddr; SERVERS]) -> String {
        let [app, mail, tls, tickets, base @ ..] = servers;
        let mut text = format!(
            "[process]\nworkers = 1\npin = false\n[admin]\naddress = '{}'\n\
             [[policy]]\nname = 'web'\n[[policy]]\nname = 'clients'\nclient-certificates = 'optional'\nclient-ca = 'ca.pem'\n\
             [[policy]]\nname = 'early'\nversions = ['1.3']\nearly-data = '17KiB'\n\
             [cluster]\nsecret = 'secret'\nnode = {node}\nlisten = '{}'\npeers = ['{}']\n",
            self.of("admin"),
            self.node,
            self.peer.local_addr().expect("bound"),
        );
        for (name, more) in LISTENERS {
            let address = self.of(name);
            text += &format!("[[listener]]\nname = '{name}'\nbind = ['{address}']\n{more}\n");
        }
        for (kind, _) in flights::KINDS {
            let address = self.of(kind);
            text += &format!("[[listener]]\nname = '{kind}'\nbind = ['{address}']\n");
            text += &format!("certificates = ['{kind}.pem']\nbackend = 'app'\n");
        }
        text += "[[backend]]\nname = 'site'\n[backend.files]\nroot = 'www'\nprecompressed = true\n";
        for (name, more, servers) in [
            ("app", "", &[app][..]),
            ("marked", "proxy-header = 'v2'\n", &[app]),
            ("mail", "", &[mail]),
            ("tls", TLS, &[tls]),
            ("tickets", TLS, &[tickets]),
            ("base", "", &base),
        ] {
            text += &format!("[[backend]]\nname = '{name}'\n{more}");
            for server in servers {
                text += &format!("[[backend.server]]\naddress = '{server}'\n");
            }
            if more == TLS {
                text += "[backend.tls]\nca = 'p256.pem'\nname = 'a.test'\n";
            }
        }
        text
    }
}

impl Terminator {
    /// Starts becket and waits until it is ready.
    pub(crate) fn start(folder: &Path, config: &str) -> Self {
        let file = folder.join("becket.toml");
        fs::write(&file, config).expect("a file");
        let socket = folder.join("notify");
        // An earlier run may have left its socket file.
        let _none = fs::remove_file(&socket);
        let notices = UnixDatagram::bind(&socket).expect("a unix socket");
        let mut command = Command::new(env!("CARGO_BIN_EXE_becket"));
        let command = command.arg("run").arg("--config").arg(file);
        let log = folder.join("log");
        let lines = fs::File::create(&log).expect("a file");
        let command = command.env("NOTIFY_SOCKET", socket).stderr(lines);
        let started = Self(Supervised::start(command));
        notices
            .set_read_timeout(Some(PATIENCE))
            .expect("a time-out");
        let mut notice = [0; 1024];
        loop {
            let length = notices.recv(&mut notice).unwrap_or_else(|error| {
                let said = fs::read_to_string(&log).unwrap_or_default();
                panic!("becket is not ready: {error}\n{said}")
            });
            if notice[..length].starts_with(b"READY=1") {
                return started;
            }
        }
    }

    /// Returns the sum of the CPU times of all threads with these names, as the scheduler counts
    /// it.
    pub(crate) fn time_of(&self, names: &[&str]) -> Duration {
        self.0.times_of(names).iter().sum()
    }
}

/// Waits until the receive queue of the UDP socket at this address is empty.
pub(crate) fn await_taken(address: SocketAddr) {
    let SocketAddr::V4(v4) = address else {
        panic!("not IPv4: {address}");
    };
    let ip = u32::from_ne_bytes(v4.ip().octets());
    let named = format!("{ip:08X}:{:04X}", v4.port());
    loop {
        let table = fs::read_to_string("/proc/net/udp").expect("the kernel's table");
        let mut lines = table.lines().map(|line| line.split_whitespace());
        let of_socket = lines.find(|fields| fields.clone().nth(1) == Some(&named));
        let queues = of_socket.and_then(|mut fields| fields.nth(4));
        if queues.expect("the socket").ends_with(":00000000") {
            return;
        }
        thread::sleep(PAUSE);
    }
}

const ANY: &str = "127.0.73.1:0";
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(1);
/// TOML comment that marks a listener whose backend uses TLS.
const TLS: &str = "# with TLS\n";
/// Number of servers: `app`, `mail`, `tls`, `tickets`, and sixteen that receive CancelRequests.
pub(crate) const SERVERS: usize = 4 + 16;

/// Listeners, each with its name and its configuration keys other than `name` and `bind`.
const LISTENERS: &[(&str, &str)] = &[
    ("web", "certificates = ['p256.pem']\nbackend = 'app'"),
    ("rsa", "certificates = ['rsa.pem']\nbackend = 'app'"),
    ("clients", "certificates = ['p256.pem']\nbackend = 'app'"),
    ("early", "certificates = ['p256.pem']\nbackend = 'marked'"),
    (
        "proxied",
        "certificates = ['p256.pem']\nbackend = 'app'\npolicy = 'web'\n\
         accept-proxy = 'any'\ntrusted-networks = ['127.0.0.0/8']",
    ),
    (
        "mail",
        "certificates = ['p256.pem']\nbackend = 'mail'\npolicy = 'web'\nstarttls = 'smtp'",
    ),
    (
        "base",
        "certificates = ['p256.pem']\nbackend = 'base'\npolicy = 'web'\nstarttls = 'postgresql'",
    ),
    ("files", "tls = false\nbackend = 'site'"),
    ("to-tls", "tls = false\nbackend = 'tls'"),
    ("to-tickets", "tls = false\nbackend = 'tickets'"),
];
