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
    }
}
