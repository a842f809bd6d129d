//! `becket-load probe`: tests which TLS features servers offer, and prints one row per server.
//!
//! Each server receives at most nine connections. One finds an address that accepts connections. Six make a full and a resumed handshake
//! with a pre-shared key (TLS 1.3), a ticket and a session ID (TLS 1.2). Two send a ClientHello of TLS 1.1 and of TLS 1.0,
//! which this client does not otherwise support.
//!
//! [`sessions`] stores the session that the server issued, [`peer`] limits the time and the bytes of each connection, and
//! [`table`] prints the rows. Certificates are shown, but not verified.

mod offers;
mod old;
mod peer;
mod sessions;
mod table;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use becket_stats::units::parse_duration;
use rustls::HandshakeKind;
use rustls::client::{ClientConfig, ClientConnection, Resumption};
use rustls_pki_types::ServerName;

use crate::Error;
use crate::failure::Failure;
use crate::hello::Offered;
use crate::key_share::Group;
use crate::negotiated;
use crate::probe::offers::{Offers, ServerCertificate};
use crate::probe::peer::Peer;
use crate::probe::sessions::Sessions;
use crate::resume::Resume;
use crate::target::Target;
use crate::tls::{ResumeKind, Tls, TlsOptions};

#[derive(Clone, Debug, clap::Args)]
pub struct ProbeOptions {
    /// Servers to probe; the default port is 443, and IPv6 addresses need brackets
    #[arg(value_name = "HOST[:PORT]", required = true)]
    pub servers: Vec<String>,
    /// Server name to send instead of HOST
    #[arg(long, value_name = "NAME")]
    pub sni: Option<String>,
    /// Abort each connection after this time
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "5s")]
    pub time_out: Duration,
    /// Print one JSON object per server, one per line
    #[arg(long)]
    pub json: bool,
}

/// Probes each server and prints its row. Returns `true` if all servers answered. A signal ends the probe after the
/// current server.
///
/// # Errors
/// [`Error::Plan`] if a server or the server name is invalid; no server is probed then.
pub fn run(options: &ProbeOptions, stop: &AtomicBool) -> Result<bool, Error> {
    let all = options.servers.iter();
    let asked: Result<Vec<_>, _> = all.map(|server| Asked::new(server, options)).collect();
    let mut rows = Vec::new();
    for asked in asked? {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let offers = asked.offers()?;
        if options.json {
            let line = serde_json::to_string(&offers);
            println!(
                "{}",
                line.map_err(|e| Error::os("cannot format the row as JSON", e.into()))?
            );
        }
        rows.push(offers);
    }
    if !options.json {
        print!("{}", table::page(&rows));
    }
    Ok(rows.iter().all(|offers| offers.error.is_none()))
}

/// Server to probe.
struct Asked {
    shown: String,
    target: Target,
    name: ServerName<'static>,
    time_out: Duration,
}

impl Asked {
    fn new(server: &str, options: &ProbeOptions) -> Result<Self, Error> {
        let accepted = "accepted: HOST[:PORT], with an IPv6 address in brackets";
        let wrong = || Error::Plan(format!("`{server}` is not a valid server ({accepted})"));
        let target = Target::parse(&format!("https://{server}/")).map_err(|_| wrong())?;
        if target.path != "/" {
            return Err(wrong());
        }
        let name = options.sni.as_ref().unwrap_or(&target.host);
        let name = ServerName::try_from(name.clone())
            .map_err(|e| Error::Plan(format!("`{name}` is not a valid server name: {e}")))?;
        Ok(Self {
            shown: server.to_owned(),
            target,
            name,
            time_out: options.time_out,
        })
    }

    fn offers(&self) -> Result<Offers, Error> {
        let mut offers = Offers {
            server: self.shown.clone(),
            ..Offers::default()
        };
        let all = self.target.resolve(true).map_err(|e| e.to_string());
        let open = |all: Vec<_>| first_open(&all, self.time_out).map_err(|e| e.to_string());
        match all.and_then(open) {
            Ok(address) => self.ask(address, &mut offers)?,
            Err(error) => offers.error = Some(error),
        }
        Ok(offers)
    }

    fn ask(&self, address: SocketAddr, offers: &mut Offers) -> Result<(), Error> {
        offers.address = Some(address);
        for way in &WAYS {
            if offers.refused.contains_key(way.version) {
                continue;
            }
            let tls = Tls::new(&way.options())?;
            if let Err(failure) = self.try_way(way, &tls, address, offers) {
                offers.refused.insert(way.version, failure.to_string());
            }
        }
        for (version, number) in [(TLS11, 2), (TLS10, 1)] {
            match old::is_offered(address, &self.name, number, self.time_out) {
                Ok(()) => offers.versions.push(version),
                Err(failure) => {
                    offers.refused.insert(version, failure.to_string());
                }
            }
        }
        if offers.versions.is_empty() {
            let reasons = offers.refused.iter();
            let reasons: Vec<_> = reasons
                .map(|(v, reason)| format!("{v}: {reason}"))
                .collect();
            offers.error = Some(reasons.join(", "));
        }
        Ok(())
    }

    /// Performs a full handshake, then a handshake that offers the new session by the resumption method `way`.
    fn try_way(
        &self,
        way: &Way,
        tls: &Tls,
        address: SocketAddr,
        offers: &mut Offers,
    ) -> Result<(), Failure> {
        let sessions = Arc::new(Sessions::default());
        let config = tls.config_with(Resumption::store(Arc::clone(&sessions) as _));
        let is_psk = way.offer == Offered::Psk;
        let waits = is_psk.then_some(&*sessions);
        let (full, _) = self.handshake(address, &config, waits)?;
        let agreed = negotiated::of(&full, None);
        if !offers.versions.contains(&way.version) {
            offers.versions.push(way.version);
            offers.suites.insert(way.version, agreed.suite);
            offers.group = offers.group.take().or(agreed.group);
        }
        if offers.certificate.is_none() {
            offers.certificate = full.peer_certificates().and_then(ServerCertificate::of);
        }
        let Some(given) = sessions.given() else {
            return Ok(());
        };
        if let Ok((again, offered)) = self.handshake(address, &config, None)
            && again.handshake_kind() == Some(HandshakeKind::Resumed)
            && offered == way.offer
        {
            offers.resumes_by.push(way.name);
            let lifetime = given.lifetime_s.filter(|_| way.offer != Offered::Id);
            offers
                .ticket_lifetime_s
                .extend(lifetime.map(|s| (way.name, s)));
            if again.is_early_data_accepted() {
                offers.early_data_bytes = given.early_data_bytes;
            }
        }
        Ok(())
    }

    /// Makes a handshake and returns the resumption method that its first flight offered. If `waits` is given, also requests `/` and
    /// waits for a ticket, because some servers send tickets only with their first response.
    fn handshake(
        &self,
        address: SocketAddr,
        config: &Arc<ClientConfig>,
        waits: Option<&Sessions>,
    ) -> Result<(ClientConnection, Offered), Failure> {
        let name = self.name.clone();
        let mut tls = ClientConnection::new(Arc::clone(config), name)?;
        let mut peer = Peer::connect(address, self.time_out)?;
        let mut flight = Vec::new();
        tls.write_tls(&mut flight)?;
        let offered = Offered::of(&flight);
        peer.say(&flight)?;
        while tls.is_handshaking() {
            peer.turn(&mut tls)?;
        }
        if let Some(sessions) = waits {
            let host = self.target.authority();
            let request = format!("HEAD / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
            peer.ask(&mut tls, &request, || sessions.given().is_some());
        }
        peer.close(&mut tls);
        Ok((tls, offered))
    }
}

/// Resumption method and the TLS version that supports it.
struct Way {
    name: &'static str,
    version: &'static str,
    kind: ResumeKind,
    offer: Offered,
}

impl Way {
    /// Returns TLS options with the key exchange groups of browsers, the post-quantum group first.
    fn options(&self) -> TlsOptions {
        TlsOptions {
            resume: Resume::Always,
            resume_kind: self.kind,
            tls: None,
            suite: Vec::new(),
            group: vec![
                Group::X25519MlKem768,
                Group::X25519,
                Group::P256,
                Group::P384,
            ],
            sni: None,
            alpn: Vec::new(),
            early_data: self.kind == ResumeKind::Psk,
        }
    }
}

/// Returns the first address that accepts a connection, or the failure of the last attempt.
fn first_open(all: &[SocketAddr], time_out: Duration) -> Result<SocketAddr, Failure> {
    let mut last = Failure::Unreachable;
    for address in all.iter().take(MOST_ADDRESSES) {
        match Peer::connect(*address, time_out) {
            Ok(_) => return Ok(*address),
            Err(failure) => last = failure,
        }
    }
    Err(last)
}

const WAYS: [Way; 3] = [
    Way {
        name: "psk",
        version: negotiated::TLS13,
        kind: ResumeKind::Psk,
        offer: Offered::Psk,
    },
    Way {
        name: "ticket",
        version: TLS12,
        kind: ResumeKind::Ticket,
        offer: Offered::Ticket,
    },
    Way {
        name: "id",
        version: TLS12,
        kind: ResumeKind::Id,
        offer: Offered::Id,
    },
];

/// Maximum number of addresses tried per name.
const MOST_ADDRESSES: usize = 4;
const TLS12: &str = "TLSv1.2";
const TLS11: &str = "TLSv1.1";
const TLS10: &str = "TLSv1.0";
