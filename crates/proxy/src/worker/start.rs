//! Parameters for starting workers.

use std::sync::Arc;

use mio::Poll;

use crate::backend::registry::Adopted;
use crate::shared::SharedState;
use crate::worker::bound::BoundListener;
use crate::worker::mailbox::Mailbox;
use becket_cluster::Outbox;
use becket_log::access_log::AccessSender;
use becket_tls::sessions::tickets::TicketSecrets;

#[derive(Clone, Debug)]
pub struct Common {
    pub shared: Arc<SharedState>,
    pub adopted: Adopted,
    pub secrets: Arc<TicketSecrets>,
    /// One outbox per worker for new sessions; empty without a cluster.
    pub outboxes: Vec<Outbox>,
    /// `true` if workers accept no clients until they receive `Accept`.
    pub is_parked: bool,
}

#[derive(Debug)]
pub struct Start {
    pub number: usize,
    pub common: Common,
    pub poll: Poll,
    pub mailbox: Arc<Mailbox>,
    pub access: Option<AccessSender>,
    pub sockets: Vec<BoundListener>,
}
