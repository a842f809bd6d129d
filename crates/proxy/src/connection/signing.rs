//! A step of rustls that may wait for a signature from [`becket_keys::signing`].
//!
//! The step is a coroutine that owns the engine, its input and its output. The context for rustls'
//! callbacks is in a thread-local variable only while the step runs (`sessions/context.rs`). If a
//! suspended step is dropped, it is resumed once without a signature, so that it ends with an
//! error. A crypto thread skips a requested signature that it has not started.

use becket_sys::coroutine::{CoroutineState, Suspended};
use rustls::Error;

use super::context::{Net, Turn};
use becket_keys::signing::queue::Signed;
use becket_keys::signing::worker::{PendingSignature, WorkerSigning};
use becket_tls::engine::{Engine, Received};
use becket_tls::scratch::Buffer;
use becket_tls::sessions::context::{self, HandshakeContext};

#[derive(Debug)]
pub(super) struct Signing {
    step: Suspended<SignedStep>,
    asked: PendingSignature,
    answer: Option<Result<Vec<u8>, Error>>,
}

#[derive(Debug)]
pub(super) struct SignedStep {
    pub(super) engine: Engine,
    pub(super) received: Result<Received, Error>,
    pub(super) plain: Buffer,
    pub(super) out: Buffer,
}

pub(super) enum Signature {
    Done(SignedStep),
    Awaited(Signing),
    /// The step was suspended without a request for a signature, or no stack could be allocated.
    Failed(String),
}

/// Passes `input` to rustls in a step that may wait for a signature.
pub(super) fn begin<N: Net>(
    mut engine: Engine,
    input: &[u8],
    handshake: &mut Option<HandshakeContext>,
    (signing, turn): (&WorkerSigning, &Turn<'_, N>),
) -> Signature {
    let mut input = input.to_vec();
    let step = move || {
        let (mut plain, mut out) = (Buffer::default(), Buffer::default());
        let received = engine.receive(&mut input, &mut plain, &mut out);
        SignedStep {
            engine,
            received,
            plain,
            out,
        }
    };
    match context::lend(handshake, || signing.run(step)) {
        Ok(progress) => Signature::of(progress, handshake, turn),
        Err(error) => Signature::Failed(format!("cannot allocate a stack: {error}")),
    }
}

impl Signature {
    /// Requests the signature for which the step was suspended.
    fn of<N: Net>(
        progress: CoroutineState<SignedStep>,
        handshake: &mut Option<HandshakeContext>,
        turn: &Turn<'_, N>,
    ) -> Self {
        let step = match progress {
            CoroutineState::Done(step) => return Self::Done(step),
            CoroutineState::Suspended(step) => step,
        };
        let request = handshake
            .as_mut()
            .and_then(|it| it.signature.request.take());
        let Some((request, signing)) = request.zip(turn.signing) else {
            return Self::Failed(String::new());
        };
        if request.token.is_none() {
            turn.counters.signatures_begun.add(1);
        }
        Self::Awaited(Signing {
            step,
            asked: signing.ask(turn.place, request),
            answer: None,
        })
    }
}

impl Signing {
    /// Stores the signature and returns `true` if this step requested it.
    pub(super) fn handle_signed(&mut self, signed: Signed) -> bool {
        let mine = self.asked.is(signed.asker);
        if mine {
            self.answer = signed.signature;
        }
        mine
    }

    pub(super) fn has_answer(&self) -> bool {
        self.answer.is_some()
    }

    pub(super) fn resume<N: Net>(
        self,
        handshake: &mut Option<HandshakeContext>,
        turn: &Turn<'_, N>,
    ) -> Signature {
        if let Some(handshake) = handshake {
            handshake.signature.answer = self.answer;
        }
        let step = self.step;
        let progress = context::lend(handshake, || step.resume());
        Signature::of(progress, handshake, turn)
    }
}
