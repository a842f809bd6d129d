//! A Redis server, and the relay in front of it that can cut answers.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;

use crate::address::{fresh_address, fresh_host};
use crate::place::Place;
use crate::time::eventually;
use crate::tool::{Kept, Tool};

/// Running redis-server whose folder is the place. Killed on drop.
#[derive(Debug)]
pub struct RedisServer {
    pub address: SocketAddr,
    arguments: Vec<String>,
    server: Tool,
    cli: Tool,
    child: Kept,
}

impl RedisServer {
    /// Starts a server with further arguments. Returns `None` and lists the test as skipped if it is not installed.
    #[track_caller]
    pub fn start(place: &Place, more: &[&str]) -> Option<Self> {
        Self::start_at(place, fresh_address(), more)
    }

    /// Starts a server with TLS at `tls`, whose port is in `more`. Its commands come without TLS.
    #[track_caller]
    pub fn start_with_tls(place: &Place, tls: SocketAddr, more: &[&str]) -> Option<Self> {
        let local = tls.ip().to_string();
        let both = [&["--bind", &local, "127.0.0.1"], more].concat();
        Self::start_at(
            place,
            SocketAddr::new(tls.ip(), fresh_address().port()),
            &both,
        )
    }

    /// Starts a server that copies all data of the primary.
    #[track_caller]
    pub fn start_replica(place: &Place, primary: SocketAddr) -> Option<Self> {
        let address = fresh_address();
        let (host, port) = (primary.ip().to_string(), primary.port().to_string());
        let own = address.ip().to_string();
        let follows = [
            "--replicaof",
            &host,
            &port,
            "--repl-diskless-sync-delay",
            "0",
        ];
        // Without it, the primary and sentinels would use the source address of its connections.
        let named = ["--replica-announce-ip", &own];
        Self::start_at(place, address, &[&follows[..], &named].concat())
    }

    /// Starts a sentinel with this configuration file, which it rewrites.
    #[track_caller]
    pub fn start_sentinel(place: &Place, file: &str) -> Option<Self> {
        let address = fresh_address();
        let own = Self::place_of(place, address);
        let own = own.iter().map(String::as_str);
        let arguments: Vec<&str> = [file, "--sentinel"].into_iter().chain(own).collect();
        Self::run(address, &arguments)
    }

    /// Starts a server at an address of the caller's network.
    #[track_caller]
    pub fn start_at(place: &Place, address: SocketAddr, more: &[&str]) -> Option<Self> {
        let quiet = ["--save", "", "--rdbcompression", "no"];
        let own = Self::place_of(place, address);
        let own: Vec<&str> = own.iter().map(String::as_str).collect();
        Self::run(address, &[&own[..], &quiet, more].concat())
    }

    fn place_of(place: &Place, address: SocketAddr) -> [String; 6] {
        let (bind, port) = (address.ip().to_string(), address.port().to_string());
        [
            "--bind".to_owned(),
            bind,
            "--port".to_owned(),
            port,
            "--dir".to_owned(),
            place.text(""),
        ]
    }

    #[track_caller]
    fn run(address: SocketAddr, arguments: &[&str]) -> Option<Self> {
        let (server, cli) = (Tool::find("redis-server")?, Tool::find("redis-cli")?);
        let arguments: Vec<String> = arguments.iter().map(|&it| it.to_owned()).collect();
        let child = spawn(&server, &arguments);
        let running = Self {
            address,
            arguments,
            server,
            cli,
            child,
        };
        running.answers();
        Some(running)
    }

    #[track_caller]
    fn answers(&self) {
        eventually("redis-server answers", || {
            let answer = self.ask(&["PING"]);
            answer.contains("PONG") || answer.contains("NOAUTH")
        });
    }

    /// Sends a command with redis-cli and returns its output.
    #[track_caller]
    pub fn ask(&self, command: &[&str]) -> String {
        let (host, port) = (
            self.address.ip().to_string(),
            self.address.port().to_string(),
        );
        let to = ["-h", &host, "-p", &port];
        self.cli.run([&to[..], command].concat(), "").all()
    }

    /// Returns the keys in the store.
    #[track_caller]
    pub fn keys(&self) -> Vec<String> {
        let keys = self.ask(&["--raw", "KEYS", "*"]);
        // redis-cli prints an empty line if there is none.
        let keys = keys.lines().filter(|key| !key.is_empty());
        keys.map(str::to_owned).collect()
    }

    pub fn pid(&self) -> u32 {
        self.child.0.id()
    }

    pub fn kill(&mut self) {
        self.child.0.kill().ok();
        self.child.0.wait().ok();
    }

    /// Starts the killed server again, without its data.
    #[track_caller]
    pub fn start_again(&mut self) {
        self.child = spawn(&self.server, &self.arguments);
        self.answers();
    }
}

#[track_caller]
fn spawn(server: &Tool, arguments: &[String]) -> Kept {
    let mut command = server.command(arguments);
    let command = command.stdin(Stdio::null()).stdout(Stdio::null());
    Kept(command.spawn().expect("redis-server starts"))
}

/// A relay of TCP connections that can cut answers in the middle.
#[derive(Debug)]
pub struct CuttingRelay {
    pub address: SocketAddr,
    cuts: Arc<AtomicBool>,
}

impl CuttingRelay {
    /// Starts a relay to `server`, which runs until the test ends.
    pub fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind((fresh_host(), 0)).expect("a socket");
        let address = listener.local_addr().expect("its address");
        let cuts = Arc::new(AtomicBool::new(false));
        let of_thread = Arc::clone(&cuts);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(server) else {
                    continue;
                };
                let (cuts, clones) = (
                    Arc::clone(&of_thread),
                    (client.try_clone(), server.try_clone()),
                );
                if let (Ok(from), Ok(to)) = clones {
                    thread::spawn(move || relay(from, to, &AtomicBool::new(false)));
                    thread::spawn(move || relay(server, client, &cuts));
                }
            }
        });
        Self { address, cuts }
    }

    /// Sends half of each further answer, and then closes the connection.
    pub fn cut(&self, cuts: bool) {
        self.cuts.store(cuts, SeqCst);
    }
}

fn relay(mut from: TcpStream, mut to: TcpStream, cuts: &AtomicBool) {
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        let is_cut = cuts.load(SeqCst);
        let part = if is_cut { count.div_ceil(2) } else { count };
        if to.write_all(&buffer[..part]).is_err() || is_cut {
            break;
        }
    }
    to.shutdown(Shutdown::Both).ok();
    from.shutdown(Shutdown::Both).ok();
}
