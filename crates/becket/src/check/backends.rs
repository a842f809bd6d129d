//! What `becket check` shows of backends: who of the servers gets a connection, how many they get, how they
//! are looked after, and how they prove who they are.

use std::fmt::{self, Display, Formatter};
use std::net::IpAddr;
use std::time::Duration;

use rustls::pki_types::ServerName;
use serde::{Serialize, Serializer};

use crate::config::{
    Backend, Balance, CheckKind, Health, OnDown, Onward, ProxyVersion, QueuePlace, Server,
    ServerAlpn, Sni, StickBy,
};

/// A backend as configured.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct BackendSummary {
    name: String,
    balance: Balance,
    retries: u32,
    #[serde(rename = "resolve-interval-seconds", serialize_with = "maybe_seconds")]
    resolve_interval: Option<Duration>,
    /// Absent where no server has a limit.
    queue: Option<QueueSummary>,
    stick: Option<StickSummary>,
    health: HealthSummary,
    on_down: OnDown,
    /// Absent where the servers speak plain TCP.
    tls: Option<TlsSummary>,
    proxy_header: Option<ProxyVersion>,
    source: Vec<IpAddr>,
    servers: Vec<ServerSummary>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct QueueSummary {
    length: usize,
    #[serde(rename = "timeout-seconds", serialize_with = "seconds")]
    timeout: Duration,
    place: QueuePlace,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct StickSummary {
    by: StickBy,
    entries: usize,
    #[serde(rename = "lifetime-seconds", serialize_with = "seconds")]
    lifetime: Duration,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct HealthSummary {
    check: CheckKind,
    checks: Option<ChecksSummary>,
    passive: Option<PassiveSummary>,
    #[serde(rename = "slow-start-seconds", serialize_with = "seconds")]
    slow_start: Duration,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct ChecksSummary {
    #[serde(rename = "interval-seconds", serialize_with = "seconds")]
    interval: Duration,
    #[serde(rename = "fast-interval-seconds", serialize_with = "seconds")]
    fast_interval: Duration,
    #[serde(rename = "timeout-seconds", serialize_with = "seconds")]
    timeout: Duration,
    rise: u32,
    fall: u32,
    /// Of an HTTP check.
    path: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct PassiveSummary {
    failures: u32,
    #[serde(rename = "pause-seconds", serialize_with = "seconds")]
    pause: Duration,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct TlsSummary {
    verified: bool,
    /// The one name that is verified; absent is the host of each server's address.
    name: Option<String>,
    revocation_lists: usize,
    sends_name: String,
    alpn: Vec<String>,
    shows_certificate: bool,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct ServerSummary {
    name: String,
    addresses: Vec<String>,
    weight: u32,
    maxconn: Option<u32>,
    minconn: Option<u32>,
    backup: bool,
    disabled: bool,
    node: Option<u16>,
}

impl BackendSummary {
    pub(super) fn of(backend: &Backend) -> Self {
        let limited = backend.servers.iter().any(|one| one.maxconn.is_some());
        let queue = || QueueSummary {
            length: backend.queue_length,
            timeout: backend.queue_timeout,
            place: backend.queue,
        };
        let stick = || StickSummary {
            by: backend.stick,
            entries: backend.stick_entries,
            lifetime: backend.stick_lifetime,
        };
        Self {
            name: backend.name.clone(),
            balance: backend.balance,
            retries: backend.retries,
            resolve_interval: backend.resolve_interval,
            queue: limited.then(queue),
            stick: (backend.stick != StickBy::None).then(stick),
            health: HealthSummary::of(&backend.health),
            on_down: backend.on_down,
            tls: backend.tls.as_ref().map(TlsSummary::of),
            proxy_header: backend.proxy_header,
            source: backend.source.clone(),
            servers: backend.servers.iter().map(ServerSummary::of).collect(),
        }
    }
}

impl HealthSummary {
    fn of(health: &Health) -> Self {
        let checks = health.rules.checks.map(|checks| ChecksSummary {
            interval: checks.interval,
            fast_interval: checks.fast_interval,
            timeout: health.timeout,
            rise: checks.rise,
            fall: checks.fall,
            path: (health.check == CheckKind::Http).then(|| health.path.clone()),
        });
        let passive = health.rules.passive.map(|passive| PassiveSummary {
            failures: passive.failures,
            pause: passive.pause,
        });
        Self {
            check: health.check,
            checks,
            passive,
            slow_start: health.rules.slow_start,
        }
    }
}

impl TlsSummary {
    fn of(onward: &Onward) -> Self {
        let text = |name: &ServerName<'_>| name.to_str().into_owned();
        let alpn = match &onward.alpn {
            ServerAlpn::Client => vec!["client".to_owned()],
            ServerAlpn::Fixed(protocols) => {
                let texts = protocols.iter().map(|one| String::from_utf8_lossy(one));
                texts.map(String::from).collect()
            }
        };
        Self {
            verified: onward.verify,
            name: onward.name.as_ref().map(text),
            revocation_lists: onward.lists,
            sends_name: match &onward.sni {
                Sni::Own => "own".to_owned(),
                Sni::Client => "client".to_owned(),
                Sni::Off => "off".to_owned(),
                Sni::Fixed(name) => text(name),
            },
            alpn,
            shows_certificate: onward.client.client_auth_cert_resolver.has_certs(),
        }
    }
}

impl ServerSummary {
    fn of(server: &Server) -> Self {
        Self {
            name: server.name.to_string(),
            addresses: server.addresses.iter().map(ToString::to_string).collect(),
            weight: server.weight,
            maxconn: server.maxconn,
            minconn: server.minconn,
            backup: server.backup,
            disabled: server.disabled,
            node: server.node,
        }
    }
}

fn seconds<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(time.as_secs_f64())
}

fn maybe_seconds<S: Serializer>(time: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    time.map(|time| time.as_secs_f64()).serialize(serializer)
}

/// A choice as the file spells it.
fn word(choice: &impl Serialize) -> String {
    let value = serde_json::to_value(choice).unwrap_or_default();
    value.as_str().unwrap_or_default().to_owned()
}

impl Display for BackendSummary {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "backend {}", self.name)?;
        let (balance, retries) = (word(&self.balance), self.retries);
        writeln!(
            f,
            "  balance   {balance}, {retries} more are tried when a connect fails"
        )?;
        if let Some(QueueSummary {
            length,
            timeout,
            place,
        }) = &self.queue
        {
            let place = word(place).replace('-', " the ");
            writeln!(f, "  queue     {length} wait, for {timeout:?}, {place}")?;
        }
        if let Some(StickSummary {
            by,
            entries,
            lifetime,
        }) = &self.stick
        {
            let by = word(by);
            writeln!(f, "  stick     by {by}, {entries} clients for {lifetime:?}")?;
        }
        self.health.write(self.on_down, f)?;
        if let Some(tls) = &self.tls {
            writeln!(f, "  tls       {tls}")?;
        }
        if let Some(version) = &self.proxy_header {
            writeln!(f, "  header    PROXY {}", word(version))?;
        }
        if !self.source.is_empty() {
            let source: Vec<String> = self.source.iter().map(IpAddr::to_string).collect();
            writeln!(f, "  source    {}", source.join(", "))?;
        }
        for server in &self.servers {
            writeln!(f, "  server    {server}")?;
        }
        Ok(())
    }
}

impl HealthSummary {
    fn write(&self, on_down: OnDown, f: &mut Formatter<'_>) -> fmt::Result {
        if let Some(checks) = &self.checks {
            let ChecksSummary {
                interval,
                fast_interval,
                timeout,
                rise,
                fall,
                path,
            } = checks;
            let path = path
                .as_ref()
                .map(|path| format!(" {path}"))
                .unwrap_or_default();
            writeln!(
                f,
                "  health    {}{path} every {interval:?} ({fast_interval:?} while unsure), each within {timeout:?}; out after {fall}, back after {rise}",
                word(&self.check)
            )?;
        }
        if let Some(PassiveSummary { failures, pause }) = &self.passive {
            let back = match self.checks {
                Some(_) => "until checks bring it back".to_owned(),
                None => format!("for {pause:?}"),
            };
            writeln!(
                f,
                "  connects  {failures} in a row that fail take a server out, {back}"
            )?;
        }
        if self.checks.is_none() && self.passive.is_none() {
            return writeln!(f, "  health    nobody looks");
        }
        if !self.slow_start.is_zero() {
            writeln!(f, "  back      to its full weight in {:?}", self.slow_start)?;
        }
        match on_down {
            OnDown::Drain => Ok(()),
            OnDown::Close => writeln!(f, "  down      its connections are closed"),
        }
    }
}

impl Display for TlsSummary {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match (self.verified, &self.name) {
            (false, _) => write!(f, "not verified")?,
            (true, None) => write!(f, "verified as the host of each address")?,
            (true, Some(name)) => write!(f, "verified as {name}")?,
        }
        match self.revocation_lists {
            0 => {}
            1 => write!(f, ", by a revocation list")?,
            more => write!(f, ", by {more} revocation lists")?,
        }
        match &*self.sends_name {
            "own" => {}
            "client" => write!(f, ", sends the client's name")?,
            "off" => write!(f, ", sends no name")?,
            name => write!(f, ", sends {name}")?,
        }
        match &*self.alpn {
            [] => {}
            protocols => write!(f, ", offers {}", protocols.join(", "))?,
        }
        match self.shows_certificate {
            true => write!(f, ", shows a certificate"),
            false => Ok(()),
        }
    }
}

impl Display for ServerSummary {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let addresses = self.addresses.join(", ");
        f.write_str(&self.name)?;
        match &*addresses {
            "" => write!(f, ", which does not resolve yet")?,
            same if same == self.name => {}
            other => write!(f, " -> {other}")?,
        }
        if self.weight != 1 {
            write!(f, ", weight {}", self.weight)?;
        }
        match (self.maxconn, self.minconn) {
            (Some(most), None) => write!(f, ", {most} connections")?,
            (Some(most), Some(least)) => write!(f, ", {least} to {most} connections")?,
            (None, _) => {}
        }
        if let Some(node) = self.node {
            write!(f, ", node {node}")?;
        }
        for (is, what) in [(self.backup, "backup"), (self.disabled, "disabled")] {
            if is {
                write!(f, ", {what}")?;
            }
        }
        Ok(())
    }
}
