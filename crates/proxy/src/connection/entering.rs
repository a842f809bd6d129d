//! First phase of a client that does not begin with TLS.
//!
//! Normally it reads nothing, because the server may send first. With `acme-http`, the start of the
//! first request is peeked in the socket. If the request asks for a pending HTTP-01 challenge (RFC
//! 8555, section 8.3), it is answered. As soon as it cannot, the client continues as without this
//! key, and so it does after `timeouts.hello`. No byte is buffered.

use std::io::ErrorKind;
use std::rc::Rc;
use std::sync::Arc;

use becket_http::answer::{After, Answer, PLAIN_TEXT};
use becket_http::select::date_text;
use becket_http::status::StatusCode;
use becket_proto::acme::LONGEST_TOKEN;
use becket_tls::challenges::HTTP_PATH;

use super::context::{Context, Net};
use super::listener::ListenerState;
use super::reached::{Advance, Reached};
use crate::socket::StreamSocket;
use becket_proto::close_reason::CloseReason;
use becket_tls::scratch::Scratch;

#[derive(Debug)]
pub(super) struct Entering {
    listener: Rc<ListenerState>,
}

enum Peeked {
    NotChallenge,
    /// More bytes may ask for a challenge.
    Undecided,
    Challenge(Arc<str>),
}

impl Entering {
    pub(super) fn new(listener: Rc<ListenerState>) -> Self {
        Self { listener }
    }

    pub(super) fn advance<N: Net>(
        self,
        cx: &mut Context<'_, '_, N>,
        scratch: &mut Scratch,
    ) -> Advance<Self, N> {
        if !self.listener.config().keys.acme_http {
            return Advance::Reached(Reached::Cleartext(self.listener));
        }
        match peek(cx, scratch) {
            Peeked::NotChallenge => self.expire(cx),
            Peeked::Undecided => {
                cx.core.client.ready.readable = false;
                Advance::Wait(self)
            }
            Peeked::Challenge(authorization) => {
                // The answer has a length, so FIN alone does not end it.
                cx.core.fin_is_an_end = false;
                let answer = answer(&authorization, cx.turn.now.unix.as_secs());
                Advance::close(CloseReason::AcmeChallenge, answer.into_bytes().into())
            }
        }
    }

    pub(super) fn expire<N: Net>(self, cx: &mut Context<'_, '_, N>) -> Advance<Self, N> {
        // No event follows for peeked bytes.
        cx.core.client.ready.readable = true;
        Advance::Reached(Reached::Cleartext(self.listener))
    }
}

fn peek<N: Net>(cx: &mut Context<'_, '_, N>, scratch: &mut Scratch) -> Peeked {
    scratch.clear();
    let seen = &mut scratch.sealed_in;
    match cx.core.client.socket.peek(seen.next(LONGEST)) {
        // The next phase handles the end of the stream.
        Ok(0) => return Peeked::NotChallenge,
        Ok(n) => seen.advance(n),
        Err(error) if error.kind() == ErrorKind::WouldBlock => return Peeked::Undecided,
        Err(_) => return Peeked::NotChallenge,
    }
    let seen = seen.filled();
    let path = HTTP_PATH.as_bytes();
    let mut words = seen.splitn(3, |byte| *byte == b' ');
    let may_match = match (words.next(), words.next(), words.next()) {
        (Some(b"GET"), Some(target), Some(_)) => {
            let target = str::from_utf8(target).unwrap_or_default();
            let authorization = cx.turn.challenges.http(target, cx.turn.now.mono);
            return authorization.map_or(Peeked::NotChallenge, Peeked::Challenge);
        }
        (Some(b"GET"), Some(target), None) => target.starts_with(path) || path.starts_with(target),
        (Some(method), None, _) => b"GET".starts_with(method),
        _ => false,
    };
    // After the end of the stream, no more bytes follow.
    if may_match && seen.len() < LONGEST && !cx.core.client.ready.ended {
        Peeked::Undecided
    } else {
        Peeked::NotChallenge
    }
}

fn answer(authorization: &str, now: u64) -> String {
    let answer = Answer {
        status: StatusCode::Ok,
        date: &date_text(now),
        fields: &[PLAIN_TEXT],
        length: Some(authorization.len() as u64),
        range: None,
        after: After::Ends,
    };
    let mut text = String::new();
    answer.write(&mut text);
    text + authorization
}

/// Maximum number of bytes that are peeked: `GET`, path and token, with a space after each.
const LONGEST: usize = "GET ".len() + HTTP_PATH.len() + LONGEST_TOKEN + 1;
