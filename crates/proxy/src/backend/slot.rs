//! One of the connections that a server may have.
//!
//! A slot is claimed by compare-and-swap below the server's limit, and given back when it is dropped,
//! however its connection ends: so none can leak, and clients never have more than `maxconn`, counted
//! over all workers. It is kept beside the socket to the server and dropped after it.
//!
//! Giving back is one atomic subtraction and one load; only when somebody waits is the queue's lock
//! taken. Both are sequentially consistent, as are the two on the other side (a waiter is counted,
//! then looks for a slot): whichever comes last sees the other, so no wake-up is lost.

use std::sync::Arc;

use becket_proto::queue::Arrival;

use super::server_state::ServerState;

/// A claim on a server; dropping it gives it back, to the longest waiter if there is one.
#[derive(Debug)]
#[must_use]
pub struct ServerSlot {
    server: Arc<ServerState>,
    arrival: Arrival,
}

impl ServerSlot {
    /// Claims a slot; nothing when the server has as many connections as it may. Does not ask whether
    /// the server is in service, nor whether anybody waits.
    pub fn claim(server: &Arc<ServerState>) -> Option<Self> {
        server.take_slot().then(|| Self {
            server: Arc::clone(server),
            arrival: server.backend().arrival(),
        })
    }

    /// For somebody who has waited since that arrival.
    pub(super) fn had_since(self, arrival: Arrival) -> Self {
        let mut slot = self;
        slot.arrival = arrival;
        slot
    }

    /// When its holder came, among those who ask for slots of this backend.
    pub fn arrival(&self) -> Arrival {
        self.arrival
    }

    /// Whose slot it is.
    pub fn server(&self) -> &Arc<ServerState> {
        &self.server
    }
}

/// The next slot of a server, for a health check: until this is dropped, clients leave one free.
/// There is one at a time for each server, control's.
#[derive(Debug)]
pub struct Reservation(Arc<ServerState>);

impl Reservation {
    /// Begins to wait, without a place in the queue: a server whose clients all hang would else never
    /// be checked while others wait for it.
    pub fn new(server: &Arc<ServerState>) -> Self {
        server.reserve_slot(true);
        Self(Arc::clone(server))
    }

    /// Claims the slot, once one is free.
    pub fn claim(&self) -> Option<ServerSlot> {
        let server = &self.0;
        server.take_reserved_slot().then(|| ServerSlot {
            server: Arc::clone(server),
            arrival: server.backend().arrival(),
        })
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.0.reserve_slot(false);
    }
}

impl Drop for ServerSlot {
    fn drop(&mut self) {
        self.server.give_back_slot();
    }
}
