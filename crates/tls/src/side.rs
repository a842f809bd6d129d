//! The two sides of TLS: rustls has a type for each, and one set of states for both.

use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::kernel::KernelConnection;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ReadEarlyData, UnbufferedStatus};
use rustls::{CommonState, Error, ExtractedSecrets};

use crate::scratch::Buffer;

/// A side of TLS: rustls has a type for each, and one set of states for both.
pub trait TlsSide {
    /// What rustls keeps for this side alone.
    type Data;

    /// Processes records; see `UnbufferedConnectionCommon::process_tls_records`.
    fn process<'c, 'i>(&'c mut self, input: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data>;

    /// What both sides know alike.
    fn common(&self) -> &CommonState;

    /// Gives out the secrets, and ends. See `dangerous_into_kernel_connection` of rustls.
    ///
    /// # Errors
    ///
    /// When secrets may not be given out, or something waits to be sent.
    fn into_secrets(self) -> Result<(ExtractedSecrets, KernelConnection<Self::Data>), Error>;

    /// How many tickets have come.
    fn tickets(&self) -> u32 {
        0
    }

    /// Stores a ticket that came when the secrets had been given out.
    ///
    /// # Errors
    ///
    /// When it is none, or nobody sends one here.
    fn take_ticket(_: &mut KernelConnection<Self::Data>, _: &[u8]) -> Result<(), Error> {
        Err(Error::General("a ticket from a client".into()))
    }

    /// Takes early data, which only a server gets. Returns how many bytes to discard.
    ///
    /// # Errors
    ///
    /// When a record does not open.
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
