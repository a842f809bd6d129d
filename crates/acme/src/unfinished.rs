//! Unfinished orders: their files, and how they are abandoned.

use std::collections::BTreeSet;

use becket_config::acme::{AcmeName, KeyKind};
use instant_acme::AuthorizationStatus;
use serde::{Deserialize, Serialize};
use zeroize::ZeroizeOnDrop;

use crate::authority::Session;
use crate::context::Context;
use crate::error::Error;
use crate::store::Part;

/// An order whose certificate is not stored yet.
#[derive(Debug, Serialize, Deserialize, ZeroizeOnDrop)]
pub struct UnfinishedOrder {
    #[zeroize(skip)]
    pub directory: String,
    /// Empty until the authority has accepted the order.
    #[zeroize(skip)]
    pub url: String,
    #[zeroize(skip)]
    pub names: Vec<AcmeName>,
    #[zeroize(skip)]
    pub profile: Option<String>,
    #[zeroize(skip)]
    pub kind: KeyKind,
    /// Private key in PEM.
    pub key: String,
}

impl UnfinishedOrder {
    /// Returns the order in a file. A file that cannot be parsed, or that has no URL, has no order
    /// to continue.
    pub fn load(context: &Context, file: &str) -> Option<Self> {
        let loaded = context.store.load_json::<Self>(Part::Orders, file);
        loaded.ok().flatten().filter(|order| !order.url.is_empty())
    }

    /// Deactivates the authorizations of the order, which makes it invalid. A failure is only
    /// logged: the order expires at its authority, which may be unreachable.
    pub async fn abandon(&self, context: &Context, session: Option<&Session>) {
        match self.deactivate(context, session).await {
            Ok(()) => {
                tracing::info!(name: "acme-order-abandoned", names = ?self.names, "unfinished order abandoned");
            }
            Err(error) => {
                tracing::warn!(name: "acme-abandon-failed", names = ?self.names, %error, "cannot abandon an unfinished order; it expires at the authority");
            }
        }
    }

    async fn deactivate(&self, context: &Context, session: Option<&Session>) -> Result<(), Error> {
        let opened;
        let session = match session.filter(|it| it.directory == self.directory) {
            Some(session) => session,
            None => {
                let unknown =
                    || Error::config("acme.authority", "the authority is not configured any more");
                let found = context.authority(&self.directory);
                let (authority, staging) = found.ok_or_else(unknown)?;
                opened = Session::open(context, authority, staging).await?;
                &opened
            }
        };
        let mut order = session.account.order(self.url.clone()).await?;
        let mut authorizations = order.authorizations();
        for _ in &self.names {
            let Some(authorization) = authorizations.next().await else {
                break;
            };
            let mut authorization = authorization?;
            let status = authorization.status;
            if matches!(
                status,
                AuthorizationStatus::Pending | AuthorizationStatus::Valid
            ) {
                authorization.deactivate().await?;
            }
        }
        Ok(())
    }
}

/// Abandons the unfinished orders of certificates that are not configured any more.
pub async fn abandon_others(context: &Context) {
    let known: BTreeSet<String> = context.certificates().iter().map(|it| it.stem()).collect();
    let stems = context.store.stems(Part::Orders, ".json").into_iter();
    for stem in stems.filter(|stem| !known.contains(stem)) {
        let file = format!("{stem}.json");
        if let Some(order) = UnfinishedOrder::load(context, &file) {
            order.abandon(context, None).await;
        }
        context.discard(Part::Orders, &file);
    }
}
