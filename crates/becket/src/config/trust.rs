//! The part of `prepare` that says whose PROXY header is believed.

use becket_proto::proxy_header::Accept;

use super::AcceptProxy;
use super::error::Problem;
use super::file::{FileAcceptProxy, FileListener};
use super::prepare::Draft;

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
}
