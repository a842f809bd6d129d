//! Orders, requests to authorities, and checks. The companion does one at a time.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use becket_proto::acme::BundleFacts;
use tokio::time::timeout;

use crate::authority::{Session, account_url, dns_records, issuer};
use crate::context::{Context, bundle_file, facts, label};
use crate::control::{Answer, Call, Request};
use crate::error::Error;
use crate::issued;
use crate::link::Link;
use crate::lookup;
use crate::on_demand;
use crate::order::Task;
use crate::reach;
use crate::schedule::{Attempt, Held, Setback, Window};
use crate::store::Part;
use crate::unfinished::abandon_others;
use crate::verify;

/// Outcome of the work in progress.
pub enum Done {
    Cleaned,
    /// The answer to whether a certificate may be ordered for this name.
    Asked(Box<str>, Result<(), Error>),
    /// The certificate was revoked.
    Revoked(usize),
    Ordered {
        attempt: Attempt,
        result: Result<Held, Error>,
        begun: bool,
        setback: Setback,
    },
    Window {
        certificate: usize,
        window: Option<(Window, Duration)>,
    },
}

/// Stores a bundle of another node, after the checks of an ordered one.
pub fn keep_shared(
    context: &Context,
    index: usize,
    bundle: &[u8],
) -> Result<(BundleFacts, Held), Error> {
    let certificate = &*context.certificate(index);
    let (store, now) = (&context.store, context.now().unix);
    let refused = |why: &str| Err(Error::Certificate(why.to_owned()));
    let held = verify::examine(bundle, &certificate.names);
    let newer = held.and_then(|held| facts(bundle, &held));
    let own = context.bundle(index).and_then(|(facts, _)| facts);
    let Some(newer) = newer.filter(|newer| own.is_none_or(|own| own < *newer)) else {
        return refused("for other names, or not newer than the one in use");
    };
    if Duration::from_secs(newer.ordered) > now + verify::TOLERANCE {
        return refused("ordered in the future; compare the clocks of the nodes");
    }
    let staged = store.stage(Part::Certificates, &bundle_file(certificate), bundle)?;
    let held = verify::verify(&staged.path(), &certificate.names, now)?;
    if held.not_after.saturating_sub(held.not_before) > LONGEST_LIFETIME {
        return refused("its lifetime is longer than 400 days");
    }
    // Only the node that ordered a certificate can revoke it, or name it in the next order.
    let stem = certificate.stem();
    store.change_state(now, |state| drop(state.authorities.remove(&stem)))?;
    staged.commit()?;
    Ok((newer, held))
}

pub fn clean(context: Rc<Context>) -> Pin<Box<dyn Future<Output = Done>>> {
    Box::pin(async move {
        // The files that are left are for the next start.
        timeout(CLEANUP_TIME, abandon_others(&context)).await.ok();
        Done::Cleaned
    })
}

pub async fn ask_for_permission(context: Rc<Context>, name: Box<str>) -> Done {
    let allowed = on_demand::check(&context, &name).await;
    Done::Asked(name, allowed)
}

pub async fn order(context: Rc<Context>, link: Rc<Link>, attempt: Attempt) -> Done {
    let permission = match context.certificate(attempt.certificate).names.first() {
        Some(name) if context.is_on_demand(attempt.certificate) => {
            on_demand::check(&context, &name.to_string()).await
        }
        _ => Ok(()),
    };
    if let Err(error) = permission {
        return Done::Ordered {
            attempt,
            result: Err(error),
            begun: false,
            setback: Setback::default(),
        };
    }
    let section = &context.section;
    let authority = &section.authority[attempt.authority];
    let begun = Cell::new(false);
    let (result, mut setback) = match Session::open(&context, authority, section.staging).await {
        Ok(session) => {
            let replaces = Some(attempt.certificate).filter(|_| attempt.replaces);
            let replaces = replaces.filter(|it| {
                let own = context.issued_by(*it);
                own.as_ref() == Some(&session.directory)
            });
            let replaces = replaces.and_then(|it| issued::identifier(&context, it, &session));
            let task = Task {
                certificate: &context.certificate(attempt.certificate),
                context: &context,
                session: &session,
                link: &link,
                index: attempt.certificate,
                replaces,
                is_fresh: attempt.is_fresh,
                is_kept: true,
                begun: &begun,
            };
            let result = task.run().await;
            if result
                .as_ref()
                .is_err_and(|error| error.is("accountDoesNotExist"))
            {
                let forgotten = session.forget(&context.store).err();
                let error = forgotten.map(tracing::field::display);
                tracing::warn!(name: "acme-account-unknown", authority = session.label, error, "the authority does not know the account; creating another one");
            }
            (result, session.client.take_setback())
        }
        Err(error) => (Err(error), Setback::default()),
    };
    setback.is_rate_limit |= result.as_ref().is_err_and(|error| error.is("rateLimited"));
    Done::Ordered {
        attempt,
        result,
        begun: begun.get(),
        setback,
    }
}

/// Carries out a request of a client.
pub async fn answer(context: Rc<Context>, link: Rc<Link>, index: usize, call: Call) -> Done {
    let mut records = Vec::new();
    let is_revocation = matches!(call.request, Request::Revoke { .. });
    let result = if is_revocation {
        issued::revoke(&context, index).await
    } else {
        try_out(&context, &link, index, &mut records).await
    };
    let done = match &result {
        Ok(()) if is_revocation => Done::Revoked(index),
        _ => Done::Cleaned,
    };
    let error = result.err().map(|error| error.to_string());
    call.answer(Answer::Ended { error, records });
    done
}

/// Asks for the answers to challenges, orders from the test environment, and discards the
/// certificate. Adds what was found, and the DNS records that the real account needs.
async fn try_out(
    context: &Context,
    link: &Link,
    index: usize,
    records: &mut Vec<String>,
) -> Result<(), Error> {
    records.extend(reach::check(context, link, index).await?);
    let none = || Error::config("acme.authority", "missing");
    let authority = context.section.authority.first().ok_or_else(none)?;
    let session = Session::open(context, authority, true).await?;
    let identities = session.client.meta().caa_identities;
    let issuer = issuer(authority).or(identities.first().map(String::as_str));
    let issuer = issuer.unwrap_or("CA");
    let account = account_url(&context.store, &label(authority, false));
    let certificate = &*context.certificate(index);
    let kind = context.section.challenge(certificate);
    for name in &certificate.names {
        records.extend(dns_records(name, kind, issuer, account.as_deref()));
    }
    records.push(match lookup::check(context, &session, certificate).await? {
        None => "the DNS records that exist allow the order".to_owned(),
        Some(error) => format!("cannot look up DNS records; the authority decides: {error}"),
    });
    let task = Task {
        context,
        session: &session,
        link,
        index,
        certificate,
        replaces: None,
        is_fresh: true,
        is_kept: false,
        begun: &Cell::new(false),
    };
    task.run().await.map(drop)
}

pub async fn ask_for_window(context: Rc<Context>, certificate: usize) -> Done {
    let window = issued::window(&context, certificate)
        .await
        .unwrap_or_else(|error| {
            tracing::debug!(%error, "cannot request a renewal window");
            None
        });
    Done::Window {
        certificate,
        window,
    }
}

/// Maximum lifetime of a certificate of another node. Authorities allow 398 days.
const LONGEST_LIFETIME: Duration = Duration::from_secs(400 * 24 * 3600);
/// Time limit to abandon unfinished orders at the start, which delays other orders.
const CLEANUP_TIME: Duration = Duration::from_secs(120);
