//! Reactions to events of processes, by stage. The supervisor kills a process that sends an event
//! that is unexpected in its stage.

use std::time::Duration;

use becket_proto::limits::Counts;

use super::stages::{ProcessStage, StartStep};
use super::{ASKED_BY_PROCESS, Action, ServiceNotice, Supervisor};
use crate::protocol::{Command, Event, OperatorRequest};

impl Supervisor {
    pub(super) fn event(&mut self, now: Duration, id: u32, event: Event, out: &mut Vec<Action>) {
        match &mut self.serving {
            Some(ProcessStage::Starting(starting)) if starting.id == id => {
                if let Some(event) = starting.handle(event) {
                    self.first_event(now, id, event, out);
                }
            }
            Some(ProcessStage::Serving(serving)) if serving.id == id => {
                self.serving_event(now, id, event, out);
            }
            _ if self.next.iter().any(|next| next.id == id) => {
                self.next_event(now, id, event, out);
            }
            _ if self.leaving.iter().any(|process| process.id == id) => {
                self.leaving_event(id, event, out);
            }
            _ => {}
        }
    }

    /// Reacts to an event of a process that starts while no other process serves.
    fn first_event(&mut self, now: Duration, id: u32, event: Event, out: &mut Vec<Action>) {
        let Some(ProcessStage::Starting(starting)) = &mut self.serving else {
            return;
        };
        match (event, starting.step) {
            (Event::Ready, StartStep::Loading) => {
                starting.step = StartStep::MayServe;
                out.push(Action::Send(id, Command::Serve(self.ledger.held())));
            }
            (Event::Serving, StartStep::MayServe) => {
                let times = starting.times;
                self.begin_serving(now, id, times, out);
            }
            (Event::Granted(to, counts), StartStep::MayServe) => self.granted(id, to, counts, out),
            (event, _) => self.misfit(id, &event, out),
        }
    }

    /// Reacts to an event of a process that starts to replace another process.
    fn next_event(&mut self, now: Duration, id: u32, event: Event, out: &mut Vec<Action>) {
        let Some(starting) = &mut self.next else {
            return;
        };
        if event == Event::Loading && starting.step == StartStep::Loading {
            starting.late_at = Some(now + starting.times.upgrade);
        }
        let Some(event) = starting.handle(event) else {
            return;
        };
        match (event, starting.step) {
            (Event::Ready, StartStep::Loading) => {
                starting.step = StartStep::Loaded;
                starting.late_at = Some(now + starting.times.upgrade);
                match self.serves_mut() {
                    Some(old) => {
                        old.yields = true;
                        out.push(Action::Yield(old.id, id));
                    }
                    None => self.serve_next(out),
                }
            }
            (Event::Serving, StartStep::MayServe) => {
                let times = starting.times;
                self.succeed(now, id, times, out);
            }
            (Event::Granted(to, counts), StartStep::MayServe) => self.granted(id, to, counts, out),
            (event, _) => self.misfit(id, &event, out),
        }
    }

    fn serving_event(&mut self, now: Duration, id: u32, event: Event, out: &mut Vec<Action>) {
        let Some(serving) = self.serves_mut() else {
            return;
        };
        match event {
            Event::Alive => out.push(Action::Notify(ServiceNotice::Alive)),
            Event::Loading => serving.progress(now),
            Event::Reloaded | Event::Refused => match serving.reload.take() {
                Some(reload) if event == Event::Reloaded => {
                    serving.times = reload.times;
                    out.extend([
                        Action::Commit(id),
                        Action::Watch,
                        Action::Notify(ServiceNotice::Ready),
                    ]);
                    self.proceed(now, out);
                }
                Some(_) => {
                    out.extend([
                        Action::Discard(id),
                        Action::Notify(ServiceNotice::ReloadRefused),
                    ]);
                    self.proceed(now, out);
                }
                None => self.misfit(id, &event, out),
            },
            Event::Changed => out.push(Action::Watch),
            Event::Renewed(_) if serving.is_renewing => {
                serving.is_renewing = false;
                self.proceed(now, out);
            }
            Event::Yielded(next, held) => {
                let is_next = self.next.as_ref().is_some_and(|it| it.id == next);
                if is_next && !self.ledger.rows().contains_key(&id) {
                    self.ledger.set(id, held);
                    self.serve_next(out);
                }
            }
            Event::Granted(to, counts) => self.granted(id, to, counts, out),
            // These events are forwarded only between `Yield` and `Leave`. After `Resume`, an event
            // that was already sent may still arrive and is ignored.
            event @ (Event::Released(_) | Event::Wanted(_)) => {
                if serving.yields {
                    self.leaving_event(id, event, out);
                }
            }
            // A second drain request would close connections.
            Event::Asked(OperatorRequest::Drain) if self.ending.is_some() => {}
            Event::Asked(request) => self.request(now, request, ASKED_BY_PROCESS, out),
            event => self.misfit(id, &event, out),
        }
    }

    /// Forwards counts that process `id` grants to process `to`. Returns them to `id` if `to` has
    /// exited.
    fn granted(&mut self, id: u32, to: u32, counts: Counts, out: &mut Vec<Action>) {
        let command = if self.ledger.grant(to, &counts) {
            Action::Send(to, Command::Granted(counts))
        } else {
            Action::Send(id, Command::Released(counts))
        };
        out.push(command);
    }

    fn leaving_event(&mut self, id: u32, event: Event, out: &mut Vec<Action>) {
        let accepting = self.accepting();
        let command = match event {
            Event::Released(counts) => Command::Released(self.ledger.release(id, &counts)),
            Event::Wanted(counts) => Command::Wanted(id, counts),
            // Ignores other events: the process sent them before it read `Leave`, or they have no
            // effect any more.
            _ => return,
        };
        if let Some(accepting) = accepting {
            out.push(Action::Send(accepting, command));
        }
    }

    fn misfit(&mut self, id: u32, event: &Event, out: &mut Vec<Action>) {
        // During a shutdown, answers to earlier commands may still arrive.
        if self.ending.is_none() {
            let text = format!("{event:?}");
            let name: String = text.chars().take_while(char::is_ascii_alphabetic).collect();
            self.broken(id, &format!("unexpected event {name}"), out);
        }
    }
}
