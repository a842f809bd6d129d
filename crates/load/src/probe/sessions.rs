//! Stores the newest session of a server and the lifetime of its ticket.

use std::sync::{Mutex, MutexGuard, PoisonError};

use rustls::NamedGroup;
use rustls::client::{ClientSessionStore, Tls12ClientSessionValue, Tls13ClientSessionValue};
use rustls_pki_types::ServerName;

#[derive(Debug, Default)]
pub(super) struct Sessions(Mutex<Held>);

#[derive(Debug, Default)]
struct Held {
    tls12: Option<Tls12ClientSessionValue>,
    tls13: Option<Tls13ClientSessionValue>,
    given: Option<Given>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Given {
    pub(super) lifetime_s: Option<u32>,
    pub(super) early_data_bytes: Option<u32>,
}

impl Sessions {
    pub(super) fn given(&self) -> Option<Given> {
        self.held().given
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientSessionStore for Sessions {
    fn set_kx_hint(&self, _: ServerName<'static>, _: NamedGroup) {}

    fn kx_hint(&self, _: &ServerName<'_>) -> Option<NamedGroup> {
        None
    }

    fn set_tls12_session(&self, _: ServerName<'static>, session: Tls12ClientSessionValue) {
        let mut held = self.held();
        held.given = Some(Given {
            lifetime_s: lifetime(&format!("{session:?}")),
            early_data_bytes: None,
        });
        held.tls12 = Some(session);
    }

    fn tls12_session(&self, _: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        self.held().tls12.clone()
    }

    fn remove_tls12_session(&self, _: &ServerName<'static>) {
        self.held().tls12 = None;
    }

    fn insert_tls13_ticket(&self, _: ServerName<'static>, session: Tls13ClientSessionValue) {
        let mut held = self.held();
        held.given = Some(Given {
            lifetime_s: lifetime(&format!("{session:?}")),
            early_data_bytes: Some(session.max_early_data_size()).filter(|most| *most > 0),
        });
        held.tls13 = Some(session);
    }

    fn take_tls13_ticket(&self, _: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.held().tls13.take()
    }
}

/// Parses the lifetime of a ticket from its `Debug` output, because rustls does not expose it. rustls limits the lifetime to a week.
/// Returns `None` for a lifetime of 0.
fn lifetime(session: &str) -> Option<u32> {
    let (_, rest) = session.split_once("lifetime_secs: ")?;
    let digits = rest.split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok().filter(|seconds| *seconds > 0)
}
