//! A becket of its own that resumes sessions at a steady rate, while a node of this process sends it sessions and while not.
//!
//! The figure is the CPU time of the worker's thread alone, as the scheduler counts it.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use std::{fs, thread};

use crate::clients::{self, Done};
use crate::host::{Control, PAUSE, config, free_addresses};
use crate::supervised::Supervised;
use crate::{Plan, Series, beside, pin};

/// Where the threads of the terminator run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Worker and control have one CPU together: what control does there costs the worker its caches, too.
    OneCpu,
    /// The worker is pinned, as by default, and control runs where there is room.
    WorkerAlone,
}

/// Ends with the bench.
struct Terminator(Supervised);

/// Prints what a transaction costs the worker with sessions that arrive, and while they go elsewhere. Call it from a thread
/// that is not tied to a CPU.
pub(crate) fn run(folder: &Path, layout: Layout, elsewhere: &Control, plan: &Plan) {
    let servers = TcpListener::bind("127.0.73.1:0").expect("a free port");
    let backend = servers.local_addr().expect("its address");
    let nodes = free_addresses();
    let [web, admin] = free_ports();
    let terminator = Terminator::start(folder, layout, &text(web, admin, backend, nodes));
    beside(|| {
        clients::serve(servers);
        let sender = Control::start(&config(folder, 0, nodes));
        while sender.ask().0.replica.peers.is_empty() {
            thread::sleep(PAUSE);
        }
        let clients = clients::config(&folder.join("site.pem"));
        let load = || clients::run(&clients, web, plan.slice, RATE);
        let found = terminator.compare([elsewhere, &sender], plan, load);
        let stored = stored(admin).expect("the page of metrics");
        assert!(stored > 0, "nothing arrived");
        println!(
            "terminator, {layout:?}: {RATE} resumed TLS 1.2 transactions a second, {} rounds, {stored} sessions stored",
            plan.rounds
        );
        found.print();
    });
}

/// What was measured.
#[derive(Default)]
struct Found {
    worker: Series,
    control: Series,
    typical: Series,
    late: Series,
}

impl Found {
    fn add(&mut self, fed: bool, [worker, control]: [Duration; 2], done: &Done, slice: Duration) {
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        self.worker
            .add(fed, micros(worker) / done.transactions as f64);
        self.control
            .add(fed, control.as_secs_f64() * 100.0 / slice.as_secs_f64());
        self.typical.add(fed, micros(done.times.quantile(0.5)));
        self.late.add(fed, micros(done.times.quantile(0.99)));
    }

    fn print(self) {
        self.worker
            .print("CPU time of the worker for a transaction, us");
        self.typical.print("time of a transaction, median, us");
        self.late.print("time of a transaction, 99 %, us");
        self.control.print("control, % of a core");
    }
}

impl Terminator {
    fn start(folder: &Path, layout: Layout, config: &str) -> Self {
        let file = folder.join("becket.toml");
        fs::write(&file, config).expect("a file");
        let program = env!("CARGO_BIN_EXE_becket");
        // A child may use the CPUs of the thread that starts it.
        let started = thread::spawn(move || {
            if layout == Layout::OneCpu {
                pin(0);
            }
            let mut command = Command::new(program);
            let command = command
                .arg("run")
                .arg("--config")
                .arg(file)
                .stderr(Stdio::null());
            Supervised::start(command)
        });
        Self(started.join().expect("becket starts"))
    }

    /// Measures slices, by turns of the two senders: the second's sessions come here.
    fn compare(
        &self,
        senders: [&Control; 2],
        plan: &Plan,
        load: impl Fn() -> Done + Sync,
    ) -> Found {
        let times = || [WORKER, CONTROL].map(|name| self.thread_time(name));
        let mut found = Found::default();
        // One more in front, which is not counted: caches, and the first full handshakes.
        for round in 0..=plan.rounds {
            for fed in [round % 2 == 0, round % 2 != 0] {
                let before = times();
                let done = thread::scope(|scope| {
                    let load = scope.spawn(&load);
                    senders[usize::from(fed)].make_sessions(plan.slice, plan.rate);
                    load.join().expect("transactions succeed")
                });
                let after = times();
                let full = done.transactions - done.resumed;
                if round > 0 {
                    assert!(full * 100 <= done.transactions, "{full} full handshakes");
                    let spent = [0, 1].map(|thread| after[thread] - before[thread]);
                    found.add(fed, spent, &done, plan.slice);
                }
            }
        }
        found
    }

    /// CPU time of the thread of this name.
    fn thread_time(&self, name: &str) -> Duration {
        let times = self.0.times_of(&[name]);
        *times.first().unwrap_or_else(|| panic!("no thread {name}"))
    }
}

fn text(web: SocketAddr, admin: SocketAddr, backend: SocketAddr, nodes: [SocketAddr; 2]) -> String {
    let [peer, listen] = nodes;
    format!(
        "[process]\nworkers = 1\npin = true\n[admin]\naddress = '{admin}'\n\
         [[listener]]\nname = 'web'\nbind = ['{web}']\nbackend = 'app'\n\
         certificates = ['site.pem']\n\
         [[backend]]\nname = 'app'\n[[backend.server]]\naddress = '{backend}'\n\
         [sessions]\ntable-entries = 1000000\n\
         [cluster]\nsecret = 'secret'\nnode = 2\nlisten = '{listen}'\npeers = ['{peer}']\n\
         [cluster.limits]\nentries-per-peer = 20000000\n"
    )
}

/// A configuration names its ports, so two free ones are looked for.
fn free_ports() -> [SocketAddr; 2] {
    let sockets = [0, 1].map(|_| TcpListener::bind("127.0.73.1:0").expect("a free port"));
    sockets.map(|socket| socket.local_addr().expect("its address"))
}

/// How many sessions of peers it has stored, by its own account.
fn stored(admin: SocketAddr) -> io::Result<u64> {
    let mut stream = TcpStream::connect(admin)?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
    let mut page = String::new();
    stream.read_to_string(&mut page)?;
    let line = page.lines().find(|line| line.starts_with(STORED));
    let number = line.and_then(|line| line.rsplit(' ').next());
    Ok(number.and_then(|number| number.parse().ok()).unwrap_or(0))
}

const WORKER: &str = "becket-0";
const CONTROL: &str = "becket";
const STORED: &str = "becket_cluster_sessions_total{outcome=\"stored\"}";

/// Transactions a second: a fifth of what a worker can do, so that nothing waits for the CPU of clients.
const RATE: u64 = 2_000;
