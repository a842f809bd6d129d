//! A handshake that waits for a signature; how one is made: [`becket_keys::signing`].
//!
//! It owns all that the suspended step of rustls points into: the engine, its input, what came out of it. What the step needs
//! of resumption is lent to the thread only while it runs (`sessions/context.rs`). Meanwhile nothing is received: a client has nothing
//! to say before it has our signature. One that ends its side, or resets, has gone; then the step is resumed once more without an
//! answer, comes to its end with an error, and the job is not begun, if no thread has begun it.

use std::io;
use std::ops::ControlFlow;

use becket_sys::coroutine::{CoroutineState, Suspended};
use rustls::Error;

use super::handshake::{Ahead, Chosen, Flights, Handshaking, abandon};
use super::{Advanced, Connection, Context, Net, Next, Phase, Turn};
use crate::socket::Ready;
use becket_keys::signing::Offload;
use becket_keys::signing::queue::Signed;
use becket_keys::signing::worker::{Asked, WorkerSigning};
use becket_proto::close_reason::CloseReason;
use becket_tls::engine::Received;
use becket_tls::scratch::{Buffer, Scratch};
use becket_tls::sessions::context::{self, Resuming};

/// A client whose handshake waits for a signature.
#[derive(Debug)]
pub(super) struct Signing<N: Net> {
    ahead: Ahead<N>,
    /// Lent to the thread while the step runs.
    resuming: Option<Resuming>,
    step: Suspended<Step>,
    asked: Asked,
    answer: Option<Result<Vec<u8>, Error>>,
}

/// What a step of rustls leaves, once it is done.
#[derive(Debug)]
struct Step {
    chosen: Box<Chosen>,
    received: Result<Received, Error>,
    plain: Buffer,
    out: Buffer,
}

/// Gives what came to TLS as a step that may wait for a signature.
pub(super) fn begin<N: Net>(
    flights: Flights<N>,
    input: &[u8],
    signing: &WorkerSigning,
    cx: &mut Context<'_, '_, N>,
) -> ControlFlow<Next<N>, Flights<N>> {
    let Flights { mut chosen, ahead } = flights;
    chosen.tell_time(cx.turn);
    let mut resuming = chosen.resuming.take();
    let mut input = input.to_vec();
    let step = move || {
        let (mut plain, mut out) = (Buffer::default(), Buffer::default());
        let received = chosen.engine.receive(&mut input, &mut plain, &mut out);
        Step {
            chosen,
            received,
            plain,
            out,
        }
    };
    match context::lend(&mut resuming, || signing.run(step)) {
        Ok(progress) => go_on(progress, resuming, ahead, cx),
        Err(error) => ControlFlow::Break(without_a_stack(&error, cx)),
    }
}

/// Settles a step that is done, or has it wait for the signature that it asks for.
fn go_on<N: Net>(
    progress: CoroutineState<Step>,
    mut resuming: Option<Resuming>,
    ahead: Ahead<N>,
    cx: &mut Context<'_, '_, N>,
) -> ControlFlow<Next<N>, Flights<N>> {
    match progress {
        CoroutineState::Done(step) => {
            let mut chosen = step.chosen;
            chosen.resuming = resuming;
            let received = chosen.judge(step.received);
            let (plain, mut out) = (step.plain, step.out);
            Flights { chosen, ahead }.settle(received, (&plain, &mut out), cx)
        }
        CoroutineState::Suspended(step) => {
            let request = resuming.as_mut().and_then(|it| it.request.take());
            let asked = request.zip(cx.turn.signing).map(|(request, signing)| {
                if request.token.is_none() {
                    cx.turn.counters.signatures_begun.add(1);
                }
                signing.ask(cx.turn.place, request)
            });
            let Some(asked) = asked else {
                // Nothing else suspends a step.
                return ControlFlow::Break(cx.end_handshake(CloseReason::Internal));
            };
            let signing = Signing {
                ahead,
                resuming,
                step,
                asked,
                answer: None,
            };
            let phase = Handshaking::Signing(Box::new(signing));
            ControlFlow::Break(Next::Wait(Phase::Handshaking(phase)))
        }
    }
}

fn without_a_stack<N: Net>(error: &io::Error, cx: &mut Context<'_, '_, N>) -> Next<N> {
    cx.note(CloseReason::Internal, &format!("no stack: {error}"));
    cx.end_handshake(CloseReason::Internal)
}

impl<N: Net> Signing<N> {
    pub(super) fn ahead(&self) -> &Ahead<N> {
        &self.ahead
    }

    pub(super) fn ahead_mut(&mut self) -> &mut Ahead<N> {
        &mut self.ahead
    }

    /// Takes the answer if it is this one's.
    pub(super) fn handle_signed(&mut self, signed: Signed) -> bool {
        let mine = self.asked.is(signed.asker);
        if mine {
            self.answer = signed.signature;
        }
        mine
    }

    /// Whether this readiness can change anything: bytes wait until there is a signature.
    pub(super) fn cares_for(ready: Ready) -> bool {
        ready.ended || ready.failed
    }

    pub(super) fn advance(self: Box<Self>, cx: &mut Context<'_, '_, N>) -> Next<N> {
        if Self::cares_for(cx.core.client.ready) {
            return abandon(cx);
        }
        if self.answer.is_none() {
            return Next::Wait(Phase::Handshaking(Handshaking::Signing(self)));
        }
        let Self {
            ahead,
            mut resuming,
            step,
            answer,
            ..
        } = *self;
        if let Some(resuming) = &mut resuming {
            resuming.signature = answer;
        }
        let progress = context::lend(&mut resuming, || step.resume());
        match go_on(progress, resuming, ahead, cx) {
            ControlFlow::Continue(flights) => {
                Next::Go(Phase::Handshaking(Handshaking::Flights(flights)))
            }
            ControlFlow::Break(next) => next,
        }
    }
}

impl<N: Net> Connection<N> {
    /// Takes the expensive step that [`Self::wants_signature`] tells of.
    pub fn sign(&mut self, turn: &mut Turn<'_, N>, scratch: &mut Scratch) -> Advanced {
        let sign = |phase, cx: &mut Context<'_, '_, N>, scratch: &mut Scratch| match phase {
            Phase::Handshaking(phase) => phase.sign(cx, scratch),
            phase => Next::Go(phase),
        };
        self.go_on(sign, turn, scratch)
    }

    /// Whether what comes next is a signature, and whether that is handed over: the worker chooses when.
    pub fn wants_signature(&self) -> Option<Offload> {
        match &self.phase {
            Some(Phase::Handshaking(phase)) => phase.wants_signature(self.core.client.ready),
            _ => None,
        }
    }

    /// A signature has come, for whoever waits for this one. Returns whether the connection should be advanced for it.
    pub fn handle_signed(&mut self, signed: Signed) -> bool {
        match &mut self.phase {
            Some(Phase::Handshaking(phase)) => phase.handle_signed(signed),
            _ => false,
        }
    }
}
