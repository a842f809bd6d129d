//! Output of an unbuffered rustls connection, appended to a buffer that grows on demand.

use rustls::Error;
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncryptError, InsufficientSizeError, UnbufferedStatus,
};

use crate::scratch::Buffer;
use crate::side::TlsSide;

/// Appends the pending output of rustls to `out`. Stops when there is no more output, because a
/// further call would report the error again.
pub(crate) fn collect_alert(connection: &mut impl TlsSide, rest: &mut [u8], out: &mut Buffer) {
    let mut discarded = 0;
    while connection.common().wants_write() {
        let rest = rest.get_mut(discarded..).unwrap_or_default();
        let UnbufferedStatus { discard, state } = connection.process(rest);
        let Ok(ConnectionState::EncodeTlsData(mut data)) = state else {
            return;
        };
        if encode_into(out, |room| data.encode(room)).is_err() {
            return;
        }
        discarded += discard;
    }
}

pub(crate) enum Encoding {
    TooSmall(usize),
    Failed(Error),
}

impl From<EncodeError> for Encoding {
    fn from(error: EncodeError) -> Self {
        match error {
            EncodeError::InsufficientSize(InsufficientSizeError { required_size }) => {
                Self::TooSmall(required_size)
            }
            EncodeError::AlreadyEncoded => Self::Failed(Error::General(error.to_string())),
        }
    }
}

impl From<EncryptError> for Encoding {
    fn from(error: EncryptError) -> Self {
        match error {
            EncryptError::InsufficientSize(InsufficientSizeError { required_size }) => {
                Self::TooSmall(required_size)
            }
            EncryptError::EncryptExhausted => Self::Failed(Error::EncryptError),
        }
    }
}

/// Encodes data with `encode` and appends the result to `out`. If the buffer is too small, enlarges
/// it and encodes again.
pub(crate) fn encode_into<E: Into<Encoding>>(
    out: &mut Buffer,
    mut encode: impl FnMut(&mut [u8]) -> Result<usize, E>,
) -> Result<(), Error> {
    let mut least = 0;
    for _ in 0..2 {
        match encode(out.room(least)).map_err(Into::into) {
            Ok(written) => {
                out.advance(written);
                return Ok(());
            }
            Err(Encoding::TooSmall(required)) => least = required,
            Err(Encoding::Failed(error)) => return Err(error),
        }
    }
    Err(Error::EncryptError)
}
