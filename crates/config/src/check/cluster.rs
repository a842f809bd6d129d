//! Finds contradictions in `[cluster]`.

use becket_proto::epoch::EpochLength;

use crate::cluster::Cluster;
use crate::error::Report;
use crate::key;

impl Cluster {
    pub(super) fn check(&self, report: &mut Report) {
        let at = "cluster";
        if self.secret.is_some() && self.secret_from_key.is_some() {
            let fault = "conflicts with cluster.secret";
            report.refuse(key!(at, self.secret_from_key), fault, "one of the two");
        }
        if self.secret.is_none() && self.secret_from_key.is_none() {
            let accepted = "a file that \"becket secret FILE\" made";
            report.refuse(key!(at, self.secret), "missing", accepted);
        }
        if EpochLength::of(self.rotation).is_none() {
            report.refuse(
                key!(at, self.rotation),
                "not in whole seconds",
                "whole seconds",
            );
        }
        for (index, peer) in self.peers.iter().enumerate() {
            if self.peers[..index]
                .iter()
                .any(|it| it.address == peer.address)
            {
                let path = format!("{}[{index}]", key!(at, self.peers));
                report.refuse(path, "an earlier peer has this address", "each peer once");
            }
        }
        if !self.peers.is_empty() && self.listen.is_none() {
            let fault = "no address to receive their datagrams";
            report.refuse(key!(at, self.peers), fault, "cluster.listen with it");
        }
        self.check_store(report);
    }

    fn check_store(&self, report: &mut Report) {
        let at = "cluster";
        let Some(store) = &self.store else {
            for (path, is_set) in [
                (key!(at, self.store_user), self.store_user.is_some()),
                (
                    key!(at, self.store_password_file),
                    self.store_password_file.is_some(),
                ),
                (key!(at, self.store_ca), self.store_ca.is_some()),
            ] {
                if is_set {
                    report.refuse(path, "no store that it belongs to", "cluster.store with it");
                }
            }
            return;
        };
        if self.store_user.is_some() && self.store_password_file.is_none() {
            let accepted = "cluster.store-password-file with it";
            report.refuse(
                key!(at, self.store_user),
                "a user without a password",
                accepted,
            );
        }
        if self.store_ca.is_some() && !store.has_tls {
            let fault = "cluster.store has no TLS";
            report.refuse(key!(at, self.store_ca), fault, "rediss:// in cluster.store");
        }
    }
}
