//! The right to one connection to a server.
//!
//! A slot is claimed by compare-and-swap below the server's limit. It is returned on drop, however
//! the connection ends. So no slot leaks, and clients of all workers together never exceed
//! `maxconn`. A connection stores the slot next to its socket to the server and drops it after that
//! socket.
//!
//! Returning a slot is one atomic subtraction and one load. The lock of the queue is taken only if
//! a connection waits. Both operations are sequentially consistent, and so are the two operations
//! of a waiter: register, then check for a slot. So either the waiter sees the free slot, or the
//! returning thread sees the waiter, and no wake-up is lost.

use std::sync::Arc;

use becket_proto::queue::Arrival;

use super::server_state::ServerState;

/// The right to one connection to a server. On drop, the slot passes to the longest-waiting
/// connection, if any.
#[derive(Debug)]
#[must_use]
pub struct ServerSlot {
    server: Arc<ServerState>,
    pub arrival: Arrival,
}

impl ServerSlot {
    /// Claims a slot. Returns `None` if the server has reached its limit. Checks neither the
    /// server's health nor the queue.
    pub fn claim(server: &Arc<ServerState>) -> Option<Self> {
        server.take_slot().then(|| Self::of(server))
    }

    fn of(server: &Arc<ServerState>) -> Self {
        Self {
            server: Arc::clone(server),
            arrival: server.backend().arrival(),
        }
    }

    pub fn server(&self) -> &Arc<ServerState> {
        &self.server
    }
}

/// Reservation of one slot of a server for a health check. Until it is dropped, clients may claim
/// one slot fewer. Only the control thread creates reservations, at most one per server.
#[derive(Debug)]
pub struct Reservation(Arc<ServerState>);

impl Reservation {
    /// Reserves a slot without queueing. In the queue, the check would wait behind clients, so a
    /// server whose connections all hang would never be checked.
    pub fn new(server: &Arc<ServerState>) -> Self {
        server.reserve_slot(true);
        Self(Arc::clone(server))
    }

    /// Claims the reserved slot. Returns `None` if `maxconn` connections exist.
    pub fn claim(&self) -> Option<ServerSlot> {
        let server = &self.0;
        server.take_reserved_slot().then(|| ServerSlot::of(server))
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
