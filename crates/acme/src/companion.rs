//! The loop of the companion: orders certificates, one at a time, and answers control requests.

use std::cell::Cell;
use std::collections::VecDeque;
use std::future::{Future, pending};
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use becket_config::acme::AcmeCertificate;
use becket_log::Timestamp;
use becket_process::companion_link::{BundleText, HeldBundles, ToCompanion};
use becket_proto::acme::BundleFacts;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};

use crate::authority::{Session, account_url, dns_records, issuer};
use crate::context::{Context, bundle_file, facts, label, order_file};
use crate::control::{self, Answer, Call, Request, Row};
use crate::error::Error;
use crate::issued;
use crate::link::Link;
use crate::lookup;
use crate::on_demand;
use crate::order::Task;
use crate::schedule::{Attempt, Held, Moment, Schedule, Setback, Window};
use crate::store::{Part, State};
use crate::unfinished::abandon_others;
use crate::verify;

struct Companion {
    context: Rc<Context>,
    link: Rc<Link>,
    schedule: Schedule,
    /// Last error of each certificate.
    errors: Vec<Option<String>>,
    /// Clients that wait for the next attempt, each with the index of its certificate.
    waiting: Vec<(usize, oneshot::Sender<Answer>)>,
    /// Requests to be carried out, each with the index of its certificate.
    asked: VecDeque<(usize, Call)>,
    /// Names that clients asked for.
    wanted: VecDeque<Box<str>>,
    /// Time of the last warning about on-demand certificates.
    warned: Option<Duration>,
}

/// Outcome of the work in progress.
enum Done {
    Cleaned,
    /// Whether a certificate may be ordered for this name.
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

/// Maintains the certificates until the supervisor closes `stream`. Must run in a
/// [`LocalSet`](tokio::task::LocalSet).
pub async fn run(context: Context, stream: UnixStream) -> Result<(), Error> {
    let (link, mut serving) = Link::start(stream, HeldBundles::default())
        .map_err(|error| Error::os("use the socket of the supervisor", error))?;
    let mut ranks = link.ranks();
    let (calls, mut requests) = mpsc::channel(1);
    let control = control::listen(&context.store, calls)?;
    tokio::pin!(control);
    let mut companion = Companion::new(context, Rc::clone(&link));
    let mut work = Some(clean(Rc::clone(&companion.context)));
    loop {
        let now = companion.context.now();
        if work.is_none() {
            work = companion.next_work(now);
        }
        let is_idle = work.is_none();
        let done = async {
            match &mut work {
                Some(work) => work.as_mut().await,
                None => pending().await,
            }
        };
        let pause = companion.schedule.pause(now);
        tokio::select! {
            () = link.closed() => return Ok(()),
            done = done => {
                work = None;
                companion.handle(done);
            }
            Some(call) = requests.recv() => companion.handle_call(call, now),
            Some(request) = serving.recv() => companion.handle_request(request, now),
            Ok(()) = ranks.changed() => {
                companion.schedule.handle_ranks(&ranks.borrow_and_update(), now);
            }
            () = &mut control => {}
            () = sleep(pause), if is_idle => {}
        }
    }
}

impl Companion {
    fn new(context: Context, link: Rc<Link>) -> Self {
        let now = context.now();
        let State {
            orders,
            on_demand_orders,
            ..
        } = context.store.state();
        let age = |at: u64| now.unix.saturating_sub(Duration::from_secs(at));
        let configured = 0..context.section.certificate.len();
        let found = configured.map(|index| context.bundle(index).unzip());
        let (mut facts, held): (Vec<_>, Vec<_>) = found.unzip();
        let ages = orders.into_iter().map(age);
        let authorities = context.section.authority.len();
        let mut schedule = Schedule::new(authorities, held, ages, now);
        if let Some(on_demand) = &context.section.on_demand {
            let limits = (on_demand.most, on_demand.per_hour);
            schedule.permit_on_demand(limits, on_demand_orders.into_iter().map(age), now);
        }
        if let Some(names) = context.section.on_demand_names() {
            let stems = context.store.stems(Part::Certificates, ".pem").into_iter();
            for certificate in stems.filter_map(|stem| names.certificate(&stem)) {
                let Some(index) = schedule.add(now) else {
                    break;
                };
                context.set_on_demand(index, certificate);
                let Some((found, held)) = context.bundle(index) else {
                    // A configured certificate once had this file, and other names.
                    context.discard(
                        Part::Certificates,
                        &bundle_file(&context.certificate(index)),
                    );
                    schedule.release(index);
                    context.set_on_demand(index, AcmeCertificate::default());
                    continue;
                };
                schedule.handle_certificate(index, held, now);
                facts.resize(index + 1, None);
                facts[index] = Some(found);
            }
        }
        let companion = Self {
            errors: vec![None; context.certificates().len()],
            schedule,
            context: Rc::new(context),
            link,
            waiting: Vec::new(),
            asked: VecDeque::new(),
            wanted: VecDeque::new(),
            warned: None,
        };
        companion.announce_on_demand();
        for index in 0..companion.errors.len() {
            let facts = companion.context.bundle(index);
            companion
                .link
                .hold(index, facts.and_then(|(facts, _)| facts));
        }
        companion
    }

    /// Announces the names of the on-demand certificates.
    fn announce_on_demand(&self) {
        let certificates = self.context.certificates();
        let configured = self.context.section.certificate.len();
        let names = certificates.iter().skip(configured).map(|certificate| {
            let name = certificate.names.first();
            name.map(ToString::to_string)
        });
        self.link.set_on_demand(names.collect(), configured);
    }

    /// Orders a certificate for a name as soon as its turn comes.
    fn add_on_demand(&mut self, name: &str, now: Moment) {
        let names = self.context.section.on_demand_names();
        let certificate = names.and_then(|names| names.certificate(name));
        let Some(certificate) = certificate.filter(|_| self.context.find(name).is_none()) else {
            return;
        };
        let Some(index) = self.schedule.add(now) else {
            if !self.may_warn(now) {
                return;
            }
            tracing::warn!(name: "acme-on-demand-full", server_name = name, "cannot add a certificate on demand: acme.on-demand.most is reached, or acme.on-demand.per-hour by names without a certificate");
            return;
        };
        self.context.set_on_demand(index, certificate);
        self.errors.resize(self.context.certificates().len(), None);
        self.errors[index] = None;
        self.announce_on_demand();
        self.link.hold(index, None);
    }

    /// Returns `true` at most once in [`WARN_INTERVAL`], because clients cause these warnings.
    fn may_warn(&mut self, now: Moment) -> bool {
        let may = self.warned.is_none_or(|at| now.mono >= at + WARN_INTERVAL);
        if may {
            self.warned = Some(now.mono);
        }
        may
    }

    /// Removes an on-demand certificate and its files.
    fn release(&mut self, index: usize) {
        let certificate = self.context.certificate(index);
        let context = &self.context;
        context.discard(Part::Certificates, &bundle_file(&certificate));
        context.discard(Part::Orders, &order_file(&certificate));
        let (stem, now) = (certificate.stem(), context.now().unix);
        let forgotten = context
            .store
            .change_state(now, |state| drop(state.authorities.remove(&stem)));
        if let Err(error) = forgotten {
            tracing::debug!(%error, "cannot forget the authority of a removed certificate");
        }
        let names = self.context.names(index);
        tracing::info!(name: "acme-on-demand-removed", ?names, "certificate on demand removed");
        self.schedule.release(index);
        self.context
            .set_on_demand(index, AcmeCertificate::default());
        self.errors[index] = None;
        self.link.hold(index, None);
        self.announce_on_demand();
    }

    fn next_work(&mut self, now: Moment) -> Option<Pin<Box<dyn Future<Output = Done>>>> {
        while let Some(index) = self.schedule.poll_release(now) {
            self.release(index);
        }
        let context = Rc::clone(&self.context);
        let link = Rc::clone(&self.link);
        if let Some((certificate, call)) = self.asked.pop_front() {
            return Some(Box::pin(answer(context, link, certificate, call)));
        }
        if let Some(attempt) = self.schedule.poll_order(now) {
            return Some(Box::pin(order(context, link, attempt)));
        }
        if let Some(certificate) = self.schedule.poll_window(now) {
            return Some(Box::pin(ask_for_window(context, certificate)));
        }
        let name = self.wanted.pop_front()?;
        Some(Box::pin(ask_for_permission(context, name)))
    }

    fn handle(&mut self, done: Done) {
        let now = self.context.now();
        match done {
            Done::Cleaned => {}
            Done::Asked(name, Ok(())) => self.add_on_demand(&name, now),
            Done::Asked(_, Err(Error::NotAllowed(_))) => {}
            Done::Asked(name, Err(error)) => {
                if self.may_warn(now) {
                    tracing::warn!(name: "acme-permission-unknown", server_name = %name, %error, "cannot check whether a certificate on demand is allowed");
                }
            }
            Done::Revoked(certificate) => drop(self.schedule.force(certificate, now)),
            Done::Window {
                certificate,
                window,
            } => {
                let (window, wait) = window.unzip();
                self.schedule.handle_window(certificate, window, wait, now);
            }
            Done::Ordered {
                attempt,
                result,
                begun,
                setback,
            } => {
                let index = attempt.certificate;
                if begun {
                    self.schedule.handle_begun(index, now);
                }
                let is_refused = matches!(result, Err(Error::NotAllowed(_)));
                if let (Ok(_), Some((facts, _))) = (&result, self.context.bundle(index)) {
                    self.link.hold(index, facts);
                }
                let error = self.handle_order(attempt, result, setback, now);
                self.errors[index].clone_from(&error);
                for (_, reply) in self.waiting.extract_if(.., |(waits, _)| *waits == index) {
                    // The client may have left.
                    reply.send(Answer::ended(error.clone())).ok();
                }
                if is_refused && self.schedule.held(index).is_none() {
                    self.release(index);
                }
            }
        }
    }

    /// Logs the outcome of an attempt and notes it in the schedule. Returns the error.
    fn handle_order(
        &mut self,
        attempt: Attempt,
        result: Result<Held, Error>,
        setback: Setback,
        now: Moment,
    ) -> Option<String> {
        let section = &self.context.section;
        let index = attempt.certificate;
        let names = self.context.names(index);
        let authority = label(&section.authority[attempt.authority], section.staging);
        match result {
            Ok(held) => {
                self.schedule.handle_certificate(index, held, now);
                let expires = Timestamp::from_unix(held.not_after);
                tracing::info!(name: "acme-certificate-issued", ?names, authority, %expires, "certificate issued");
                None
            }
            Err(error @ Error::NotAllowed(_)) => {
                self.schedule.handle_refusal(index, now);
                tracing::info!(name: "acme-renewal-refused", ?names, %error, "certificate not renewed");
                Some(error.to_string())
            }
            Err(error) => {
                let random = fastrand::f64();
                self.schedule.handle_failure(index, setback, now, random);
                let failures = self.schedule.failures(index);
                let next = self.schedule.next_attempt(index, now).unwrap_or_default();
                let next = Timestamp::from_unix(next);
                tracing::warn!(name: "acme-order-failed", ?names, authority, %error, failures, %next, "cannot obtain a certificate");
                Some(error.to_string())
            }
        }
    }

    fn handle_call(&mut self, call: Call, now: Moment) {
        let found = match &call.request {
            Request::List {} => {
                let rows = self.rows(now);
                return call.answer(Answer::Certificates(rows));
            }
            Request::Try { name: None } => Some(0),
            Request::Renew { name }
            | Request::Revoke { name }
            | Request::Try { name: Some(name) } => self.context.find(name),
        };
        let Some(index) = found else {
            let why = "no [[acme.certificate]] and no certificate on demand has this name";
            return call.answer(Answer::ended(Some(why.to_owned())));
        };
        match call.request {
            Request::Renew { .. } if self.schedule.force(index, now) => {
                self.waiting.push((index, call.reply));
            }
            Request::Renew { .. } => {
                let why = "the orders of this day, or of this hour for a certificate on demand, are used up";
                call.answer(Answer::ended(Some(why.to_owned())));
            }
            _ => self.asked.push_back((index, call)),
        }
    }

    /// Carries out a request of the serving process.
    fn handle_request(&mut self, request: ToCompanion, now: Moment) {
        match request {
            ToCompanion::Send(index) => {
                let bundle = self.context.bundle_text(index as usize);
                if let Some(text) = bundle.and_then(BundleText::new) {
                    self.link.send_bundle(index, text);
                }
            }
            ToCompanion::Bundle(index, text) => {
                let index = index as usize;
                if index < self.errors.len() {
                    self.handle_shared(index, &text.into_bytes(), now);
                }
            }
            ToCompanion::Wanted(names) => {
                let free = MOST_WANTED.saturating_sub(self.wanted.len());
                let names = names.into_iter();
                let new = names.filter(|name| self.context.find(name).is_none());
                self.wanted.extend(new.take(free));
            }
            // Handled by the link.
            ToCompanion::ChallengesServed(_) | ToCompanion::Ranks(_) => {}
        }
    }

    /// Checks and stores a bundle that another node ordered.
    fn handle_shared(&mut self, index: usize, bundle: &[u8], now: Moment) {
        let names = self.context.names(index);
        match keep_shared(&self.context, index, bundle) {
            Ok((facts, held)) => {
                self.schedule.handle_shared(index, held, now);
                self.errors[index] = None;
                self.link.hold(index, Some(facts));
                let expires = Timestamp::from_unix(held.not_after);
                tracing::info!(name: "acme-certificate-received", ?names, %expires, "certificate received from another node");
            }
            Err(error) => {
                tracing::warn!(name: "acme-certificate-refused", ?names, %error, "certificate of another node refused; keeping the previous one");
            }
        }
    }

    fn rows(&self, now: Moment) -> Vec<Row> {
        let Context { section, store, .. } = &*self.context;
        let state = store.state();
        let shown = |url: &String| {
            let known = self.context.authority(url);
            known.map_or(url.clone(), |(it, staging)| label(it, staging))
        };
        let certificates = self.context.certificates();
        let rows = certificates.iter().enumerate();
        let rows = rows.filter(|(_, certificate)| !certificate.names.is_empty());
        let rows = rows.map(|(index, certificate)| {
            let expires = self.schedule.held(index).map(|it| it.not_after);
            let next = self.schedule.next_attempt(index, now);
            Row {
                names: self.context.names(index),
                authority: state.authorities.get(&certificate.stem()).map(shown),
                challenge: section.challenge(certificate).label().to_owned(),
                expires: expires.map(Timestamp::from_unix),
                next: next.map(Timestamp::from_unix),
                failures: self.schedule.failures(index),
                error: self.errors[index].clone(),
            }
        });
        rows.collect()
    }
}

/// Stores a bundle of another node, after the checks of an ordered one.
fn keep_shared(
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

fn clean(context: Rc<Context>) -> Pin<Box<dyn Future<Output = Done>>> {
    Box::pin(async move {
        // The files that are left are for the next start.
        timeout(CLEANUP_TIME, abandon_others(&context)).await.ok();
        Done::Cleaned
    })
}

async fn ask_for_permission(context: Rc<Context>, name: Box<str>) -> Done {
    let allowed = on_demand::check(&context, &name).await;
    Done::Asked(name, allowed)
}

async fn order(context: Rc<Context>, link: Rc<Link>, attempt: Attempt) -> Done {
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
async fn answer(context: Rc<Context>, link: Rc<Link>, index: usize, call: Call) -> Done {
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

/// Orders from the test environment, and discards the certificate. Adds the DNS records that the
/// real account needs.
async fn try_out(
    context: &Context,
    link: &Link,
    index: usize,
    records: &mut Vec<String>,
) -> Result<(), Error> {
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
    if let Some(error) = lookup::check(context, &session, certificate).await? {
        records.push(format!(
            "cannot look up DNS records; the authority decides: {error}"
        ));
    }
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

async fn ask_for_window(context: Rc<Context>, certificate: usize) -> Done {
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

/// Maximum number of names that clients asked for and that wait. Clients ask again.
const MOST_WANTED: usize = 16;
/// Minimum time between two warnings about on-demand certificates.
const WARN_INTERVAL: Duration = Duration::from_secs(600);
/// Maximum lifetime of a certificate of another node. Authorities allow 398 days.
const LONGEST_LIFETIME: Duration = Duration::from_secs(400 * 24 * 3600);
/// Time limit to abandon unfinished orders at the start, which delays other orders.
const CLEANUP_TIME: Duration = Duration::from_secs(120);
