//! Sends each kind of message that the bench measures, and names the limit that bounds the number
//! of such messages.

use std::io::{Read, Write};
use std::net::{SocketAddr, UdpSocket};
use std::thread;
use std::time::Duration;

use becket_cluster::replica::SIGNATURE;
use rustls::crypto::aws_lc_rs::kx_group::{X25519, X25519MLKEM768};

use crate::clients::{self, exchange, old_hello};
use crate::files::Identities;
use crate::meter::{Kind, Meter, Who};
use crate::sealer::{ALERT, DATA, Sealer};
use crate::servers::{END, SENT};
use crate::terminator::{Places, await_taken};

pub(crate) struct Cases {
    pub(crate) meter: Meter,
    pub(crate) places: Places,
    pub(crate) identities: Identities,
}

fn worker(what: &'static str, bound: &'static str) -> Kind {
    let who = Who::Worker;
    Kind { what, who, bound }
}

fn control(what: &'static str, bound: &'static str) -> Kind {
    let who = Who::Control;
    Kind { what, who, bound }
}

impl Cases {
    /// Sends TLS 1.3 records after the handshake. rustls closes a connection after 33 KeyUpdates or
    /// five warnings.
    pub(crate) fn records(&mut self) {
        type Make = fn(&mut Sealer) -> Vec<u8>;
        let data = "`limits.bytes-per-turn`, then the neighbours' turn";
        let small = "as above, each as 1 KiB at least";
        let dataless = "256 for each MiB of data; 32 in a row";
        let kinds: [(_, _, _, Make); 6] = [
            ("16 KiB of data", data, 32, |sealer| {
                sealer.seal(DATA, &[7; 16 * 1024])
            }),
            ("1 byte of data", small, 256, |sealer| {
                sealer.seal(DATA, &[7])
            }),
            ("empty record", dataless, 31, |sealer| {
                sealer.seal(DATA, &[])
            }),
            ("KeyUpdate", dataless, 31, |sealer| sealer.update(false)),
            ("KeyUpdate that asks for one", dataless, 31, |sealer| {
                sealer.update(true)
            }),
            (
                "alert (user_canceled)",
                "four in a connection",
                4,
                |sealer| sealer.seal(ALERT, &[1, 90]),
            ),
        ];
        let client = clients::Kind::new(&self.identities.roots, X25519, None);
        let web = self.places.of("web");
        for (what, bound, messages, make) in kinds {
            let prepare = |messages| {
                let (stream, mut sealer) = client.established(web);
                let records = (0..messages).flat_map(|_| make(&mut sealer));
                let mut records: Vec<u8> = records.collect();
                records.extend(sealer.seal(DATA, &[END]));
                (stream, records)
            };
            self.meter.within(
                worker(what, bound),
                messages,
                prepare,
                |(mut stream, records)| {
                    stream.write_all(&records).expect("becket reads");
                    // The bench cannot decrypt the answer, so it checks only the length.
                    let length = stream.read(&mut [0; 256]).expect("an answer");
                    assert!(length > 0, "cut off: {what}");
                    records.len()
                },
            );
        }
        self.tickets();
    }

    /// Sends session tickets from a server to becket, which is the TLS client of this connection.
    fn tickets(&mut self) {
        let kind = worker("ticket of a server", "256 for each MiB of data");
        let listeners = ["to-tls", "to-tickets"].map(|name| self.places.of(name));
        let choose = |messages: usize| listeners[usize::from(messages > 0)];
        self.meter.within(kind, TICKETS, choose, |listener| {
            let before = SENT.load(std::sync::atomic::Ordering::Relaxed);
            exchange(listener, b"", true);
            SENT.load(std::sync::atomic::Ordering::Relaxed) - before
        });
    }

    pub(crate) fn clear(&mut self) {
        let (web, proxied) = (self.places.of("web"), self.places.of("proxied"));
        let connections = "`limits.connections`, slices of time";
        let trusted = "`listener.trusted-networks`";
        let v2 = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\0\x02\x01\xc0\0\x02\x02\x10\0\x01\xbb";
        let v1 = b"PROXY TCP4 192.0.2.1 192.0.2.2 4096 443\r\n";
        let http = b"GET / HTTP/1.1\r\n\r\n";
        for (what, bound, to, bytes, answered) in [
            ("connect and close", connections, web, &b""[..], false),
            ("PROXY header, v1", trusted, proxied, v1, false),
            ("PROXY header, v2", trusted, proxied, v2, false),
            ("HTTP in clear", connections, web, http, true),
        ] {
            let act = || exchange(to, bytes, answered);
            self.meter.each(worker(what, bound), 1, act);
        }
        let mail = self.places.of("mail");
        let kind = worker("STARTTLS line (EHLO)", "32 of 1 KiB in a connection");
        let lines = |messages| b"EHLO a\r\n".repeat(messages);
        let act = |lines: Vec<u8>| exchange(mail, &lines, true);
        self.meter.within(kind, 30, lines, act);
        let base = self.places.of("base");
        let cancel = [0, 0, 0, 16, 0x04, 0xd2, 0x16, 0x2e, 0, 0, 1, 2, 9, 8, 7, 6];
        let kind = Kind {
            what: "CancelRequest, told to 16 servers",
            who: Who::WorkerAndControl,
            bound: "50 a second for all clients",
        };
        self.meter.each(kind, 1, || exchange(base, &cancel, false));
    }

    /// Sends the first flights of handshakes, and waits for becket's answer.
    pub(crate) fn hellos(&mut self) {
        let roots = &self.identities.roots;
        let [web, rsa, early] = ["web", "rsa", "early"].map(|name| self.places.of(name));
        let plain = clients::Kind::new(roots, X25519, None).first_flight(0, 0);
        let hybrid = clients::Kind::new(roots, X25519MLKEM768, None).first_flight(0, 0);
        let pieces = in_records_of_one_byte(&hybrid);
        let resuming = clients::Kind::new(roots, X25519, None);
        resuming.visit(web);
        let resumed = resuming.first_flight(0, 0);
        let unknown = flipped(&resumed, BINDERS + AGE + 1);
        let unbound = flipped(&resumed, 1);
        let turns = "slices of time, `limits.handshakes`, `admission.half-open-per-source`";
        let full = "as above; `admission.full-handshakes-per-second` where it is set";
        for (what, bound, to, hello) in [
            (
                "hello of an old version: refused",
                turns,
                early,
                &old_hello(roots),
            ),
            ("hello that resumes", turns, web, &resumed),
            ("hello with a binder that fails", turns, web, &unbound),
            ("hello, P-256 certificate", full, web, &plain),
            ("hello with a made-up ticket", full, web, &unknown),
            ("hello with ML-KEM", full, web, &hybrid),
            ("the same in records of one byte", full, web, &pieces),
            ("hello, RSA-2048 certificate", full, rsa, &plain),
        ] {
            let act = || exchange(to, hello, true);
            self.meter.each(worker(what, bound), 1, act);
        }
        self.early_data(early);
    }

    /// Sends early data that becket rejects, because the session was used before.
    fn early_data(&mut self, to: SocketAddr) {
        let bound = "64 KiB in a connection";
        for (what, length, piece) in [
            ("early data that is refused, 16 KiB", 16 * 1024, 16 * 1024),
            ("early data that is refused, 1 byte", 2_000, 1),
        ] {
            let client = clients::Kind::new(&self.identities.roots, X25519, None);
            client.visit(to);
            let flight = client.first_flight(length, piece);
            let hello = 5 + usize::from(u16::from_be_bytes([flight[3], flight[4]]));
            exchange(to, &flight, true);
            let part = |messages| {
                if messages > 0 {
                    &flight[..]
                } else {
                    &flight[..hello]
                }
            };
            let act = |part: &[u8]| exchange(to, part, true);
            self.meter
                .within(worker(what, bound), length / piece, part, act);
        }
    }

    /// Makes complete handshakes, some with client certificates.
    pub(crate) fn handshakes(&mut self) {
        let clients = self.places.of("clients");
        let shown = "as full handshakes; `limits.certificate-chain`";
        let Identities {
            roots,
            usual,
            worst,
            ..
        } = &self.identities;
        for (what, bound, (chain, key)) in [
            ("handshake with a chain of 3", shown, usual),
            ("handshake with the worst chain: refused", shown, worst),
        ] {
            let identity = Some((chain.clone(), key.clone_key()));
            let client = clients::Kind::new(roots, X25519, identity);
            self.meter
                .each(worker(what, bound), 1, || client.visit(clients));
        }
    }

    pub(crate) fn datagrams(&mut self, greeting: &[u8]) {
        let replication = self.places.node;
        let turn = "256 in a turn; control's time only";
        let forged = [&SIGNATURE[..], &[1], &[0x55; 120]].concat();
        let one = UdpSocket::bind("127.0.73.9:0").expect("a free port");
        for (what, bound, to, datagram) in [
            (
                "datagram of garbage",
                "the kernel drops it",
                replication,
                &vec![0x55; 124],
            ),
            (
                "datagram that looks like replication",
                turn,
                replication,
                &forged,
            ),
        ] {
            self.meter.each(control(what, bound), BURST, || {
                for _ in 0..BURST {
                    one.send_to(datagram, to).expect("loopback takes it");
                }
                await_taken(to);
                BURST * datagram.len()
            });
        }
        let hellos = "32 a second, ten from one address";
        let mut sources = 0_u16;
        for (what, greeting) in [
            (
                "replication's greeting without the secret",
                &flipped(greeting, 1),
            ),
            ("the same, one that was recorded", &greeting.to_vec()),
        ] {
            self.meter.each(control(what, hellos), FROM_ONE, || {
                sources += 1;
                let [high, low] = (sources + 256).to_be_bytes();
                let source = UdpSocket::bind(SocketAddr::from(([127, 73, high, low], 0)))
                    .expect("a free port");
                thread::sleep(Duration::from_secs(1) / (32 / FROM_ONE) as u32);
                for _ in 0..FROM_ONE {
                    let sent = source.send_to(greeting, replication);
                    sent.expect("loopback takes it");
                }
                await_taken(replication);
                FROM_ONE * greeting.len()
            });
        }
    }

    /// Requests files over one connection without TLS, once for each coding of `precompressed`. The
    /// first request is not counted.
    pub(crate) fn files(&mut self) {
        let to = self.places.of("files");
        let bound = "`limits.bytes-per-turn`, each as 4 KiB at least";
        let mut number = 0;
        for (what, path, who) in [
            ("request for a file of 1 KiB", Some("present"), Who::Worker),
            (
                "request for a missing file",
                Some("missing"),
                Who::WorkerAndReaders,
            ),
            (
                "request for a missing file, each another",
                None,
                Who::WorkerAndReaders,
            ),
        ] {
            let requests = |messages| {
                let texts = (0..=messages).map(|_| {
                    number += 1;
                    let name = path.map_or_else(|| format!("{number:07}"), str::to_owned);
                    format!("GET /{name} HTTP/1.1\r\nHost: a\r\nAccept-Encoding: *\r\n\r\n")
                });
                texts.collect::<String>()
            };
            let act = |requests: String| exchange(to, requests.as_bytes(), true);
            let kind = Kind { what, who, bound };
            self.meter.within(kind, REQUESTS, requests, act);
        }
    }

    pub(crate) fn pages(&mut self) {
        let admin = self.places.of("admin");
        let bound = "32 pages at a time; threads of their own";
        for (what, path) in [
            ("admin request, /healthz", "/healthz"),
            ("admin request, /metrics", "/metrics"),
            ("admin request, /status", "/status"),
        ] {
            let request =
                format!("GET {path} HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n\r\n");
            let who = Who::Pages;
            let act = || exchange(admin, request.as_bytes(), true);
            self.meter.each(Kind { what, who, bound }, 1, act);
        }
    }
}

fn flipped(bytes: &[u8], from_end: usize) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let place = bytes.len() - from_end;
    bytes[place] ^= 1;
    bytes
}

fn in_records_of_one_byte(hello: &[u8]) -> Vec<u8> {
    let [kind, high, low, _, _, content @ ..] = hello else {
        panic!("no record");
    };
    let records = content
        .iter()
        .flat_map(|byte| [*kind, *high, *low, 0, 1, *byte]);
    records.collect()
}

/// Number of additional tickets. The server always sends one more, so that each client can resume.
pub(crate) const TICKETS: usize = 32;
/// Bytes at the end of a resuming ClientHello: the length of the binder list, the length of its
/// only binder, and the binder (RFC 8446, section 4.2.11).
const BINDERS: usize = 2 + 1 + 32;
/// Length of the ticket age in bytes. It is between the ticket and the binders.
const AGE: usize = 4;
/// Number of requests per connection. It is below `limits.requests`, and all of them fit into one
/// read.
const REQUESTS: usize = 100;
const BURST: usize = 32;
/// Number of datagrams per source address, fewer than becket accepts from one address per second.
const FROM_ONE: usize = 8;
