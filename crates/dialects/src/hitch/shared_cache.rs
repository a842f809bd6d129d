//! Sessions of hosts that still run the other program: where they can be taken, and why not.

use std::net::IpAddr;

use super::super::builder::address;
use super::super::setting::SettingSupport;
use super::reader::{HitchTranslator, MAIN, endpoint_of};
use super::scope::{CertificateEntry, words};

impl HitchTranslator {
    /// Sessions of hosts that run the other program.
    pub(super) fn shared_cache(&mut self, certificates: &[CertificateEntry], is_shared: bool) {
        let Some((text, origin)) = self.global.text("shared-cache-listen") else {
            return;
        };
        let Some((host, port)) = endpoint_of(text) else {
            let accepted = "[HOST]:PORT, with the brackets";
            return self.out.refuse(origin, "not an address", accepted);
        };
        let listen = address(host, port);
        let is_group = host.parse::<IpAddr>().is_ok_and(|ip| ip.is_multicast());
        let verify = self.global.text("client-verify");
        let verifies = verify.is_some_and(|(text, _)| text != "none");
        let versions = self.global.text("tls-protos");
        let is_new = versions.is_some_and(|(text, _)| words(text).all(|word| word != "TLSv1.2"));
        let pem = certificates.last().filter(|pem| !pem.path.contains('*'));
        let why = match pem {
            _ if self.global.on("client").is_some() => "no TLS of clients ends here",
            _ if is_group => "nothing is heard of a group: have the hosts name each other",
            _ if verifies => "they do not say whose certificates their clients have shown",
            _ if is_new => "none of them is of TLS 1.3",
            _ if !is_shared => "each frontend has settings of TLS of its own",
            None => "without a pem-file for all frontends nobody knows their key",
            Some(pem) => {
                let key = self.out.place(pem.key.as_ref().unwrap_or(&pem.path));
                self.out.put("cluster.receive-stud", true, origin);
                self.out.put("cluster.stud-listen", listen, origin);
                self.out.put("cluster.stud-certificate", key, origin);
                return self.out.put("cluster.stud-policy", MAIN, origin);
            }
        };
        let why = format!("sessions of other hosts are not taken: {why}");
        self.out.amend(origin, SettingSupport::Different, why);
    }
}
