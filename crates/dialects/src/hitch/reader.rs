//! Translates settings of hitch and stud: listeners, their policies, and one backend.
//!
//! If a setting is given twice, the last one wins; frontends and certificates accumulate. Missing
//! settings have hitch's defaults, which are written only if they differ from becket's.

use std::path::Path;

use toml::{Table, Value};

use super::super::builder::{SYSLOG, SectionBuilder, SettingId, TranslationBuilder, address};
use super::super::setting::{Setting, SettingSupport, ValueKind};
use super::super::translation::Translation;
use super::lexer::Value as Written;
use super::scope::{CertificateEntry, Scope, misfit, switch};

#[derive(Debug)]
pub(in super::super) struct HitchTranslator {
    pub(in super::super) out: TranslationBuilder,
    pub(super) program: &'static str,
    settings: &'static [Setting],
    /// PROXY header version that `write-proxy` selects.
    write_proxy: &'static str,
    pub(in super::super) global: Scope,
    pub(in super::super) frontends: Vec<Scope>,
    pub(super) peers: Vec<(String, SettingId)>,
}

impl HitchTranslator {
    pub(in super::super) fn new(
        folder: &Path,
        program: &'static str,
        settings: &'static [Setting],
        write_proxy: &'static str,
    ) -> Self {
        Self {
            out: TranslationBuilder::new(folder),
            program,
            settings,
            write_proxy,
            global: Scope::default(),
            frontends: Vec::new(),
            peers: Vec::new(),
        }
    }

    pub(in super::super) fn option(&mut self, name: &str, value: &str) {
        if let Some(setting) = self.settings.iter().find(|setting| setting.theirs == name) {
            self.take_global(setting, None, &Written::Text(value.to_owned()));
        }
    }

    pub(in super::super) fn take_global(
        &mut self,
        setting: &'static Setting,
        line: Option<usize>,
        written: &Written,
    ) {
        let mut global = std::mem::take(&mut self.global);
        self.take(&mut global, setting, line, written);
        self.global = global;
    }

    pub(in super::super) fn take(
        &mut self,
        scope: &mut Scope,
        setting: &'static Setting,
        line: Option<usize>,
        written: &Written,
    ) {
        let shown = match written {
            Written::Text(text) => text.clone(),
            Written::Words(words) => words.join(" "),
            Written::Block(_) => String::new(),
        };
        if shown.is_empty() {
            // Ignores empty values, as hitch and stud do.
            return;
        }
        let origin = self.out.note(setting, line, &shown);
        if let Some(accepted) = misfit(setting, written, &shown) {
            let fault = "invalid value";
            return self.out.refuse(origin, fault, accepted);
        }
        match (setting.kind, switch(&shown)) {
            (ValueKind::Switch, Some(false)) | (ValueKind::SwitchOff, Some(true)) => {
                self.out.same(origin);
            }
            _ if setting.verdict == SettingSupport::Refused => self.out.refuse_setting(origin),
            _ => {}
        }
        match setting.theirs {
            "frontend" => self.endpoint_of_frontend(&shown, origin),
            "shared-cache-peer" => self.peers.push((shown, origin)),
            "pem-file" => scope
                .certificates
                .push(CertificateEntry::new(shown, origin)),
            // hitch rejects a repeated version setting; in stud, the last one wins.
            name if TLS.contains(&name)
                && setting.kind != ValueKind::Text
                && TLS.iter().any(|name| scope.held.contains_key(name)) =>
            {
                let accepted = "one of tls-protos, tls and ssl";
                self.out
                    .refuse(origin, "the versions are given already", accepted);
            }
            name => {
                scope.held.insert(name, (shown, origin));
            }
        }
    }

    /// Adds a frontend: `[HOST]:PORT`, optionally with `+CERT`.
    fn endpoint_of_frontend(&mut self, text: &str, origin: SettingId) {
        let (endpoint, certificate) = match text.rsplit_once(']') {
            Some((_, port)) if port.contains('+') => {
                let at = text.len() - port.len() + port.find('+').unwrap_or_default();
                (&text[..at], Some(&text[at + 1..]))
            }
            _ => (text, None),
        };
        let mut scope = Scope::new(origin);
        if let Some((host, port)) = endpoint_of(endpoint) {
            for (name, text) in [("host", host), ("port", port)] {
                scope.held.insert(name, (text.to_owned(), origin));
            }
            let certificate =
                certificate.map(|path| CertificateEntry::new(path.to_owned(), origin));
            scope.certificates.extend(certificate);
            self.frontends.push(scope);
        } else {
            self.out.refuse(
                origin,
                "not an address",
                "[HOST]:PORT or [HOST]:PORT+CERT, with the brackets",
            );
        }
    }

    pub(in super::super) fn finish(mut self) -> Translation {
        self.process();
        self.times();
        self.log();
        let certificates = self.certificates();
        self.backend(&certificates);
        self.listeners(&certificates);
        self.shared_cache(&certificates);
        let is_daemon = self.global.on("daemon").is_some();
        self.out.finish(self.settings, is_daemon)
    }

    fn process(&mut self) {
        match (self.global.number("workers"), self.global.text("workers")) {
            (Some((workers, origin)), _) => self.out.put_own(workers, origin),
            // Sets no key, because `auto` is becket's default.
            (None, Some(_)) => {}
            (None, None) => self.out.put("process.workers", 1, None),
        }
        for name in ["user", "group", "syslog-facility"] {
            if let Some((text, origin)) = self.global.text(name) {
                self.out.put_own(text, origin);
            }
        }
        for name in ["pidfile", "log-filename"] {
            if let Some((path, origin)) = self.global.text(name) {
                self.out.put_own(self.out.place(path), origin);
            }
        }
        for name in ["session-cache", "shared-cache"] {
            if let Some((entries, origin)) = self.global.number(name) {
                self.out.put_own(entries, origin);
            }
        }
    }

    fn times(&mut self) {
        let (handshake, origin) = self.global.number_or("ssl-handshake-timeout", 30);
        self.out
            .put("timeouts.hello", format!("{handshake}s"), origin);
        self.out
            .put("timeouts.handshake", format!("{handshake}s"), origin);
        let (connect, origin) = self.global.number_or("backend-connect-timeout", 30);
        self.out
            .put("timeouts.connect", format!("{connect}s"), origin);
        // Emulates hitch, which has no idle timeout and closes all connections at once on SIGTERM.
        self.out.put("timeouts.idle", "365d", None);
        self.out.put("timeouts.drain", "1ms", None);
    }

    fn log(&mut self) {
        let quiet = self.global.switch("quiet");
        let default = i64::from(!quiet.is_some_and(|(is_quiet, _)| is_quiet));
        let (level, origin) = self.global.number_or("log-level", default);
        let level = match level {
            ..=0 => "error",
            1 => "warn",
            _ => "info",
        };
        let origin = origin.or(quiet.map(|(_, origin)| origin));
        self.out.put("log.level", level, origin);
        if let Some(origin) = self.global.on("syslog") {
            self.out.put("log.syslog", SYSLOG, origin);
            self.out.put("log.syslog-tag", self.program, origin);
        }
    }

    /// Returns the certificates that all frontends share. The files of `pem-dir` come first,
    /// because the last certificate is the default.
    fn certificates(&self) -> Vec<CertificateEntry> {
        let glob = self
            .global
            .text("pem-dir-glob")
            .map_or("*", |(glob, _)| glob);
        let folder = self.global.text("pem-dir").map(|(folder, origin)| {
            CertificateEntry::new(format!("{}/{glob}", folder.trim_end_matches('/')), origin)
        });
        folder
            .into_iter()
            .chain(self.global.certificates.iter().cloned())
            .collect()
    }

    fn entry(&self, pem: &CertificateEntry, policy: Option<String>) -> Value {
        let path = self.out.place(&pem.path);
        let [key, ocsp] = FILES.map(|name| pem.block.text(name).map(|(path, _)| path));
        if key.is_none() && ocsp.is_none() && policy.is_none() {
            return path.into();
        }
        let mut pair = self.out.pair(&pem.path, key.unwrap_or(&pem.path));
        if let Some(ocsp) = ocsp {
            pair.insert("ocsp".to_owned(), self.out.place(ocsp).into());
        }
        if let Some(policy) = policy {
            pair.insert("policy".to_owned(), policy.into());
        }
        pair.into()
    }

    fn backend(&mut self, certificates: &[CertificateEntry]) {
        let mut section = self.out.section("backend", MAIN);
        let address = match self.global.text("backend") {
            Some((text, origin)) => self.server(text.to_owned(), origin),
            None => Some((DEFAULT_BACKEND.to_owned(), None)),
        };
        let is_name = address.as_ref().is_some_and(|(text, _)| is_name(text));
        if let Some((address, origin)) = address {
            let mut server = Table::new();
            server.insert("address".to_owned(), address.into());
            section.push("server", server, origin);
        }
        match self.global.number("backend-refresh") {
            Some((seconds @ 1.., origin)) => {
                section.set("resolve-interval", format!("{seconds}s"), origin);
            }
            given if is_name => {
                let origin = given.map(|(_, origin)| origin);
                section.set("resolve-interval", "off", origin);
            }
            _ => {}
        }
        self.proxy_header(&mut section);
        if let Some(origin) = self.global.on("proxy-client-cert") {
            let is_told = ["write-proxy", "write-proxy-v2"]
                .iter()
                .any(|name| self.global.on(name).is_some());
            if is_told {
                let tlvs = vec!["client-certificate-pem"];
                section.set("proxy-tlvs", tlvs, origin);
            } else {
                self.out.ignored(origin, "no header of version 2 is sent");
            }
        }
        if let Some(origin) = self.global.on("client") {
            let mut tls = Table::new();
            tls.insert("verify".to_owned(), "none".into());
            tls.insert("sni".to_owned(), "off".into());
            if let Some(pem) = certificates.last() {
                tls.insert("client-certificate".to_owned(), self.entry(pem, None));
            }
            section.set("tls", tls, origin);
        }
        self.out.add(section);
    }

    /// Sets the header that `write-ip` and similar settings choose. They exclude each other.
    fn proxy_header(&mut self, section: &mut SectionBuilder) {
        let mut chosen = None;
        for (name, version) in [
            ("write-ip", "ip"),
            ("write-proxy-v1", "v1"),
            ("write-proxy-v2", "v2"),
            ("write-proxy", self.write_proxy),
            ("proxy-proxy", "received"),
        ] {
            let Some(origin) = self.global.on(name) else {
                continue;
            };
            if chosen.is_some_and(|chosen| chosen != version) {
                let fault = "conflicts with another of these settings";
                let accepted = "one of write-ip, write-proxy-v1, write-proxy-v2 and proxy-proxy";
                self.out.refuse(origin, fault, accepted);
            }
            chosen = Some(version);
            section.set("proxy-header", version, origin);
        }
    }

    fn server(&mut self, text: String, origin: SettingId) -> Option<(String, Option<SettingId>)> {
        if text.starts_with('/') {
            return Some((text, Some(origin)));
        }
        match endpoint_of(&text) {
            Some((host, port)) if host != "*" && !host.is_empty() => {
                Some((address(host, port), Some(origin)))
            }
            _ => {
                self.out.refuse(
                    origin,
                    "not an address",
                    "[HOST]:PORT, with the brackets, or \"/path\" of a socket",
                );
                None
            }
        }
    }

    fn listeners(&mut self, certificates: &[CertificateEntry]) {
        let mut frontends = std::mem::take(&mut self.frontends);
        if frontends.is_empty() {
            frontends.push(Scope::default());
        }
        // Frontends that set only an address share one listener.
        let (plain, own): (Vec<Scope>, Vec<Scope>) =
            frontends.into_iter().partition(Scope::is_plain);
        if !plain.is_empty() {
            let first = Scope::default();
            self.listener(MAIN, &plain, &first, certificates);
        }
        let shares = |scope: &Scope| !POLICY.iter().any(|name| scope.held.contains_key(name));
        for (index, scope) in own.iter().enumerate() {
            let name = format!("frontend-{}", index + 1);
            self.listener(&name, std::slice::from_ref(scope), scope, certificates);
            if !shares(scope) {
                self.policy(&name, scope);
            }
        }
        if !plain.is_empty() || own.iter().any(shares) {
            let none = Scope::default();
            self.policy(MAIN, &none);
        }
    }

    fn listener(
        &mut self,
        name: &str,
        binds: &[Scope],
        scope: &Scope,
        certificates: &[CertificateEntry],
    ) {
        let mut section = self.out.section("listener", name);
        for bind in binds {
            let (host, of_host) = bind
                .text("host")
                .map_or(("*", None), |(text, origin)| (text, Some(origin)));
            let (port, origin) = match (bind.text("port"), bind.origin) {
                (Some((port, origin)), _) => (port, Some(origin)),
                (None, None) => (DEFAULT_PORT, None),
                (None, Some(origin)) => {
                    self.out.refuse(origin, "without a port", "port = \"443\"");
                    continue;
                }
            };
            section.push(
                "bind",
                address(host, port),
                origin.or(bind.origin).into_iter().chain(of_host),
            );
        }
        section.set("backend", MAIN, None);
        if let Some(origin) = self.global.on("client") {
            section.set("tls", false, origin);
        } else {
            let global = scope.on("match-global-certs").is_some() || scope.certificates.is_empty();
            let shared = certificates.iter().filter(|_| global);
            let all: Vec<&CertificateEntry> = shared.chain(&scope.certificates).collect();
            if let ([folder], Some((_, origin))) = (&all[..], self.global.text("pem-dir"))
                && folder.origin == origin
            {
                section.set("default-certificate", "first", origin);
            }
            for (index, pem) in all.into_iter().enumerate() {
                let policy =
                    self.policy_of_certificate(format!("{name}-{}", index + 1), pem, scope);
                let entry = self.entry(pem, policy);
                let files = FILES.iter().filter_map(|name| pem.block.text(name));
                let files = files.map(|(_, origin)| origin);
                section.push("certificates", entry, [pem.origin].into_iter().chain(files));
            }
            if name != MAIN && !POLICY.iter().any(|name| scope.held.contains_key(name)) {
                section.set("policy", MAIN, None);
            }
            self.of_clients(&mut section, scope);
        }
        if let Some(origin) = self.global.on("proxy-proxy") {
            section.set("accept-proxy", "v1", origin);
            let all = vec!["0.0.0.0/0", "::/0"];
            section.set("trusted-networks", all, origin);
        }
        self.socket(&mut section);
        self.out.add(section);
    }

    /// Adds a policy for a certificate whose block verifies clients. Returns the policy name.
    fn policy_of_certificate(
        &mut self,
        name: String,
        pem: &CertificateEntry,
        scope: &Scope,
    ) -> Option<String> {
        let mut verify = pem.block.held.clone();
        verify.retain(|name, _| POLICY.contains(name));
        if verify.is_empty() {
            return None;
        }
        let mut own = Scope::default();
        own.held.extend(scope.held.clone());
        own.held.extend(verify);
        self.policy(&name, &own);
        Some(name)
    }

    fn of_clients(&self, section: &mut SectionBuilder, scope: &Scope) {
        let given = scope
            .switch("sni-nomatch-abort")
            .or(self.global.switch("sni-nomatch-abort"));
        if let Some((true, origin)) = given {
            section.set("unknown-names", "refuse", origin);
        }
        if let Some((text, origin)) = self.global.text("alpn-protos") {
            let protocols: Vec<&str> = text
                .split(',')
                .map(str::trim)
                .filter(|it| !it.is_empty())
                .collect();
            section.set("alpn", protocols, origin);
            // After the handshake, hitch closes a connection without a common ALPN protocol.
            section.set("alpn-mismatch", "refuse", origin);
        }
    }

    fn socket(&self, section: &mut SectionBuilder) {
        let (backlog, origin) = self.global.number_or("backlog", 100);
        section.set("backlog", backlog, origin);
        let (keepalive, origin) = self.global.number_or("keepalive", 3600);
        section.set("keepalive", format!("{keepalive}s"), origin);
        for (name, key) in [
            ("recv-bufsize", "receive-buffer"),
            ("send-bufsize", "send-buffer"),
        ] {
            if let Some((size @ 0.., origin)) = self.global.number(name) {
                section.set(key, size, origin);
            }
        }
        if let Some(origin) = self.global.on("tcp-fastopen") {
            section.set("fast-open", FAST_OPEN, origin);
        }
    }
}

/// Splits `[HOST]:PORT` into host and port.
pub(super) fn endpoint_of(text: &str) -> Option<(&str, &str)> {
    let (host, port) = text.strip_prefix('[')?.rsplit_once(']')?;
    let port = port.strip_prefix(':')?;
    Some((host, port)).filter(|_| port.parse::<u16>().is_ok_and(|port| port > 0))
}

/// Returns `true` if the host of an address is a name.
fn is_name(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    !address.starts_with(['/', '[']) && host.parse::<std::net::Ipv4Addr>().is_err()
}

pub(super) const MAIN: &str = "main";
const DEFAULT_PORT: &str = "8443";
const DEFAULT_BACKEND: &str = "127.0.0.1:8000";
/// TCP_FASTOPEN queue length of hitch.
const FAST_OPEN: i64 = 3;
/// Files of a certificate block, in addition to the chain.
const FILES: [&str; 2] = ["private-key", "ocsp-resp-file"];
pub(super) const TLS: &[&str] = &["tls", "ssl", "tls-protos"];
pub(super) const POLICY: &[&str] = &[
    "tls",
    "ssl",
    "tls-protos",
    "ciphers",
    "ciphersuites",
    "ecdh-curve",
    "client-verify",
    "client-verify-ca",
];
