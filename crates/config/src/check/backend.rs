//! What contradicts in `[[backend]]` and its tables.

use super::{VERSIONS, check_once};
use crate::address::Address;
use crate::backend::Backend;
use crate::choices::{CheckKind, Introduction, QueuePlace, StickBy, Verify};
use crate::error::Report;
use crate::key;
use crate::listener::{Certificate, Pair};
use crate::policy::{ServerAlpn, ServerTls};

impl Backend {
    pub(super) fn check(&self, path: &str, report: &mut Report) {
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
            if let Some(least) = server.minconn
                && server.maxconn.is_none_or(|most| least > most)
            {
                let fault = "more than the server may have at most";
                let accepted = "at most maxconn, which must be there";
                report.refuse(key!(path, server.minconn), fault, accepted);
            }
        }
        // A ticket is opened by the handshake, so before it nobody knows which session is resumed.
        if self.stick == StickBy::TlsSession && self.queue == QueuePlace::BeforeHandshake {
            let fault = "the session is not known before the handshake";
            let accepted = "none or source, or queue = \"after-handshake\"";
            report.refuse(key!(path, self.stick), fault, accepted);
        }
        if !self.proxy_tlvs.is_empty() && self.proxy_header != Some(Introduction::V2) {
            let fault = "given, but no header of version 2 is sent";
            report.refuse(
                key!(path, self.proxy_tlvs),
                fault,
                "proxy-header = \"v2\" with it",
            );
        }
        check_once(
            &key!(path, self.source),
            &self.source,
            "each address once",
            report,
        );
        self.check_health(&key!(path, self.health), report);
        if let Some(tls) = &self.tls {
            self.check_tls(tls, &key!(path, self.tls), report);
        }
    }

    fn check_health(&self, path: &str, report: &mut Report) {
        let health = &self.health;
        if health.fast_interval > health.interval {
            let fault = "longer than interval";
            report.refuse(key!(path, health.fast_interval), fault, "at most interval");
        }
        if health.expect.is_empty() {
            let accepted = "statuses such as \"200\", \"2xx\" or \"200-399\"";
            report.refuse(key!(path, health.expect), "no status is expected", accepted);
        }
        let given = health.host.is_some() || health.path != Default::default();
        if given && health.check != CheckKind::Http {
            let fault = "only check = \"http\" asks for a path";
            report.remark(key!(path, health.check), fault);
        }
    }

    fn check_tls(&self, tls: &ServerTls, path: &str, report: &mut Report) {
        if tls.versions.is_empty() {
            report.refuse(key!(path, tls.versions), "empty", VERSIONS);
        }
        if let ServerAlpn::Fixed(alpn) = &tls.alpn {
            check_once(&key!(path, tls.alpn), alpn, "each protocol once", report);
        }
        if let Some(Certificate::Pair(pair)) = &tls.client_certificate {
            let path = key!(path, tls.client_certificate);
            pair.check(&path, report);
            if pair.ocsp.is_some() {
                let fault = "given, but servers ask for no OCSP response";
                report.refuse(key!(path, pair.ocsp), fault, "chain and key");
            }
        }
        if tls.verify == Verify::None {
            // Somebody meant to verify.
            for (given, path) in [
                (tls.name.is_some(), key!(path, tls.name)),
                (tls.ca.is_some(), key!(path, tls.ca)),
                (!tls.crl.is_empty(), key!(path, tls.crl)),
            ] {
                if given {
                    let accepted = "verify = \"full\", the default, with it";
                    report.refuse(path, "given, but nothing is verified", accepted);
                }
            }
            let fault = "whoever answers at the servers' addresses is taken for the server";
            return report.remark(key!(path, tls.verify), fault);
        }
        if tls.verify == Verify::Pinned {
            if tls.ca.is_none() {
                let accepted = "a PEM file with the certificates of the servers";
                report.refuse(key!(path, tls.ca), "missing", accepted);
            }
            if !tls.crl.is_empty() {
                let fault = "given, but no issuer is asked: a certificate that is revoked is taken out of ca";
                let accepted = "verify = \"full\", the default, with it";
                report.refuse(key!(path, tls.crl), fault, accepted);
            }
            return;
        }
        let addresses = self
            .server
            .iter()
            .filter_map(|server| server.address.as_ref());
        let mut nameless = addresses.filter(|at| matches!(at.address, Address::Unix(_)));
        if tls.name.is_none()
            && let Some(server) = nameless.next()
        {
            let fault = format!("missing: {} has no name to verify", server.text);
            report.refuse(key!(path, tls.name), fault, "a DNS name or an IP address");
        }
    }
}

impl Pair {
    /// Whether both halves are named.
    pub fn check(&self, path: &str, report: &mut Report) {
        for (text, path) in [
            (&self.chain, key!(path, self.chain)),
            (&self.key, key!(path, self.key)),
        ] {
            if text.is_none() {
                report.refuse(path, "missing", "{ chain = \"..\", key = \"..\" }");
            }
        }
    }
}
