//! Finds contradictions in `[[backend]]` and its tables.

use std::collections::HashSet;

use becket_proto::http_status::Expected;

use crate::address::{Address, ServerAddress};
use crate::backend::{Backend, Files};
use crate::choices::{Introduction, Verify};
use crate::error::Report;
use crate::key;
use crate::key_source::KeySource;
use crate::listener::{Certificate, Pair};
use crate::notation::Text;
use crate::policy::ServerTls;
use crate::suites::ServedVersion;

impl Backend {
    pub(crate) fn check(&self, path: &str, report: &mut Report) {
        if let Some(files) = &self.files {
            return self.check_files(files, path, report);
        }
        if self.server.is_empty() {
            let accepted = "at least one server with an address";
            report.refuse(key!(path, self.server), "missing", accepted);
        }
        for (index, server) in self.server.iter().enumerate() {
            let path = format!("{path}.server[{index}]");
            let before = self.server[..index].iter();
            let mut before = before.filter_map(|server| server.address.as_ref());
            match &server.address {
                None => {
                    let accepted = "HOST:PORT, [V6]:PORT or /unix/path";
                    report.refuse(key!(path, server.address), "missing", accepted);
                }
                Some(address) if before.any(|other| other.text == address.text) => {
                    let fault = "an earlier server of this backend has this address";
                    report.refuse(key!(path, server.address), fault, "each server once");
                }
                Some(_) => {}
            }
        }
        if !self.proxy_tlvs.is_empty() && self.proxy_header != Some(Introduction::V2) {
            let fault = "given, but no header of version 2 is sent";
            report.refuse(
                key!(path, self.proxy_tlvs),
                fault,
                "proxy-header = \"v2\" with it",
            );
        }
        let (path_of_health, health) = (key!(path, self.health), &self.health);
        if health.expect.is_empty() {
            let path = key!(path_of_health, health.expect);
            report.refuse(path, "no status is expected", Expected::ACCEPTED);
        }
        if let Some(tls) = &self.tls {
            self.check_tls(tls, &key!(path, self.tls), report);
        }
    }

    /// Rejects all keys except `name` in a backend with `files`, because such a backend has no
    /// servers.
    fn check_files(&self, files: &Files, path: &str, report: &mut Report) {
        let alone = Self {
            name: self.name.clone(),
            files: self.files.clone(),
            ..Self::default()
        };
        if *self != alone {
            let fault = "conflicts with keys of a backend with servers";
            report.refuse(key!(path, self.files), fault, "only files and name");
        }
        let path = key!(path, self.files);
        if files.root.as_ref().is_none_or(String::is_empty) {
            report.refuse(key!(path, files.root), "missing", "the path of a folder");
        }
        let index = key!(path, files.index);
        for (number, name) in files.index.iter().enumerate() {
            if !is_file_name(name) || name.contains('/') {
                let accepted = "the name of a file that does not begin with a dot";
                report.refuse(format!("{index}[{number}]"), "not a name", accepted);
            }
        }
        for (number, rule) in files.cache_control.iter().enumerate() {
            let path = format!("{}[{number}]", key!(path, files.cache_control));
            if !rule.paths.starts_with(['/', '*']) || glob::Pattern::new(&rule.paths).is_err() {
                let accepted = "a pattern such as \"/assets/*\" or \"*.css\"";
                report.refuse(key!(path, rule.paths), "matches no path", accepted);
            }
            if rule.value.0.is_empty() {
                let accepted = "a value such as \"max-age=3600\"";
                report.refuse(key!(path, rule.value), "missing", accepted);
            }
        }
        let mut seen = HashSet::new();
        for (number, page) in files.error_page.iter().enumerate() {
            let path = format!("{}[{number}]", key!(path, files.error_page));
            if !page
                .status
                .is_some_and(|status| PAGES.contains(&status) && seen.insert(status))
            {
                let accepted = "403, 404, 405, 412, 416, 500 or 503, each once";
                report.refuse(
                    key!(path, page.status),
                    "not a status with a page",
                    accepted,
                );
            }
            if !page.path.split('/').all(is_file_name) {
                let accepted = "a path below the folder, such as \"404.html\"";
                report.refuse(key!(path, page.path), "not a path", accepted);
            }
        }
    }

    fn check_tls(&self, tls: &ServerTls, path: &str, report: &mut Report) {
        if tls.versions.is_empty() {
            report.refuse(key!(path, tls.versions), "empty", ServedVersion::ACCEPTED);
        }
        if let Some(Certificate::Pair(pair)) = &tls.client_certificate {
            let path = key!(path, tls.client_certificate);
            pair.check(&path, report);
            for (given, path) in [
                (pair.ocsp.is_some(), key!(path, pair.ocsp)),
                (pair.policy.is_some(), key!(path, pair.policy)),
            ] {
                if given {
                    let fault = "given, but this certificate is sent to servers";
                    report.refuse(path, fault, "chain and key");
                }
            }
            if matches!(pair.key, Some(KeySource::Token(_))) {
                // The worker signs handshakes with servers itself, so a slow token would block it.
                let fault = "keys on tokens sign for listeners only";
                report.refuse(key!(path, pair.key), fault, "a PEM file");
            }
        }
        self.check_verify(tls, path, report);
    }

    fn check_verify(&self, tls: &ServerTls, path: &str, report: &mut Report) {
        let with_full = "verify = \"full\", the default, with it";
        let mut refuse_given = |given: &[(bool, String)], fault| {
            for (_, path) in given.iter().filter(|(is_given, _)| *is_given) {
                report.refuse(path, format!("given, but {fault}"), with_full);
            }
        };
        let name = (tls.name.is_some(), key!(path, tls.name));
        let ca = (tls.ca.is_some(), key!(path, tls.ca));
        let crl = (!tls.crl.is_empty(), key!(path, tls.crl));
        match tls.verify {
            Verify::None => {
                refuse_given(&[name, ca, crl], "nothing is verified");
                let fault = "server certificates are not verified";
                report.remark(key!(path, tls.verify), fault);
            }
            Verify::Chain => {
                refuse_given(&[name], "only the chain is verified");
                let fault = "certificates of these authorities are accepted with any name";
                report.remark(key!(path, tls.verify), fault);
            }
            Verify::Pinned => {
                let fault = "issuers are not checked; to revoke a certificate, remove it from ca";
                refuse_given(&[crl], fault);
                if !ca.0 {
                    let accepted = "a PEM file with the certificates of the servers";
                    report.refuse(ca.1, "missing", accepted);
                }
            }
            Verify::Full if name.0 => {}
            Verify::Full => {
                let mut servers = self.server.iter().filter_map(|it| it.address.as_ref());
                let is_unix = |at: &&ServerAddress| matches!(at.address, Address::Unix(_));
                if let Some(server) = servers.find(is_unix) {
                    let fault = format!("missing: {} has no name to verify", server.text);
                    report.refuse(name.1, fault, "a DNS name or an IP address");
                }
            }
        }
    }
}

fn is_file_name(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('.') && !name.contains('\0')
}

/// Status codes for which an error page may be configured.
const PAGES: [u16; 7] = [403, 404, 405, 412, 416, 500, 503];

impl Pair {
    /// Reports a missing chain or a missing key.
    pub fn check(&self, path: &str, report: &mut Report) {
        for (is_missing, path) in [
            (self.chain.is_none(), key!(path, self.chain)),
            (self.key.is_none(), key!(path, self.key)),
        ] {
            if is_missing {
                report.refuse(path, "missing", "{ chain = \"..\", key = \"..\" }");
            }
        }
    }
}
