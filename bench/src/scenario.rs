//! Scenarios: questions with the cases that answer them.
//!
//! A scenario is a TOML file (see `docs/benchmarking.md`) with a question, the results of the articles, settings of all cases (the base), axes
//! that vary settings, and unavailable columns. [`Scenario::cases`] is the product of the axes. All values are checked on
//! load, so a [`Settings`] is always valid.

use std::collections::BTreeMap;

use becket_stats::units::parse_size;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::articles::{ARTICLES, Article};

/// Question, with the cases and the measure that answer it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Scenario {
    /// ID in the suite.
    pub id: String,
    pub title: String,
    pub question: String,
    /// Measure that answers the question.
    pub measure: Measure,
    /// Published results, which the report shows next to today's.
    pub then: Then,
    /// Reason why the scenario cannot run at all.
    pub not_available: Option<String>,
    /// Peers to measure; empty for all.
    #[serde(default)]
    pub peers: Vec<String>,
    /// Settings of all cases that differ from the defaults.
    #[serde(default)]
    base: BTreeMap<String, toml::Value>,
    /// Settings that vary. The first axis varies slowest.
    #[serde(default)]
    pub axis: Vec<Axis>,
    /// Columns that cannot be measured, with reasons.
    #[serde(default)]
    pub unavailable: Vec<Unavailable>,
    /// Additional columns of becket, by name, with the settings that differ from those of the case.
    #[serde(default)]
    pub beside: BTreeMap<String, BTreeMap<String, toml::Value>>,
}

/// Measure of a scenario.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum Measure {
    /// CPU time per transaction in a closed loop.
    #[default]
    #[serde(alias = "transactions")]
    Transactions,
    /// Floods above the capacity.
    #[serde(alias = "capacity")]
    Capacity,
    /// Latency at shares of the capacity, compared with direct requests.
    #[serde(alias = "added-latency")]
    AddedLatency,
    /// Memory of idle connections.
    #[serde(alias = "idle")]
    Idle,
    /// A crowd of idle connections, and its reload, upgrade and drain.
    #[serde(alias = "crowd")]
    Crowd,
    /// Start and memory of many certificates, and their changes.
    #[serde(alias = "certificates")]
    Certificates,
    /// Memory and CPU time of clients in a full queue.
    #[serde(alias = "queued")]
    Queued,
    /// One load with and without scrapes.
    #[serde(alias = "scraped")]
    Scraped,
    /// Latency of a probe with open connections under a flood of handshakes.
    #[serde(alias = "storm")]
    Storm,
    /// One burst against a backend whose service time grows with concurrency.
    #[serde(alias = "burst")]
    Burst,
    /// One case with several load generators.
    #[serde(alias = "generators")]
    Generators,
    /// Resumption after the loss of a node.
    #[serde(alias = "failover")]
    Failover,
    /// TLS 1.2 sessions by ID through a store.
    #[serde(alias = "store")]
    Store,
    /// Time to the first and to the last byte over a network with a delay.
    #[serde(alias = "delay")]
    Delay,
}

/// Published results, which the report shows next to today's.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Then {
    /// Parameters of the published measurement, and its differences from today's.
    pub text: String,
    #[serde(default)]
    pub source: Vec<Source>,
}

/// Table, figure or section of an article.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// ID of the article in [`ARTICLES`].
    pub article: String,
    /// Description of the table, figure or section.
    pub place: String,
    /// Table header; empty if the source has no figures.
    #[serde(default)]
    pub head: Vec<String>,
    #[serde(default)]
    pub rows: Vec<Vec<String>>,
    /// Case that measures each row today, or the reason why there is none. Empty if the table has no column for today.
    #[serde(default)]
    pub today: Vec<Today>,
    /// Name of the figure that each row shows for today; empty if all rows show the rate.
    #[serde(default)]
    pub figures: Vec<String>,
}

/// Measurement of today for a row of an article's table.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum Today {
    /// Case with these settings in addition to the base.
    Settings(BTreeMap<String, toml::Value>),
    /// Reason why no case measures the row today.
    Out(String),
}

/// Setting that varies between cases.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Axis {
    pub setting: String,
    pub values: Vec<toml::Value>,
    /// Values for a quick run; empty for all values.
    #[serde(default)]
    pub quick: Vec<toml::Value>,
    /// Settings of the cases that vary. All other cases keep their value.
    #[serde(default)]
    when: BTreeMap<String, toml::Value>,
}

/// Columns that cannot be measured.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unavailable {
    /// Peers without a figure; empty for all.
    #[serde(default)]
    peers: Vec<String>,
    /// Settings of the cases without a figure; empty for all cases.
    #[serde(default)]
    when: BTreeMap<String, toml::Value>,
    reason: String,
}

/// All settings of a case.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// TLS version: `1.2` or `1.3`.
    pub tls: String,
    /// Type and size of the server's key.
    pub key: String,
    /// Cipher suite: `aes128`, `aes256` or `chacha20`.
    pub suite: String,
    /// Key exchange group: `x25519`, `p256` or `x25519mlkem768`.
    pub group: String,
    /// Resumption plan as in `becket-load --resume`, or [`EARLY`].
    pub resume: String,
    /// Method of resumption as in `becket-load --resume-kind`.
    pub resume_kind: String,
    /// Body size of each response in bytes.
    pub body: u64,
    /// Program that serves the response bodies from files, if any.
    pub files: Files,
    /// Requests per connection.
    pub requests: u64,
    /// Number of worker processes or threads of the server.
    pub workers: usize,
    /// Number of crypto threads; `None` for the server's default.
    pub crypto_threads: Option<u64>,
    /// Batches of RSA signatures on crypto threads: `off` or `auto`.
    pub rsa_batch: String,
    /// Number of cores of the server; `None` for one per worker.
    pub cores: Option<u64>,
    /// Each worker requires a core of its own that no client uses.
    pub spread: bool,
    /// Each worker requires a core of its own. Clients use all cores, also those of the workers.
    pub shares_cores: bool,
    /// Parallel connections of a closed loop.
    pub connections: usize,
    /// CPU features hidden from the crypto libraries: `none`, `avx512` or `aes`.
    pub mask: String,
    /// Count the bytes per transaction.
    pub bytes: bool,
    /// Run a ramp after the rounds, and record the highest rates that meet the criteria of the articles.
    pub marks: bool,
    /// Run workers on both hyper-threads of a core.
    pub smt: bool,
    /// Keep Nagle's algorithm enabled on the client.
    pub nagle: bool,
    /// Maximum concurrent requests to the backend; 0 for no limit.
    pub maxconn: u64,
    /// Hold an idle client connection for each slot.
    pub idle_clients: bool,
    /// Maximum full handshakes per second that the server admits; 0 for no limit.
    pub full_handshakes: u64,
    /// Number of nodes in a farm.
    pub nodes: usize,
    /// Number of backend servers, which are addresses of a single program.
    pub servers: usize,
    /// The server replicates its sessions to another node.
    pub cluster: bool,
    /// The kernel takes over the TLS of bulk connections.
    pub ktls: bool,
    pub front: Front,
    /// Number of pipes per worker, with which bytes are spliced; `None` for the server's default.
    pub pipes: Option<u64>,
    /// Number of certificates, each with a name and a key of its own. The clients ask for the first one.
    pub certificates: usize,
    /// All settings as text, for the report.
    pub text: BTreeMap<String, String>,
}

/// Program that serves the response bodies from files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Files {
    /// No files: the backend generates responses.
    None,
    /// The peer, or a file server behind it if the peer cannot serve files.
    Peer,
    /// The server itself, without TLS, behind another server that terminates TLS.
    Behind,
}

/// TLS mode of the server's listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Front {
    /// The server terminates TLS.
    Terminate,
    /// The server passes TLS through, and a becket behind it terminates TLS.
    Passthrough,
    /// Clients use no TLS.
    Plain,
}

impl Scenario {
    /// Parses a scenario and creates its cases once, so that all errors are reported here.
    pub fn parse(name: &str, text: &str) -> Result<Self, Error> {
        let of = |e: &dyn std::fmt::Display| Error::Asked(format!("scenario {name}: {e}"));
        let scenario: Self = toml::from_str(text).map_err(|e| of(&e))?;
        for source in &scenario.then.source {
            let Source { article, today, .. } = source;
            if !today.is_empty() && today.len() != source.rows.len() {
                let (rows, today) = (source.rows.len(), today.len());
                return Err(of(&format!(
                    "then.source of {article} has {rows} rows, but `today` has {today}"
                )));
            }
            if Article::find(article).is_none() {
                let known: Vec<&str> = ARTICLES.iter().map(|article| article.id).collect();
                let known = known.join(", ");
                return Err(of(&format!(
                    "then.source.article = {article:?} (accepted: {known})"
                )));
            }
        }
        for (_, settings) in scenario.cases(false).map_err(|e| of(&e))? {
            for column in scenario.beside.keys() {
                if column == OLD || !column.starts_with(BECKETS) {
                    return Err(of(&format!("beside.{column:?} (accepted: {BECKETS}WORD)")));
                }
                scenario
                    .settings_of(column, &settings)
                    .map_err(|e| of(&e))?;
            }
        }
        Ok(scenario)
    }

    /// Returns the cases with their labels: the rows of the articles' tables, or the product of the axes.
    pub fn cases(&self, quick: bool) -> Result<Vec<(String, Settings)>, Error> {
        let mut cases: Vec<(String, Settings)> = Vec::new();
        for differing in self.differing(quick) {
            let label: Vec<String> = differing
                .iter()
                .map(|(name, value)| format!("{name} {}", plain(value)))
                .collect();
            let settings = Settings::new(self.text_of(&differing)?)?;
            // Several tables of the articles may contain the same row.
            if cases.iter().all(|(_, known)| *known != settings) {
                cases.push((label.join(", "), settings));
            }
        }
        Ok(cases)
    }

    /// Returns whether the cases are the rows of the articles' tables.
    pub fn is_classic(&self) -> bool {
        self.then
            .source
            .iter()
            .any(|source| !source.today.is_empty())
    }

    /// Returns the settings of a row of an article's table.
    pub fn row(&self, row: &BTreeMap<String, toml::Value>) -> Result<Settings, Error> {
        let row: Vec<_> = row
            .iter()
            .map(|(name, value)| (name.as_str(), value))
            .collect();
        Settings::new(self.text_of(&row)?)
    }

    /// Returns all settings as text: defaults, then the base, then `differing`.
    fn text_of(
        &self,
        differing: &[(&str, &toml::Value)],
    ) -> Result<BTreeMap<String, String>, Error> {
        let mut text: BTreeMap<String, String> = SETTINGS
            .iter()
            .map(|(name, words)| ((*name).to_owned(), words[0].to_owned()))
            .collect();
        let base = self.base.iter().map(|(name, value)| (name.as_str(), value));
        for (name, value) in base.chain(differing.iter().copied()) {
            set(&mut text, name, value)?;
        }
        Ok(text)
    }

    /// Returns the settings that differ from the base, for each case.
    fn differing(&self, quick: bool) -> Vec<Vec<(&str, &toml::Value)>> {
        let rows = self.then.source.iter().flat_map(|source| &source.today);
        let rows = rows.filter_map(|today| match today {
            Today::Settings(row) => Some(row.iter().map(|(n, v)| (n.as_str(), v)).collect()),
            Today::Out(_) => None,
        });
        let rows: Vec<Vec<(&str, &toml::Value)>> = rows.collect();
        if !rows.is_empty() {
            return rows;
        }
        let mut products: Vec<Vec<(&str, &toml::Value)>> = vec![Vec::new()];
        for axis in &self.axis {
            let values = if quick && !axis.quick.is_empty() {
                &axis.quick
            } else {
                &axis.values
            };
            let longer = products.into_iter().flat_map(|product| {
                if !self.varies(axis, &product) {
                    return vec![product];
                }
                let with = |value| [product.as_slice(), &[(axis.setting.as_str(), value)]].concat();
                values.iter().map(with).collect()
            });
            products = longer.collect();
        }
        products
    }

    /// Returns whether an axis varies the cases with these settings.
    fn varies(&self, axis: &Axis, differing: &[(&str, &toml::Value)]) -> bool {
        let text = self.text_of(differing).unwrap_or_default();
        let mut when = axis.when.iter();
        when.all(|(name, value)| text.get(name) == Some(&plain(value)))
    }

    /// Returns the settings of a column in a case: the case's settings with the changes under `beside`.
    pub fn settings_of(&self, column: &str, settings: &Settings) -> Result<Settings, Error> {
        let mut text = settings.text.clone();
        for (name, value) in self.beside.get(column).into_iter().flatten() {
            set(&mut text, name, value)?;
        }
        Settings::new(text)
    }

    /// Returns the reason why a peer cannot be measured in a case.
    pub fn reason(&self, peer: &str, settings: &Settings) -> Option<String> {
        let applies = |entry: &&Unavailable| {
            let peers = entry.peers.is_empty() || entry.peers.iter().any(|p| p == peer);
            peers
                && entry
                    .when
                    .iter()
                    .all(|(name, value)| settings.text.get(name) == Some(&plain(value)))
        };
        self.unavailable
            .iter()
            .find(applies)
            .map(|entry| entry.reason.clone())
    }
}

impl Settings {
    fn new(mut text: BTreeMap<String, String>) -> Result<Self, Error> {
        let kind = text.get("resume-kind").cloned().unwrap_or_default();
        match kind.as_str() {
            "id" | "ticket" => text.insert("tls".to_owned(), "1.2".to_owned()),
            "psk" => text.insert("tls".to_owned(), "1.3".to_owned()),
            _ => None,
        };
        for (name, accepted) in SETTINGS.iter().filter(|(_, words)| words.len() > 1) {
            let value = text.get(*name).map_or("", String::as_str);
            if !accepted.contains(&value) {
                let accepted = accepted.join(", ");
                return Err(Error::Asked(format!(
                    "{name} = `{value}` (accepted: {accepted})"
                )));
            }
        }
        let of = |name: &str| text.get(name).cloned().unwrap_or_default();
        let number =
            |name: &str| parse_size(&of(name)).map_err(|e| Error::Asked(format!("{name} = {e}")));
        let auto_or_number = |name: &str| match of(name).as_str() {
            "auto" => Ok(None),
            _ => number(name).map(Some),
        };
        let at_least_one = |name: &str| {
            let number = number(name)?.max(1);
            Ok::<_, Error>(usize::try_from(number).unwrap_or(1))
        };
        let settings = Self {
            tls: of("tls"),
            key: of("key"),
            suite: of("suite"),
            group: of("group"),
            resume: of("resume"),
            resume_kind: of("resume-kind"),
            body: number("body")?,
            files: match of("files").as_str() {
                "on" => Files::Peer,
                _ => Files::None,
            },
            requests: number("requests")?.max(1),
            workers: at_least_one("workers")?,
            crypto_threads: auto_or_number("crypto-threads")?,
            rsa_batch: of("rsa-batch"),
            cores: auto_or_number("cores")?,
            spread: of("spread") == "true",
            shares_cores: of("spread") == "shared",
            connections: at_least_one("connections")?,
            mask: of("mask"),
            bytes: of("bytes") == "on",
            marks: of("marks") == "on",
            smt: of("smt") == "on",
            nagle: of("nagle") == "true",
            maxconn: number("maxconn")?,
            idle_clients: of("idle-clients") == "on",
            full_handshakes: number("full-handshakes")?,
            nodes: at_least_one("nodes")?,
            servers: at_least_one("servers")?.min(1000),
            cluster: of("cluster") == "on",
            ktls: of("ktls") == "bulk",
            front: match of("passthrough").as_str() {
                "on" => Front::Passthrough,
                "plain" => Front::Plain,
                _ => Front::Terminate,
            },
            pipes: auto_or_number("pipes")?,
            certificates: at_least_one("certificates")?,
            text: text.clone(),
        };
        settings.asked_resumed()?;
        Ok(settings)
    }

    /// Returns the settings with another number of certificates.
    #[must_use]
    pub fn with_certificates(&self, certificates: usize) -> Self {
        Self {
            certificates,
            ..self.clone()
        }
    }

    /// Returns the share of handshakes that should be resumed.
    pub fn asked_resumed(&self) -> Result<f64, Error> {
        let plan = self.resume.as_str();
        let share = match plan {
            "never" => Some(0.0),
            "always" | EARLY => Some(1.0),
            _ => plan
                .strip_prefix("every=")
                .and_then(|n| n.parse::<f64>().ok())
                .filter(|n| *n >= 1.0)
                .map(|n| 1.0 - 1.0 / n),
        };
        share.ok_or_else(|| {
            Error::Asked(format!(
                "resume = `{plan}` (accepted: never, always, every=N, early)"
            ))
        })
    }
}

/// Resumption plan in which every handshake is resumed and the request is sent as early data.
pub const EARLY: &str = "early";
/// Prefix of additional columns of becket: other builds or other settings.
pub const BECKETS: &str = "becket@";
/// Name of the column of an earlier build of becket.
pub const OLD: &str = "becket@old";

/// Returns whether a setting of this name exists.
pub fn is_setting(name: &str) -> bool {
    SETTINGS.iter().any(|(known, _)| *known == name)
}

/// Changes a setting. Fails if no setting has this name.
fn set(text: &mut BTreeMap<String, String>, name: &str, value: &toml::Value) -> Result<(), Error> {
    if text.insert(name.to_owned(), plain(value)).is_some() {
        return Ok(());
    }
    let known: Vec<&str> = SETTINGS.iter().map(|(name, _)| *name).collect();
    Err(Error::Asked(format!(
        "unknown setting `{name}` (accepted: {})",
        known.join(", ")
    )))
}

/// Returns a TOML value as text.
fn plain(value: &toml::Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}

/// All settings with their default, followed by the other accepted values. A setting with only a default also accepts
/// other values.
const SETTINGS: &[(&str, &[&str])] = &[
    ("tls", &["1.3", "1.2"]),
    (
        "key",
        &[
            "p256", "p384", "ed25519", "rsa1024", "rsa2048", "rsa3072", "rsa4096",
        ],
    ),
    ("suite", &["aes128", "aes256", "chacha20"]),
    ("group", &["x25519", "p256", "x25519mlkem768"]),
    ("resume", &["never"]),
    ("resume-kind", &["any", "id", "ticket", "psk"]),
    ("body", &["1k"]),
    ("files", &["off", "on"]),
    ("requests", &["1"]),
    ("workers", &["1"]),
    ("cores", &["auto"]),
    ("spread", &["false", "true", "shared"]),
    ("connections", &["50"]),
    ("mask", &["none", "avx512", "aes"]),
    ("bytes", &["off", "on"]),
    ("marks", &["off", "on"]),
    ("smt", &["off", "on"]),
    ("nagle", &["false", "true"]),
    ("maxconn", &["0"]),
    ("idle-clients", &["off", "on"]),
    ("full-handshakes", &["0"]),
    ("crypto-threads", &["auto"]),
    ("rsa-batch", &["off", "auto"]),
    ("nodes", &["1"]),
    ("servers", &["1"]),
    ("cluster", &["off", "on"]),
    ("passthrough", &["off", "on", "plain"]),
    ("pipes", &["auto"]),
    ("ktls", &["off", "bulk"]),
    ("certificates", &["1"]),
];

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "id = \"x\"\ntitle = \"x\"\nquestion = \"x\"\nmeasure = \"transactions\"\n[then]\ntext = \"\"\n";

    #[test]
    fn axes_are_combined_to_their_product() {
        let text = format!(
            "{HEAD}[[axis]]\nsetting = \"key\"\nvalues = [\"p256\", \"rsa2048\"]\n[[axis]]\nsetting = \"body\"\nvalues = [\"0\", \"16k\", \"1m\"]\nquick = [\"1m\"]\n"
        );
        let scenario = Scenario::parse("x", &text).unwrap();
        assert_eq!(scenario.cases(false).unwrap().len(), 6);
        let quick = scenario.cases(true).unwrap();
        assert_eq!(quick[1].0, "key rsa2048, body 1m");
        assert_eq!(quick[1].1.body, 1024 * 1024);
    }

    #[test]
    fn an_axis_with_a_condition_varies_only_the_matching_cases() {
        let text = format!(
            "{HEAD}[[axis]]\nsetting = \"tls\"\nvalues = [\"1.3\", \"1.2\"]\n[[axis]]\nsetting = \"group\"\nvalues = [\"x25519\", \"x25519mlkem768\"]\nwhen = {{ tls = \"1.3\" }}\n"
        );
        let scenario = Scenario::parse("x", &text).unwrap();
        let cases = scenario.cases(false).unwrap();
        let labels: Vec<&str> = cases.iter().map(|(label, _)| label.as_str()).collect();
        assert_eq!(
            labels,
            [
                "tls 1.3, group x25519",
                "tls 1.3, group x25519mlkem768",
                "tls 1.2"
            ]
        );
    }

    #[test]
    fn unknown_settings_and_values_are_rejected_with_the_accepted_ones() {
        for wrong in [
            "colour = 1",
            "tls = \"1.1\"",
            "resume = \"often\"",
            "key = \"dsa\"",
        ] {
            let text = format!("{HEAD}[base]\n{wrong}\n");
            let error = Scenario::parse("x", &text).unwrap_err().to_string();
            assert!(error.contains("accepted"), "{wrong}: {error}");
        }
    }

    #[test]
    fn the_method_of_resumption_determines_the_version() {
        let text = format!("{HEAD}[base]\nresume-kind = \"id\"\nresume = \"every=4\"\n");
        let scenario = Scenario::parse("x", &text).unwrap();
        let settings = &scenario.cases(false).unwrap()[0].1;
        assert_eq!(settings.tls, "1.2");
        assert_eq!(settings.asked_resumed().unwrap(), 0.75);
    }

    #[test]
    fn an_extra_becket_column_overrides_the_settings_of_the_case() {
        let beside = |entry: &str| format!("{HEAD}[base]\nbody = \"1m\"\n[beside.{entry}\n");
        let scenario = Scenario::parse("x", &beside("\"becket@copies\"]\npipes = 0")).unwrap();
        let settings = &scenario.cases(false).unwrap()[0].1;
        let pipes = |column: &str| scenario.settings_of(column, settings).unwrap().pipes;
        assert_eq!((pipes("becket"), pipes("becket@copies")), (None, Some(0)));
        for wrong in [
            "\"nginx@copies\"]\npipes = 0",
            "\"becket@old\"]\npipes = 0",
            "\"becket@copies\"]\ncolour = 1",
        ] {
            let error = Scenario::parse("x", &beside(wrong))
                .unwrap_err()
                .to_string();
            assert!(error.contains("accepted"), "{wrong}: {error}");
        }
    }

    #[test]
    fn a_reason_applies_to_its_peers_and_cases() {
        let text = format!(
            "{HEAD}[[unavailable]]\npeers = [\"becket\"]\nwhen = {{ workers = 1 }}\nreason = \"none\"\n"
        );
        let scenario = Scenario::parse("x", &text).unwrap();
        let settings = &scenario.cases(false).unwrap()[0].1;
        assert_eq!(scenario.reason("becket", settings).as_deref(), Some("none"));
        assert_eq!(scenario.reason("nginx", settings), None);
    }
}
