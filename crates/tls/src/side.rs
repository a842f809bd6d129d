//! The client side and the server side of TLS, for which rustls has separate connection types.

use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::kernel::KernelConnection;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ReadEarlyData, UnbufferedStatus};
use rustls::{CommonState, Error, ExtractedSecrets};

use crate::scratch::Buffer;

/// Operations of a rustls connection that exist on the client side and on the server side.
pub trait TlsSide {
    type Data;

    /// Processes records; see `UnbufferedConnectionCommon::process_tls_records`.
    fn process<'c, 'i>(&'c mut self, input: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data>;

    fn common(&self) -> &CommonState;

    /// Ends the connection and returns its secrets. See `dangerous_into_kernel_connection` of
    /// rustls.
    ///
    /// # Errors
    ///
    /// Fails if the secrets may not be extracted, or if output is pending.
    fn into_secrets(self) -> Result<(ExtractedSecrets, KernelConnection<Self::Data>), Error>;

    /// Returns the number of received tickets; 0 on the server side.
    fn tickets(&self) -> u32 {
        0
    }

    /// Stores a ticket that arrived after the secrets were extracted.
    ///
    /// # Errors
    ///
    /// Fails if the message is not a ticket, or if this is the server side, because clients send no
    /// tickets.
    fn take_ticket(_: &mut KernelConnection<Self::Data>, _: &[u8]) -> Result<(), Error> {
        Err(Error::General("a ticket from a client".into()))
    }

    /// Reads early data, which only a server receives. Returns the number of bytes to discard.
    ///
    /// # Errors
    ///
    /// Fails if a record cannot be decrypted.
    fn read_early(_: ReadEarlyData<'_, '_, Self::Data>, _: &mut Buffer) -> Result<usize, Error> {
        Ok(0)
    }
}

impl TlsSide for UnbufferedServerConnection {
    type Data = ServerConnectionData;

    fn process<'c, 'i>(&'c mut self, input: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(input)
    }

    fn common(&self) -> &CommonState {
        self
    }

    fn into_secrets(self) -> Result<(ExtractedSecrets, KernelConnection<Self::Data>), Error> {
        self.dangerous_into_kernel_connection()
    }

    fn read_early(
        mut early: ReadEarlyData<'_, '_, Self::Data>,
        plain: &mut Buffer,
    ) -> Result<usize, Error> {
        let mut discard = 0;
        while let Some(record) = early.next_record() {
            let record = record?;
            discard += record.discard;
            plain.push(record.payload);
        }
        Ok(discard)
    }
}

impl TlsSide for UnbufferedClientConnection {
    type Data = ClientConnectionData;

    fn process<'c, 'i>(&'c mut self, input: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(input)
    }

    fn common(&self) -> &CommonState {
        self
    }

    fn into_secrets(self) -> Result<(ExtractedSecrets, KernelConnection<Self::Data>), Error> {
        self.dangerous_into_kernel_connection()
    }

    fn tickets(&self) -> u32 {
        self.tls13_tickets_received()
    }

    fn take_ticket(
        connection: &mut KernelConnection<Self::Data>,
        ticket: &[u8],
    ) -> Result<(), Error> {
        connection.handle_new_session_ticket(ticket)
    }
}
