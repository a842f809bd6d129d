//! A connected server, with pending bytes for it and for the client.

use std::mem;

use becket_config::process::LimitsSection;
use becket_proto::half_pipe::HalfPipe;
use rustls::client::UnbufferedClientConnection;

use super::context::{EarlyBytes, Net, Side};
use super::half::{Half, Tls};
use crate::backend::slot::ServerSlot;
use crate::leg::Leg;
use crate::metrics::Counters;
use crate::pipes::Lent;
use becket_proto::close_reason::CloseReason;
use becket_tls::engine::Engine;
use becket_tls::scratch::Buffer;

#[derive(Debug)]
pub(super) struct Connected<N: Net> {
    pub(super) leg: Leg<N::Server>,
    /// `None` for plain TCP. Boxed, because most servers use plain TCP.
    pub(super) tls: Option<Box<Tls<UnbufferedClientConnection>>>,
    /// Declared after the socket, because fields are dropped in order: the socket is closed before
    /// the slot is returned.
    pub(super) slot: ServerSlot,
    pub(super) to_server: HalfPipe<Lent>,
    pub(super) to_client: HalfPipe<Lent>,
}

impl<N: Net> Connected<N> {
    /// Returns the server's side of the relay, and the direction from the server to the client.
    pub(super) fn half<'a>(
        &'a mut self,
        counters: &'a Counters,
        limits: &'a LimitsSection,
    ) -> (
        Half<'a, N::Server, UnbufferedClientConnection>,
        &'a mut HalfPipe<Lent>,
    ) {
        let tls = self.tls.as_deref_mut();
        let leg = (&mut self.leg, tls);
        let half = Half::new(Side::Server, leg, &mut self.to_server, (counters, limits));
        (half, &mut self.to_client)
    }

    /// Queues early client data for the server, and the pending bytes of the handshake's last
    /// `flight` for the client.
    ///
    /// # Errors
    ///
    /// Fails if the data cannot be encrypted.
    pub(super) fn admit(
        &mut self,
        (engine, flight): (&mut Engine, HalfPipe<Lent>),
        said: EarlyBytes<'_>,
        out: &mut Buffer,
    ) -> Result<(), CloseReason> {
        out.clear();
        let server_tls = self.tls.as_deref_mut();
        let (bytes, sealed) = match server_tls.and_then(Tls::engine_mut) {
            None => (said.bytes, Ok(())),
            Some(server) => {
                let sealed = server.seal(said.bytes, said.ended, out);
                (out.filled(), sealed)
            }
        };
        // The direction to the server has finished if the server closed its receiving side. Its
        // data is then dropped.
        if !self.to_server.is_finished() {
            self.to_server.offer(bytes);
            if said.ended {
                self.to_server.end_source();
            }
        }
        let server_ended = mem::replace(&mut self.to_client, flight).source_ended();
        if server_ended {
            self.to_client.end_source();
        }
        // If the server ended its stream before the handshake had traffic keys, the client has
        // received no close_notify, so it is sent now.
        out.clear();
        let told = engine.seal(&[], server_ended, out);
        self.to_client.offer(out.filled());
        sealed.and(told).map_err(|_| CloseReason::Internal)
    }
}
