//! Measures the TLS library without a network: the handshake and the bytes of a case, in memory and on one CPU. The
//! result is the `library` floor, a lower bound for the CPU time of a terminator.
//!
//! Server and client are rustls connections in one thread, and only the server is timed. The server uses the unbuffered
//! API of rustls, which encrypts from one buffer directly into another.
//!
//! This module also determines the sizes of the handshake [`Flight`]s that the `round-trip` relay exchanges.

use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use becket_load::clock;
use becket_load::preface::{Flight, Preface};
use rustls::client::Resumption;
use rustls::server::{ServerSessionMemoryCache, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, UnbufferedStatus};
use rustls::{ClientConfig, ClientConnection, ServerConfig, crypto::aws_lc_rs, version};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};

use crate::keys::NAME;
use crate::scenario::Settings;
use crate::{Error, load, place};

/// TLS server and clients that make the handshakes of a case in memory.
#[derive(Debug)]
pub struct Library {
    server: Arc<ServerConfig>,
    /// Client configurations for full and for resumed handshakes, each with its share of all handshakes.
    clients: [(f64, Arc<ClientConfig>); 2],
    body: u64,
    cpu: usize,
}

impl Library {
    pub fn new(settings: &Settings, certificate: &Path, cpu: usize) -> Result<Self, Error> {
        let resumed = settings.asked_resumed()?;
        Ok(Self {
            server: Arc::new(server_config(settings, certificate)?),
            clients: [
                (1.0 - resumed, client_config(settings, false)?),
                (resumed, client_config(settings, true)?),
            ],
            body: settings.body,
            cpu,
        })
    }

    /// Measures the server's CPU time per transaction in microseconds. A transaction is a handshake, a request and a
    /// body. Runs for about `time`.
    pub fn transaction_us(&self, time: Duration) -> Result<f64, Error> {
        place::on(&[self.cpu], || {
            let mut total = 0.0;
            for (share, client) in self.clients.iter().filter(|(share, _)| *share > 0.0) {
                total += share * self.median_us(client, time.mul_f64(*share))?;
            }
            Ok(total)
        })
    }

    fn median_us(&self, client: &Arc<ClientConfig>, time: Duration) -> Result<f64, Error> {
        let end = clock::now() + time;
        let mut times = Vec::new();
        // The first transaction creates the session that later transactions resume.
        one(self.body, &self.server, client)?;
        while times.len() < LEAST || clock::now() < end {
            let spent = one(self.body, &self.server, client)?.spent;
            times.push(spent.as_secs_f64() * 1e6);
        }
        Ok(crate::spread::median(&times).unwrap_or(0.0))
    }

    /// Returns the flights of a full and of a resumed handshake.
    pub fn preface(&self) -> Result<Preface, Error> {
        let [(_, full), (_, resumed)] = &self.clients;
        let of = |client| {
            let mut flights = one(0, &self.server, client)?.flights;
            // The relay connects to its backend after a flight without an answer. Add an empty one if the server sent
            // the last flight of the handshake.
            if flights.last().is_some_and(|last| last.answer > 0) {
                flights.push(Flight {
                    sent: Flight::HEAD,
                    answer: 0,
                });
            }
            Ok::<_, Error>(flights)
        };
        let full = of(full)?;
        // The first handshake creates the session that the second one resumes.
        one(0, &self.server, resumed)?;
        Ok(Preface {
            full,
            resumed: of(resumed)?,
        })
    }
}

#[derive(Debug, Default)]
struct Transaction {
    spent: Duration,
    flights: Vec<Flight>,
}

fn one(
    body: u64,
    server: &Arc<ServerConfig>,
    client: &Arc<ClientConfig>,
) -> Result<Transaction, Error> {
    let name = ServerName::try_from(NAME).map_err(|e| Error::Asked(e.to_string()))?;
    let mut client = ClientConnection::new(Arc::clone(client), name).map_err(failed)?;
    let begin = clock::now();
    let connection = UnbufferedServerConnection::new(Arc::clone(server)).map_err(failed)?;
    let mut server = Side {
        connection,
        input: Vec::new(),
        output: vec![0; ROOM],
        filled: 0,
    };
    let mut done = Transaction {
        spent: clock::now() - begin,
        ..Transaction::default()
    };
    // The client may have its keys before it has sent its Finished message.
    while client.wants_write() || client.is_handshaking() || server.connection.is_handshaking() {
        let last = !client.is_handshaking();
        server.input = said(&mut client)?;
        let sent = server.input.len();
        let begin = clock::now();
        server.turn(0)?;
        done.spent += clock::now() - begin;
        let answer = server.filled;
        hear(&mut client, server.output.get(..answer).unwrap_or(&[]))?;
        // After the client's Finished, a TLS 1.3 server sends only tickets. Clients do not wait for them.
        let answer = if last { 0 } else { answer };
        done.flights.push(Flight { sent, answer });
    }
    client
        .writer()
        .write_all(&[b'q'; REQUEST])
        .map_err(|e| Error::os("cannot write to the client in memory", e))?;
    server.input = said(&mut client)?;
    // Time only a part of a large body and extrapolate, because the cost is proportional to the length.
    let part = body.min(LARGEST);
    let begin = clock::now();
    server.turn(part + HEAD)?;
    let spent = clock::now() - begin;
    done.spent += spent.mul_f64(if body > part {
        body as f64 / part as f64
    } else {
        1.0
    });
    Ok(done)
}

fn failed(error: rustls::Error) -> Error {
    Error::Asked(format!("handshake in memory failed: {error}"))
}

/// Returns the TLS bytes that the client has to send.
fn said(client: &mut ClientConnection) -> Result<Vec<u8>, Error> {
    let mut wire = Vec::new();
    while client.wants_write() {
        client
            .write_tls(&mut wire)
            .map_err(|e| Error::os("cannot read from the client in memory", e))?;
    }
    Ok(wire)
}

fn hear(client: &mut ClientConnection, mut wire: &[u8]) -> Result<(), Error> {
    while !wire.is_empty() {
        client
            .read_tls(&mut wire)
            .map_err(|e| Error::os("cannot write to the client in memory", e))?;
        client.process_new_packets().map_err(failed)?;
    }
    // The read makes the client process tickets that arrived after the handshake.
    let mut plain = [0; 4096];
    drop(client.reader().read(&mut plain));
    Ok(())
}

struct Side {
    connection: UnbufferedServerConnection,
    input: Vec<u8>,
    output: Vec<u8>,
    filled: usize,
}

impl Side {
    /// Processes the server's input and writes its output. If `body` is not zero, adds `body` bytes and close_notify.
    /// Each call overwrites the output of the previous one.
    fn turn(&mut self, mut body: u64) -> Result<(), Error> {
        let Self {
            connection,
            input,
            output,
            filled,
        } = self;
        *filled = 0;
        let ends = body > 0;
        let mut used = 0;
        loop {
            let records = input.get_mut(used..).unwrap_or(&mut []);
            let UnbufferedStatus { discard, state, .. } = connection.process_tls_records(records);
            used += discard;
            match state.map_err(failed)? {
                ConnectionState::EncodeTlsData(mut record) => {
                    let encoded = record.encode(output.get_mut(*filled..).unwrap_or(&mut []));
                    *filled += encoded.map_err(|e| Error::Asked(e.to_string()))?;
                }
                ConnectionState::TransmitTlsData(flight) => flight.done(),
                ConnectionState::ReadTraffic(mut traffic) => {
                    while let Some(record) = traffic.next_record() {
                        record.map_err(failed)?;
                    }
                }
                ConnectionState::WriteTraffic(mut traffic) => {
                    while body > 0 {
                        let count = usize::try_from(body).unwrap_or(CHUNK).min(CHUNK);
                        let plain = PLAIN.get(..count).unwrap_or(&PLAIN);
                        let sealed = traffic.encrypt(plain, output);
                        sealed.map_err(|e| Error::Asked(e.to_string()))?;
                        body -= count as u64;
                    }
                    if ends {
                        let sealed = traffic.queue_close_notify(output);
                        sealed.map_err(|e| Error::Asked(e.to_string()))?;
                    }
                    return Ok(());
                }
                _ => return Ok(()),
            }
        }
    }
}

fn server_config(settings: &Settings, certificate: &Path) -> Result<ServerConfig, Error> {
    let unreadable =
        |e: rustls_pki_types::pem::Error| Error::Asked(format!("cannot read the certificate: {e}"));
    let failed = |e: rustls::Error| Error::Asked(format!("rustls does not support this case: {e}"));
    let key = PrivateKeyDer::from_pem_file(certificate).map_err(unreadable)?;
    let chain = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(unreadable)?;
    let mut provider = aws_lc_rs::default_provider();
    provider.cipher_suites = becket_load::tls::suites(&settings.suite)?;
    let versions: &[_] = if settings.tls == "1.2" {
        &[&version::TLS12]
    } else {
        &[&version::TLS13]
    };
    let mut config = ServerConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(versions)
        .map_err(failed)?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(failed)?;
    if settings.resume_kind == "id" {
        config.session_storage = ServerSessionMemoryCache::new(1024);
    } else {
        config.ticketer = aws_lc_rs::Ticketer::new().map_err(failed)?;
    }
    Ok(config)
}

fn client_config(settings: &Settings, resumes: bool) -> Result<Arc<ClientConfig>, Error> {
    let tls = load::tls(settings)?;
    let mut config = tls.config();
    if !resumes {
        Arc::make_mut(&mut config).resumption = Resumption::disabled();
    }
    Ok(config)
}

/// Minimum number of transactions for a median.
const LEAST: usize = 9;
/// Length of a typical request in bytes.
const REQUEST: usize = 60;
/// Length of the backend's response header in bytes.
const HEAD: u64 = 80;
/// Maximum bytes that a terminator reads from its backend per call.
const CHUNK: usize = 64 * 1024;
static PLAIN: [u8; CHUNK] = [b'b'; CHUNK];
/// Size of the output buffer in bytes: one chunk plus the overhead of its TLS records.
const ROOM: usize = CHUNK + 1024;
/// Maximum number of body bytes to encrypt. The time for a longer body is extrapolated.
const LARGEST: u64 = 1024 * 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys;
    use crate::scenario::Scenario;

    fn library(settings: &str) -> Library {
        let text = format!(
            "id = \"x\"\ntitle = \"x\"\nquestion = \"x?\"\nmeasure = \"transactions\"\n[then]\ntext = \"x\"\n[base]\n{settings}"
        );
        let (_, settings) = Scenario::parse("x", &text)
            .unwrap()
            .cases(false)
            .unwrap()
            .remove(0);
        let directory = tempfile::tempdir().unwrap();
        let certificate = keys::file(directory.path(), &settings.key).unwrap();
        Library::new(
            &settings,
            &certificate,
            place::Place::here().unwrap().all()[0],
        )
        .unwrap()
    }

    #[test]
    fn full_tls_1_2_handshakes_need_two_round_trips_and_all_others_need_one() {
        let answered = |flights: &[Flight]| flights.iter().filter(|f| f.answer > 0).count();
        let Preface { full, resumed } = library("tls = \"1.3\"").preface().unwrap();
        assert_eq!((answered(&full), answered(&resumed)), (1, 1));
        assert!(full[0].answer > resumed[0].answer, "{full:?} {resumed:?}");
        let Preface { full, resumed } = library("resume-kind = \"ticket\"").preface().unwrap();
        assert_eq!((answered(&full), answered(&resumed)), (2, 1));
    }

    #[test]
    fn every_kind_of_case_has_a_library_floor() {
        for settings in [
            "resume = \"every=4\"",
            "resume = \"always\"\nresume-kind = \"id\"",
            "body = \"4m\"",
        ] {
            assert!(library(settings).transaction_us(Duration::ZERO).unwrap() > 0.0);
        }
    }
}
