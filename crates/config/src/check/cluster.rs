//! What contradicts in `[cluster]`.

use becket_proto::epoch::EpochLength;

use super::RSA_KEY;
use crate::cluster::Cluster;
use crate::error::Report;
use crate::key;

impl Cluster {
    pub(super) fn check(&self, report: &mut Report) {
        let at = "cluster";
        match (&self.secret, &self.secret_state) {
            (Some(_), Some(_)) => {
                let fault = "a second secret that seals, beside cluster.secret";
                let accepted = "one of the two; the other in cluster.accept-secrets";
                report.refuse(key!(at, self.secret_state), fault, accepted);
            }
            (None, None) => {
                let accepted = "a file that \"becket secret FILE\" made, or cluster.secret-state";
                report.refuse(key!(at, self.secret), "missing", accepted);
            }
            _ => {}
        }
        if self.node.is_none() {
            report.refuse(
                key!(at, self.node),
                "missing",
                "1 to 65535, another on each node",
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
        let (listen, group) = (self.listen.is_some(), self.multicast.is_some());
        let silent = "no address to hear them on";
        for (is_wrong, path, fault, accepted) in [
            // Whoever names peers wants to hear from them.
            (
                !self.peers.is_empty() && !listen,
                key!(at, self.peers),
                silent,
                LISTEN,
            ),
            (group && !listen, key!(at, self.multicast), silent, LISTEN),
            // What says how a group is reached is of no use without one.
            (
                self.multicast_interface.is_some() && !group,
                key!(at, self.multicast_interface),
                "without a group",
                GROUP,
            ),
            (
                self.multicast_ttl.is_some() && !group,
                key!(at, self.multicast_ttl),
                "without a group",
                GROUP,
            ),
        ] {
            if is_wrong {
                report.refuse(path, fault, accepted);
            }
        }
        self.check_stud(report);
    }

    /// Keys of stud and hitch go together.
    fn check_stud(&self, report: &mut Report) {
        let at = "cluster";
        let deaf = "given, but such sessions are not received";
        let missing = "missing, though cluster.receive-stud is on";
        let stud = self.receive_stud;
        let same = self.listen.as_ref().map(|it| &it.text);
        let same = same.is_some() && same == self.stud_listen.as_ref().map(|it| &it.text);
        for (is_wrong, path, fault, accepted) in [
            (
                self.stud_listen.is_some() && !stud,
                key!(at, self.stud_listen),
                deaf,
                STUD,
            ),
            (
                self.stud_certificate.is_some() && !stud,
                key!(at, self.stud_certificate),
                deaf,
                STUD,
            ),
            (
                self.stud_policy.is_some() && !stud,
                key!(at, self.stud_policy),
                deaf,
                STUD,
            ),
            (
                self.stud_listen.is_none() && stud,
                key!(at, self.stud_listen),
                missing,
                "a UDP address such as \"192.0.2.1:8890\"",
            ),
            (
                self.stud_certificate.is_none() && stud,
                key!(at, self.stud_certificate),
                missing,
                RSA_KEY,
            ),
            (
                same && stud,
                key!(at, self.stud_listen),
                "cluster.listen has this address",
                "another port",
            ),
        ] {
            if is_wrong {
                report.refuse(path, fault, accepted);
            }
        }
    }
}

const LISTEN: &str = "cluster.listen with it";
const GROUP: &str = "cluster.multicast with it";
const STUD: &str = "cluster.receive-stud = true with it";
