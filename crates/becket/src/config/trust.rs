//! The part of `prepare` about PROXY headers: whose is believed, and what ours say.

use becket_proto::proxy_header::Accept;

use super::error::Problem;
use super::file::{FileAcceptProxy, FileBackend, FileListener, FileProxyTlv};
use super::prepare::Draft;
use super::{AcceptProxy, ProxyTlvs, ProxyVersion};

impl Draft<'_> {
    /// The header that a listener expects, if it expects one.
    pub(super) fn accept_proxy(
        &mut self,
        path: &str,
        listener: &FileListener,
    ) -> Option<AcceptProxy> {
        let listed = &listener.trusted_networks;
        let path = format!("{path}.trusted-networks");
        let trusted = self.networks(&path, listed);
        let versions = match listener.accept_proxy {
            Some(FileAcceptProxy::V1) => Accept::V1,
            Some(FileAcceptProxy::V2) => Accept::V2,
            Some(FileAcceptProxy::Any) => Accept::Either,
            None if listed.is_empty() => return None,
            None => {
                let fault = "given, but no PROXY header is accepted";
                let problem = Problem::new(path, fault);
                self.report
                    .error(problem.accepted("accept-proxy = \"v1\", \"v2\" or \"any\" with it"));
                return None;
            }
        };
        if listed.is_empty() {
            let fault =
                "missing, though a PROXY header is accepted: who sends one may claim any address";
            let problem = Problem::new(path, fault);
            self.report.error(
                problem.accepted("the networks of the proxies in front, such as \"10.0.0.0/8\""),
            );
        }
        Some(AcceptProxy { versions, trusted })
    }

    /// What the headers towards a backend say only if asked to.
    pub(super) fn proxy_tlvs(&mut self, path: &str, backend: &FileBackend) -> ProxyTlvs {
        let listed = &backend.proxy_tlvs;
        if !listed.is_empty() && backend.proxy_header != Some(ProxyVersion::V2) {
            let problem = Problem::new(
                format!("{path}.proxy-tlvs"),
                "given, but no header of version 2 is sent",
            );
            self.report
                .error(problem.accepted("proxy-header = \"v2\" with it"));
        }
        ProxyTlvs {
            checksum: listed.contains(&FileProxyTlv::Crc32c),
            unique_id: listed.contains(&FileProxyTlv::UniqueId),
            client_certificate: listed.contains(&FileProxyTlv::ClientCertificate),
        }
    }
}
