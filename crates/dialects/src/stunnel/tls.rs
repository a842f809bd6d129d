//! Translates the TLS settings of services: versions, suites, and verification.

use super::super::builder::{SectionBuilder, SettingId};
use super::reader::StunnelTranslator;
use super::service::Service;

enum Verified {
    No,
    /// The chain is verified if the peer sends a certificate.
    IfThere(SettingId),
    /// A certificate is required, and its chain is verified.
    Always(SettingId),
    /// The peer's own certificate must be in the list of trusted certificates.
    Pinned(SettingId),
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
        let (word, origin) = match self.verified(service) {
            Verified::No => {
                self.unverified(service);
                return self.out.add(section);
            }
            Verified::IfThere(origin) => ("optional", origin),
            Verified::Always(origin) => ("required", origin),
            Verified::Pinned(origin) => {
                let trust = "certificates";
                section.set("client-trust", trust, origin);
                ("required", origin)
            }
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
        match self.verified(service) {
            Verified::No => {
                let origin = service.on("client");
                self.out
                    .set_tls(&mut tls, "backend.tls.verify", "none", origin);
                self.unverified(service);
            }
            // A TLS server always sends a certificate, so both kinds of verification are
            // equivalent.
            Verified::IfThere(by) | Verified::Always(by) => {
                self.out.becomes(by, "backend.tls.verify");
                let is_named = |name| service.one(name).is_some();
                if !["checkHost", "checkIP"].into_iter().any(is_named) {
                    let key = "backend.tls.verify";
                    self.out.set_tls(&mut tls, key, "chain", Some(by));
                }
                self.verified_server(&mut tls, service, by);
            }
            Verified::Pinned(by) => {
                let key = "backend.tls.verify";
                self.out.set_tls(&mut tls, key, "pinned", Some(by));
                self.verified_server(&mut tls, service, by);
            }
        }
        if let Some((ours, origin)) = self.protocol(service) {
            let key = "backend.tls.starttls";
            self.out.set_tls(&mut tls, key, ours, origin);
        }
        if let Some((name, origin)) = service.one("sni") {
            let name = if name.is_empty() { "off" } else { name };
            self.out.set_tls(&mut tls, "backend.tls.sni", name, *origin);
        }
        if let Some((cert, origin)) = service.text("cert") {
            let entry = self.certificate(service, cert);
            let key = "backend.tls.client-certificate";
            self.out.set_tls(&mut tls, key, entry, origin);
        }
        if let Some((versions, origin)) = self.versions(service) {
            self.out
                .set_tls(&mut tls, "backend.tls.versions", versions, origin);
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

    fn verified_server(&mut self, tls: &mut SectionBuilder, service: &Service, by: SettingId) {
        if let Some((path, origin)) = self.trusted(service, by) {
            self.out.set_tls(tls, "backend.tls.ca", path, origin);
        }
        let lists = self.lists(service);
        if let Some((_, origin)) = lists.first() {
            let origin = *origin;
            let paths: Vec<String> = lists.into_iter().map(|(path, _)| path).collect();
            let key = "backend.tls.crl";
            self.out.set_tls(tls, key, paths, origin);
        }
        let names = ["checkHost", "checkIP"]
            .iter()
            .flat_map(|name| service.all(name));
        let names: Vec<_> = names.cloned().collect();
        match &names[..] {
            [] => {}
            [(name, origin)] => {
                self.out
                    .set_tls(tls, "backend.tls.name", name.clone(), *origin);
            }
            [_, (_, origin), ..] => {
                self.out
                    .refuse(*origin, "a second name", "one checkHost or checkIP")
            }
        }
        if let Some((_, origin)) = service.one("checkEmail") {
            self.out.refuse(
                *origin,
                "servers cannot be verified by mail address",
                "checkHost or checkIP",
            );
        }
    }

    fn verified(&mut self, service: &Service) -> Verified {
        if let Some((level, origin)) = service.text("verify") {
            return match level {
                "0" => Verified::No,
                "1" => Verified::IfThere(origin),
                "2" => Verified::Always(origin),
                "3" => {
                    self.out.differs(origin, ITSELF);
                    Verified::Pinned(origin)
                }
                "4" => Verified::Pinned(origin),
                _ => {
                    self.out.refuse(origin, "not a level", "0 to 4");
                    Verified::No
                }
            };
        }
        if let Some(origin) = service.on("verifyPeer") {
            if let Some(origin) = service.on("verifyChain") {
                self.out.differs(origin, ITSELF);
            }
            return Verified::Pinned(origin);
        }
        match (service.on("verifyChain"), service.on("requireCert")) {
            (Some(origin), _) => Verified::Always(origin),
            (None, Some(origin)) => {
                self.out.refuse(
                    origin,
                    "requires a certificate but does not verify it",
                    "verifyChain = yes with it",
                );
                Verified::No
            }
            (None, None) => Verified::No,
        }
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
        for name in [
            "CAfile",
            "CApath",
            "CRLfile",
            "CRLpath",
            "checkHost",
            "checkIP",
            "checkEmail",
        ] {
            for (_, origin) in service.all(name) {
                self.out
                    .ignored(*origin, "without verifyChain nothing is verified");
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
