//! Finds contradictions in `[cluster]`.

use std::sync::Arc;

use becket_proto::epoch::EpochLength;

use super::RSA_KEY;
use crate::address::ListenAddress;
use crate::cluster::Cluster;
use crate::error::Report;
use crate::key;

impl Cluster {
    pub(super) fn check(&self, report: &mut Report) {
        let at = "cluster";
        report.refuse_if(
            self.secret.is_some() && self.secret_from_key.is_some(),
            key!(at, self.secret_from_key),
            "conflicts with cluster.secret",
            "one of the two",
        );
        if self.secret.is_none() && self.secret_from_key.is_none() && self.shares() {
            let accepted = "a file that \"becket secret FILE\" made";
            report.refuse(key!(at, self.secret), "missing", accepted);
        }
        if self.node.is_none() && self.shares() {
            report.refuse(
                key!(at, self.node),
                "missing",
                "1 to 65535, different on each node",
            );
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
        report.refuse_if(
            !self.peers.is_empty() && self.listen.is_none(),
            key!(at, self.peers),
            "no address to receive their datagrams",
            "cluster.listen with it",
        );
        self.check_stud(report);
    }

    /// Rejects keys for stud and hitch without `receive-stud`, and `receive-stud` without its keys.
    fn check_stud(&self, report: &mut Report) {
        let at = "cluster";
        let deaf = "given, but cluster.receive-stud is off";
        let missing = "missing, though cluster.receive-stud is on";
        let stud = self.receive_stud;
        let (hears, reads) = (self.stud_listen.is_some(), self.stud_certificate.is_some());
        let (listen, certificate) = (key!(at, self.stud_listen), key!(at, self.stud_certificate));
        report.refuse_if(hears && !stud, listen.clone(), deaf, STUD);
        report.refuse_if(reads && !stud, certificate.clone(), deaf, STUD);
        report.refuse_if(
            self.stud_policy.is_some() && !stud,
            key!(at, self.stud_policy),
            deaf,
            STUD,
        );
        report.refuse_if(!hears && stud, listen.clone(), missing, UDP);
        report.refuse_if(!reads && stud, certificate, missing, RSA_KEY);
        let text = |at: &Option<ListenAddress>| at.as_ref().map(|at| Arc::clone(&at.text));
        let same = hears && text(&self.listen) == text(&self.stud_listen);
        report.refuse_if(
            same && stud,
            listen,
            "cluster.listen has this address",
            "another port",
        );
    }
}

const STUD: &str = "cluster.receive-stud = true with it";
const UDP: &str = "a UDP address such as \"192.0.2.1:8890\"";
