//! A connected server, with pending bytes in both directions.

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

/// A server, and both directions between it and the client.
#[derive(Debug)]
pub(super) struct Connected<N: Net> {
    pub(super) leg: Leg<N::Server>,
    /// Boxed, because most servers use plain TCP.
    pub(super) tls: Option<Box<Tls<UnbufferedClientConnection>>>,
    /// Returned after the socket is closed.
    pub(super) slot: ServerSlot,
    pub(super) to_server: HalfPipe<Lent>,
    pub(super) to_client: HalfPipe<Lent>,
}

impl<N: Net> Connected<N> {
    /// Returns the server's side and the direction that starts there, for a client without traffic
    /// keys.
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

    /// Adds the data that a client sent during its handshake, and the pending rest of its last
    /// `flight`.
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
        // The direction is finished if the server closed its receiving side.
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
        // The server may have closed its side before the client had traffic keys.
        out.clear();
        let told = engine.seal(&[], server_ended, out);
        self.to_client.offer(out.filled());
        sealed.and(told).map_err(|_| CloseReason::Internal)
    }
}
