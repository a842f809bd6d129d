//! Clients of each kind, with their counters.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::{self, Scope};
use std::time::Duration;

use becket_e2e::{Client, REQUEST, Trust, eventually};
use rustls::HandshakeKind;
use rustls::version::{TLS12, TLS13};

use super::stage::{MEMBER, Stage};
use crate::slots_are_shared_in_an_upgrade::greeted;

/// All clients of a stage, with their counters.
pub(super) struct Load<'a> {
    stage: &'a Stage,
    pub(super) over: AtomicBool,
    counts: Mutex<BTreeMap<String, usize>>,
    failures: Mutex<Vec<String>>,
}

/// Outcome of a client's connection.
struct Visit {
    answer: Vec<u8>,
    is_resumed: bool,
    /// Becket reset an earlier attempt because of overload.
    was_refused: bool,
}

type Outcome<T> = Result<T, String>;

impl<'a> Load<'a> {
    pub(super) fn new(stage: &'a Stage) -> Self {
        Self {
            stage,
            over: AtomicBool::new(false),
            counts: Mutex::default(),
            failures: Mutex::default(),
        }
    }

    pub(super) fn add(&self, what: &str, count: usize) {
        let mut counts = self.counts.lock().unwrap();
        *counts.entry(what.to_owned()).or_default() += count;
    }

    fn count(&self, what: &str) -> usize {
        self.counts.lock().unwrap().get(what).copied().unwrap_or(0)
    }

    /// Starts a thread for each kind of client, which connects again and again until the test is over.
    pub(super) fn start<'s>(&'s self, scope: &'s Scope<'s, '_>) {
        for version in [&TLS12, &TLS13] {
            let place = &self.stage.place;
            self.keep_on(scope, FULL, move || {
                let visit =
                    self.visit(self.stage.becket.web, &Trust::only(place, version), None)?;
                visit.is(b"well met", false)
            });
        }
        for site in [Site::Open, Site::Members] {
            let (ways, mut turn) = (self.ways(site), (0..3).cycle());
            self.keep_on(scope, site.word(), move || {
                let (way, trust) = &ways[turn.next().unwrap_or(0)];
                let visit = self.visit(self.at(site), trust, None)?;
                self.resumed(site, way, &visit)
            });
        }
        let mut turn = (1..=SOURCES).cycle();
        let homes: Vec<Newcomer> = (1..=SOURCES)
            .map(|n| self.stranger([127, 0, 70, n]))
            .collect();
        self.keep_on(scope, STICKY, move || {
            let home = &homes[usize::from(turn.next().unwrap_or(1)) - 1];
            home.returns(self)
        });
        for _ in 0..4 {
            let trust = Trust::new(&self.stage.place);
            self.keep_on(scope, NARROW, move || self.wait_for_a_slot(&trust));
        }
        self.keep_on(scope, BULK, move || Download::start(self)?.end(self));
    }

    fn keep_on<'s>(
        &'s self,
        scope: &'s Scope<'s, '_>,
        kind: &'static str,
        mut visit: impl FnMut() -> Outcome<()> + Send + 's,
    ) {
        scope.spawn(move || {
            while !self.over.load(SeqCst) {
                match visit() {
                    Ok(()) => self.add(kind, 1),
                    Err(failure) => {
                        let failure = format!("{kind}: {failure}");
                        return self.failures.lock().unwrap().push(failure);
                    }
                }
                thread::sleep(PAUSE);
            }
        });
    }

    /// Waits until two more clients of each kind are served.
    #[track_caller]
    pub(super) fn everybody_is_served(&self) {
        let counts = || KINDS.map(|kind| self.count(kind));
        let before = counts();
        eventually("clients of each kind are served", || {
            let mut both = counts().into_iter().zip(before);
            both.all(|(now, before)| now > before + 1) || self.has_failed()
        });
        self.nothing_failed();
    }

    fn has_failed(&self) -> bool {
        !self.failures.lock().unwrap().is_empty()
    }

    #[track_caller]
    pub(super) fn nothing_failed(&self) {
        let failures = self.failures.lock().unwrap();
        assert!(failures.is_empty(), "{failures:#?}");
    }

    /// Returns the result of a client that must succeed; panics on a failure.
    #[track_caller]
    fn must<T>(&self, what: &str, outcome: Outcome<T>) -> T {
        outcome.unwrap_or_else(|failure| panic!("{what}: {failure}"))
    }

    fn at(&self, site: Site) -> SocketAddr {
        match site {
            Site::Open => self.stage.becket.web,
            Site::Members => self.stage.sites.members,
        }
    }

    fn ways(&self, site: Site) -> [(&'static str, Trust); 3] {
        let own = (site == Site::Members).then_some(&self.stage.member);
        Trust::ways(&self.stage.place, own)
    }

    /// Connects and completes the handshake. Retries if becket resets the connection, because a slow machine may be overloaded;
    /// becket logs each of these resets. Also returns whether a reset occurred.
    fn connect(
        &self,
        at: SocketAddr,
        trust: &Trust,
        from: Option<Ipv4Addr>,
    ) -> Outcome<(Client, bool)> {
        let begin = || match from {
            Some(from) => Client::begin_from(from, at, trust),
            None => Client::begin(at, trust, "www.example.org"),
        };
        let mut refused = 0;
        loop {
            let mut client = begin().map_err(|error| format!("connect: {error:?}"))?;
            self.add(CONNECTIONS, 1);
            match client.handshake() {
                Ok(()) => return Ok((client, refused > 0)),
                Err(error) if is_reset(&error) && refused < MOST_ATTEMPTS => {
                    refused += 1;
                    self.add(REFUSED, 1);
                }
                Err(error) => return Err(format!("handshake: {error:?}")),
            }
        }
    }

    /// Connects and stops in the middle of a handshake. Also returns the unsent part of the hello.
    fn half_done(&self, trust: &Trust, stage: &str) -> io::Result<(Client, Vec<u8>)> {
        let mut client = Client::begin(self.stage.becket.web, trust, "www.example.org")?;
        self.add(CONNECTIONS, 1);
        let mut hello = Vec::new();
        client.tls.write_tls(&mut hello)?;
        let sent = match stage {
            SILENT => 0,
            HALF_A_HELLO => hello.len() / 2,
            _ => hello.len(),
        };
        client.socket.write_all(&hello[..sent])?;
        while stage == ANSWERED && !client.tls.wants_write() {
            client.tls.read_tls(&mut client.socket)?;
            client.tls.process_new_packets().map_err(io::Error::other)?;
        }
        Ok((client, hello.split_off(sent)))
    }

    /// Counts a client that becket reset because of overload.
    #[track_caller]
    fn refused(&self, what: &str, error: &io::Error) {
        assert!(is_reset(error), "{what}: {error:?}");
        self.add(REFUSED, 1);
    }

    fn visit(&self, at: SocketAddr, trust: &Trust, from: Option<Ipv4Addr>) -> Outcome<Visit> {
        let (mut client, was_refused) = self.connect(at, trust, from)?;
        let answer = client.ask(REQUEST);
        let kind = client.tls.handshake_kind();
        Ok(Visit {
            answer: answer.map_err(|error| format!("answer: {error:?}, {kind:?}"))?,
            is_resumed: kind == Some(HandshakeKind::Resumed),
            was_refused,
        })
    }

    /// Counts the kind of handshake of a client with a session. Only its first handshake is full.
    fn resumed(&self, site: Site, way: &str, visit: &Visit) -> Outcome<()> {
        let kind = if visit.is_resumed { "resumed" } else { "full" };
        self.add(&site.counter(way, kind), 1);
        visit.says(site.answer())
    }

    /// Waits for a slot on a server with a limit, and completes an exchange.
    fn wait_for_a_slot(&self, trust: &Trust) -> Outcome<()> {
        let (mut client, _) = self.connect(self.stage.sites.narrow, trust, None)?;
        let mut served = || {
            client.write_all(b"abc")?;
            greeted(&mut client)?;
            client.close_notify()?;
            client.read_to_end(&mut Vec::new())
        };
        served().map(drop).map_err(|error| format!("{error:?}"))
    }

    /// Connects a client from a new address while the new process loads.
    #[track_caller]
    pub(super) fn newcomer(&self, round: usize) -> Newcomer {
        let [high, low] = [round / 250, round % 250].map(|part| u8::try_from(part).unwrap());
        let newcomer = self.stranger([127, 0, 71 + high, 1 + low]);
        self.must(STICKY, newcomer.returns(self));
        newcomer
    }

    fn stranger(&self, from: [u8; 4]) -> Newcomer {
        Newcomer {
            from: from.into(),
            trust: Trust::new(&self.stage.place),
            home: Mutex::default(),
        }
    }

    /// Asserts that each way to resume works across upgrades, and that no continuous client makes a second full handshake.
    #[track_caller]
    fn all_resumed(&self) {
        for site in [Site::Open, Site::Members] {
            for (way, _) in self.ways(site) {
                let count = |how: &str| self.count(&site.counter(way, how));
                assert!(count(ACROSS) > 0, "{way}");
                assert!(count("full") <= 1 + self.count(REFUSED), "{way}");
            }
        }
    }

    /// Asserts, after all connections, that each has a line in the access log and that the servers accepted all of them.
    #[track_caller]
    pub(super) fn adds_up(&self, rounds: usize) {
        let Stage {
            becket, servers, ..
        } = self.stage;
        println!("{:#?}", self.counts.lock().unwrap());
        eventually("each connection has its line", || {
            let lines = self.stage.place.read("access.log").lines().count();
            lines == self.count(CONNECTIONS)
        });
        let access = becket.access();
        let is = |reason: &str| access.iter().filter(|it| it["reason"] == reason).count();
        assert_eq!(is("overload"), self.count(REFUSED));
        let others = access
            .iter()
            .filter(|it| it["reason"] != "overload" && it["reason"] != "finished");
        assert_eq!(others.collect::<Vec<_>>(), Vec::<&serde_json::Value>::new());
        assert_eq!(servers.served(), is("finished"));
        self.all_resumed();
        assert_eq!(servers.narrow.most.load(SeqCst), 2);
        assert_eq!(becket.status()["upgrades"]["done"], rounds);
        assert_eq!(becket.status()["restarts"], 0);
    }
}

/// A listener for clients that resume.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Site {
    Open,
    /// Requires a client certificate.
    Members,
}

impl Site {
    /// Name of the counter for clients that resume in this way.
    fn counter(self, way: &str, how: &str) -> String {
        format!("{} by {way}: {how}", self.word())
    }

    fn word(self) -> &'static str {
        match self {
            Self::Open => RETURNING,
            Self::Members => MEMBERS,
        }
    }

    fn answer(self) -> &'static [u8] {
        match self {
            Self::Open => b"well met",
            Self::Members => MEMBER,
        }
    }
}

impl Visit {
    fn says(&self, answer: &[u8]) -> Outcome<()> {
        let text = || String::from_utf8_lossy(&self.answer);
        let is_so = self.answer.ends_with(answer);
        is_so
            .then_some(())
            .ok_or_else(|| format!("answered {:?}", text()))
    }

    /// Fails unless the answer ends with these bytes and the handshake was resumed or full as expected.
    fn is(&self, answer: &[u8], is_resumed: bool) -> Outcome<()> {
        self.says(answer)?;
        let is_so = self.is_resumed == is_resumed || self.was_refused;
        is_so
            .then_some(())
            .ok_or_else(|| format!("resumed: {}", self.is_resumed))
    }
}

/// Clients with a session from before an upgrade, one for each way to resume, with and without a certificate.
pub(super) struct Returning(Vec<(Site, &'static str, Trust)>);

impl Returning {
    #[track_caller]
    pub(super) fn come(load: &Load<'_>) -> Self {
        let ways = [Site::Open, Site::Members].map(|site| {
            let ways = load.ways(site).into_iter();
            ways.map(move |(way, trust)| (site, way, trust))
        });
        let returning = Self(ways.into_iter().flatten().collect());
        returning.visit(load, false);
        returning
    }

    /// Resumes all sessions with the new process.
    #[track_caller]
    pub(super) fn come_again(&self, load: &Load<'_>) {
        self.visit(load, true);
    }

    #[track_caller]
    fn visit(&self, load: &Load<'_>, is_resumed: bool) {
        for (site, way, trust) in &self.0 {
            let visit = load.must(way, load.visit(load.at(*site), trust, None));
            load.must(
                &format!("{} by {way}", site.word()),
                visit.is(site.answer(), is_resumed),
            );
            if visit.is_resumed {
                load.add(&site.counter(way, ACROSS), 1);
            }
        }
    }
}

/// A client that returns to its server because of its address.
pub(super) struct Newcomer {
    from: Ipv4Addr,
    trust: Trust,
    home: Mutex<Option<Vec<u8>>>,
}

impl Newcomer {
    #[track_caller]
    pub(super) fn come_again(&self, load: &Load<'_>) {
        load.must(
            "a client that connected while the new process loaded",
            self.returns(load),
        );
        load.add("newcomers that returned to their server", 1);
    }

    fn returns(&self, load: &Load<'_>) -> Outcome<()> {
        let visit = load.visit(load.stage.sites.sticky, &self.trust, Some(self.from))?;
        let mut home = self.home.lock().unwrap();
        let home = home.get_or_insert_with(|| visit.answer.clone());
        visit
            .says(home)
            .map_err(|failure| format!("{}: {failure}", self.from))
    }
}

/// Clients whose handshakes are not complete when the old process stops accepting.
pub(super) struct HalfDone(Vec<(&'static str, Client, Vec<u8>)>);

impl HalfDone {
    #[track_caller]
    pub(super) fn begin(load: &Load<'_>) -> Self {
        let place = &load.stage.place;
        let mut clients = Vec::new();
        for version in [&TLS12, &TLS13] {
            for stage in [SILENT, HALF_A_HELLO, ANSWERED] {
                let trust = Trust::only(place, version);
                match load.half_done(&trust, stage) {
                    Ok((client, rest)) => clients.push((stage, client, rest)),
                    Err(error) => load.refused(stage, &error),
                }
            }
        }
        Self(clients)
    }

    #[track_caller]
    pub(super) fn finish(self, load: &Load<'_>) {
        for (stage, mut client, rest) in self.0 {
            let mut ask = || {
                client.socket.write_all(&rest)?;
                client.handshake()?;
                client.ask(REQUEST)
            };
            match ask() {
                Err(error) if stage != ANSWERED => load.refused(stage, &error),
                answer => assert!(answer.unwrap().ends_with(b"well met"), "{stage}"),
            }
            load.add(&format!("handshakes finished after the cut, {stage}"), 1);
        }
    }
}

/// A large body. The server sends the second half when the client requests it.
pub(super) struct Download {
    client: Client,
    taken: Vec<u8>,
}

impl Download {
    #[track_caller]
    pub(super) fn begin(load: &Load<'_>) -> Self {
        load.must(BULK, Self::start(load))
    }

    #[track_caller]
    pub(super) fn finish(self, load: &Load<'_>) {
        load.must(BULK, self.end(load));
        load.add("downloads over two upgrades", 1);
    }

    /// Receives part of the first half.
    fn start(load: &Load<'_>) -> Outcome<Self> {
        let trust = Trust::new(&load.stage.place);
        let (mut client, _) = load.connect(load.stage.sites.bulk, &trust, None)?;
        let mut taken = vec![0; 100_000];
        let mut take = || {
            client.write_all(REQUEST)?;
            client.read_exact(&mut taken)
        };
        let taken_so_far = take();
        taken_so_far.map_err(|error| format!("{error:?}"))?;
        Ok(Self { client, taken })
    }

    /// Receives the rest and compares all bytes.
    fn end(mut self, load: &Load<'_>) -> Outcome<()> {
        self.client
            .write_all(b"x")
            .map_err(|error| format!("{error:?}"))?;
        let end = self.client.read_to_end(&mut self.taken);
        let length = self.taken.len();
        end.map_err(|error| format!("{error:?} after {length} bytes"))?;
        let is_whole = self.taken == *load.stage.servers.body;
        is_whole
            .then_some(())
            .ok_or_else(|| format!("other bytes, {length}"))
    }
}

fn is_reset(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::ConnectionReset
}

/// Stages of a handshake.
const SILENT: &str = "silent";
const HALF_A_HELLO: &str = "half a hello";
const ANSWERED: &str = "answered";

const FULL: &str = "clients with full handshakes";
const RETURNING: &str = "returning clients";
const MEMBERS: &str = "members";
const STICKY: &str = "clients that stick";
const NARROW: &str = "clients of two slots";
const BULK: &str = "downloads";
const CONNECTIONS: &str = "connections";
const ACROSS: &str = "resumed across an upgrade";
const REFUSED: &str = "connections refused on a slow machine";
/// Kinds of clients that connect continuously.
const KINDS: [&str; 6] = [FULL, RETURNING, MEMBERS, STICKY, NARROW, BULK];
/// Limit on attempts, higher than any overload needs.
const MOST_ATTEMPTS: usize = 100;
/// Number of addresses of sticky clients.
const SOURCES: u8 = 6;
/// Pause between two connections of a thread. It keeps the access log short.
const PAUSE: Duration = Duration::from_millis(5);
