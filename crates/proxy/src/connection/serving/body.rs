//! Sends the body of a response from a file in one of two ways.
//!
//! Without TLS or with kernel TLS, the kernel sends file bytes that are in the page cache
//! (sendfile(2)). Otherwise, and for a short body, the worker reads bytes into its buffer and sends
//! them. If bytes are not in the page cache, a reader thread reads them while the kernel reads
//! ahead, and the worker then sends them. For a long body, TLS first moves to the kernel.
//!
//! sendfile(2) blocks the worker if a page is evicted between the check and the call: decision 0047
//! discusses this and the thresholds.

use std::io;

use becket_proto::half_pipe::HalfPipe;

use super::super::context::{Context, Net};
use super::{Doing, FileBody, ServeStep, ServingFiles};
use crate::backend::awaited::AwaitedAnswer;
use becket_proto::close_reason::CloseReason;
use becket_tls::scratch::{READ, Scratch};

impl ServingFiles {
    pub(super) fn send<N: Net>(
        &mut self,
        mut body: FileBody,
        cx: &mut Context<'_, '_, N>,
        scratch: &mut Scratch,
    ) -> Result<ServeStep, CloseReason> {
        if let Some(asked) = body.asked.take() {
            match asked.take() {
                AwaitedAnswer::Waiting => {
                    body.asked = Some(asked);
                    self.doing = Doing::Sending(body);
                    return Ok(ServeStep::Waits);
                }
                AwaitedAnswer::Done(Ok(bytes)) if !bytes.is_empty() => {
                    scratch.plain.push(&bytes);
                    self.pass(body, bytes.len(), cx, scratch)?;
                    return Ok(ServeStep::Moved);
                }
                _ => return Err(CloseReason::FileCut),
            }
        }
        if !cx.core.client.ready.writable {
            self.doing = Doing::Sending(body);
            return Ok(ServeStep::Waits);
        }
        self.fill(body, cx, scratch).map(|()| ServeStep::Moved)
    }

    /// Sends the buffer, then the next bytes of the file that are in the page cache. Requests bytes
    /// that are not in the page cache from a reader thread.
    pub(super) fn fill<N: Net>(
        &mut self,
        mut body: FileBody,
        cx: &mut Context<'_, '_, N>,
        scratch: &mut Scratch,
    ) -> Result<(), CloseReason> {
        let most = self.most_to_send(&body, cx)?;
        // If the check fails, no bytes count as cached, and the read below reports the error.
        let cached = match most {
            0 => 0,
            most => body.file.cached(body.rest.start, most).unwrap_or(0),
        };
        if cached > 0 {
            let part = (body.file.file(), body.rest.start, cached);
            let sent = self.half(cx).send_file(scratch.plain.filled(), part)?;
            scratch.plain.clear();
            body.is_read = sent.is_none();
            return self.pass(body, sent.unwrap_or(0), cx, scratch);
        }
        self.read(body, cx, scratch)
    }

    /// Returns how many of the next file bytes sendfile(2) may send; 0 if becket encrypts. If much
    /// of the body is still unsent, first takes TLS from rustls.
    fn most_to_send<N: Net>(
        &mut self,
        body: &FileBody,
        cx: &mut Context<'_, '_, N>,
    ) -> Result<usize, CloseReason> {
        let rest = body.rest.end - body.rest.start;
        if body.is_read || rest < LEAST_SENT {
            return Ok(0);
        }
        let turn = cx.turn.limits.bytes_per_turn.max(READ);
        let may_move = !self.ended && !self.to_client.is_holding();
        let mut client = self.half(cx);
        if may_move && client.note_bulk(rest) {
            client.leave_rustls(&mut HalfPipe::default())?;
            // Data that arrived during the move causes no further event, so the next step reads
            // again.
            client.leg.ready.readable |= client.is_plain();
        }
        Ok(if client.is_plain() {
            usize::try_from(rest).map_or(turn, |rest| rest.min(turn))
        } else {
            0
        })
    }

    /// Reads the next bytes of the file that are in the page cache into the buffer, and sends it.
    /// Requests bytes that are not in the page cache from a reader thread.
    fn read<N: Net>(
        &mut self,
        mut body: FileBody,
        cx: &mut Context<'_, '_, N>,
        scratch: &mut Scratch,
    ) -> Result<(), CloseReason> {
        let whole = usize::try_from(body.rest.end - body.rest.start).unwrap_or(READ);
        let most = whole.min(READ - scratch.plain.len().min(READ / 2));
        let room = scratch.plain.next(most);
        match body.file.read_cached(room, body.rest.start) {
            Ok(0) => Err(CloseReason::FileCut),
            Ok(n) => {
                scratch.plain.advance(n);
                self.pass(body, n, cx, scratch)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let Some(service) = self.site.service() else {
                    return Err(CloseReason::Internal);
                };
                cx.turn.counters.file_waits.add(1);
                let part = (body.rest.start, whole.min(READ));
                body.asked = Some(service.read_later(&body.file, part, cx.turn.place));
                if !scratch.plain.is_empty() {
                    self.put(false, cx, scratch)?;
                }
                self.doing = Doing::Sending(body);
                Ok(())
            }
            Err(_) => Err(CloseReason::FileCut),
        }
    }

    /// Sends the buffer, whose last `n` bytes are from the file.
    fn pass<N: Net>(
        &mut self,
        mut body: FileBody,
        n: usize,
        cx: &mut Context<'_, '_, N>,
        scratch: &mut Scratch,
    ) -> Result<(), CloseReason> {
        body.rest.start += n as u64;
        self.count_body(n);
        let is_whole = body.rest.is_empty();
        self.put(is_whole && self.is_last, cx, scratch)?;
        if is_whole {
            self.log(cx);
        } else {
            self.doing = Doing::Sending(body);
        }
        Ok(())
    }
}

/// Minimum number of unsent bytes for sendfile(2). A shorter body is read into the buffer and sent
/// together with its head.
const LEAST_SENT: u64 = 64 * 1024;
