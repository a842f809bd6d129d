//! Server to client: receive, open, seal, send.

use super::{Load, Relaying, server_fault};
use crate::close_reason::CloseReason;
use crate::connection::{Core, Net, Turn};
use crate::leg::Got;
use crate::metrics::Counters;
use crate::scratch::READ;

impl<N: Net> Relaying<N> {
    /// Server to client: receives up to four records' worth, opens, seals, sends once. When the
    /// server has ended, close_notify leaves with the last data.
    pub(super) fn read_server(
        &mut self,
        load: &mut Load,
        core: &mut Core<N>,
        turn: &mut Turn<'_, N>,
    ) -> Result<(), CloseReason> {
        turn.scratch.clear();
        let taken = match self.server_tls {
            Some(_) => self.open_server(turn),
            None => self.drain_server(turn).map(|()| 0),
        };
        let scratch = &mut *turn.scratch;
        let plain = scratch.plain.filled();
        let weight = taken.as_ref().map_or(0, |weight| *weight);
        let came = weight.max(plain.len()).max(scratch.sealed_in.len());
        load.to_client = load.to_client.saturating_sub(came);
        if let Some(learner) = &mut self.learner
            && !learner.look(plain, self.slot.server(), turn.now.mono)
        {
            self.learner = None;
        }
        let bytes = match &mut self.client_tls {
            Some(engine) => {
                let end = self.to_client.source_ended();
                let sealed = engine.seal(plain, end, &mut scratch.sealed_out);
                sealed.map_err(|_| CloseReason::Internal)?;
                scratch.sealed_out.filled()
            }
            None => plain,
        };
        self.send_client(bytes, core, turn.counters)?;
        taken.map(drop)
    }

    /// Receives plaintext into `scratch.plain`.
    fn drain_server(&mut self, turn: &mut Turn<'_, N>) -> Result<(), CloseReason> {
        let buffer = &mut turn.scratch.plain;
        while buffer.len() < READ {
            let most = READ - buffer.len();
            let counter = &turn.counters.server_bytes_in;
            let got = self
                .server
                .receive(buffer, most, counter)
                .map_err(|_| CloseReason::ServerReset)?;
            if got == Got::End {
                self.to_client.end_source();
                return Ok(());
            }
            if !self.server.ready.readable {
                self.to_client.block_source();
                return Ok(());
            }
        }
        Ok(())
    }

    /// Opens what waits or what it receives, once, into `scratch.plain`. Returns what that weighs. What
    /// TLS itself has to say to the server goes out at once.
    fn open_server(&mut self, turn: &mut Turn<'_, N>) -> Result<usize, CloseReason> {
        let Some(engine) = &mut self.server_tls else {
            return Ok(0);
        };
        let scratch = &mut *turn.scratch;
        let opened = if engine.waits() {
            engine.resume(&mut scratch.plain, &mut scratch.sealed_out)
        } else {
            scratch.sealed_in.push(engine.held());
            let counter = &turn.counters.server_bytes_in;
            match self.server.receive(&mut scratch.sealed_in, READ, counter) {
                Ok(Got::Bytes) => {}
                Ok(Got::Nothing) => {
                    self.to_client.block_source();
                    return Ok(0);
                }
                Ok(Got::End) => return Err(CloseReason::ServerTruncated),
                Err(_) => return Err(CloseReason::ServerReset),
            }
            let input = scratch.sealed_in.filled_mut();
            engine.receive(input, &mut scratch.plain, &mut scratch.sealed_out)
        };
        if !self.server.ready.readable && !engine.waits() {
            self.to_client.block_source();
        }
        self.send_server(scratch.sealed_out.filled(), turn.counters);
        scratch.sealed_out.clear();
        let opened = opened.map_err(|error| server_fault(&error))?;
        if opened.ended {
            self.to_client.end_source();
        }
        Ok(opened.weight)
    }

    /// Sends to the client, behind what waits already.
    pub(super) fn send_client(
        &mut self,
        bytes: &[u8],
        core: &mut Core<N>,
        counters: &Counters,
    ) -> Result<(), CloseReason> {
        if self.to_client.is_finished() {
            return Ok(());
        }
        let mut sent = 0;
        if self.to_client.is_clear() && !bytes.is_empty() {
            sent = core
                .client
                .send(bytes, &counters.client_bytes_out)
                .map_err(|_| CloseReason::ClientReset)?;
            if !core.client.ready.writable {
                self.to_client.block_sink();
            }
        }
        self.to_client.offer(bytes.get(sent..).unwrap_or_default());
        Ok(())
    }

    pub(super) fn write_client(
        &mut self,
        core: &mut Core<N>,
        turn: &Turn<'_, N>,
    ) -> Result<(), CloseReason> {
        let counter = &turn.counters.client_bytes_out;
        let sent = core
            .client
            .send(self.to_client.waiting(), counter)
            .map_err(|_| CloseReason::ClientReset)?;
        self.to_client.sent(sent);
        if !core.client.ready.writable {
            self.to_client.block_sink();
        }
        Ok(())
    }
}
