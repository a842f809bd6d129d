//! The loop of the companion: orders certificates, one at a time, and answers control requests.

use std::collections::VecDeque;
use std::future::{Future, pending};
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use becket_config::acme::AcmeCertificate;
use becket_log::Timestamp;
use becket_process::companion_link::{BundleText, HeldBundles, ToCompanion};
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;

use crate::confine::Sandbox;
use crate::context::{Context, bundle_file, label, order_file};
use crate::control::{self, Answer, Call, Request, Row};
use crate::error::Error;
use crate::link::Link;
use crate::schedule::{Attempt, Held, Moment, Schedule, Setback};
use crate::store::{Part, State};
use crate::work::{self, Done};

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

/// Maintains the certificates until the supervisor closes `stream`. Must run in a
/// [`LocalSet`](tokio::task::LocalSet).
pub async fn run(context: Context, stream: UnixStream, sandbox: Sandbox) -> Result<(), Error> {
    let (link, mut serving) = Link::start(stream, HeldBundles::default())
        .map_err(|error| Error::os("use the socket of the supervisor", error))?;
    let mut ranks = link.ranks();
    let (calls, mut requests) = mpsc::channel(1);
    let control = control::listen(&context.store, calls)?;
    tokio::pin!(control);
    sandbox.forbid_unix_sockets();
    let mut companion = Companion::new(context, Rc::clone(&link));
    let mut work = Some(work::clean(Rc::clone(&companion.context)));
    loop {
        let now = companion.context.now();
        if work.is_none() {
            if let Some(file) = sandbox.replaced() {
                tracing::info!(name: "acme-file-replaced", file = %file.display(), "a file was replaced; the companion starts again to read it");
                return Ok(());
            }
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
        for (index, facts) in facts.into_iter().enumerate() {
            companion.link.hold(index, facts.flatten());
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
            return Some(Box::pin(work::answer(context, link, certificate, call)));
        }
        if let Some(attempt) = self.schedule.poll_order(now) {
            return Some(Box::pin(work::order(context, link, attempt)));
        }
        if let Some(certificate) = self.schedule.poll_window(now) {
            return Some(Box::pin(work::ask_for_window(context, certificate)));
        }
        let name = self.wanted.pop_front()?;
        Some(Box::pin(work::ask_for_permission(context, name)))
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
        match work::keep_shared(&self.context, index, bundle) {
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
                file: bundle_file(certificate),
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

/// Maximum number of names that clients asked for and that wait. Clients ask again.
const MOST_WANTED: usize = 16;
/// Minimum time between two warnings about on-demand certificates.
const WARN_INTERVAL: Duration = Duration::from_secs(600);
