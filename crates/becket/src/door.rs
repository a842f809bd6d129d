//! What stands behind one listening address: the router of hellos and the pools that its routes lead to.
//!
//! Owned by one worker and shared, by `Rc`, with the handshakes that came through it: a reload
//! builds new doors, and those who are inside finish with the old one.

use std::rc::Rc;

use crate::backend::pool::Pool;
use crate::config::Face;
use crate::tls::hello_router::HelloRouter;

/// A listener as one worker serves it.
#[derive(Debug)]
pub struct Door {
    /// What clients begin with: the listener's face, unless a rehearsal skips the talk in clear.
    pub face: Face,
    /// Certificates and routes.
    pub router: HelloRouter,
    /// Pools by backend index; routes refer to them.
    pub pools: Rc<[Rc<Pool>]>,
}

impl Door {
    /// The pool that a route leads to.
    pub fn pool(&self, route: usize) -> Option<&Rc<Pool>> {
        let route = self.router.listener().routes.get(route)?;
        self.pools.get(route.backend)
    }
}
