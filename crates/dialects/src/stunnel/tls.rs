//! Translates the TLS settings of services: versions, suites, and verification.

use toml::Value;

use super::super::builder::{SectionBuilder, SettingId};
use super::SETTINGS;
use super::reader::StunnelTranslator;
use super::service::Service;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Verification {
    /// The chain is verified if the peer sends a certificate.
    IfThere,
    /// A certificate is required, and its chain is verified.
    Always,
    /// The peer's own certificate must be in the list of trusted certificates.
    Pinned,
}

impl StunnelTranslator {
    /// Adds the policy of a service in server mode.
    pub(super) fn policy(&mut self, name: &str, service: &Service) {
        let mut section = self.out.section("policy", name);
        let versions = self.versions(service);
        if let Some((versions, origin)) = &versions {
            section.set("versions", versions.clone(), *origin);
        }
        let versions = versions.map_or(vec!["1.2", "1.3"], |(versions, _)| versions);
        let (older, newer) = (service.text("ciphers"), service.text("ciphersuites"));
        self.out
            .suites(&mut section, &versions, older, newer, DEFAULT_CIPHERS);
        if let Some((list, origin)) = service.text("curves") {
            self.out.curves(&mut section, list, origin);
        }
        self.strength(service);
        let Some((verification, origin)) = self.verification(service) else {
            self.unverified(service);
            return self.out.add(section);
        };
        if verification == Verification::Pinned {
            section.set("client-trust", "certificates", origin);
        }
        let word = match verification {
            Verification::IfThere => "optional",
            Verification::Always | Verification::Pinned => "required",
        };
        section.set("client-certificates", word, origin);
        if let Some((path, origin)) = self.trusted(service, origin) {
            section.set("client-ca", path, origin);
        }
        for (path, origin) in self.lists(service) {
            section.push("crl", path, [origin]);
        }
        for (setting, kind) in [
            ("checkHost", "dns"),
            ("checkIP", "ip"),
            ("checkEmail", "email"),
        ] {
            for (value, origin) in service.all(setting) {
                section.push("client-names", format!("{kind}:{value}"), [*origin]);
            }
        }
        self.out.add(section);
    }

    pub(super) fn server_tls(&mut self, section: &mut SectionBuilder, service: &Service) {
        let mut tls = section.nested("tls");
        let verify = "backend.tls.verify";
        let names = ["checkHost", "checkIP"].map(|name| service.one(name));
        match self.verification(service) {
            None => {
                let origin = service.on("client");
                self.set_tls(&mut tls, verify, "none", origin);
                self.unverified(service);
            }
            Some((verification, by)) => {
                if verification == Verification::Pinned {
                    self.set_tls(&mut tls, verify, "pinned", by);
                } else if names == [None, None] {
                    // A TLS server always sends a certificate, so the other kinds of verification
                    // are equivalent.
                    self.set_tls(&mut tls, verify, "chain", by);
                }
                self.out.becomes(by, verify);
                self.verified_server(&mut tls, service, by);
            }
        }
        if let Some((ours, origin)) = self.protocol(service) {
            self.set_tls(&mut tls, "backend.tls.starttls", ours, origin);
        }
        if let Some((name, origin)) = service.one("sni") {
            let name = if name.is_empty() { "off" } else { name };
            self.set_tls(&mut tls, "backend.tls.sni", name, *origin);
        }
        if let Some((cert, origin)) = service.text("cert") {
            let entry = self.certificate(service, cert);
            self.set_tls(&mut tls, "backend.tls.client-certificate", entry, origin);
        }
        if let Some((versions, origin)) = self.versions(service) {
            self.set_tls(&mut tls, "backend.tls.versions", versions, origin);
        }
        for name in ["ciphers", "ciphersuites", "curves"] {
            if let Some((_, origin)) = service.text(name) {
                let why =
                    "all suites and groups are offered to servers: ECDHE with AES-GCM or CHACHA20";
                self.out.differs(origin, why);
                self.out.becomes(origin, "");
            }
        }
        self.strength(service);
        let origin = service.on("client");
        section.set_nested("tls", tls, origin);
    }

    /// Sets a key of `[backend.tls]`, such as `backend.tls.ca`, and records it in the remark of
    /// the setting.
    fn set_tls(
        &mut self,
        tls: &mut SectionBuilder,
        path: &'static str,
        value: impl Into<Value>,
        origin: impl Into<Option<SettingId>>,
    ) {
        let origin = origin.into();
        if let Some(origin) = origin {
            self.out.becomes(origin, path);
        }
        tls.set(path.trim_start_matches("backend.tls."), value, origin);
    }

    fn verified_server(&mut self, tls: &mut SectionBuilder, service: &Service, by: SettingId) {
        if let Some((path, origin)) = self.trusted(service, by) {
            self.set_tls(tls, "backend.tls.ca", path, origin);
        }
        let lists = self.lists(service);
        if let Some(&(_, origin)) = lists.first() {
            let paths: Vec<String> = lists.into_iter().map(|(path, _)| path).collect();
            self.set_tls(tls, "backend.tls.crl", paths, origin);
        }
        let names = ["checkHost", "checkIP"].iter();
        let names: Vec<_> = names.flat_map(|name| service.all(name)).collect();
        match names[..] {
            [] => {}
            [(name, origin)] => self.set_tls(tls, "backend.tls.name", name.as_str(), *origin),
            [_, (_, origin), ..] => {
                let accepted = "one checkHost or checkIP";
                self.out.refuse(*origin, "a second name", accepted);
            }
        }
        if let Some((_, origin)) = service.one("checkEmail") {
            let fault = "servers cannot be verified by mail address";
            self.out.refuse(*origin, fault, "checkHost or checkIP");
        }
    }

    /// Returns how peers are verified, and the setting that chooses it; `None` if they are not.
    fn verification(&mut self, service: &Service) -> Option<(Verification, SettingId)> {
        if let Some((level, origin)) = service.text("verify") {
            let verification = match level {
                "0" => return None,
                "1" => Verification::IfThere,
                "2" => Verification::Always,
                "3" | "4" => Verification::Pinned,
                _ => {
                    self.out.refuse(origin, "not a level", "0 to 4");
                    return None;
                }
            };
            if level == "3" {
                self.out.differs(origin, ITSELF);
            }
            return Some((verification, origin));
        }
        let chain = service.on("verifyChain");
        if let Some(origin) = service.on("verifyPeer") {
            if let Some(chain) = chain {
                self.out.differs(chain, ITSELF);
            }
            return Some((Verification::Pinned, origin));
        }
        if let (None, Some(origin)) = (chain, service.on("requireCert")) {
            let fault = "requires a certificate but does not verify it";
            self.out.refuse(origin, fault, "verifyChain = yes with it");
        }
        chain.map(|origin| (Verification::Always, origin))
    }

    fn trusted(&mut self, service: &Service, by: SettingId) -> Option<(String, SettingId)> {
        match (service.text("CAfile"), service.text("CApath")) {
            (Some((file, origin)), None) => Some((self.out.place(file), origin)),
            (None, Some((folder, origin))) => Some((self.inside(service, folder), origin)),
            (Some(_), Some((_, origin))) => {
                let accepted = "one of the two";
                self.out.refuse(origin, "conflicts with CAfile", accepted);
                None
            }
            (None, None) => {
                let accepted = "CAfile = FILE or CApath = FOLDER with it";
                self.out.refuse(by, NOBODY, accepted);
                None
            }
        }
    }

    fn lists(&self, service: &Service) -> Vec<(String, SettingId)> {
        let files = service.all("CRLfile").iter();
        let files = files.map(|(file, origin)| (self.out.place(file), *origin));
        let folder = service.text("CRLpath");
        let folder = folder.map(|(folder, origin)| (self.inside(service, folder), origin));
        files.chain(folder).collect()
    }

    /// Marks verification settings as ignored, because nothing is verified.
    fn unverified(&mut self, service: &Service) {
        let keys = ["policy.client-ca", "policy.crl", "policy.client-names"];
        for setting in SETTINGS.iter().filter(|it| keys.contains(&it.ours)) {
            for (_, origin) in service.all(setting.theirs) {
                let why = "without verifyChain nothing is verified";
                self.out.ignored(*origin, why);
            }
        }
    }

    /// Returns the enabled versions, or `None` if the service enables all.
    fn versions(&mut self, service: &Service) -> Option<(Vec<&'static str>, SettingId)> {
        let one = service.text("sslVersion");
        let least = service.text("sslVersionMin").or(one);
        let most = service.text("sslVersionMax").or(one);
        let first = self.bound(least).unwrap_or(0);
        let last = self.bound(most).unwrap_or(VERSIONS.len());
        let without = self.without(service);
        let of_option = without.first().map(|(_, origin)| *origin);
        let origin = least.or(most).map(|(_, origin)| origin).or(of_option)?;
        let is_served = |version: usize| {
            (first..=last).contains(&version) && without.iter().all(|(it, _)| *it != version)
        };
        let served = [(TLS12, "1.2"), (TLS12 + 1, "1.3")].into_iter();
        let served = served.filter(|(version, _)| is_served(*version));
        let versions: Vec<&str> = served.map(|(_, name)| name).collect();
        if versions.is_empty() {
            let accepted = "TLSv1.2 or TLSv1.3 among them";
            self.out
                .refuse(origin, "none of these versions is supported", accepted);
            return None;
        }
        if let Some((word, origin)) = least.filter(|_| (1..TLS12).contains(&first)) {
            let why = format!(
                "{word} is not supported; clients get {}",
                versions.join(" and ")
            );
            self.out.differs(origin, why);
        }
        Some((versions, origin))
    }

    /// Returns the index in [`VERSIONS`] of a minimum or maximum version; `None` for `all`.
    fn bound(&mut self, given: Option<(&str, SettingId)>) -> Option<usize> {
        let (word, origin) = given?;
        let mut known = VERSIONS.iter();
        let version = known.position(|version| version.eq_ignore_ascii_case(word));
        if version.is_none() {
            self.out
                .refuse(origin, "not a version", "all, TLSv1.2 or TLSv1.3");
        }
        version.filter(|version| *version > 0)
    }

    /// Returns the versions that the setting `options` disables.
    fn without(&mut self, service: &Service) -> Vec<(usize, SettingId)> {
        let mut without = Vec::new();
        for (option, origin) in service.all("options") {
            match option.as_str() {
                "NO_TLSv1.2" => without.push((TLS12, *origin)),
                "NO_TLSv1.3" => without.push((TLS12 + 1, *origin)),
                "-NO_SSLv2" | "-NO_SSLv3" | "-NO_TLSv1" | "-NO_TLSv1.1" => {
                    let why = "this version is not supported";
                    self.out.differs(*origin, why);
                }
                option if option.starts_with("NO_") => {
                    self.out.same(*origin);
                }
                _ => {
                    let why = "only for OpenSSL";
                    self.out.ignored(*origin, why);
                    self.out.becomes(*origin, "");
                }
            }
        }
        without
    }

    /// Rejects a `securityLevel` above 2, because becket cannot reject keys of 2048 bits.
    fn strength(&mut self, service: &Service) {
        if let Some((level, origin)) = service.text("securityLevel")
            && !["0", "1", "2"].contains(&level)
        {
            self.out
                .refuse(origin, "keys of 2048 bits cannot be rejected", "0, 1 or 2");
        }
    }
}

/// Names of versions in ascending order, preceded by `all` for no limit.
const VERSIONS: [&str; 7] = [
    "all", "SSLv2", "SSLv3", "TLSv1", "TLSv1.1", "TLSv1.2", "TLSv1.3",
];
const TLS12: usize = 5;
const NOBODY: &str = "no trusted certificates: neither CAfile nor CApath is set";
const ITSELF: &str = "only the certificate itself is verified, not its issuers";
/// Default cipher string of stunnel.
const DEFAULT_CIPHERS: &str = "HIGH:!aNULL:!SSLv2:!DH:!kDHEPSK";
