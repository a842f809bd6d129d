//! The right to one connection to a server.
//!
//! A slot is claimed by compare-and-swap below the server's limit, and returned on drop, however
//! the connection ends. So no slot leaks, and clients of all workers together never exceed
//! `maxconn`. The slot is stored next to the socket to the server and dropped after it.
//!
//! Returning a slot is one atomic subtraction and one load. The lock of the queue is taken only if
//! a connection waits. Both operations are sequentially consistent, and so are the two of a waiter
//! (register, then check for a slot). The later side sees the change of the earlier side, so no
//! wake-up is lost.

use std::sync::Arc;

use becket_proto::queue::Arrival;

use super::server_state::ServerState;

/// The right to one connection to a server. On drop, the longest waiter gets it, if there is one.
#[derive(Debug)]
#[must_use]
pub struct ServerSlot {
    server: Arc<ServerState>,
    arrival: Arrival,
}

impl ServerSlot {
    /// Claims a slot. Returns `None` if the server has reached its limit. Does not check the
    /// server's state or the queue.
    pub fn claim(server: &Arc<ServerState>) -> Option<Self> {
        server.take_slot().then(|| Self {
            server: Arc::clone(server),
            arrival: server.backend().arrival(),
        })
    }

    /// Sets the arrival to that of the waiter that gets this slot.
    pub(super) fn had_since(self, arrival: Arrival) -> Self {
        let mut slot = self;
        slot.arrival = arrival;
        slot
    }

    /// Returns the [`Arrival`] of the connection that holds this slot.
    pub fn arrival(&self) -> Arrival {
        self.arrival
    }

    /// Returns the server of the slot.
    pub fn server(&self) -> &Arc<ServerState> {
        &self.server
    }
}

/// Reservation of a server's next slot for a health check: until it is dropped, clients leave one
/// slot free. Only the control thread creates reservations, at most one per server.
#[derive(Debug)]
pub struct Reservation(Arc<ServerState>);

impl Reservation {
    /// Reserves the next slot without joining the queue. In the queue, the check would wait behind
    /// clients, so a server whose connections all hang would never be checked.
    pub fn new(server: &Arc<ServerState>) -> Self {
        server.reserve_slot(true);
        Self(Arc::clone(server))
    }

    /// Claims the reserved slot. Returns `None` if `maxconn` connections exist.
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
