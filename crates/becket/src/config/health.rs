//! The part of `prepare` that makes `[backend.health]`.

use std::net::{IpAddr, UdpSocket};
use std::ops::RangeInclusive;
use std::time::Duration;

use becket_proto::health::{Checks, Passive, Rules};
use becket_proto::http_status::Expected;

use super::error::Problem;
use super::file::{FileHealth, Scalar};
use super::prepare::Draft;
use super::values::{self, Address};
use super::{CheckKind, Server};

/// How the servers of a backend are looked after.
#[derive(Clone, Debug)]
pub struct Health {
    /// How far a check goes.
    pub check: CheckKind,
    /// What takes a server out of service and brings it back.
    pub rules: Rules,
    /// For each address of a server.
    pub timeout: Duration,
    /// What an HTTP check asks for.
    pub path: String,
    /// The host that it names; absent is the server's address.
    pub host: Option<String>,
    /// Statuses of a server that is well.
    pub expect: Vec<Expected>,
}

impl Default for Health {
    /// Nobody looks after them.
    fn default() -> Self {
        Self {
            check: CheckKind::None,
            rules: Rules {
                checks: None,
                passive: None,
                slow_start: Duration::ZERO,
            },
            timeout: Duration::from_secs(2),
            path: "/".to_owned(),
            host: None,
            expect: Vec::new(),
        }
    }
}

impl Server {
    /// Host and port, where the server is known by a name.
    pub fn host(&self) -> Option<(String, u16)> {
        match values::server_address(&self.name) {
            Ok(Address::Name(host, port)) => Some((host, port)),
            _ => None,
        }
    }
}

impl Draft<'_> {
    /// How the servers of a backend are looked after.
    pub(super) fn health(&mut self, path: &str, file: &FileHealth) -> Health {
        let path = &format!("{path}.health");
        let at = |key: &str| format!("{path}.{key}");
        let interval = self.duration(&at("interval"), &file.interval, INTERVAL);
        let fast_interval = self.duration(&at("fast-interval"), &file.fast_interval, INTERVAL);
        if fast_interval > interval {
            let problem = Problem::new(at("fast-interval"), "longer than interval");
            let problem = problem.text(&file.fast_interval.0);
            self.report.error(problem.accepted("at most interval"));
        }
        let checks = Checks {
            interval,
            fast_interval,
            rise: self.times(&at("rise"), file.rise),
            fall: self.times(&at("fall"), file.fall),
        };
        let pause = self.duration(&at("passive-pause"), &file.passive_pause, INTERVAL);
        let failures = file.passive_failures;
        let passive = failures.map(|failures| Passive {
            failures: self.times(&at("passive-failures"), failures),
            pause,
        });
        let slow_start = match file.slow_start.0.as_str() {
            "off" => Duration::ZERO,
            _ => self.duration(&at("slow-start"), &file.slow_start, SLOW_START),
        };
        self.check_http(path, file);
        let expect = self.expect(&at("expect"), &file.expect);
        Health {
            check: file.check,
            rules: Rules {
                checks: (file.check != CheckKind::None).then_some(checks),
                passive,
                slow_start,
            },
            timeout: self.duration(&at("timeout"), &file.timeout, TIMEOUT),
            path: file.path.clone(),
            host: file.host.clone(),
            expect,
        }
    }

    /// How often names are resolved anew.
    pub(super) fn resolve_interval(&mut self, path: &str, value: &Scalar) -> Option<Duration> {
        let path = format!("{path}.resolve-interval");
        (value.0 != "off").then(|| self.duration(&path, value, RESOLVE))
    }

    fn times(&mut self, path: &str, value: u64) -> u32 {
        let times = u32::try_from(value).ok();
        let times = times.filter(|times| (1..=MOST_TIMES).contains(times));
        if times.is_none() {
            let problem = Problem::new(path, "not in range").value(value.to_string());
            self.report.error(problem.accepted("1 to 1000"));
        }
        times.unwrap_or(1)
    }

    /// What goes into the request must not end its line.
    fn check_http(&mut self, path: &str, file: &FileHealth) {
        let fits = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        if !file.path.starts_with('/') || !fits(&file.path) {
            let problem = Problem::new(format!("{path}.path"), "not a path").text(&file.path);
            self.report
                .error(problem.accepted("visible ASCII, beginning with a slash"));
        }
        if let Some(host) = file
            .host
            .as_deref()
            .filter(|host| host.is_empty() || !fits(host))
        {
            let problem = Problem::new(format!("{path}.host"), "not a host").text(host);
            self.report.error(problem.accepted("visible ASCII"));
        }
        let asks = file.check == CheckKind::Http;
        let given = file.host.is_some() || file.path != FileHealth::default().path;
        if given && !asks {
            let fault = "only check = \"http\" asks for a path";
            let problem = Problem::new(format!("{path}.check"), fault);
            self.report.warn(problem);
        }
    }

    fn expect(&mut self, path: &str, listed: &[String]) -> Vec<Expected> {
        if listed.is_empty() {
            let problem = Problem::new(path, "no status is expected");
            self.report.error(problem.accepted(STATUS));
        }
        let mut expect = Vec::with_capacity(listed.len());
        for (index, text) in listed.iter().enumerate() {
            match text.parse() {
                Ok(one) => expect.push(one),
                Err(_) => {
                    let problem = Problem::new(format!("{path}[{index}]"), "not a status");
                    self.report.error(problem.text(text).accepted(STATUS));
                }
            }
        }
        expect
    }

    /// Addresses of this host to come from.
    pub(super) fn sources(&mut self, path: &str, listed: &[String]) -> Vec<IpAddr> {
        let mut sources = Vec::with_capacity(listed.len());
        for (index, text) in listed.iter().enumerate() {
            let path = format!("{path}.source[{index}]");
            let Ok(source) = text.parse::<IpAddr>() else {
                let problem = Problem::new(path, "not an IP address").text(text);
                self.report.error(problem.accepted(SOURCE));
                continue;
            };
            // Whether an address is ours only the system knows; a socket that sends nothing asks it.
            if let Err(error) = UdpSocket::bind((source, 0)) {
                let problem = Problem::new(path, crate::files::reason(&error)).text(text);
                self.report.error(problem.accepted(SOURCE));
                continue;
            }
            if sources.contains(&source) {
                let problem = Problem::new(path, "listed before").text(text);
                self.report.error(problem.accepted("each address once"));
            }
            sources.push(source);
        }
        sources
    }
}

const STATUS: &str = "statuses such as \"200\", \"2xx\" or \"200-399\"";
const SOURCE: &str = "an IP address of this host";
/// From the rhythm of the control loop to what anybody waits for.
const INTERVAL: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(86_400);
const RESOLVE: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(86_400);
const TIMEOUT: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(600);
const SLOW_START: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(86_400);
const MOST_TIMES: u32 = 1000;
