//! Lists a worker's connections, and closes the connections that an operator selects.

use super::event_loop::Worker;
use super::listing::{ConnectionId, ConnectionRow, Filter, ListedPage, Listing};

impl Worker {
    pub(super) fn list(&self, listing: Listing) {
        let Listing {
            filter,
            from,
            most,
            reply,
        } = listing;
        let end = self.connections.capacity();
        let mut page = ListedPage::default();
        let mut place = from;
        while place < end && place < from + LOOKS && page.rows.len() < most.min(ROWS) {
            if let Some(entry) = self.connections.get(place) {
                let glance = entry.connection.glance();
                let id = ConnectionId::of(self.number, place, &glance);
                if filter.takes(id, &glance, self.clocks.now.mono) {
                    let row = ConnectionRow::of(id, &glance, self.clocks.now.mono);
                    page.rows.push(row);
                }
            }
            place += 1;
        }
        page.next = (place < end).then_some(place);
        reply.send(page);
    }

    pub(super) fn is_meant(&self, place: usize, filter: &Filter) -> bool {
        self.connections.get(place).is_some_and(|entry| {
            let glance = entry.connection.glance();
            filter.takes(
                ConnectionId::of(self.number, place, &glance),
                &glance,
                self.clocks.now.mono,
            )
        })
    }
}

/// Maximum number of connections that one message checks. The check takes about 100 us if none
/// matches.
const LOOKS: usize = 4096;
/// Maximum number of rows per answer. Copying them takes about 100 us.
const ROWS: usize = 256;
