//! Clients of the admin pages that wait for the outcome of a reload, a drain or an upgrade.
//!
//! A reload in progress may have read its files before a client's request. So requested reloads are
//! numbered, and a client gets its answer only from a reload whose files were opened after the
//! request (`Resources::asked`).

use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::api::{ChangeOutcome, Refused};
use becket_process::protocol::OperatorRequest;

#[derive(Debug, Default)]
pub struct PendingOutcomes {
    pub(super) reloads: u64,
    /// Waiting clients. The number is the count of reloads that were requested up to and including
    /// this request.
    all: Vec<(OperatorRequest, u64, ChangeOutcome)>,
}

impl PendingOutcomes {
    /// Adds a waiting client. Returns `true` if it is the first client with this request.
    pub(super) fn add(&mut self, request: OperatorRequest, outcome: ChangeOutcome) -> bool {
        self.all.retain(|(.., outcome)| !outcome.is_unwanted());
        let is_first = !self.all.iter().any(|(other, ..)| *other == request);
        self.reloads += u64::from(request == OperatorRequest::Reload);
        self.all.push((request, self.reloads, outcome));
        is_first
    }

    /// Sends the outcome of a reload to the clients of the first `asked` reload requests. `ended`
    /// lists the temporary changes that the reload discarded.
    pub(super) fn reloaded(&mut self, asked: u64, errors: &[String], ended: &[String]) {
        self.answer(
            |request, number| request == OperatorRequest::Reload && number <= asked,
            || outcome(json!({"reloaded": true, "ended": ended}), errors, RELOAD),
        );
    }

    /// Sends the outcome of an upgrade to the clients that requested it. A successful upgrade has
    /// no errors.
    pub(super) fn upgraded(&mut self, errors: &[String], ended: &[String]) {
        self.answer(
            |request, _| request == OperatorRequest::Upgrade,
            || outcome(json!({"upgraded": true, "ended": ended}), errors, UPGRADE),
        );
    }

    /// Reports success to clients that requested a drain. All other waiting clients receive an
    /// error, because a draining process does not reload or upgrade.
    pub(super) fn drains(&mut self, ended: &[String]) {
        self.answer(
            |request, _| request == OperatorRequest::Drain,
            || Ok(json!({"draining": true, "ended": ended})),
        );
        self.refuse_all();
    }

    pub(super) fn refuse_all(&mut self) {
        self.answer(|_, _| true, || Err(too_late()));
    }

    fn answer(
        &mut self,
        is_meant: impl Fn(OperatorRequest, u64) -> bool,
        outcome: impl Fn() -> Result<Value, Refused>,
    ) {
        let meant = self
            .all
            .extract_if(.., |(request, number, _)| is_meant(*request, *number));
        meant.for_each(|(.., waiting)| waiting.tell(outcome()));
    }
}

fn outcome(
    done: Value,
    errors: &[String],
    (failure, accepted): (&str, &str),
) -> Result<Value, Refused> {
    match errors {
        [] => Ok(done),
        errors => {
            let error = format!("{failure}, nothing changed:\n{}", errors.join("\n"));
            Err(Refused::unusable(error, accepted))
        }
    }
}

pub(super) fn too_late() -> Refused {
    let text = "becket is draining and accepts no further change";
    Refused::new(StatusCode::CONFLICT, text, "a becket that is not draining")
}

const RELOAD: (&str, &str) = (
    "reload refused",
    "a configuration without errors (see becket check)",
);
const UPGRADE: (&str, &str) = (
    "upgrade failed",
    "a program that starts with the current configuration",
);

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot::{Receiver, channel};

    fn ask(
        waiting: &mut PendingOutcomes,
        request: OperatorRequest,
    ) -> Receiver<Result<Value, Refused>> {
        let (sender, receiver) = channel();
        waiting.add(request, ChangeOutcome(sender));
        receiver
    }

    #[test]
    fn a_reload_request_is_answered_by_a_reload_started_after_it() {
        let mut waiting = PendingOutcomes::default();
        let mut first = ask(&mut waiting, OperatorRequest::Reload);
        let mut second = ask(&mut waiting, OperatorRequest::Reload);
        waiting.reloaded(0, &[], &[]);
        assert!(first.try_recv().is_err(), "that one was a signal's");
        waiting.reloaded(1, &["a".to_owned(), "b".to_owned()], &[]);
        let refused = first.try_recv().unwrap().unwrap_err();
        assert_eq!(refused.error, "reload refused, nothing changed:\na\nb");
        assert!(second.try_recv().is_err());
        waiting.reloaded(2, &[], &["log level: debug".to_owned()]);
        let ended = json!({"reloaded": true, "ended": ["log level: debug"]});
        assert_eq!(second.try_recv().unwrap(), Ok(ended));
    }

    #[test]
    fn a_drain_answers_all_pending_requests() {
        let mut waiting = PendingOutcomes::default();
        let mut asked = [
            OperatorRequest::Reload,
            OperatorRequest::Upgrade,
            OperatorRequest::Drain,
        ]
        .map(|request| ask(&mut waiting, request));
        waiting.drains(&[]);
        let outcomes = asked.each_mut().map(|it| it.try_recv().unwrap().is_ok());
        assert_eq!(outcomes, [false, false, true]);
        assert!(waiting.all.is_empty());
    }

    #[test]
    fn an_upgrade_alone_is_answered_by_the_new_process() {
        let mut waiting = PendingOutcomes::default();
        let mut asked = [
            OperatorRequest::Reload,
            OperatorRequest::Upgrade,
            OperatorRequest::Drain,
        ]
        .map(|request| ask(&mut waiting, request));
        waiting.upgraded(&[], &[]);
        waiting.refuse_all();
        let outcomes = asked.each_mut().map(|it| it.try_recv().unwrap().is_ok());
        assert_eq!(outcomes, [false, true, false]);
        assert!(waiting.all.is_empty());
    }
}
