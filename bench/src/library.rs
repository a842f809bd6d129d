//! The floor of the library: the same handshake and the same bytes, in memory, on one CPU.
//!
//! Server and client are rustls connections in one thread that exchange their bytes through vectors;
//! only the server's side is timed. `eta` of a terminator is (plain relay + this) / measured.

use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use becket_load::clock;
use becket_load::plan::Load;
use becket_load::tls::{Tls, TlsPlan};
use rustls::server::{ServerSessionMemoryCache, StoresServerSessions};
use rustls::{
    ClientConfig, ClientConnection, ConnectionCommon, ServerConfig, ServerConnection, SideData,
    crypto::aws_lc_rs, version,
};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};

use crate::keys::NAME;
use crate::scenario::Settings;
use crate::{Error, place};

/// Measures the server's microseconds of one transaction in memory: the mix of full and resumed
/// handshakes that the case asks for, its request and its body, on `cpu`. Takes about `time`.
///
/// # Errors
/// [`Error::Asked`] when the library cannot do what the case asks.
pub fn transaction_us(
    settings: &Settings,
    certificate: &Path,
    cpu: usize,
    time: Duration,
) -> Result<f64, Error> {
    let server = Arc::new(server_config(settings, certificate)?);
    let share = settings.asked_resumed()?;
    place::on(&[cpu], || {
        let mut total = 0.0;
        for (weight, resumes) in [(1.0 - share, false), (share, true)] {
            if weight > 0.0 {
                let client = client_config(settings, resumes)?;
                total += weight * median_us(settings, &server, &client, time)?;
            }
        }
        Ok(total)
    })
}

fn median_us(
    settings: &Settings,
    server: &Arc<ServerConfig>,
    client: &Arc<ClientConfig>,
    time: Duration,
) -> Result<f64, Error> {
    let end = clock::now() + time;
    let mut times = Vec::new();
    // The first one makes the session that the others resume.
    one(settings.body, server, client)?;
    while times.len() < LEAST || clock::now() < end {
        times.push(one(settings.body, server, client)?.as_secs_f64() * 1e6);
    }
    Ok(crate::spread::median(&times).unwrap_or(0.0))
}

/// Makes one transaction; returns the server's time.
fn one(
    body: u64,
    server: &Arc<ServerConfig>,
    client: &Arc<ClientConfig>,
) -> Result<Duration, Error> {
    let failed = |e: rustls::Error| Error::Asked(format!("handshake in memory: {e}"));
    let name = ServerName::try_from(NAME).map_err(|e| Error::Asked(e.to_string()))?;
    let mut client = ClientConnection::new(Arc::clone(client), name).map_err(failed)?;
    let mut spent = Duration::ZERO;
    let begin = clock::now();
    let mut server = ServerConnection::new(Arc::clone(server)).map_err(failed)?;
    spent += clock::now() - begin;
    let mut wire = Vec::new();
    while client.is_handshaking() || server.is_handshaking() {
        send(&mut client, &mut wire)?;
        let begin = clock::now();
        receive(&mut server, &wire).map_err(failed)?;
        wire.clear();
        send(&mut server, &mut wire)?;
        spent += clock::now() - begin;
        receive(&mut client, &wire).map_err(failed)?;
        wire.clear();
    }
    write(&mut client, &[b'q'; REQUEST])?;
    send(&mut client, &mut wire)?;
    let begin = clock::now();
    receive(&mut server, &wire).map_err(failed)?;
    let mut plain = [0; 4096];
    drop(server.reader().read(&mut plain));
    wire.clear();
    // The cost of a body grows with its length alone: a large one is measured in part.
    let part = body.min(LARGEST);
    let head = clock::now();
    let mut left = part + HEAD;
    while left > 0 {
        let count = usize::try_from(left).unwrap_or(CHUNK).min(CHUNK);
        write(&mut server, &vec![b'b'; count])?;
        wire.clear();
        send(&mut server, &mut wire)?;
        left -= count as u64;
    }
    let bytes = clock::now() - head;
    server.send_close_notify();
    send(&mut server, &mut wire)?;
    spent += clock::now() - begin;
    if body > part {
        spent += bytes.mul_f64((body - part) as f64 / part as f64);
    }
    // So that tickets which came after the handshake are kept.
    drop(client.reader().read(&mut plain));
    Ok(spent)
}

fn write<S: SideData>(from: &mut ConnectionCommon<S>, bytes: &[u8]) -> Result<(), Error> {
    from.writer()
        .write_all(bytes)
        .map_err(|e| Error::os("writing in memory", e))
}

fn send<S: SideData>(from: &mut ConnectionCommon<S>, wire: &mut Vec<u8>) -> Result<(), Error> {
    while from.wants_write() {
        from.write_tls(wire)
            .map_err(|e| Error::os("writing in memory", e))?;
    }
    Ok(())
}

fn receive<S: SideData>(
    to: &mut ConnectionCommon<S>,
    mut wire: &[u8],
) -> Result<(), rustls::Error> {
    while !wire.is_empty() {
        to.read_tls(&mut wire)
            .map_err(|e| rustls::Error::General(e.to_string()))?;
        to.process_new_packets()?;
    }
    Ok(())
}

fn server_config(settings: &Settings, certificate: &Path) -> Result<ServerConfig, Error> {
    let unreadable = |e: rustls_pki_types::pem::Error| Error::Asked(format!("certificate: {e}"));
    let failed = |e: rustls::Error| Error::Asked(format!("the library does not do this: {e}"));
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
        let store: Arc<dyn StoresServerSessions> = ServerSessionMemoryCache::new(1024);
        config.session_storage = store;
    } else {
        config.ticketer = aws_lc_rs::Ticketer::new().map_err(failed)?;
    }
    Ok(config)
}

/// Makes the same client as the load tool has.
fn client_config(settings: &Settings, resumes: bool) -> Result<Arc<ClientConfig>, Error> {
    let plan: TlsPlan = crate::load::Ask::of(settings, "https://127.0.0.1:1/".to_owned())
        .plan(Load::ClosedCount(1))?
        .tls
        .ok_or_else(|| Error::Asked("no TLS in the plan".to_owned()))?;
    let tls = Tls::new(&plan)?;
    let sessions = Arc::new(becket_load::sessions::Sessions::default());
    let mut config = Arc::unwrap_or_clone(tls.slot(&sessions));
    config.resumption = if !resumes {
        rustls::client::Resumption::disabled()
    } else if settings.resume_kind == "id" {
        rustls::client::Resumption::in_memory_sessions(8)
            .tls12_resumption(rustls::client::Tls12Resumption::SessionIdOnly)
    } else {
        rustls::client::Resumption::in_memory_sessions(8)
    };
    Ok(Arc::new(config))
}

/// A median of fewer says little.
const LEAST: usize = 9;
const REQUEST: usize = 60;
/// The responder's head.
const HEAD: u64 = 80;
/// One record; more would not fit what a connection holds unsent.
const CHUNK: usize = 16 * 1024;
const LARGEST: u64 = 1024 * 1024;
