//! Flags of `becket run` as a configuration. The flags become sections of a file, so that flags and
//! files pass the same validation, and a problem names the flag instead of the key.
//!
//! With `--config`, only the few flags that operators change for one start (workers, admin address,
//! logs) are allowed. They replace the values of the file.

use std::path::{Path, PathBuf};

use serde::Serialize;
use toml::{Table, Value};

/// Flags of `becket run`: certificates and addresses, or a configuration file.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct Flags {
    /// Configuration file (TOML); see docs/reference/configuration.md and examples/
    #[arg(long, value_name = "FILE", conflicts_with_all = ["ServiceFlags", "AcmeFlags", "ClusterFlags", "user", "group"])]
    pub config: Option<PathBuf>,

    #[command(flatten)]
    pub service: ServiceFlags,

    #[command(flatten)]
    pub acme: AcmeFlags,

    #[command(flatten)]
    pub cluster: ClusterFlags,

    #[command(flatten)]
    pub process: ProcessFlags,

    #[command(flatten)]
    pub logs: LogFlags,
}

/// Flags of the listener and its servers.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
#[command(next_help_heading = "Service")]
pub struct ServiceFlags {
    /// Addresses to listen on.
    #[arg(long, value_name = "ADDR", help = FRONTEND)]
    pub frontend: Vec<String>,

    /// Addresses of servers.
    #[arg(long, value_name = "ADDR", help = BACKEND)]
    pub backend: Vec<String>,

    /// Load-balancing algorithm; default is round-robin
    #[arg(long, value_name = "NAME", value_parser = BALANCE)]
    pub balance: Option<String>,

    /// Maximum connections per server; more connections wait in a queue
    #[arg(long, value_name = "N")]
    pub maxconn: Option<u32>,

    /// Maximum waiting time in the queue, such as 10s; default is 5s
    #[arg(long, value_name = "DURATION")]
    pub queue_timeout: Option<String>,

    /// Close connections that have been idle this long after a response, such as 1s, while others
    /// wait in the queue; for HTTP/1.1
    #[arg(long, value_name = "DURATION")]
    pub idle_reclaim: Option<String>,

    /// PEM files with chain and key, directories of *.pem, or certbot's live/NAME/; the last one is the default
    #[arg(value_name = "CERT.pem")]
    pub certificates: Vec<String>,

    /// Chain and key in two files, separated by a comma; repeatable, after CERT.pem
    #[arg(long, value_name = "CHAIN.pem,KEY.pem")]
    pub certificate: Vec<String>,

    /// Folder with the files to serve, instead of servers (`becket files`).
    #[arg(skip)]
    pub folder: Option<PathBuf>,

    /// Disables TLS (`becket files`).
    #[arg(skip)]
    pub plain: bool,

    /// Protocols to offer by ALPN, most preferred first, such as h2,http/1.1
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub alpn: Vec<String>,

    /// Send a PROXY header to the backend, with the client's address
    #[arg(long, value_name = "VERSION", value_parser = ["v1", "v2", "ip", "received"])]
    pub proxy_header: Option<String>,
}

/// Flags of the section `acme`.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
#[command(next_help_heading = "Certificates from an authority (ACME)")]
pub struct AcmeFlags {
    /// Order a certificate with this name, renew it and use it; repeatable, one certificate for all
    #[arg(long, value_name = "NAME")]
    pub acme: Vec<String>,

    /// Mail address for the account at the authority; repeatable
    #[arg(long, value_name = "MAIL", requires = "acme")]
    pub acme_contact: Vec<String>,

    /// letsencrypt (default), google, zerossl, actalis, or the https URL of a directory
    #[arg(long, value_name = "NAME", requires = "acme")]
    pub acme_authority: Option<String>,

    /// Use the test environment of the authority, whose certificates clients reject
    #[arg(long, requires = "acme")]
    pub acme_staging: bool,

    /// Folder for accounts and certificates; default is /var/lib/becket-acme
    #[arg(long, value_name = "DIR", requires = "acme")]
    pub acme_folder: Option<String>,

    /// PEM file of CA certificates for connections to the authority; default is the system's
    #[arg(long, value_name = "FILE", requires = "acme")]
    pub acme_ca: Option<String>,
}

/// Flags of the section `cluster`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, clap::Args)]
#[command(next_help_heading = "Cluster")]
pub struct ClusterFlags {
    /// Share sessions with other beckets: the file from "becket secret FILE"
    #[serde(rename = "secret")]
    #[arg(long, value_name = "FILE")]
    pub cluster_secret: Option<String>,

    /// UDP address that receives new sessions of other beckets; without it, only tickets are shared
    #[serde(rename = "listen")]
    #[arg(long, value_name = "ADDR", requires = "cluster_secret")]
    pub cluster_listen: Option<String>,

    /// Address of another becket: HOST:PORT, IPv6 in brackets; repeatable
    #[serde(rename = "peers", skip_serializing_if = "Vec::is_empty")]
    #[arg(long, value_name = "ADDR", requires = "cluster_listen")]
    pub cluster_peer: Vec<String>,

    /// Number of this becket in the cluster, 1 to 65535, unique [default: from its address]
    #[arg(long, value_name = "N", requires = "cluster_secret")]
    pub node: Option<u32>,
}

/// Flags of the sections `process` and `admin`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, clap::Args)]
#[serde(rename_all = "kebab-case")]
#[command(next_help_heading = "Process")]
pub struct ProcessFlags {
    /// Worker threads: a number, or auto for one per usable core
    #[arg(long, value_name = "N|auto")]
    pub workers: Option<String>,

    /// Address of /metrics, /status and /healthz, such as 127.0.0.1:9443
    #[serde(skip)]
    #[arg(long, value_name = "ADDR")]
    pub admin: Option<String>,

    /// User to change to after binding the sockets
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,

    /// Group to change to; default is the user's
    #[arg(long, value_name = "NAME")]
    pub group: Option<String>,
}

/// Flags of the section `log`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, clap::Args)]
#[command(next_help_heading = "Logs")]
pub struct LogFlags {
    /// Log level: error, warn, info, debug, trace, or a filter such as becket_tls=debug
    #[serde(rename = "level")]
    #[arg(long, value_name = "FILTER")]
    pub log_level: Option<String>,

    /// Format of log lines
    #[serde(rename = "format")]
    #[arg(long, value_name = "FORMAT", value_parser = ["text", "json", "short"])]
    pub log_format: Option<String>,

    /// Log output: stderr or a file, reopened on SIGUSR1
    #[serde(rename = "file")]
    #[arg(long, value_name = "FILE")]
    pub log_file: Option<String>,

    /// Output for one line per connection: off, stderr or a file
    #[serde(rename = "access")]
    #[arg(long, value_name = "FILE")]
    pub access_log: Option<String>,
}

impl Flags {
    /// Returns the given flags as sections of a file. Relative log paths start at `base`, the
    /// current folder of the command. Without a file, the flags define one listener and one
    /// backend.
    pub fn to_table(&self, base: &Path) -> Table {
        let place = |text: &String| match text.as_str() {
            "off" | "stderr" | "" => text.clone(),
            path => base.join(path).to_string_lossy().into_owned(),
        };
        let logs = LogFlags {
            log_file: self.logs.log_file.as_ref().map(place),
            access_log: self.logs.access_log.as_ref().map(place),
            ..self.logs.clone()
        };
        let admin = self.process.admin.clone().map(|it| ("address", it.into()));
        let sections = [
            ("process", Table::try_from(&self.process)),
            ("admin", Ok(given([admin]))),
            ("log", Table::try_from(&logs)),
            ("cluster", Table::try_from(&self.cluster)),
        ];
        let mut table = Table::new();
        for (name, section) in sections {
            let section = section.unwrap_or_default();
            if !section.is_empty() {
                table.insert(name.to_owned(), section.into());
            }
        }
        if !self.acme.acme.is_empty() {
            table.insert("acme".to_owned(), self.acme.section(base).into());
        }
        if self.config.is_none() {
            let mut listener = self.service.listener();
            if !self.acme.acme.is_empty() {
                listener.insert("acme".to_owned(), true.into());
            }
            table.insert("listener".to_owned(), vec![listener].into());
            table.insert("backend".to_owned(), vec![self.service.pool()].into());
        }
        table
    }

    /// Returns the flag that set the key at `path`, if any.
    pub fn named(&self, path: &str) -> Option<&'static str> {
        if path.starts_with("backend[main].server") && path.ends_with(".maxconn") {
            return self.config.is_none().then_some("--maxconn");
        }
        let listed = path.strip_prefix("listener[main].certificates[");
        let number = listed.and_then(|rest| rest.split_once(']')?.0.parse::<usize>().ok());
        if self.config.is_none() && number.is_some_and(|at| at >= self.service.certificates.len()) {
            return Some("--certificate");
        }
        let of_flags = FLAGS[..REPLACING].iter().filter(|_| self.config.is_some());
        let all = FLAGS.iter().filter(|_| self.config.is_none());
        let mut flags = of_flags.chain(all);
        let flag = flags.find(|(key, _)| path.starts_with(key))?.1;
        match (flag, &self.service.folder) {
            ("--frontend", Some(_)) => Some("--listen"),
            _ => Some(flag),
        }
    }
}

impl ServiceFlags {
    fn listener(&self) -> Table {
        given([
            Some(("name", NAME.into())),
            Some(("bind", self.frontend.clone().into())),
            self.plain.then(|| ("tls", false.into())),
            Some(("certificates", self.listed().into())),
            Some(("backend", NAME.into())),
            Some(("alpn", self.alpn.clone().into())),
        ])
    }

    /// Returns the certificates in the form of the configuration file.
    fn listed(&self) -> Vec<Value> {
        let paths = self.certificates.iter().map(|path| path.clone().into());
        let pairs = self
            .certificate
            .iter()
            .map(|text| match text.split_once(',') {
                Some((chain, key)) => {
                    let files = [("chain", chain), ("key", key)];
                    given(files.map(|(name, file)| Some((name, file.into())))).into()
                }
                None => text.clone().into(),
            });
        paths.chain(pairs).collect()
    }

    fn pool(&self) -> Table {
        let servers = self.backend.iter().map(|address| {
            let maxconn = self.maxconn.map(|most| ("maxconn", most.into()));
            given([Some(("address", address.clone().into())), maxconn])
        });
        let folder = self.folder.as_ref();
        let folder = folder.map(|folder| folder.to_string_lossy().into_owned());
        let text = |key, text: &Option<String>| Some((key, text.clone()?.into()));
        given([
            Some(("name", NAME.into())),
            Some(("server", servers.collect::<Vec<_>>().into())),
            text("files", &folder),
            text("balance", &self.balance),
            text("proxy-header", &self.proxy_header),
            text("queue-timeout", &self.queue_timeout),
            text("idle-reclaim", &self.idle_reclaim),
        ])
    }
}

impl AcmeFlags {
    fn section(&self, base: &Path) -> Table {
        let path = |text: &String| base.join(text).to_string_lossy().into_owned();
        let authority = self.acme_authority.clone().map(|it| vec![it]);
        let contact = Some(&self.acme_contact).filter(|it| !it.is_empty());
        let certificate = given([Some(("names", self.acme.clone().into()))]);
        given([
            Some(("staging", self.acme_staging.into())),
            authority.map(|it| ("authority", it.into())),
            contact.map(|it| ("contact", it.clone().into())),
            self.acme_folder
                .as_ref()
                .map(|it| ("folder", path(it).into())),
            self.acme_ca.as_ref().map(|it| ("ca", path(it).into())),
            Some(("certificate", vec![certificate].into())),
        ])
    }
}

/// Builds a section from the keys that have a value.
fn given<const N: usize>(keys: [Option<(&str, Value)>; N]) -> Table {
    let keys = keys.into_iter().flatten();
    keys.map(|(key, value)| (key.to_owned(), value)).collect()
}

/// Keys and the flags that set them. The first [`REPLACING`] flags are allowed with a file.
const FLAGS: [(&str, &str); 23] = [
    ("process.workers", "--workers"),
    ("admin.address", "--admin"),
    ("log.level", "--log-level"),
    ("log.file", "--log-file"),
    ("log.access", "--access-log"),
    ("listener[main].bind", "--frontend"),
    ("listener[main].certificates", "CERT.pem"),
    ("listener[main].alpn", "--alpn"),
    ("backend[main].queue-timeout", "--queue-timeout"),
    ("backend[main].idle-reclaim", "--idle-reclaim"),
    ("backend[main].server", "--backend"),
    ("backend[main].files", "DIR"),
    ("acme.authority", "--acme-authority"),
    ("acme.contact", "--acme-contact"),
    ("acme.folder", "--acme-folder"),
    ("acme.ca", "--acme-ca"),
    ("acme.certificate", "--acme"),
    ("cluster.secret", "--cluster-secret"),
    ("cluster.listen", "--cluster-listen"),
    ("cluster.peers", "--cluster-peer"),
    ("cluster.node", "--node"),
    ("process.user", "--user"),
    ("process.group", "--group"),
];
const REPLACING: usize = 5;

const BALANCE: [&str; 6] = [
    "round-robin",
    "least-connections",
    "two-random-choices",
    "first",
    "source-hash",
    "sni-hash",
];

/// Name of the listener and the backend that flags define; also their label in metrics.
const NAME: &str = "main";

const FRONTEND: &str =
    "Addresses for clients: HOST:PORT, [V6]:PORT or :PORT (all addresses); repeatable";
const BACKEND: &str =
    "Addresses of servers: HOST:PORT, [V6]:PORT or /unix/path; repeatable, one pool";
