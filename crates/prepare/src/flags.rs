//! The flags of `becket run` as a configuration: they become a table as a file has it, so that there is one
//! path of validation, and problems name the flag where a file has the key.
//!
//! With `--config` the file is everything, and only the few flags that an operator changes for
//! one start (workers, admin address, logs) may go with it: they replace the file's values.

use std::path::{Path, PathBuf};

use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde::de::DeserializeOwned;
use serde::de::IntoDeserializer;
use serde::de::value::{Error, StrDeserializer};
use toml::{Table, Value};

use becket_config::choices::{Balance, Introduction, LogFormat};

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

    /// PEM files with chain and key, directories of *.pem, or certbot's live/NAME/; the last one is the default
    #[arg(value_name = "CERT.pem", help_heading = "What to serve")]
    pub certificates: Vec<String>,

    /// Chain and key in two files, with a comma between them; repeatable, behind CERT.pem
    #[arg(long, value_name = "CHAIN.pem,KEY.pem", help_heading = "What to serve")]
    pub certificate: Vec<String>,

    /// A folder whose files are served, in place of servers (`becket files`).
    #[arg(skip)]
    pub folder: Option<PathBuf>,

    /// No TLS (`becket files`).
    #[arg(skip)]
    pub plain: bool,

    /// Protocols to offer by ALPN, most preferred first, such as h2,http/1.1
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        help_heading = "What to serve"
    )]
    pub alpn: Vec<String>,

    /// Send a PROXY header to the backend, with the client's address
    #[arg(long, value_name = "VERSION", help_heading = "What to serve", value_parser = choices::<Introduction>(&["v1", "v2", "ip", "received"]))]
    pub proxy_header: Option<Introduction>,

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

    /// What to log: error, warn, info, debug, trace, or a filter such as becket_tls=debug
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
    /// The flags that are given, as a file has them. Relative paths of logs start at `base`, the folder in which the flag
    /// was typed. Without a file they make one listener and one backend.
    pub fn to_table(&self, base: &Path) -> Table {
        let place = |text: &String| match text.as_str() {
            "off" | "stderr" | "" => text.clone(),
            path => base.join(path).to_string_lossy().into_owned(),
        };
        let format = self.log_format.map(Value::try_from);
        let mut table = Table::new();
        set(&mut table, "process", "workers", self.workers.clone());
        set(&mut table, "admin", "address", self.admin.clone());
        set(&mut table, "log", "level", self.log_level.clone());
        set(&mut table, "log", "format", format.and_then(Result::ok));
        set(&mut table, "log", "file", self.log_file.as_ref().map(place));
        set(
            &mut table,
            "log",
            "access",
            self.access_log.as_ref().map(place),
        );
        if self.config.is_some() {
            return table;
        }
        set(&mut table, "process", "user", self.user.clone());
        set(&mut table, "process", "group", self.group.clone());
        set(&mut table, "process", "core-dumps", Some(self.core_dumps));
        set(&mut table, "process", "key-log", Some(self.key_log));
        let peers = (!self.cluster_peer.is_empty()).then(|| self.cluster_peer.clone());
        set(&mut table, "cluster", "secret", self.cluster_secret.clone());
        set(&mut table, "cluster", "listen", self.cluster_listen.clone());
        set(&mut table, "cluster", "peers", peers);
        set(&mut table, "cluster", "node", self.node.map(number));
        let mut listener = Table::new();
        listener.insert("name".to_owned(), NAME.into());
        listener.insert("bind".to_owned(), self.frontend.clone().into());
        listener.extend(self.plain.then(|| ("tls".to_owned(), false.into())));
        listener.insert("certificates".to_owned(), self.listed().into());
        listener.insert("backend".to_owned(), NAME.into());
        listener.insert("alpn".to_owned(), self.alpn.clone().into());
        table.insert("listener".to_owned(), vec![listener].into());
        table.insert("backend".to_owned(), vec![self.pool()].into());
        table
    }

    /// The certificates as a file lists them.
    fn listed(&self) -> Vec<Value> {
        let paths = self.certificates.iter().map(|path| path.clone().into());
        let pairs = self
            .certificate
            .iter()
            .map(|text| match text.split_once(',') {
                Some((chain, key)) => {
                    let files = [("chain", chain), ("key", key)];
                    let pair = files.map(|(name, file)| (name.to_owned(), file.into()));
                    Value::Table(Table::from_iter(pair))
                }
                None => text.clone().into(),
            });
        paths.chain(pairs).collect()
    }

    fn pool(&self) -> Table {
        let servers = self.backend.iter().map(|address| {
            let mut server = Table::new();
            server.insert("address".to_owned(), address.clone().into());
            server.extend(
                self.maxconn
                    .map(|most| ("maxconn".to_owned(), number(most))),
            );
            server
        });
        let mut pool = Table::new();
        pool.insert("name".to_owned(), NAME.into());
        pool.insert("server".to_owned(), servers.collect::<Vec<_>>().into());
        let balance = self.balance.and_then(|it| Value::try_from(it).ok());
        let header = self.proxy_header.and_then(|it| Value::try_from(it).ok());
        let timeout = self.queue_timeout.clone().map(Value::from);
        let folder = self.folder.as_ref();
        let folder = folder.map(|folder| folder.to_string_lossy().into_owned().into());
        for (key, value) in [
            ("files", folder),
            ("balance", balance),
            ("proxy-header", header),
            ("queue-timeout", timeout),
        ] {
            pool.extend(value.map(|value| (key.to_owned(), value)));
        }
        pool
    }

    /// The flag that set the key at `path`, if one did.
    pub fn named(&self, path: &str) -> Option<&'static str> {
        if path.starts_with("backend[main].server") && path.ends_with(".maxconn") {
            return self.config.is_none().then_some("--maxconn");
        }
        let listed = path.strip_prefix("listener[main].certificates[");
        let number = listed.and_then(|rest| rest.split_once(']')?.0.parse::<usize>().ok());
        if self.config.is_none() && number.is_some_and(|at| at >= self.certificates.len()) {
            return Some("--certificate");
        }
        let of_flags = FLAGS[..REPLACING].iter().filter(|_| self.config.is_some());
        let all = FLAGS.iter().filter(|_| self.config.is_none());
        let mut flags = of_flags.chain(all);
        let flag = flags.find(|(key, _)| path.starts_with(key))?.1;
        match (flag, &self.folder) {
            ("--frontend", Some(_)) => Some("--listen"),
            _ => Some(flag),
        }
    }
}

/// Sets a key of a section, if there is a value.
fn set(table: &mut Table, section: &str, key: &str, value: Option<impl Into<Value>>) {
    let Some(value) = value else {
        return;
    };
    let section = table
        .entry(section)
        .or_insert_with(|| Value::Table(Table::new()));
    if let Value::Table(section) = section {
        section.insert(key.to_owned(), value.into());
    }
}

fn number(number: u64) -> Value {
    Value::Integer(i64::try_from(number).unwrap_or(i64::MAX))
}

/// Keys and the flags that set them; the first also beside a file.
const FLAGS: [(&str, &str); 18] = [
    ("process.workers", "--workers"),
    ("admin.address", "--admin"),
    ("log.level", "--log-level"),
    ("log.file", "--log-file"),
    ("log.access", "--access-log"),
    ("listener[main].bind", "--frontend"),
    ("listener[main].certificates", "CERT.pem"),
    ("listener[main].alpn", "--alpn"),
    ("backend[main].queue-timeout", "--queue-timeout"),
    ("backend[main].server", "--backend"),
    ("backend[main].files", "DIR"),
    ("cluster.secret", "--cluster-secret"),
    ("cluster.listen", "--cluster-listen"),
    ("cluster.peers", "--cluster-peer"),
    ("cluster.node", "--node"),
    ("process.user", "--user"),
    ("process.group", "--group"),
    ("process.key-log", "--key-log"),
];
const REPLACING: usize = 5;

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
const WITHOUT_CONFIG: [&str; 17] = [
    "frontend",
    "backend",
    "balance",
    "maxconn",
    "queue_timeout",
    "certificates",
    "certificate",
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
