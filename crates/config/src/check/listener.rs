//! Finds contradictions in `[[listener]]` and `[[policy]]`.

use becket_proto::starttls::Protocol;

use crate::choices::{ClientCertificates, ClientTrust, KernelTls, Mode};
use crate::error::Report;
use crate::key;
use crate::listener::{ListenMode, ListenerSection};
use crate::notation::Text;
use crate::policy::Policy;
use crate::suites::{KeyExchangeGroup, ServedVersion};

impl ListenerSection {
    pub(super) fn check(&self, path: &str, report: &mut Report) {
        let speaks = self.speaks();
        if self.bind.is_empty() {
            let accepted = "at least one HOST:PORT, [V6]:PORT or :PORT";
            report.refuse(key!(path, self.bind), "missing", accepted);
        }
        if self.certificates.is_empty() && !self.acme && self.ends_tls() {
            let accepted =
                "files, directories of *.pem, { chain = \"..\", key = \"..\" }, or acme = true";
            report.refuse(key!(path, self.certificates), "missing", accepted);
        }
        self.check_mode(path, speaks, report);
        if self.kernel_tls == KernelTls::Bulk && speaks == ListenMode::Plain {
            let fault = "clients use no TLS here";
            report.refuse(key!(path, self.kernel_tls), fault, "\"off\"");
        }
        if self.acme_http && self.tls {
            let fault = "clients use TLS here, and an authority begins in clear text";
            let accepted = "tls = false with it, at port 80";
            report.refuse(key!(path, self.acme_http), fault, accepted);
        }
        if self.redirect.is_some() {
            let path = key!(path, self.redirect);
            if self.tls {
                let fault = "clients use TLS here already";
                report.refuse(&path, fault, "tls = false with it");
            }
            if self.backend.is_some() {
                let fault = "conflicts with backend";
                report.refuse(path, fault, "one of the two");
            }
        }
        if self.cancel_requests.is_some() && speaks != ListenMode::StartTls(Protocol::Postgresql) {
            let fault = "given, but clients do not use PostgreSQL here";
            let accepted = "only with starttls = \"postgresql\"";
            report.refuse(key!(path, self.cancel_requests), fault, accepted);
        }
        let trusted = key!(path, self.trusted_networks);
        match (self.accept_proxy, self.trusted_networks.is_empty()) {
            (None, false) => {
                let fault = "given, but no PROXY header is accepted";
                let accepted = "accept-proxy = \"v1\", \"v2\" or \"any\" with it";
                report.refuse(trusted, fault, accepted);
            }
            (Some(_), true) => {
                let fault = "missing, though a PROXY header is accepted: its sender can claim any client address";
                let accepted = "the networks of the proxies in front, such as \"10.0.0.0/8\"";
                report.refuse(trusted, fault, accepted);
            }
            _ => {}
        }
        self.check_routes(path, report);
        self.check_policies_of_certificates(path, speaks, report);
    }

    /// Rejects policies in `certificates` on a listener with routes or STARTTLS.
    fn check_policies_of_certificates(&self, path: &str, speaks: ListenMode, report: &mut Report) {
        if self.route.is_empty() && speaks == ListenMode::Tls {
            return;
        }
        for (index, _) in self
            .certificates
            .iter()
            .enumerate()
            .filter(|it| it.1.policy().is_some())
        {
            let path = format!("{}[{index}].policy", key!(path, self.certificates));
            let accepted = "only without routes and starttls";
            report.refuse(
                path,
                "given, but this listener has routes or starttls",
                accepted,
            );
        }
    }

    /// Rejects keys that conflict with `tls`, `mode` or `starttls`.
    fn check_mode(&self, path: &str, speaks: ListenMode, report: &mut Report) {
        let mut refuse_if = |is_wrong, path: String, fault: &str| {
            if is_wrong {
                report.refuse(path, format!("given, but {fault}"), WHERE_TLS_ENDS);
            }
        };
        let passes = self.mode == Mode::Passthrough;
        let starts = matches!(speaks, ListenMode::StartTls(_));
        let (certified, routed) = (!self.certificates.is_empty(), !self.route.is_empty());
        refuse_if(passes && !self.tls, key!(path, self.mode), NO_TLS);
        refuse_if(
            self.starttls.is_some() && !starts,
            key!(path, self.starttls),
            NOT_ENDED,
        );
        let ends = self.ends_tls();
        refuse_if(certified && !ends, key!(path, self.certificates), NOT_ENDED);
        refuse_if(self.acme && !ends, key!(path, self.acme), NOT_ENDED);
        refuse_if(
            self.policy.is_some() && !ends,
            key!(path, self.policy),
            NOT_ENDED,
        );
        refuse_if(
            !self.alpn.is_empty() && !ends,
            key!(path, self.alpn),
            NOT_ENDED,
        );
        if routed && speaks.connects_first() {
            report.refuse(key!(path, self.route), NO_NAME, BY_NAME);
        }
    }

    fn check_routes(&self, path: &str, report: &mut Report) {
        let asks = matches!(self.speaks(), ListenMode::StartTls(_));
        for (index, route) in self.route.iter().enumerate() {
            let path = format!("{path}.route[{index}]");
            let passes = route.mode.unwrap_or(self.mode) == Mode::Passthrough;
            if passes && asks {
                let fault = "given, but the server would wait for an unencrypted SSLRequest";
                report.refuse(key!(path, route.mode), fault, WHERE_TLS_ENDS);
            }
            if passes && route.policy.is_some() {
                let fault = format!("given, but {PASSES}");
                report.refuse(key!(path, route.policy), fault, WHERE_TLS_ENDS);
            }
        }
    }
}

impl Policy {
    pub(super) fn check(&self, path: &str, report: &mut Report) {
        self.check_parameters(path, report);
        if let Some(tried) = self.tried() {
            tried.check_parameters(&key!(path, self.trial), report);
        }
        if self.early_data.is_some() && self.versions.contains(&ServedVersion::Tls12) {
            let fault = "early data belongs to TLS 1.3, and this policy allows TLS 1.2";
            let accepted = "versions = [\"1.3\"] with it, or \"off\"";
            report.refuse(key!(path, self.early_data), fault, accepted);
        }
        self.check_client_certificates(path, report);
    }

    fn check_parameters(&self, path: &str, report: &mut Report) {
        if self.versions.is_empty() {
            report.refuse(key!(path, self.versions), "empty", ServedVersion::ACCEPTED);
        }
        for (version, name) in [(ServedVersion::Tls12, "1.2"), (ServedVersion::Tls13, "1.3")] {
            if !self.versions.contains(&version) {
                continue;
            }
            let fits = |number: &u16| (number >> 8 == 0x13) == (version == ServedVersion::Tls13);
            let mut numbers = self.suites.iter().flatten().flat_map(|it| it.numbers());
            if self.suites.is_some() && !numbers.any(|number| fits(&number)) {
                let fault = format!("no suite for TLS {name}, which the policy allows");
                report.refuse(key!(path, self.suites), fault, "one for each version");
            }
            let fits = |group: &KeyExchangeGroup| {
                version == ServedVersion::Tls13 || *group != KeyExchangeGroup::X25519MlKem768
            };
            if !self.groups.iter().any(fits) {
                let fault = format!("no group for TLS {name}, which the policy allows");
                report.refuse(key!(path, self.groups), fault, "one for each version");
            }
        }
    }

    fn check_client_certificates(&self, path: &str, report: &mut Report) {
        let asks = self.client_certificates != ClientCertificates::Off;
        if asks && self.client_ca.is_none() {
            let fault = "missing, though client certificates are requested";
            let accepted = "a PEM file of CA certificates";
            report.refuse(key!(path, self.client_ca), fault, accepted);
        }
        if self.client_trust == ClientTrust::Certificates && !self.crl.is_empty() {
            let fault = "given, but issuers are not checked; to revoke a certificate, remove it from client-ca";
            let accepted = "client-trust = \"authorities\", the default, with it";
            report.refuse(key!(path, self.crl), fault, accepted);
        }
        // These keys have no effect unless client certificates are requested.
        let locks = [
            (self.client_ca.is_some(), key!(path, self.client_ca)),
            (!self.client_names.is_empty(), key!(path, self.client_names)),
            (!self.crl.is_empty(), key!(path, self.crl)),
        ];
        let given = locks.into_iter().find(|(is_given, _)| *is_given && !asks);
        if let Some((_, path)) = given {
            let fault = "given, but client certificates are not requested";
            let asked = "client-certificates = \"optional\" or \"required\" with it";
            report.refuse(path, fault, asked);
        }
    }
}

const NO_TLS: &str = "clients use no TLS here";
const NOT_ENDED: &str = "this listener terminates no TLS";
const PASSES: &str = "this route passes TLS through";
const WHERE_TLS_ENDS: &str =
    "only where TLS is terminated, with the defaults of tls, mode and starttls";
const NO_NAME: &str = "given, but the server is connected before a name is known";
const BY_NAME: &str = "only with TLS from the first byte, or with starttls = \"postgresql\"";
