//! The part of `prepare` that makes listeners: addresses, the map of certificates, routes.
//!
//! Certificates are loaded in the order of the list, those of a directory by file name. Of two
//! with one name and one kind of key the later wins. The default, for clients without a name
//! or with an unknown one, is the last file and those that share a name with it, as in stud and
//! hitch. A listener's own backend is its last route, which takes every hello.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use becket_proto::networks::{Network, Networks};
use becket_proto::starttls::Protocol;

use super::error::Problem;
use super::file::{
    FileCertificate, FileListener, FileMode, FilePair, FilePolicy, FileRoute, Scalar,
};
use super::prepare::Draft;
use super::read::labels;
use super::values;
use super::{
    AlpnMismatch, Face, Listener, NamePattern, Policy, Route, SocketOptions, UnknownNames,
};
use crate::pki::certificates::{CertificateMap, KeySet};
use crate::pki::keys::{Loaded, shown};
use crate::tls::metered::metered;

impl Draft<'_> {
    /// All listeners, in the order of the file.
    pub(super) fn listeners(
        &mut self,
        policies: &HashMap<String, Arc<Policy>>,
    ) -> Vec<Arc<Listener>> {
        let file = self.file;
        let names = || {
            file.listener
                .iter()
                .map(|listener| listener.name.as_deref())
        };
        let paths = labels(names())
            .into_iter()
            .map(|label| format!("listener[{label}]"));
        let paths: Vec<String> = paths.collect();
        self.check_names(paths.iter().cloned().zip(names()));
        if file.listener.is_empty() {
            let problem = Problem::new("listener", "missing");
            self.report.error(problem.accepted("at least one listener"));
        }
        let sections = file.listener.iter().zip(&paths);
        sections
            .map(|(listener, path)| Arc::new(self.listener(path, listener, policies)))
            .collect()
    }

    fn listener(
        &mut self,
        path: &str,
        listener: &FileListener,
        policies: &HashMap<String, Arc<Policy>>,
    ) -> Listener {
        let face = self.face(path, listener);
        let certificates = match face {
            Face::Tls | Face::StartTls(_) => {
                self.certificates(path, listener.certificates.as_deref())
            }
            Face::Plain | Face::Passthrough => CertificateMap::new(KeySet::default()),
        };
        let section = Section {
            path,
            listener,
            policies,
            certificates: &certificates,
            face,
        };
        let routes = self.routes(&section);
        Listener {
            name: listener.name.as_deref().unwrap_or_default().into(),
            face,
            bind: self.bind(path, listener.bind.as_deref()),
            socket: self.socket(path, listener, face),
            routes,
            certificates: Arc::new(certificates),
            unknown_names: listener.unknown_names.unwrap_or(match face {
                Face::StartTls(_) => UnknownNames::Refuse,
                _ => UnknownNames::Default,
            }),
            allow: match listener.allow.is_empty() {
                true => None,
                false => Some(self.networks(&format!("{path}.allow"), &listener.allow)),
            },
            deny: self.networks(&format!("{path}.deny"), &listener.deny),
            accept_proxy: self.accept_proxy(path, listener),
            cancel_requests: self.cancel_requests(path, listener, face),
        }
    }

    /// A set of networks.
    pub(super) fn networks(&mut self, path: &str, listed: &[String]) -> Networks {
        let mut networks = Vec::with_capacity(listed.len());
        for (index, text) in listed.iter().enumerate() {
            match text.parse::<Network>() {
                Ok(network) => networks.push(network),
                Err(error) => {
                    let problem = Problem::new(format!("{path}[{index}]"), error.to_string());
                    self.report.error(problem.text(text).accepted(NETWORK));
                }
            }
        }
        networks.into_iter().collect()
    }

    fn bind(&mut self, path: &str, listed: Option<&[String]>) -> Vec<std::net::SocketAddr> {
        let path = format!("{path}.bind");
        let listed = listed.unwrap_or_default();
        if listed.is_empty() {
            let problem = Problem::new(&path, "missing");
            self.report
                .error(problem.accepted("at least one HOST:PORT, [V6]:PORT or :PORT"));
        }
        let mut bind = Vec::new();
        for (index, text) in listed.iter().enumerate() {
            let path = format!("{path}[{index}]");
            let parsed = values::listen_address(text);
            let Some(address) = self.report.take(&path, text, parsed) else {
                continue;
            };
            for address in self.resolve(&path, text, &address) {
                self.claim(&path, text, address);
                bind.push(address);
            }
        }
        bind
    }

    /// What clients speak here; what does not go with it may not be given.
    fn face(&mut self, path: &str, listener: &FileListener) -> Face {
        let passes = listener.mode == FileMode::Passthrough;
        let face = match (listener.tls, listener.starttls) {
            (false, _) => Face::Plain,
            (true, _) if passes => Face::Passthrough,
            (true, Some(protocol)) => Face::StartTls(protocol.into()),
            (true, None) => Face::Tls,
        };
        let ends_tls = matches!(face, Face::Tls | Face::StartTls(_));
        // Without TLS there is no name to choose a route by, and STARTTLS connects before there is.
        let has_routes = matches!(face, Face::Tls | Face::Passthrough);
        let starttls = listener.starttls.is_some();
        let routes = || listener.route.iter();
        let given = [
            ("mode", passes && !listener.tls, NO_TLS),
            (
                "starttls",
                starttls && !matches!(face, Face::StartTls(_)),
                NOT_ENDED,
            ),
            (
                "certificates",
                listener.certificates.is_some() && !ends_tls,
                NOT_ENDED,
            ),
            ("policy", listener.policy.is_some() && !ends_tls, NOT_ENDED),
            ("alpn", !listener.alpn.is_empty() && !ends_tls, NOT_ENDED),
            ("route", !listener.route.is_empty() && !has_routes, NO_NAME),
            (
                "route.policy",
                passes && routes().any(|route| route.policy.is_some()),
                NOT_ENDED,
            ),
        ];
        for (key, _, fault) in given.into_iter().filter(|(_, given, _)| *given) {
            let problem = Problem::new(format!("{path}.{key}"), format!("given, but {fault}"));
            self.report.error(
                problem.accepted("only where TLS ends, with tls, mode and starttls as by default"),
            );
        }
        face
    }

    fn cancel_requests(&mut self, path: &str, listener: &FileListener, face: Face) -> bool {
        let speaks = face == Face::StartTls(Protocol::Postgresql);
        if let Some(given) = listener.cancel_requests
            && !speaks
        {
            let path = format!("{path}.cancel-requests");
            let problem = Problem::new(path, "given, but nobody speaks PostgreSQL here");
            let accepted = "only with starttls = \"postgresql\"";
            self.report
                .error(problem.value(given.to_string()).accepted(accepted));
        }
        speaks && listener.cancel_requests.unwrap_or(true)
    }

    fn socket(&mut self, path: &str, listener: &FileListener, face: Face) -> SocketOptions {
        let seconds = Duration::from_secs(1)..=Duration::from_secs(32_767);
        let mut duration = |key: &str, value: &Scalar| {
            let path = format!("{path}.{key}");
            (value.0 != "off").then(|| self.duration(&path, value, seconds.clone()))
        };
        let defer_accept = match (&listener.defer_accept, face) {
            (Some(value), _) => duration("defer-accept", value),
            // The server may speak first: the client would wait for it, and the kernel for the client.
            (None, Face::Plain) => None,
            (None, Face::StartTls(protocol)) if !protocol.client_speaks_first() => None,
            (None, Face::Tls | Face::Passthrough | Face::StartTls(_)) => Some(DEFER_ACCEPT),
        };
        let keepalive = duration("keepalive", &listener.keepalive);
        let mut buffer = |key: &str, value: &Scalar| {
            let path = format!("{path}.{key}");
            (value.0 != "system").then(|| self.size(&path, value, BUFFER_BYTES))
        };
        let receive_buffer = buffer("receive-buffer", &listener.receive_buffer);
        let send_buffer = buffer("send-buffer", &listener.send_buffer);
        let queue = &listener.fast_open.0;
        let fast_open = (queue != "off").then(|| queue.parse().unwrap_or_default());
        if fast_open.is_some_and(|length| !QUEUE.contains(&length)) {
            let problem = Problem::new(format!("{path}.fast-open"), "not the length of a queue");
            self.report
                .error(problem.text(queue).accepted("\"off\" or 1 to 65535"));
        }
        if !QUEUE.contains(&listener.backlog) {
            let problem = Problem::new(format!("{path}.backlog"), "not in range");
            let problem = problem.value(listener.backlog.to_string());
            self.report.error(problem.accepted("1 to 65535"));
        }
        SocketOptions {
            backlog: listener.backlog,
            defer_accept,
            fast_open,
            keepalive,
            receive_buffer,
            send_buffer,
        }
    }

    fn certificates(&mut self, path: &str, listed: Option<&[FileCertificate]>) -> CertificateMap {
        let path = format!("{path}.certificates");
        let listed = listed.unwrap_or_default();
        if listed.is_empty() {
            let problem = Problem::new(&path, "missing");
            self.report.error(
                problem
                    .accepted("files, directories of *.pem, or { chain = \"..\", key = \"..\" }"),
            );
        }
        let mut loaded = Vec::new();
        for (index, entry) in listed.iter().enumerate() {
            let path = format!("{path}[{index}]");
            match entry {
                FileCertificate::Path(text) => {
                    let place = self.world.base.join(text);
                    match self.world.files.is_folder(&place) {
                        true => self.directory(&path, &place, &mut loaded),
                        false => loaded.extend(self.bundle(&path, &place)),
                    }
                }
                FileCertificate::Pair(pair) => loaded.extend(self.pair(&path, pair)),
            }
        }
        if self.metered {
            for one in &mut loaded {
                one.key = metered(&one.key);
            }
        }
        self.map(&path, &loaded)
    }

    fn pair(&mut self, path: &str, pair: &FilePair) -> Option<Loaded> {
        let chain = self.part(path, "chain", pair.chain.as_deref());
        let key = self.part(path, "key", pair.key.as_deref());
        let (chain, key) = (chain?, key?);
        self.files.extend([chain.clone(), key.clone()]);
        self.loader.pair(path, &chain, &key, &mut self.report)
    }

    /// One chain with its key, by bundle or pair.
    pub(super) fn credential(&mut self, path: &str, entry: &FileCertificate) -> Option<Loaded> {
        match entry {
            FileCertificate::Path(text) => self.bundle(path, &self.world.base.join(text)),
            FileCertificate::Pair(pair) => self.pair(path, pair),
        }
    }

    fn bundle(&mut self, path: &str, file: &Path) -> Option<Loaded> {
        self.files.push(file.to_owned());
        self.loader.bundle(path, file, &mut self.report)
    }

    fn part(&mut self, path: &str, key: &str, text: Option<&str>) -> Option<PathBuf> {
        if text.is_none() {
            let problem = Problem::new(format!("{path}.{key}"), "missing");
            self.report
                .error(problem.accepted("{ chain = \"..\", key = \"..\" }"));
        }
        text.map(|text| self.world.base.join(text))
    }

    /// Loads every `*.pem` of a directory, by name; hidden files are left alone.
    fn directory(&mut self, path: &str, folder: &Path, loaded: &mut Vec<Loaded>) {
        self.files.push(folder.to_owned());
        let entries = match self.world.files.list(folder) {
            Ok(entries) => entries,
            Err(error) => {
                let fault = crate::files::reason(&error);
                let problem = shown(path, folder, fault);
                self.report.error(problem.accepted("a readable directory"));
                return;
            }
        };
        let mut files = entries;
        files.retain(|file| is_bundle(file) && !self.world.files.is_folder(file));
        if files.is_empty() {
            let problem = shown(path, folder, "no *.pem in this directory");
            self.report.error(problem.accepted("at least one *.pem"));
        }
        for file in files {
            loaded.extend(self.bundle(path, &file));
        }
    }

    /// Who answers to which name.
    fn map(&mut self, path: &str, loaded: &[Loaded]) -> CertificateMap {
        let Some(last) = loaded.last() else {
            return CertificateMap::new(KeySet::default());
        };
        let last_names: HashSet<&NamePattern> = last.names.iter().collect();
        let mut default = KeySet::default();
        for one in loaded {
            if one.names.iter().any(|name| last_names.contains(name)) {
                default.insert(one.key.clone());
            }
        }
        default.insert(last.key.clone());
        let mut map = CertificateMap::new(default);
        for (index, one) in loaded.iter().enumerate() {
            if one.names.is_empty() && index + 1 < loaded.len() {
                let fault = "a certificate without a name is used only as the default, which is the last one";
                self.report.warn(shown(path, &one.file, fault));
            }
            for name in &one.names {
                let Some(hidden) = map.insert(name.clone(), one.key.clone()) else {
                    continue;
                };
                let earlier = loaded.iter().find(|other| Arc::ptr_eq(&other.key, &hidden));
                let earlier = earlier.map(|other| other.file.display().to_string());
                let fault = format!(
                    "for {name} this certificate is used, not {}, which has the same kind of key",
                    earlier.unwrap_or_default(),
                );
                self.report.warn(shown(path, &one.file, fault));
            }
        }
        map
    }

    fn routes(&mut self, section: &Section<'_>) -> Vec<Route> {
        let listener = section.listener;
        let mut routes = Vec::with_capacity(listener.route.len() + 1);
        let mut taken = HashSet::new();
        for (index, route) in listener.route.iter().enumerate() {
            let path = format!("{}.route[{index}]", section.path);
            let names = self.route_names(section, &path, route);
            for name in &names {
                if taken.contains(name) {
                    let fault = format!("an earlier route takes every client of {name}");
                    self.report
                        .warn(Problem::new(format!("{path}.names"), fault));
                }
            }
            if route.alpn.is_none() {
                taken.extend(names.iter().cloned());
            }
            let alpn = match &route.alpn {
                Some(alpn) => self.alpn(&path, alpn),
                None => self.alpn("", &listener.alpn),
            };
            let backend = route.backend.as_deref().or(listener.backend.as_deref());
            let made = Route {
                names,
                alpn_only: route.alpn.as_ref().is_some_and(|alpn| !alpn.is_empty()),
                alpn,
                alpn_mismatch: section.alpn_mismatch(),
                policy: self.policy_of(section, &path, route.policy.as_deref()),
                backend: self.backend_of(&path, backend),
            };
            routes.push(made);
        }
        let complete = |route: &Route| route.names.is_empty() && !route.alpn_only;
        if listener.backend.is_some() || !routes.last().is_some_and(complete) {
            routes.push(self.last_route(section));
        }
        routes
    }

    /// The listener's own route, for every hello that no other route took.
    fn last_route(&mut self, section: &Section<'_>) -> Route {
        let listener = section.listener;
        Route {
            names: Vec::new(),
            alpn: match (section.face, &listener.alpn[..]) {
                (Face::StartTls(protocol), []) => names_of(protocol),
                (_, alpn) => self.alpn(section.path, alpn),
            },
            alpn_only: false,
            alpn_mismatch: section.alpn_mismatch(),
            policy: self.policy_of(section, section.path, None),
            backend: self.backend_of(section.path, listener.backend.as_deref()),
        }
    }

    fn route_names(
        &mut self,
        section: &Section<'_>,
        path: &str,
        route: &FileRoute,
    ) -> Vec<NamePattern> {
        let mut names = Vec::with_capacity(route.names.len());
        for (index, text) in route.names.iter().enumerate() {
            let path = format!("{path}.names[{index}]");
            let parsed = values::server_name(text);
            let Some(name) = self.report.take(&path, text, parsed) else {
                continue;
            };
            if names.contains(&name) {
                let problem = Problem::new(&path, "listed before").text(text);
                self.report.error(problem.accepted("each name once"));
            }
            if section.face != Face::Passthrough && !covers(section.certificates, &name) {
                let fault = "no certificate of this listener covers this name";
                self.report.warn(Problem::new(&path, fault).text(text));
            }
            names.push(name);
        }
        names
    }

    /// Parses protocols; with an empty path the list is checked elsewhere.
    pub(super) fn alpn(&mut self, path: &str, listed: &[String]) -> Vec<Vec<u8>> {
        let mut protocols = Vec::with_capacity(listed.len());
        for (index, text) in listed.iter().enumerate() {
            let parsed = values::protocol(text);
            if path.is_empty() {
                protocols.extend(parsed.ok());
                continue;
            }
            let path = format!("{path}.alpn[{index}]");
            let Some(protocol) = self.report.take(&path, text, parsed) else {
                continue;
            };
            if protocols.contains(&protocol) {
                let problem = Problem::new(path, "listed before").text(text);
                self.report.error(problem.accepted("each protocol once"));
            }
            protocols.push(protocol);
        }
        protocols
    }

    fn policy_of(&mut self, section: &Section<'_>, path: &str, own: Option<&str>) -> Arc<Policy> {
        let listener = section.listener;
        let path = match own {
            Some(_) => path,
            None => section.path,
        };
        let named = own.or(listener.policy.as_deref());
        let name = named.or(listener.name.as_deref()).unwrap_or_default();
        self.used_policies.insert(name.to_owned());
        if let Some(policy) = section.policies.get(name) {
            return policy.clone();
        }
        // A listener without a route of its own asks only once, so it is reported once.
        if named.is_some() {
            let known = section.policies.keys().map(String::as_str);
            let problem = Problem::new(format!("{path}.policy"), "no policy has this name");
            let problem = problem.text(name).accepted(choices(known));
            if !self.report.errors.contains(&problem) {
                self.report.error(problem);
            }
        }
        Arc::new(self.policy(path, name, &FilePolicy::default()))
    }

    fn backend_of(&mut self, path: &str, name: Option<&str>) -> usize {
        let file = self.file;
        let known = || {
            file.backend
                .iter()
                .filter_map(|backend| backend.name.as_deref())
        };
        let path = format!("{path}.backend");
        let Some(name) = name else {
            let fault = "missing: where clients go that no route takes";
            let problem = Problem::new(path, fault);
            self.report.error(problem.accepted(choices(known())));
            return 0;
        };
        let index = file
            .backend
            .iter()
            .position(|backend| backend.name.as_deref() == Some(name));
        if let Some(index) = index {
            self.used_backends.insert(index);
            return index;
        }
        let problem = Problem::new(path, "no backend has this name");
        self.report
            .error(problem.text(name).accepted(choices(known())));
        0
    }
}

/// A listener of the file with what its routes refer to.
struct Section<'a> {
    path: &'a str,
    face: Face,
    listener: &'a FileListener,
    policies: &'a HashMap<String, Arc<Policy>>,
    certificates: &'a CertificateMap,
}

impl Section<'_> {
    /// What becomes of a client that offers other protocols only.
    fn alpn_mismatch(&self) -> AlpnMismatch {
        let written = self.listener.alpn_mismatch;
        written.unwrap_or(match self.face {
            Face::StartTls(_) => AlpnMismatch::Refuse,
            _ => AlpnMismatch::Continue,
        })
    }
}

/// What clients of a protocol offer by ALPN, those few that do: IANA's names, and Exim's two for SMTP, which has none there.
/// libpq insists on its own where it begins with TLS at once.
fn names_of(protocol: Protocol) -> Vec<Vec<u8>> {
    let names: &[&[u8]] = match protocol {
        Protocol::Smtp => &[b"smtp", b"esmtp"],
        Protocol::Imap => &[b"imap"],
        Protocol::Pop3 => &[b"pop3"],
        Protocol::Postgresql => &[b"postgresql"],
    };
    names.iter().map(|name| name.to_vec()).collect()
}

fn is_bundle(file: &Path) -> bool {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    name.ends_with(".pem") && !name.starts_with('.')
}

/// Whether a certificate answers to a name, or to one of those a wildcard stands for.
fn covers(certificates: &CertificateMap, name: &NamePattern) -> bool {
    match name {
        NamePattern::Exact(name) => certificates.named(name).is_some(),
        NamePattern::Wildcard(suffix) => certificates.names().any(|(known, _)| match known {
            NamePattern::Wildcard(known) => known == *suffix,
            NamePattern::Exact(known) => known
                .split_once('.')
                .is_some_and(|(_, rest)| rest == suffix),
        }),
    }
}

fn choices<'n>(names: impl Iterator<Item = &'n str>) -> String {
    let mut names: Vec<String> = names.map(|name| format!("{name:?}")).collect();
    names.sort();
    match names.is_empty() {
        true => "a name, once there is such a section".to_owned(),
        false => names.join(", "),
    }
}

const NETWORK: &str = "an address, or a network such as 192.0.2.0/24 or 2001:db8::/32";

const NO_TLS: &str = "clients speak no TLS here";
const NOT_ENDED: &str = "no TLS ends at this listener";
const NO_NAME: &str = "the server is connected before a name is known";

/// As long as the handshake time-out.
const DEFER_ACCEPT: Duration = Duration::from_secs(10);

/// What listen(2) takes; the kernel cuts it to net.core.somaxconn.
const QUEUE: std::ops::RangeInclusive<u32> = 1..=65_535;

/// The kernel's least, and a bound that no socket needs to pass.
const BUFFER_BYTES: std::ops::RangeInclusive<u64> = 4096..=256 * 1024 * 1024;
