//! The flags of `becket run` as a configuration: they become a [`File`], so that there is one
//! path of validation, and problems name the flag where a file has the key.
//!
//! With `--config` the file is everything, and only the few flags that an operator changes for
//! one start (workers, admin address, logs) may go with it: they replace the file's values.

use std::path::{Path, PathBuf};

use super::file::{
    File, FileBackend, FileCertificate, FileCluster, FileListener, FileServer, Scalar,
};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde::de::DeserializeOwned;
use serde::de::IntoDeserializer;
use serde::de::value::{Error, StrDeserializer};

use super::{Balance, LogFormat, ProxyVersion};

/// What to run: certificates and addresses, or a configuration file.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct Flags {
    /// Configuration file (TOML); see docs/config.md and examples/
    #[arg(long, value_name = "FILE", conflicts_with_all = WITHOUT_CONFIG)]
    pub config: Option<PathBuf>,

    /// Addresses to listen on.
    #[arg(long, value_name = "ADDR", help_heading = "What to serve", help = FRONTEND)]
    pub frontend: Vec<String>,

    /// Addresses of servers.
    #[arg(long, value_name = "ADDR", help_heading = "What to serve", help = BACKEND)]
    pub backend: Vec<String>,

    /// Who of several servers gets the next connection; default is round-robin
    #[arg(long, value_name = "NAME", help_heading = "What to serve", value_parser = choices::<Balance>(&BALANCE))]
    pub balance: Option<Balance>,

    /// Connections that each server may have; others wait for a free one
    #[arg(long, value_name = "N", help_heading = "What to serve")]
    pub maxconn: Option<u64>,

    /// How long a connection may wait for a free one, such as 10s; default is 5s
    #[arg(long, value_name = "DURATION", help_heading = "What to serve")]
    pub queue_timeout: Option<String>,

    /// PEM files with chain and key, or directories of *.pem; the last one is the default
    #[arg(value_name = "CERT.pem", help_heading = "What to serve")]
    pub certificates: Vec<String>,

    /// Protocols to offer by ALPN, most preferred first, such as h2,http/1.1
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        help_heading = "What to serve"
    )]
    pub alpn: Vec<String>,

    /// Send a PROXY header to the backend, with the client's address
    #[arg(long, value_name = "VERSION", help_heading = "What to serve", value_parser = choices::<ProxyVersion>(&["v1", "v2"]))]
    pub proxy_header: Option<ProxyVersion>,

    /// Share sessions with other beckets: the file that "becket secret FILE" made
    #[arg(long, value_name = "FILE", help_heading = "Cluster", requires = "node")]
    pub cluster_secret: Option<String>,

    /// UDP address where the other beckets send new sessions; without, only tickets are shared
    #[arg(
        long,
        value_name = "ADDR",
        help_heading = "Cluster",
        requires = "cluster_secret"
    )]
    pub cluster_listen: Option<String>,

    /// Another becket: HOST:PORT, IPv6 in brackets, the address it listens on; repeatable
    #[arg(
        long,
        value_name = "ADDR",
        help_heading = "Cluster",
        requires = "cluster_listen"
    )]
    pub cluster_peer: Vec<String>,

    /// Number of this becket among them, 1 to 65535, another on each
    #[arg(
        long,
        value_name = "N",
        help_heading = "Cluster",
        requires = "cluster_secret"
    )]
    pub node: Option<u64>,

    /// Worker threads: a number, or auto for one per usable core
    #[arg(long, value_name = "N|auto", help_heading = "Process")]
    pub workers: Option<String>,

    /// Address of /metrics, /status and /healthz, such as 127.0.0.1:9443
    #[arg(long, value_name = "ADDR", help_heading = "Process")]
    pub admin: Option<String>,

    /// User to become once the sockets are bound
    #[arg(long, value_name = "NAME", help_heading = "Process")]
    pub user: Option<String>,

    /// Group to become; default is the user's
    #[arg(long, value_name = "NAME", help_heading = "Process")]
    pub group: Option<String>,

    /// Allow core dumps, which hold private keys
    #[arg(long, help_heading = "Process")]
    pub core_dumps: bool,

    /// Write TLS secrets to the file that SSLKEYLOGFILE names
    #[arg(long, help_heading = "Process")]
    pub key_log: bool,

    /// What to log: error, warn, info, debug, trace, or a filter such as becket::tls=debug
    #[arg(long, value_name = "FILTER", help_heading = "Logs")]
    pub log_level: Option<String>,

    /// Shape of log lines
    #[arg(long, value_name = "FORMAT", help_heading = "Logs", value_parser = choices::<LogFormat>(&["text", "json"]))]
    pub log_format: Option<LogFormat>,

    /// Where to log: stderr or a file, reopened on SIGUSR1
    #[arg(long, value_name = "FILE", help_heading = "Logs")]
    pub log_file: Option<String>,

    /// One line per connection: off, stderr or a file
    #[arg(long, value_name = "FILE", help_heading = "Logs")]
    pub access_log: Option<String>,
}

impl Flags {
    /// Writes the flags as a file with one listener and one backend.
    pub fn to_file(&self, base: &Path) -> File {
        let servers = self.backend.iter().map(|address| FileServer {
            address: Some(address.clone()),
            maxconn: self.maxconn,
            ..FileServer::default()
        });
        let certificates = self.certificates.iter().cloned().map(FileCertificate::Path);
        let mut file = File {
            listener: vec![FileListener {
                name: Some(NAME.to_owned()),
                bind: Some(self.frontend.clone()),
                certificates: Some(certificates.collect()),
                backend: Some(NAME.to_owned()),
                alpn: self.alpn.clone(),
                ..FileListener::default()
            }],
            backend: vec![FileBackend {
                name: Some(NAME.to_owned()),
                proxy_header: self.proxy_header,
                balance: self.balance.unwrap_or_default(),
                queue_timeout: self.queue_timeout.clone().map(Scalar),
                server: servers.collect(),
                ..FileBackend::default()
            }],
            ..File::default()
        };
        file.cluster = self.cluster();
        file.process.user.clone_from(&self.user);
        file.process.group.clone_from(&self.group);
        file.process.core_dumps = self.core_dumps;
        file.process.key_log = self.key_log;
        self.replace_in(&mut file, base);
        file
    }

    /// The cluster, if a flag says that there is one.
    fn cluster(&self) -> Option<FileCluster> {
        let told = self.cluster_secret.is_some()
            || self.cluster_listen.is_some()
            || self.node.is_some()
            || !self.cluster_peer.is_empty();
        told.then(|| FileCluster {
            secret: self.cluster_secret.clone(),
            listen: self.cluster_listen.clone(),
            peers: self.cluster_peer.clone(),
            node: self.node,
            ..FileCluster::default()
        })
    }

    /// Replaces what may be replaced beside `--config`. Relative paths of logs start at `base`,
    /// the folder in which the flag was typed.
    pub fn replace_in(&self, file: &mut File, base: &Path) {
        if let Some(workers) = &self.workers {
            file.process.workers = Scalar(workers.clone());
        }
        if let Some(admin) = &self.admin {
            file.admin.address = Some(admin.clone());
        }
        if let Some(level) = &self.log_level {
            file.log.level.clone_from(level);
        }
        if let Some(format) = self.log_format {
            file.log.format = format;
        }
        let place = |text: &String| match text.as_str() {
            "off" | "stderr" | "" => text.clone(),
            path => base.join(path).to_string_lossy().into_owned(),
        };
        if let Some(log) = &self.log_file {
            file.log.file = place(log);
        }
        if let Some(access) = &self.access_log {
            file.log.access = place(access);
        }
    }

    /// The flag that set the key at `path`, if one did.
    pub fn named(&self, path: &str) -> Option<&'static str> {
        let replaced = match path {
            "process.workers" => self.workers.is_some().then_some("--workers"),
            "admin.address" => self.admin.is_some().then_some("--admin"),
            "log.level" => self.log_level.is_some().then_some("--log-level"),
            "log.file" => self.log_file.is_some().then_some("--log-file"),
            "log.access" => self.access_log.is_some().then_some("--access-log"),
            _ => None,
        };
        if replaced.is_some() || self.config.is_some() {
            return replaced;
        }
        let flags = [
            ("listener[main].bind", "--frontend"),
            ("listener[main].certificates", "CERT.pem"),
            ("listener[main].alpn", "--alpn"),
            ("backend[main].queue-timeout", "--queue-timeout"),
            ("backend[main].server", "--backend"),
            ("cluster.secret", "--cluster-secret"),
            ("cluster.listen", "--cluster-listen"),
            ("cluster.peers", "--cluster-peer"),
            ("cluster.node", "--node"),
            ("process.user", "--user"),
            ("process.group", "--group"),
            ("process.key-log", "--key-log"),
        ];
        if path.starts_with("backend[main].server") && path.ends_with(".maxconn") {
            return Some("--maxconn");
        }
        let flag = flags.iter().find(|(key, _)| path.starts_with(key));
        flag.map(|(_, flag)| *flag)
    }
}

/// Words of which a flag takes one, as the file spells them.
fn choices<T: DeserializeOwned + Clone + Send + Sync + 'static>(
    words: &'static [&'static str],
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(words).try_map(|word| {
        let word: StrDeserializer<'_, Error> = word.as_str().into_deserializer();
        T::deserialize(word)
    })
}

const BALANCE: [&str; 6] = [
    "round-robin",
    "least-connections",
    "two-random-choices",
    "first",
    "source-hash",
    "sni-hash",
];

/// The name of the listener and the backend that flags describe; the label in metrics.
const NAME: &str = "main";

/// The flags that a file replaces.
const WITHOUT_CONFIG: [&str; 16] = [
    "frontend",
    "backend",
    "balance",
    "maxconn",
    "queue_timeout",
    "certificates",
    "alpn",
    "proxy_header",
    "cluster_secret",
    "cluster_listen",
    "cluster_peer",
    "node",
    "user",
    "group",
    "core_dumps",
    "key_log",
];
const FRONTEND: &str =
    "Where clients arrive: HOST:PORT, [V6]:PORT or :PORT (all addresses); repeatable";
const BACKEND: &str =
    "Where connections go: HOST:PORT, [V6]:PORT or /unix/path; repeatable, one pool";
