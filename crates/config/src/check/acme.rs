//! Finds contradictions in `[acme]`.

use std::collections::HashSet;

use super::Way;
use crate::acme::{Acme, AcmeCertificate, ChallengeKind, OnDemand};
use crate::error::Report;
use crate::file::File;
use crate::key;
use crate::listener::{ListenMode, ListenerSection};

impl File {
    pub(super) fn check_acme(&self, report: &mut Report) {
        let Some(acme) = &self.acme else {
            let accepted = "[acme] with [[acme.certificate]]";
            for (listener, path) in self.listener.iter().zip(self.listener_paths()) {
                for (is_set, key) in [
                    (listener.acme, key!(path, listener.acme)),
                    (listener.acme_http, key!(path, listener.acme_http)),
                ] {
                    if is_set {
                        report.refuse(key, "no [acme] section", accepted);
                    }
                }
            }
            return;
        };
        acme.check(report);
        let process = &self.process;
        if !process.watch {
            let fault = "off, so that issued certificates are not loaded";
            report.refuse(key!("process", process.watch), fault, "true with [acme]");
        }
        if !self.listener.iter().any(|listener| listener.acme) {
            let fault = "no listener serves these certificates";
            report.remark("acme.certificate", format!("{fault}; set listener.acme"));
        }
        let direct = |listener: &ListenerSection| listener.speaks() == ListenMode::Tls;
        for (kind, is_answered, fault, accepted) in [
            (
                ChallengeKind::TlsAlpn,
                self.listener.iter().any(direct),
                "tls-alpn-01 needs a listener on which clients begin with TLS",
                "such a listener at port 443, or another challenge",
            ),
            (
                ChallengeKind::Http,
                self.listener.iter().any(|it| self.answers_http(it)),
                "http-01 needs a listener that answers it at port 80",
                "tls = false with acme-http, redirect or files in a listener, or another challenge",
            ),
        ] {
            if let Some(path) = acme.key_of(kind).filter(|_| !is_answered) {
                report.refuse(path, fault, accepted);
            }
        }
    }

    /// Returns whether a listener answers HTTP-01. Files over TLS count, because authorities follow
    /// a redirect from port 80 of another host.
    fn answers_http(&self, listener: &ListenerSection) -> bool {
        let is_served = |way: &Way<'_>| {
            let backend = way.backend.and_then(|name| self.backend_named(name));
            backend.is_some_and(|it| it.files.is_some())
        };
        listener.acme_http || listener.redirect.is_some() || listener.ways().iter().any(is_served)
    }
}

impl Acme {
    fn check(&self, report: &mut Report) {
        let at = "acme";
        if self.authority.is_empty() {
            let accepted = "at least one authority";
            report.refuse(key!(at, self.authority), "missing", accepted);
        }
        for (index, authority) in self.authority.iter().enumerate() {
            if authority.directory(self.staging).is_none() {
                let path = format!("{}[{index}]", key!(at, self.authority));
                let fault = "has no test environment";
                report.refuse(path, fault, "another authority, or staging = false");
            }
        }
        for (index, contact) in self.contact.iter().enumerate() {
            if !contact.contains('@') || contact.contains(char::is_whitespace) {
                let path = format!("{}[{index}]", key!(at, self.contact));
                report.refuse(
                    path,
                    "not a mail address",
                    "an address such as you@example.org",
                );
            }
        }
        if self.certificate.is_empty() {
            let accepted = "at least one [[acme.certificate]] with names";
            report.refuse(key!(at, self.certificate), "missing", accepted);
        }
        if self.certificate.len() > MOST_CERTIFICATES {
            let fault = format!("{} certificates", self.certificate.len());
            let accepted = format!("at most {MOST_CERTIFICATES}");
            report.refuse(key!(at, self.certificate), fault, accepted);
        }
        for (index, account) in self.external_account.iter().enumerate() {
            let path = format!("{}[{index}]", key!(at, self.external_account));
            let path = key!(path, account.authority);
            let mut earlier = self.external_account.iter().take(index);
            if earlier.any(|it| it.authority == account.authority) {
                let fault = "an earlier entry is for the same authority";
                report.refuse(&path, fault, "one entry for each authority");
            }
            let own = account.authority.as_ref();
            if own.is_some_and(|own| !self.authority.contains(own)) {
                report.refuse(path, "not in acme.authority", "one of acme.authority");
            }
        }
        if let Some(on_demand) = &self.on_demand {
            on_demand.check(&key!(at, self.on_demand), report);
        }
        let mut files = HashSet::new();
        for (index, certificate) in self.certificate.iter().enumerate() {
            let path = format!("{}[{index}]", key!(at, self.certificate));
            self.check_certificate(&path, certificate, report);
            if !files.insert(certificate.stem()) {
                let path = key!(path, certificate.names);
                let fault = "an earlier certificate has the same first name";
                let accepted = "another order of the names, or key = \"rsa-2048\" in one of both";
                report.refuse(path, fault, accepted);
            }
        }
    }

    /// Returns the key that selects a kind of challenge, if it is used.
    fn key_of(&self, kind: ChallengeKind) -> Option<String> {
        let own = |it: &AcmeCertificate| it.challenge == Some(kind);
        let mut all = self.certificate.iter();
        let is_default = self.on_demand.is_some() || all.any(|it| it.challenge.is_none());
        if is_default && self.challenge == kind {
            return Some(key!("acme", self.challenge));
        }
        let index = self.certificate.iter().position(own)?;
        Some(format!(
            "{}[{index}].challenge",
            key!("acme", self.certificate)
        ))
    }

    fn check_certificate(&self, path: &str, certificate: &AcmeCertificate, report: &mut Report) {
        let names = key!(path, certificate.names);
        if !(1..=MOST_NAMES).contains(&certificate.names.len()) {
            let fault = format!("{} names", certificate.names.len());
            report.refuse(&names, fault, format!("1 to {MOST_NAMES} names"));
        }
        let challenge = self.challenge(certificate);
        for (index, name) in certificate.names.iter().enumerate() {
            let path = format!("{names}[{index}]");
            if name.is_wildcard() && !challenge.proves_wildcards() {
                let fault = format!("{} does not prove a wildcard", challenge.label());
                report.refuse(&path, fault, "challenge = \"dns-persist-01\" or \"dns-01\"");
            }
            if name.address().is_some() && challenge.proves_wildcards() {
                let fault = format!("{} does not prove an address", challenge.label());
                report.refuse(&path, fault, "challenge = \"tls-alpn-01\" or \"http-01\"");
            }
            if certificate.names[..index].contains(name) {
                report.refuse(path, "given twice", "each name once");
            }
        }
        if challenge == ChallengeKind::Dns && self.hook.is_none() {
            let accepted = "a program that creates DNS records";
            report.refuse(key!("acme", self.hook), "missing for dns-01", accepted);
        }
    }
}

impl OnDemand {
    fn check(&self, at: &str, report: &mut Report) {
        if self.names.is_empty() && self.folder.is_none() && self.ask.is_none() {
            let accepted = "names, folder or ask, which decide for which names";
            report.refuse(key!(at, self.names), "missing", accepted);
        }
        if self.names.len() > MOST_NAMES {
            let fault = format!("{} names", self.names.len());
            report.refuse(key!(at, self.names), fault, format!("at most {MOST_NAMES}"));
        }
        let is_url = |url: &String| url.starts_with("http://") || url.starts_with("https://");
        if self.ask.as_ref().is_some_and(|url| !is_url(url)) {
            let accepted = "a URL such as http://127.0.0.1:8080/allowed";
            report.refuse(key!(at, self.ask), "not an http or https URL", accepted);
        }
        for (path, number, most) in [
            (key!(at, self.per_hour), self.per_hour, MOST_PER_HOUR),
            (key!(at, self.most), self.most, MOST_CERTIFICATES),
        ] {
            if !(1..=most).contains(&number) {
                report.refuse(path, format!("{number}"), format!("1 to {most}"));
            }
        }
    }
}

/// Maximum number of orders in an hour. Let's Encrypt allows 300 in three hours.
const MOST_PER_HOUR: usize = 100;
/// Maximum number of certificates. The orders of a day, 50, could not renew more.
const MOST_CERTIFICATES: usize = 10_000;
/// Maximum number of names in a list. Let's Encrypt accepts no more in a certificate.
const MOST_NAMES: usize = 100;
