//! What one slot may resume with.
//!
//! rustls asks its [`ClientSessionStore`] while it makes the ClientHello and fills it while it reads
//! the server's tickets. Each slot has a store of its own, and says before each handshake whether
//! anything may be offered: so resumption is what the plan says, not what happens to be cached.
//!
//! A TLS 1.3 ticket is used once (RFC 8446, C.4) and the newest goes first; a TLS 1.2 session is
//! used until the server replaces it or the plan asks for a full handshake.

use std::sync::{Mutex, MutexGuard, PoisonError};

use rustls::NamedGroup;
use rustls::client::{ClientSessionStore, Tls12ClientSessionValue, Tls13ClientSessionValue};
use rustls_pki_types::ServerName;

/// The sessions of one slot. The lock is never contended: a slot belongs to one thread.
#[derive(Debug, Default)]
pub struct Sessions(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    /// Whether new sessions are worth keeping.
    keep: bool,
    /// Whether the next handshake may offer one.
    offer: bool,
    tls12: Option<Tls12ClientSessionValue>,
    tls13: Vec<Tls13ClientSessionValue>,
}

impl Sessions {
    /// Makes an empty store; with `keep` false it stays empty.
    pub fn new(keep: bool) -> Self {
        Self(Mutex::new(Kept {
            keep,
            ..Kept::default()
        }))
    }

    /// Lets the next handshake offer what is there; without `resumes` everything is forgotten, and the handshake is a full one.
    pub fn offer(&self, resumes: bool) {
        let mut kept = self.kept();
        kept.offer = resumes;
        if !resumes {
            kept.tls12 = None;
            kept.tls13.clear();
        }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientSessionStore for Sessions {
    fn set_kx_hint(&self, _: ServerName<'static>, _: NamedGroup) {}

    fn kx_hint(&self, _: &ServerName<'_>) -> Option<NamedGroup> {
        None
    }

    fn set_tls12_session(&self, _: ServerName<'static>, value: Tls12ClientSessionValue) {
        let mut kept = self.kept();
        if kept.keep {
            kept.tls12 = Some(value);
        }
    }

    fn tls12_session(&self, _: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        let kept = self.kept();
        kept.tls12.as_ref().filter(|_| kept.offer).cloned()
    }

    fn remove_tls12_session(&self, _: &ServerName<'static>) {
        self.kept().tls12 = None;
    }

    fn insert_tls13_ticket(&self, _: ServerName<'static>, value: Tls13ClientSessionValue) {
        let mut kept = self.kept();
        if !kept.keep {
            return;
        }
        if kept.tls13.len() == TICKETS_KEPT {
            kept.tls13.remove(0);
        }
        kept.tls13.push(value);
    }

    fn take_tls13_ticket(&self, _: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        let mut kept = self.kept();
        if kept.offer { kept.tls13.pop() } else { None }
    }
}

/// A slot uses one ticket per connection and servers send one or two: more would only grow stale.
const TICKETS_KEPT: usize = 4;
