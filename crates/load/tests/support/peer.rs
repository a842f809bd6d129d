//! Real programs as peers.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

/// A program that is stopped when it goes out of scope.
pub(crate) struct Peer {
    pub(crate) child: Child,
    log: Option<PathBuf>,
}

impl Peer {
    /// Starts a program in its own process group.
    pub(crate) fn start(command: &mut Command, log: Option<PathBuf>) -> Self {
        let child = command
            .stdin(Stdio::null())
            .spawn()
            .expect("the program starts");
        Self { child, log }
    }

    /// Starts `becket-load --serve` on a free port, and returns where it listens.
    pub(crate) fn responder(args: &[&str]) -> (Self, SocketAddr) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_becket-load"));
        command
            .args(["--serve", "127.0.0.1:0"])
            .args(args)
            .stdout(Stdio::piped());
        let mut peer = Self::start(&mut command, None);
        let mut line = String::new();
        let stdout = peer.child.stdout.take().expect("piped");
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        let address = line
            .trim()
            .strip_prefix("listening on ")
            .expect("where it listens");
        let address = address.parse().expect("an address");
        (peer, address)
    }

    /// Waits until something listens there.
    pub(crate) fn await_listening(mut self, address: SocketAddr) -> Self {
        let give_up = now() + Duration::from_secs(10);
        while TcpStream::connect(address).is_err() {
            let ended = self.child.try_wait().expect("a state");
            assert!(
                ended.is_none() && now() < give_up,
                "{address} is not listened on: {ended:?}\n{}",
                self.log()
            );
            std::thread::yield_now();
        }
        self
    }

    pub(crate) fn pid(&self) -> String {
        self.child.id().to_string()
    }

    pub(crate) fn log(&self) -> String {
        self.log
            .as_ref()
            .and_then(|path| std::fs::read_to_string(path).ok())
            .unwrap_or_default()
    }

    /// Asks the program to end, and waits for it.
    pub(crate) fn finish(&mut self) {
        if matches!(self.child.try_wait(), Ok(Some(_))) {
            return;
        }
        let asked = Command::new("kill").arg(self.pid()).status();
        if asked.is_ok_and(|status| status.success()) {
            let give_up = now() + Duration::from_secs(3);
            while now() < give_up && matches!(self.child.try_wait(), Ok(None)) {
                std::thread::yield_now();
            }
        }
        let killed = self.child.kill();
        drop((killed, self.child.wait()));
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.finish();
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        }
    }
}

/// An address of this process alone, so that no other takes its port between now and its use.
pub(crate) fn free_address() -> SocketAddr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let host = Ipv4Addr::new(127, 128 | high, low, NEXT.fetch_add(1, Ordering::Relaxed));
    let listener = TcpListener::bind((host, 0)).expect("a free port");
    listener.local_addr().expect("its address")
}

/// Reads the clock.
#[expect(clippy::disallowed_methods, reason = "tests measure real time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}
