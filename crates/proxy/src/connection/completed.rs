//! Negotiated parameters and counters of a completed handshake.

use std::time::Duration;

use rustls::{HandshakeKind, ProtocolVersion};

use super::context::Net;
use super::decision::HelloDecision;
use crate::metrics::Counters;
use becket_keys::identity::Identity;
use becket_log::facts::Agreed;
use becket_log::facts::ResumedBy;
use becket_tls::engine::Engine;

/// Returns the negotiated parameters. Fields that the engine does not know are empty.
pub(super) fn agreed<N: Net>(engine: &Engine, client: &HelloDecision<N>, took: Duration) -> Agreed {
    let facts = engine.facts();
    let version = facts.and_then(|facts| facts.protocol_version());
    let suite = facts.and_then(|facts| facts.negotiated_cipher_suite());
    let group = facts.and_then(|facts| facts.negotiated_key_exchange_group());
    let certificate = facts.and_then(|facts| facts.peer_certificates()?.first());
    Agreed {
        version,
        suite: suite.map(|suite| suite.suite()),
        group: group.map(|group| group.name()),
        alpn: facts.and_then(|facts| facts.alpn_protocol().map(Box::from)),
        resumed: resumed_by(engine, client, version),
        early_data: None,
        client_verified: certificate.is_some(),
        identity: certificate.and_then(Identity::of),
        would_refuse: None,
        presented: None,
        took,
    }
}

fn resumed_by<N: Net>(
    engine: &Engine,
    client: &HelloDecision<N>,
    version: Option<ProtocolVersion>,
) -> Option<ResumedBy> {
    if engine.handshake_kind() != Some(HandshakeKind::Resumed) {
        return None;
    }
    let by_id = client
        .handshake
        .as_ref()
        .and_then(|handshake| handshake.resumption.opened)
        .is_some_and(|opened| opened.by_id);
    Some(if version == Some(ProtocolVersion::TLSv1_3) {
        ResumedBy::Psk
    } else if by_id {
        ResumedBy::Id
    } else {
        ResumedBy::Ticket
    })
}

pub(super) fn count(agreed: &Agreed, counters: &Counters) {
    let tls13 = agreed.version == Some(ProtocolVersion::TLSv1_3);
    let resumed = agreed.resumed.is_some();
    counters.handshakes[usize::from(tls13)][usize::from(resumed)].add(1);
    if resumed {
        counters.handshake_resumed.record(agreed.took);
    } else {
        counters.handshake_full.record(agreed.took);
    }
}

/// Counts whether a session that the client offered was resumed, and whether a ticket was withheld.
/// Also used for failed handshakes.
pub(super) fn count_offer<N: Net>(client: &HelloDecision<N>, counters: &Counters) {
    let Some(handshake) = &client.handshake else {
        return;
    };
    if let Some(outcome) = handshake.resumption.outcome {
        counters.resumptions.of(client.served.offer, outcome).add(1);
    }
    if handshake.resumption.withheld {
        counters.tickets_withheld.add(1);
    }
}

/// Counts announced early data as accepted or rejected.
pub(super) fn count_early<N: Net>(client: &HelloDecision<N>, taken: bool, counters: &Counters) {
    if !client.offers_early {
        return;
    }
    if taken {
        counters.early_accepted.add(1);
    } else {
        counters.early_rejected.add(1);
    }
}
