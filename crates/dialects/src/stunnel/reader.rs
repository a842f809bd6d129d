//! Translates stunnel services to listeners and backends.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::rc::Rc;

use toml::{Table, Value};

use super::super::builder::{SYSLOG, SectionBuilder, SettingId, TranslationBuilder, address};
use super::super::directive::FreeNames;
use super::super::setting::{Setting, SettingSupport, ValueKind};
use super::super::translation::Translation;
use super::SETTINGS;
use super::lines::{LeftOut, LinesOfServices};
use super::service::{GivenSettings, MOST_VALUES, Service};
use becket_config::error::Problem;

#[derive(Debug)]
pub(super) struct StunnelTranslator {
    pub(super) out: TranslationBuilder,
    global: Service,
    /// Defaults for services: the global settings before the first service.
    shared: Option<Rc<GivenSettings>>,
    services: Vec<Service>,
    left_out: LeftOut,
    /// Number of services read so far, including services that are not translated.
    begun: usize,
    lines: LinesOfServices,
}

impl StunnelTranslator {
    pub(super) fn new(folder: &Path, left_out: LeftOut) -> Self {
        Self {
            out: TranslationBuilder::new(folder),
            global: Service::default(),
            shared: None,
            services: Vec::new(),
            left_out,
            begun: 0,
            lines: LinesOfServices::default(),
        }
    }

    /// Returns `true` before the first service.
    pub(super) fn is_global(&self) -> bool {
        self.begun == 0
    }

    /// Assigns a line to the current service. Returns `true` if the service is translated.
    pub(super) fn owns(&mut self, line: usize) -> bool {
        self.lines.add(self.out.file(), line, self.begun);
        !self.left_out.contains_key(&self.begun)
    }

    pub(super) fn begin(&mut self, name: &str, line: usize) {
        let name = name.trim().to_owned();
        self.begun += 1;
        self.owns(line);
        if let Some(why) = self.left_out.get(&self.begun) {
            let origin = self.out.note(&LEFT_OUT, Some(line), &name);
            return self.out.lost(origin, format!("left out: {why}"));
        }
        if self.services.len() >= MOST_SERVICES {
            let problem = Problem::new(name, "too many services").line(line);
            return self
                .out
                .problem(problem.accepted(format!("at most {MOST_SERVICES} in a file")));
        }
        let shared = self.shared.get_or_insert_with(|| self.global.shared());
        let place = (self.out.file(), line);
        self.services.push(Service::new(name, place, shared));
    }

    pub(super) fn take(&mut self, setting: &'static Setting, line: usize, value: &str) {
        let origin = self.out.note(setting, Some(line), value);
        let accepted = match setting.kind {
            ValueKind::Number if value.parse::<u32>().is_err() => "a whole number",
            ValueKind::Switch
                if !["yes", "no"]
                    .iter()
                    .any(|word| value.eq_ignore_ascii_case(word)) =>
            {
                "yes or no"
            }
            _ if value.contains(char::REPLACEMENT_CHARACTER) => "text in UTF-8",
            _ => "",
        };
        if !accepted.is_empty() {
            return self.out.refuse(origin, "invalid value", accepted);
        }
        let is_no = setting.kind == ValueKind::Switch && value.eq_ignore_ascii_case("no");
        if is_no {
            self.out.same(origin);
        } else if setting.verdict == SettingSupport::Refused {
            self.out.refuse_setting(origin);
        }
        let service = self.services.last_mut().unwrap_or(&mut self.global);
        if !service.take(setting, value, origin) {
            let accepted = format!("at most {MOST_VALUES}");
            self.out.refuse(origin, "too many values", accepted);
        }
    }

    /// Translates all services. Also returns the services that contain errors.
    pub(super) fn finish(mut self) -> (Translation, LeftOut) {
        let services = std::mem::take(&mut self.services);
        if services.is_empty() {
            let problem = Problem::new("", "no service: inetd mode is not supported");
            self.out
                .problem(problem.accepted("at least one [service] with accept and connect"));
        }
        let mut free = FreeNames::default();
        let names = services.iter().map(|it| free.take(&it.name, "service"));
        let names: Vec<String> = names.collect();
        let all = services.iter().zip(&names);
        // If several services have one name, the last one has the children.
        let primaries = services.iter().map(|it| it.name.as_str()).zip(&names);
        let primaries: BTreeMap<&str, &String> = primaries.collect();
        let mut children: BTreeMap<&String, Vec<ChildService<'_>>> = BTreeMap::new();
        for (service, name) in all.clone().filter(|(it, _)| !it.is_client()) {
            let Some((text, origin)) = service.text("sni") else {
                continue;
            };
            let named = text.split_once(':');
            let named = named.and_then(|(name, pattern)| Some((primaries.get(name)?, pattern)));
            let Some((primary, pattern)) = named else {
                let fault = "no service has this name";
                self.out.refuse(origin, fault, "SERVICE:PATTERN");
                continue;
            };
            let children = children.entry(primary).or_default();
            children.push((service, name, pattern));
        }
        for (service, name) in all {
            self.backend(name, service);
            if service.is_client() {
                self.plain(name, service);
            } else {
                self.policy(name, service);
                if service.text("sni").is_none() {
                    let children = children.remove(name).unwrap_or_default();
                    self.listener(name, service, &children);
                }
            }
        }
        self.times(&services);
        let is_daemon = self.process();
        let translation = self.out.finish(SETTINGS, is_daemon);
        let faulty = self.lines.faulty(&translation.problems);
        (translation, faulty)
    }

    /// Adds a listener without TLS for a service in client mode.
    fn plain(&mut self, name: &str, service: &Service) {
        let mut section = self.out.section("listener", name);
        self.bind(&mut section, service);
        section.set("tls", false, service.on("client"));
        section.set("backend", name, None);
        self.sockets(&mut section, service);
        self.out.add(section);
    }

    fn listener(&mut self, name: &str, service: &Service, children: &[ChildService<'_>]) {
        let mut section = self.out.section("listener", name);
        self.bind(&mut section, service);
        section.set("backend", name, None);
        self.starttls(&mut section, service, children);
        let mut shown = BTreeSet::new();
        // The certificate of `service` comes last, because becket uses the last certificate as the
        // default.
        for service in children.iter().map(|(child, ..)| *child).chain([service]) {
            let Some((cert, origin)) = service.text("cert") else {
                let problem = service.fault("cert", "missing: a TLS server needs a certificate");
                self.out.problem(problem.accepted("cert = FILE"));
                continue;
            };
            if shown.insert(cert) {
                let entry = self.certificate(service, cert);
                let key = service.text("key").map(|(_, origin)| origin);
                section.push("certificates", entry, [origin].into_iter().chain(key));
            }
        }
        for (child, own, pattern) in children {
            self.route(&mut section, child, own, pattern);
        }
        self.sockets(&mut section, service);
        self.out.add(section);
    }

    fn route(&mut self, section: &mut SectionBuilder, child: &Service, name: &str, pattern: &str) {
        let origin = child.text("sni").map(|(_, origin)| origin);
        let mut route = Table::new();
        if pattern != "*" {
            route.insert("names".to_owned(), vec![pattern].into());
        }
        if let Some(origin) = origin.filter(|_| pattern.starts_with("*.")) {
            let why = "a wildcard stands for one label; the certificate is chosen by its own names";
            self.out.differs(origin, why);
        }
        route.insert("policy".to_owned(), name.into());
        route.insert("backend".to_owned(), name.into());
        section.push("route", route, origin);
    }

    /// Returns the `certificates` entry for `cert`. Includes `key` if the key is in another file.
    pub(super) fn certificate(&self, service: &Service, cert: &str) -> Value {
        let cert = self.out.place(cert);
        match service.text("key") {
            Some((key, _)) if self.out.place(key) != cert => self.out.pair(&cert, key).into(),
            _ => cert.into(),
        }
    }

    fn bind(&mut self, section: &mut SectionBuilder, service: &Service) {
        for (text, origin) in self.needed(service, "accept") {
            let Some((host, port)) = endpoint(text, "0.0.0.0") else {
                let accepted = "[HOST:]PORT, the port as a number";
                self.out.refuse(*origin, "not an address", accepted);
                continue;
            };
            // In stunnel, a socket bound to `::` accepts IPv4 and IPv6.
            let host = if host == "::" { "*" } else { host };
            section.push("bind", address(host, &port), [*origin]);
        }
    }

    /// Returns the endpoints of a service. Records a problem if there are none.
    fn needed<'s>(&mut self, service: &'s Service, name: &str) -> &'s [(String, SettingId)] {
        let given = service.all(name);
        if given.is_empty() {
            let problem = service.fault(name, "missing: each service must define two endpoints");
            let problem = problem.accepted(format!("{name} = [HOST:]PORT"));
            self.out.problem(problem);
        }
        given
    }

    fn starttls(
        &mut self,
        section: &mut SectionBuilder,
        service: &Service,
        children: &[ChildService<'_>],
    ) {
        let Some((ours, origin)) = self.protocol(service) else {
            return;
        };
        if !children.is_empty() {
            let fault = "not allowed with services of other names";
            let accepted = "one service: the server is connected before a name is known";
            return self.out.refuse(origin, fault, accepted);
        }
        section.set("starttls", ours, origin);
        section.set("unknown-names", "default", origin);
        section.set("alpn-mismatch", "continue", origin);
    }

    /// Returns the STARTTLS protocol of a service. The method `ways` translates `protocol = proxy`.
    pub(super) fn protocol(&mut self, service: &Service) -> Option<(&'static str, SettingId)> {
        let (protocol, origin) = service.text("protocol")?;
        let ours = match protocol.to_ascii_lowercase().as_str() {
            "smtp" => "smtp",
            "imap" => "imap",
            "pop3" => "pop3",
            "pgsql" => "postgresql",
            "proxy" => return None,
            _ => {
                let accepted = format!("{TALKS}, or proxy in server mode");
                self.out.refuse(origin, "not supported", accepted);
                return None;
            }
        };
        Some((ours, origin))
    }

    fn backend(&mut self, name: &str, service: &Service) {
        let mut section = self.out.section("backend", name);
        self.servers(&mut section, service);
        self.ways(&mut section, service);
        if service.is_client() {
            self.server_tls(&mut section, service);
        }
        self.out.add(section);
    }

    fn servers(&mut self, section: &mut SectionBuilder, service: &Service) {
        for (text, origin) in self.needed(service, "connect") {
            let at = match endpoint(text, "localhost") {
                _ if text.starts_with('/') => text.clone(),
                Some((host, port)) => address(host, &port),
                None => {
                    let accepted = "[HOST:]PORT, the port as a number, or /path";
                    self.out.refuse(*origin, "not an address", accepted);
                    continue;
                }
            };
            let server = Table::from_iter([("address".to_owned(), at.into())]);
            section.push("server", server, [*origin]);
        }
    }

    fn ways(&mut self, section: &mut SectionBuilder, service: &Service) {
        if let Some((strategy, origin)) = service.text("failover") {
            match strategy.to_ascii_lowercase().as_str() {
                "rr" => {}
                "prio" => section.set("balance", "first", origin),
                _ => self.out.refuse(origin, NO_CHOICE, "rr or prio"),
            }
        } else if service.all("connect").len() > 1 {
            section.set("balance", "first", None);
        }
        if let Some((local, origin)) = service.text("local") {
            section.set("source", vec![local], origin);
        }
        if let Some((kind, origin)) = service.text("transparent")
            && !["none", "no"].contains(&kind)
        {
            let fault = "connections to servers cannot use the client's address";
            let accepted = "none; protocol = proxy sends the address to servers";
            self.out.refuse(origin, fault, accepted);
        }
        if let Some((protocol, origin)) = service.text("protocol") {
            let is_proxy = protocol.eq_ignore_ascii_case("proxy");
            if is_proxy && service.is_client() {
                let fault = "stunnel supports it only in server mode";
                self.out.refuse(origin, fault, TALKS);
            } else if is_proxy {
                section.set("proxy-header", "v1", origin);
                self.out.becomes(origin, "backend.proxy-header");
            }
        }
    }

    /// Translates the keep-alive options of `socket`; other options have no effect.
    fn sockets(&mut self, section: &mut SectionBuilder, service: &Service) {
        let mut alive: Option<(u32, SettingId)> = None;
        for (text, origin) in service.all("socket") {
            let (side, option) = text.split_once(':').unwrap_or(("", text));
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            let is_on = ["1", "yes"].contains(&value);
            match (side, name) {
                ("a" | "l", "SO_KEEPALIVE") if is_on => {
                    alive = alive.or(Some((SYSTEM_KEEPALIVE, *origin)))
                }
                ("a" | "l", "TCP_KEEPIDLE") => match value.parse() {
                    Ok(seconds) => alive = Some((seconds, *origin)),
                    Err(_) => self.out.refuse(*origin, "not a time", "whole seconds"),
                },
                ("a" | "l" | "r", name) => {
                    match name {
                        "TCP_NODELAY" if is_on => self.out.same(*origin),
                        _ => self.out.differs(*origin, "not set on becket's sockets"),
                    }
                    self.out.becomes(*origin, "");
                }
                _ => {
                    let accepted = "a|l|r:OPTION=VALUE";
                    self.out.refuse(*origin, "not an option", accepted);
                }
            }
        }
        if let Some((seconds, origin)) = alive {
            section.set("keepalive", format!("{seconds}s"), origin);
        }
    }

    /// Sets timeouts and session settings, which exist once in becket for all services.
    fn times(&mut self, services: &[Service]) {
        let longest = |out: &mut TranslationBuilder, name: &str, default: u32| {
            let given = services.iter().filter_map(|it| it.text(name));
            let given: Vec<(u32, SettingId)> = given
                .filter_map(|(text, origin)| Some((text.parse().ok()?, origin)))
                .collect();
            let of_others = (given.len() < services.len()).then_some(default);
            let values = given.iter().map(|(value, _)| *value);
            let most = values.chain(of_others).max().unwrap_or(default);
            for (_, origin) in given.iter().filter(|(value, _)| *value != most) {
                let why = format!("all services use the longest value, {most}");
                out.differs(*origin, why);
            }
            (most, given.first().map(|(_, origin)| *origin))
        };
        let (busy, origin) = longest(&mut self.out, "TIMEOUTbusy", 300);
        self.out.put("timeouts.hello", format!("{busy}s"), origin);
        self.out
            .put("timeouts.handshake", format!("{busy}s"), origin);
        let (connect, origin) = longest(&mut self.out, "TIMEOUTconnect", 10);
        self.out
            .put("timeouts.connect", format!("{connect}s"), origin);
        let (idle, origin) = longest(&mut self.out, "TIMEOUTidle", 43_200);
        self.out.put("timeouts.idle", format!("{idle}s"), origin);
        self.out.put("timeouts.drain", "1ms", None);
        let (entries, origin) = longest(&mut self.out, "sessionCacheSize", 1000);
        match origin {
            Some(origin) if entries == 0 => {
                let why = "an unlimited table is not supported; sessions.table-entries applies";
                self.out.differs(origin, why);
            }
            Some(origin) => self.out.put("sessions.table-entries", entries, origin),
            None => {}
        }
        if let (seconds, Some(origin)) = longest(&mut self.out, "sessionCacheTimeout", 300) {
            self.out
                .put("sessions.id-lifetime", format!("{seconds}s"), origin);
        }
    }

    /// Translates the process settings of the global part. Returns `true` if the program runs in
    /// the background.
    fn process(&mut self) -> bool {
        let global = std::mem::take(&mut self.global);
        for name in ["setuid", "setgid"] {
            if let Some((value, origin)) = global.text(name) {
                self.out.put_own(value, origin);
            }
        }
        if let Some((path, origin)) = global.text("output") {
            self.out.put_own(self.out.place(path), origin);
        }
        if let Some((path, origin)) = global.text("pid") {
            let path = self.inside(&global, path);
            self.out.put("process.pid-file", path, origin);
        }
        let syslog = global.text("syslog");
        if syslog.is_none_or(|(word, _)| word.eq_ignore_ascii_case("yes")) {
            let origin = syslog.map(|(_, origin)| origin);
            self.out.put("log.syslog", SYSLOG, origin);
            let (tag, origin) = match global.text("service") {
                Some((tag, origin)) => (tag, Some(origin)),
                None => ("stunnel", origin),
            };
            self.out.put("log.syslog-tag", tag, origin);
        }
        if let Some((text, origin)) = global.text("debug") {
            let (facility, level) = text.rsplit_once('.').unwrap_or(("", text));
            if !facility.is_empty() {
                let facility = facility.to_ascii_lowercase();
                self.out.put("log.syslog-facility", facility, origin);
            }
            let level = level.to_ascii_lowercase();
            let level = match level.as_str() {
                "0" | "1" | "2" | "3" | "emerg" | "alert" | "crit" | "err" => "error",
                "4" | "warning" => "warn",
                "5" | "6" | "notice" | "info" => "info",
                "7" | "debug" => "debug",
                _ => {
                    let accepted =
                        "emerg, alert, crit, err, warning, notice, info, debug, or 0 to 7";
                    self.out.refuse(origin, "not a level", accepted);
                    return false;
                }
            };
            self.out.put("log.level", level, origin);
        }
        let Some((word, origin)) = global.text("foreground") else {
            return true;
        };
        let word = word.to_ascii_lowercase();
        if !["yes", "quiet", "no"].contains(&word.as_str()) {
            self.out.refuse(origin, NO_CHOICE, "yes, quiet or no");
        }
        word == "no"
    }

    /// Resolves a path below the `chroot` of the service or of the global part, if set.
    pub(super) fn inside(&self, service: &Service, path: &str) -> String {
        match service.text("chroot") {
            Some((folder, _)) => {
                let path = path.trim_start_matches('/');
                self.out
                    .place(&format!("{}/{path}", folder.trim_end_matches('/')))
            }
            None => self.out.place(path),
        }
    }
}

/// Splits `[HOST:]PORT` into host and port. IPv6 addresses have no brackets in stunnel.
fn endpoint<'t>(text: &'t str, default: &'t str) -> Option<(&'t str, String)> {
    let (host, port) = text.rsplit_once(':').unwrap_or((default, text));
    let port: u16 = port.trim().parse().ok().filter(|port| *port > 0)?;
    let host = host.trim().trim_start_matches('[').trim_end_matches(']');
    let host = if host.is_empty() { default } else { host };
    Some((host, port.to_string()))
}

/// Service, its name in becket, and the pattern of its server names.
type ChildService<'s> = (&'s Service, &'s str, &'s str);

const TALKS: &str = "smtp, imap, pop3 or pgsql";
const NO_CHOICE: &str = "not one of the choices";

/// Default of Linux for the keep-alive idle time in seconds; stunnel uses it if only SO_KEEPALIVE
/// is set.
const SYSTEM_KEEPALIVE: u32 = 7200;

/// Maximum number of services. Each service becomes a listener, a policy and a backend.
const MOST_SERVICES: usize = 4096;
/// Pseudo-setting for remarks about omitted services.
static LEFT_OUT: Setting = Setting::lost(ValueKind::Text, "section", "");
