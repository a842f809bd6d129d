//! A listener in one worker: the router for ClientHellos, and the pools of its routes.
//!
//! The worker shares the [`ListenerState`] by `Rc` with the handshakes that began on this listener.
//! A reload creates a new state; handshakes in progress use the old state until they end.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

use crate::backend::cancel::CancelTargets;
use crate::backend::pool::Pool;
use becket_config::listener::ListenMode;
use becket_tls::config::Listener;
use becket_tls::hello_router::HelloRouter;

#[derive(Debug)]
pub struct ListenerState {
    /// Name of the listener, in memory of this worker, because each connection increments its
    /// reference count.
    pub name: Arc<str>,
    /// Mode of the listener. The self-test of `becket check` overrides the configured mode to skip
    /// the plaintext dialog.
    pub mode: ListenMode,
    pub router: HelloRouter,
    /// Pools by backend index; a route contains the index of its backend.
    pub pools: Rc<[Rc<Pool>]>,
    pub cancel_targets: OnceCell<CancelTargets>,
}

impl ListenerState {
    pub fn new(router: HelloRouter, pools: Rc<[Rc<Pool>]>) -> Self {
        let keys = &router.listener().keys;
        Self {
            name: Arc::from(&*keys.name.0),
            mode: keys.speaks(),
            router,
            pools,
            cancel_targets: OnceCell::new(),
        }
    }

    pub fn config(&self) -> &Arc<Listener> {
        self.router.listener()
    }

    pub fn pool(&self, route: usize) -> Option<&Rc<Pool>> {
        let route = self.config().routes.get(route)?;
        self.pools.get(route.backend)
    }

    /// Returns the distinct backends of the routes; each of them receives every cancel request.
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
