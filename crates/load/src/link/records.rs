//! The TLS side of a link: feeds the library with records, collects what it wants to send, and
//! writes down what the handshake was.
//!
//! The library's states are handled in one loop ([`LoadConnection::records`]); what is to be sent gathers in the
//! outbox and goes out in one write per flight.

use std::time::Instant;

use rustls::client::ClientConnectionData;
use rustls::unbuffered::{ConnectionState, TransmitTlsData, UnbufferedStatus, WriteTraffic};
use rustls::{HandshakeKind, ProtocolVersion};

use super::{LoadConnection, Phase};
use crate::env::Env;
use crate::exchange::{Early, Exchange, encode};
use crate::failure::Failure;
use crate::hello::Offered;
use crate::negotiated;
use crate::plan::Plan;
use crate::resume::Ask;
use crate::tls::Tls;

impl LoadConnection {
    /// Feeds TLS with `filled` bytes of the scratch buffer and collects what it wants to send.
    pub(super) fn drive(
        &mut self,
        env: &mut Env,
        filled: usize,
        now: Instant,
    ) -> Result<(), Failure> {
        let (used, result) = self.records(env, filled, now);
        self.wire.keep(env.input.get(used..filled).unwrap_or(&[]));
        result?;
        let done = self.tls.as_ref().is_some_and(|tls| !tls.is_handshaking());
        if self.phase == Phase::Handshaking && done {
            self.on_handshake(env, now)?;
        }
        Ok(())
    }

    /// Lets TLS work through the records; returns how many bytes it has used up.
    fn records(
        &mut self,
        env: &mut Env,
        filled: usize,
        now: Instant,
    ) -> (usize, Result<(), Failure>) {
        let Self {
            wire,
            tls,
            exchange,
            phase,
            peer_closed,
            ..
        } = self;
        let Some(tls) = tls else {
            return (filled, Ok(()));
        };
        let outbox = &mut wire.outbox;
        let mut used = 0;
        loop {
            let records = env.input.get_mut(used..filled).unwrap_or(&mut []);
            let UnbufferedStatus { discard, state, .. } = tls.process_tls_records(records);
            used += discard;
            let step = match state {
                Err(error) => return (used, Err(Failure::from_tls(&error))),
                Ok(ConnectionState::EncodeTlsData(mut record)) => encode(&mut record, outbox),
                Ok(ConnectionState::TransmitTlsData(flight)) => {
                    transmit(flight, exchange, outbox, &env.plan);
                    Ok(())
                }
                Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                    let mut fed = Ok(());
                    while let Some(record) = traffic.next_record() {
                        fed = fed.and(match record {
                            Ok(record) => exchange.feed(record.payload, now),
                            Err(error) => Err(Failure::from_tls(&error)),
                        });
                    }
                    fed
                }
                Ok(ConnectionState::PeerClosed) => {
                    *peer_closed = true;
                    Ok(())
                }
                Ok(ConnectionState::WriteTraffic(traffic)) => {
                    exchange.settle_early(outbox);
                    let speech = Speech {
                        exchange,
                        outbox,
                        phase: *phase,
                    };
                    return (used, speech.say(traffic, &env.plan, now));
                }
                Ok(_) => return (used, Ok(())),
            };
            if step.is_err() {
                return (used, step);
            }
        }
    }

    fn on_handshake(&mut self, env: &mut Env, now: Instant) -> Result<(), Failure> {
        let Some(tls) = &self.tls else { return Ok(()) };
        let tls12 = tls.protocol_version() == Some(ProtocolVersion::TLSv1_2);
        let kind = tls.handshake_kind();
        self.resumed = kind == Some(HandshakeKind::Resumed);
        let says_more = !self.resumed
            && env
                .negotiated
                .as_ref()
                .is_some_and(|n| n.signature.is_none());
        if env.negotiated.is_none() || says_more {
            let signature = env.tls.as_ref().filter(|_| !self.resumed);
            let signature = signature.and_then(Tls::signature);
            env.negotiated = Some(negotiated::of(tls, signature));
        }
        let refuses_http = tls
            .alpn_protocol()
            .is_some_and(|alpn| !alpn.starts_with(b"http/1."));
        self.count_handshake(env, kind, tls12);
        let took = now - self.times.mark;
        let samples = env.samples(self.times.step);
        if self.resumed {
            samples.latency.handshake_resumed.record(took);
        } else {
            samples.latency.handshake_full.record(took);
        }
        self.times.mark = now;
        self.phase = Phase::Exchanging;
        if refuses_http {
            return Err(Failure::Alpn);
        }
        Ok(())
    }

    /// Counts what was asked for and what happened.
    fn count_handshake(&self, env: &mut Env, kind: Option<HandshakeKind>, tls12: bool) {
        let counts = &mut env.samples(self.times.step).handshakes;
        match self.ask {
            Ask::Full => counts.asked_full += 1,
            Ask::Resumed => counts.asked_resumed += 1,
        }
        match (self.resumed, tls12, self.offered) {
            (false, ..) => counts.full += 1,
            (true, false, _) => counts.resumed_by_psk += 1,
            (true, true, Offered::Ticket) => counts.resumed_by_ticket += 1,
            (true, true, _) => counts.resumed_by_id += 1,
        }
        let offered = self.offered != Offered::Nothing;
        counts.full_with_retry += u64::from(kind == Some(HandshakeKind::FullWithHelloRetryRequest));
        counts.declined += u64::from(!self.resumed && offered);
        counts.nothing_to_offer += u64::from(self.ask == Ask::Resumed && !offered && !self.resumed);
        counts.early_data_accepted += u64::from(self.exchange.early() == Early::Accepted);
        counts.early_data_rejected += u64::from(self.exchange.early() == Early::Rejected);
    }
}

/// A flight is complete; early data may join the first one.
fn transmit(
    mut flight: TransmitTlsData<'_, ClientConnectionData>,
    exchange: &mut Exchange,
    outbox: &mut Vec<u8>,
    plan: &Plan,
) {
    let first = exchange.early() == Early::None;
    if let Some(mut early) = flight.may_encrypt_early_data().filter(|_| first) {
        exchange.produce_early(&plan.request, outbox, |data, out| {
            early.encrypt(data, out).ok()
        });
    }
    flight.done();
}

/// What is said once there are traffic keys.
struct Speech<'a> {
    exchange: &'a mut Exchange,
    outbox: &'a mut Vec<u8>,
    phase: Phase,
}

impl Speech<'_> {
    fn say(
        self,
        mut traffic: WriteTraffic<'_, ClientConnectionData>,
        plan: &Plan,
        now: Instant,
    ) -> Result<(), Failure> {
        // A client that keeps Nagle's algorithm on is one that writes Finished and request apart.
        let apart =
            plan.network.nagle && self.phase == Phase::Handshaking && !self.outbox.is_empty();
        if apart || self.phase == Phase::Closing {
            return Ok(());
        }
        self.exchange
            .produce_tls(&mut traffic, &plan.request, self.outbox, now)
    }
}
