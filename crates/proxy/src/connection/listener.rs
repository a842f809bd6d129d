//! The parts behind one listening address: the router of hellos and the pools that its routes lead to.
//!
//! One worker owns it and shares it, by `Rc`, with the handshakes that came through it: a reload builds a new
//! one, and handshakes under way finish with the old one.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

use crate::backend::cancel::CancelTargets;
use crate::backend::pool::Pool;
use becket_config::listener::ListenMode;
use becket_tls::config::Listener;
use becket_tls::hello_router::HelloRouter;

/// A listener as one worker serves it.
#[derive(Debug)]
pub struct ListenerState {
    /// How clients begin: the listener's mode, unless the self-test skips the talk in clear.
    pub mode: ListenMode,
    /// Certificates and routes.
    pub router: HelloRouter,
    /// Pools by backend index; routes refer to them.
    pub pools: Rc<[Rc<Pool>]>,
    /// Made for the first cancel.
    pub cancel_targets: OnceCell<CancelTargets>,
}

impl ListenerState {
    /// The listener as configured.
    pub fn config(&self) -> &Arc<Listener> {
        self.router.listener()
    }

    /// The pool that a route leads to.
    pub fn pool(&self, route: usize) -> Option<&Rc<Pool>> {
        let route = self.config().routes.get(route)?;
        self.pools.get(route.backend)
    }

    /// The backends that its routes lead to, each once.
    pub fn cancel_targets(&self) -> &CancelTargets {
        self.cancel_targets.get_or_init(|| {
            let routes = self.config().routes.iter();
            let backends: BTreeSet<_> = routes.map(|route| route.backend).collect();
            let pools = backends
                .into_iter()
                .filter_map(|backend| self.pools.get(backend));
            pools
                .map(|pool| (Arc::clone(pool.backend()), Arc::clone(pool.state())))
                .collect()
        })
    }
}
