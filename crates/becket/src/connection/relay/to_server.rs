//! Client to server: receive, open, seal, send.

use super::{Load, Relaying, client_fault};
use crate::close_reason::CloseReason;
use crate::connection::{Core, Net, Turn};
use crate::leg::Got;
use crate::metrics::Counters;
use crate::scratch::READ;
use crate::socket::Fault;

impl<N: Net> Relaying<N> {
    /// Client to server: receives, opens, seals, sends once.
    pub(super) fn read_client(
        &mut self,
        load: &mut Load,
        core: &mut Core<N>,
        turn: &mut Turn<'_, N>,
    ) -> Result<(), CloseReason> {
        turn.scratch.clear();
        let weight = match self.client_tls {
            Some(_) => self.open_client(core, turn)?,
            None => self.take_client(core, turn)?,
        };
        let scratch = &mut *turn.scratch;
        let plain = scratch.plain.filled();
        let came = weight.max(plain.len()).max(scratch.sealed_in.len());
        load.to_server = load.to_server.saturating_sub(came);
        let bytes = match &mut self.server_tls {
            Some(engine) => {
                let end = self.to_server.source_ended() && !self.truncated;
                let sealed = engine.seal(plain, end, &mut scratch.sealed_out);
                sealed.map_err(|_| CloseReason::Internal)?;
                scratch.sealed_out.filled()
            }
            None => plain,
        };
        self.send_server(bytes, turn.counters);
        Ok(())
    }

    /// Opens what waits or what it receives, once, into `scratch.plain`. Returns what that weighs. What
    /// TLS itself has to say to the client goes out at once.
    fn open_client(
        &mut self,
        core: &mut Core<N>,
        turn: &mut Turn<'_, N>,
    ) -> Result<usize, CloseReason> {
        let Some(engine) = &mut self.client_tls else {
            return Ok(0);
        };
        let scratch = &mut *turn.scratch;
        let opened = if engine.waits() {
            engine.resume(&mut scratch.plain, &mut scratch.sealed_out)
        } else {
            scratch.sealed_in.push(engine.held());
            let counter = &turn.counters.client_bytes_in;
            match core.client.receive(&mut scratch.sealed_in, READ, counter) {
                Ok(Got::Bytes) => {}
                Ok(Got::Nothing) => {
                    self.to_server.block_source();
                    return Ok(0);
                }
                Ok(Got::End) => {
                    self.truncated = !self.to_client.source_ended();
                    turn.counters.truncated.add(u64::from(self.truncated));
                    self.to_server.end_source();
                    return Ok(0);
                }
                Err(_) => return Err(CloseReason::ClientReset),
            }
            let input = scratch.sealed_in.filled_mut();
            engine.receive(input, &mut scratch.plain, &mut scratch.sealed_out)
        };
        if !core.client.ready.readable && !engine.waits() {
            self.to_server.block_source();
        }
        self.send_client(scratch.sealed_out.filled(), core, turn.counters)?;
        scratch.sealed_out.clear();
        let opened = opened.map_err(|error| client_fault(&error))?;
        if opened.ended {
            self.to_server.end_source();
        }
        Ok(opened.weight)
    }

    /// Receives once into `scratch.plain`: a client without TLS, or one that is none of ours.
    fn take_client(
        &mut self,
        core: &mut Core<N>,
        turn: &mut Turn<'_, N>,
    ) -> Result<usize, CloseReason> {
        let counter = &turn.counters.client_bytes_in;
        let got = core.client.receive(&mut turn.scratch.plain, READ, counter);
        match got.map_err(|_| CloseReason::ClientReset)? {
            Got::Bytes | Got::Nothing if core.client.ready.readable => {}
            Got::Bytes | Got::Nothing => self.to_server.block_source(),
            Got::End => self.to_server.end_source(),
        }
        Ok(0)
    }

    /// Sends to the server, behind what waits already.
    pub(super) fn send_server(&mut self, bytes: &[u8], counters: &Counters) {
        if self.to_server.is_finished() {
            return;
        }
        let mut sent = 0;
        if self.to_server.is_clear() && !bytes.is_empty() {
            let result = self.server.send(bytes, &counters.server_bytes_out);
            let Some(taken) = self.server_took(result) else {
                return;
            };
            sent = taken;
        }
        self.to_server.offer(bytes.get(sent..).unwrap_or_default());
    }

    pub(super) fn write_server(&mut self, turn: &Turn<'_, N>) {
        let waiting = self.to_server.waiting();
        let result = self.server.send(waiting, &turn.counters.server_bytes_out);
        if let Some(sent) = self.server_took(result) {
            self.to_server.sent(sent);
        }
    }

    /// What a send to the server means. Nothing when the server takes no more: it may have
    /// answered early and closed, and then its answer is still to be read.
    fn server_took(&mut self, result: Result<usize, Fault>) -> Option<usize> {
        if result.is_ok() {
            if !self.server.ready.writable {
                self.to_server.block_sink();
            }
        } else {
            self.server.ready.readable = true;
            self.to_client.handle_readable();
            self.to_server.finish();
        }
        result.ok()
    }
}
