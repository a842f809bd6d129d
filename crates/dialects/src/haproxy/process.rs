//! The global section, and global keys that proxies set.

use super::super::directive::{each, longest};
use super::reader::{HaproxyTranslator, ProxySection};
use becket_config::address::SyslogAddress;
use becket_config::notation::Text;

impl HaproxyTranslator<'_> {
    pub(super) fn process(&mut self, proxies: &[ProxySection]) {
        let global = self.global.clone();
        let has_user = global.last("user").is_some();
        for given in each(&[&global]) {
            match given.name {
                "group" | "chroot" if !has_user => {
                    self.out
                        .lost(given.origin, "only with process.user, which is not given");
                }
                "stats socket" if !given.text().starts_with('/') => {
                    self.out
                        .lost(given.origin, "set admin.address, for /metrics and /status");
                }
                _ => {
                    let mut parts = PARTS.iter();
                    if let Some((_, value)) = parts.find_map(|it| given.entry(&mut self.out, it)) {
                        self.out.put_own(value, given.origin);
                    }
                }
            }
        }
        for (index, log) in global.all("log").iter().enumerate() {
            if index > 0 {
                self.out
                    .lost(log.origin, "becket has one log.syslog, the first");
                continue;
            }
            let target = log.text();
            let with_port = format!("{target}:514");
            let mut places = [target, with_port.as_str()].into_iter();
            match places.find(|at| SyslogAddress::parse(at).is_ok()) {
                Some(at) => self.out.put("log.syslog", at, log.origin),
                None => self.out.differs(log.origin, "to standard error: log.file"),
            }
            for word in log.words.iter().skip(1).map(String::as_str) {
                match word {
                    "err" | "crit" | "alert" | "emerg" => {
                        self.out.put("log.level", "error", log.origin)
                    }
                    "warning" => self.out.put("log.level", "warn", log.origin),
                    "debug" => self.out.put("log.level", word, log.origin),
                    "daemon" | "user" => self.out.put("log.syslog-facility", word, log.origin),
                    _ if word.starts_with("local") => {
                        self.out.put("log.syslog-facility", word, log.origin);
                    }
                    _ => {}
                }
            }
        }
        for (key, names) in TIMES {
            let names = names.split(", ");
            let given = names.flat_map(|name| proxies.iter().filter_map(move |it| it.find(name)));
            longest(&mut self.out, key, given);
        }
        let logs = ["option tcplog", "option httplog"];
        let mut found = proxies.iter().flat_map(|it| logs.map(|name| it.find(name)));
        if let Some(log) = found.find_map(|it| it) {
            self.out.put("log.access", "stderr", log.origin);
        }
    }
}

/// Prefixes of global keys.
const PARTS: [&str; 6] = [
    "process.",
    "limits.",
    "sessions.",
    "admission.",
    "timeouts.",
    "admin.",
];
const TIMES: [(&str, &str); 3] = [
    (
        "timeouts.idle",
        "timeout client, timeout server, timeout tunnel",
    ),
    ("timeouts.connect", "timeout connect"),
    (
        "timeouts.half-closed",
        "timeout client-fin, timeout server-fin",
    ),
];
