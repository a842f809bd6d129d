//! A network of hosts, each of which is a network namespace. A bridge connects them.
//!
//! The machine's own addresses, routes and links are not changed. The namespaces have no names, so the kernel removes them with
//! the last file descriptor and process in them. [`Host::within`] runs code on a host: sockets, threads and programs
//! that it creates stay there.

use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;
use std::panic::resume_unwind;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use socket2::{Domain, Protocol, Socket, Type};

use crate::tool::Tool;
use becket_tidy::skip;

/// Hosts that are connected by a bridge.
#[derive(Debug)]
pub struct Network {
    /// Host of the bridge. It sees every frame between hosts and has its own address.
    pub hub: Host,
    pub hosts: Vec<Host>,
}

/// Network namespace with an address on the network and its own loopback.
#[derive(Debug)]
pub struct Host {
    namespace: File,
    pub address: Ipv4Addr,
    /// IPv6 address on the network, if the machine supports IPv6.
    pub address_v6: Ipv6Addr,
}

impl Network {
    /// Creates a network with this number of hosts. Records the test as skipped without the required privileges.
    #[track_caller]
    pub fn of(hosts: usize) -> Option<Self> {
        let ip = Tool::find("ip")?;
        match Self::make(&ip, hosts) {
            Ok(network) => Some(network),
            Err(error) => {
                skip(&format!("needs network namespaces: {error}"));
                None
            }
        }
    }

    fn make(ip: &Tool, hosts: usize) -> io::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Relaxed);
        let name = |host: usize| format!("becket-e2e-{}-{number}-{host}", std::process::id());
        let names: Vec<Name<'_>> = (0..=hosts)
            .map(|host| Name::add(ip, name(host)))
            .collect::<io::Result<_>>()?;
        let (hub, rest) = names.split_first().expect("a hub");
        hub.ip("link set lo up")?;
        hub.ip("link add bridge type bridge mcast_snooping 0")?;
        hub.ip("addr add 10.73.0.254/24 dev bridge")?;
        hub.ip("link set bridge up")?;
        for (index, host) in rest.iter().enumerate() {
            let (number, name) = (index + 1, &host.name);
            hub.ip(&format!(
                "link add port{number} type veth peer name net netns {name}"
            ))?;
            hub.ip(&format!("link set port{number} master bridge up"))?;
            host.ip("link set lo up")?;
            host.ip(&format!("addr add 10.73.0.{number}/24 dev net"))?;
            // The command fails without IPv6. `nodad` skips duplicate address detection.
            host.ip(&format!("addr add fd73::{number:x}/64 dev net nodad"))
                .ok();
            host.ip("link set net up")?;
            host.ip("route add 224.0.0.0/4 dev net")?;
        }
        let host = |(index, name): (usize, &Name<'_>)| {
            let last = if index == 0 { 254 } else { index as u8 };
            Ok(Host {
                namespace: File::open(format!("/run/netns/{}", name.name))?,
                address: Ipv4Addr::new(10, 73, 0, last),
                address_v6: Ipv6Addr::new(0xfd73, 0, 0, 0, 0, 0, 0, last.into()),
            })
        };
        let mut all: Vec<Host> = names
            .iter()
            .enumerate()
            .map(host)
            .collect::<io::Result<_>>()?;
        Ok(Self {
            hub: all.remove(0),
            hosts: all,
        })
    }

    /// Disconnects a host: frames from and to it are lost without an error.
    pub fn unplug(&self, host: usize) {
        self.hub.ip(&format!("link set {} down", self.port(host)));
    }

    /// Connects a host again.
    pub fn plug(&self, host: usize) {
        self.hub.ip(&format!("link set {} up", self.port(host)));
    }

    /// Returns the name of the bridge's port for a host.
    fn port(&self, host: usize) -> String {
        assert!(host < self.hosts.len(), "no host {host}");
        format!("port{}", host + 1)
    }

    /// Starts to capture every frame that crosses the bridge.
    pub fn capture(&self) -> Capture {
        self.hub.within(Capture::start)
    }
}

impl Host {
    /// Runs `body` on this host, in a separate thread.
    pub fn within<T: Send>(&self, body: impl FnOnce() -> T + Send) -> T {
        let done = thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let network = Some(LinkNameSpaceType::Network);
                move_into_link_name_space(self.namespace.as_fd(), network).expect("a namespace");
                body()
            });
            thread.join()
        });
        done.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Runs `ip` on this host, for addresses, links and routes.
    #[track_caller]
    pub fn ip(&self, arguments: &str) {
        let ip = Tool::find("ip").expect("the network was made with it");
        let done = self.within(|| run(ip.command(arguments.split(' '))));
        done.expect("a change of the network");
    }

    /// Enables forwarding: the host forwards packets for other hosts or rejects them by ICMP, as routers do.
    pub fn route(&self) {
        let done = self.within(|| fs::write("/proc/sys/net/ipv4/ip_forward", "1"));
        done.expect("a host that routes");
    }
}

/// Named namespace during setup. Dropping the name does not remove the namespace.
struct Name<'a> {
    ip: &'a Tool,
    name: String,
}

impl<'a> Name<'a> {
    fn add(ip: &'a Tool, name: String) -> io::Result<Self> {
        run(ip.command(["netns", "add", &name]))?;
        Ok(Self { ip, name })
    }

    fn ip(&self, arguments: &str) -> io::Result<()> {
        let namespace = ["-n", &self.name];
        let arguments = arguments.split(' ');
        run(self.ip.command(namespace.into_iter().chain(arguments)))
    }
}

impl Drop for Name<'_> {
    fn drop(&mut self) {
        run(self.ip.command(["netns", "del", &self.name])).ok();
    }
}

fn run(mut command: Command) -> io::Result<()> {
    let output = command.output()?;
    if output.status.success() {
        Ok(())
    } else {
        let why = String::from_utf8_lossy(&output.stderr).into_owned();
        Err(io::Error::other(format!("{command:?}: {why}")))
    }
}

/// Frames that crossed the bridge since the start of the capture.
#[derive(Debug)]
pub struct Capture {
    frames: Arc<Mutex<Vec<Vec<u8>>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Capture {
    fn start() -> Self {
        let every = Protocol::from(i32::from(ETH_P_ALL.to_be()));
        let socket = Socket::new(Domain::PACKET, Type::RAW, Some(every)).expect("a packet socket");
        socket.set_read_timeout(Some(LOOK)).expect("a time-out");
        let frames = Arc::new(Mutex::new(Vec::new()));
        let stop = Arc::new(AtomicBool::new(false));
        let (kept, stopped) = (Arc::clone(&frames), Arc::clone(&stop));
        let thread = thread::spawn(move || {
            let mut buffer = vec![0; 64 * 1024];
            while !stopped.load(Relaxed) {
                let mut socket = &socket;
                if let Ok(len) = io::Read::read(&mut socket, &mut buffer) {
                    lock(&kept).push(buffer[..len].to_vec());
                }
            }
        });
        Self {
            frames,
            stop,
            thread: Some(thread),
        }
    }

    /// Returns the number of frames that contain these bytes.
    pub fn count(&self, bytes: &[u8]) -> usize {
        let holds = |frame: &&Vec<u8>| frame.windows(bytes.len()).any(|part| part == bytes);
        lock(&self.frames).iter().filter(holds).count()
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// All protocols (linux/if_ether.h).
const ETH_P_ALL: u16 = 3;
/// Maximum time that a capture continues after drop.
const LOOK: Duration = Duration::from_millis(50);
