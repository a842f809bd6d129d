//! Groups requests into batches and selects the implementation of the lanes.

#[cfg(target_arch = "x86_64")]
use becket_sys::ifma::Ifma;
use becket_sys::lanes::Lanes;

use crate::batch::Batch;
use crate::error::Error;
use crate::key::PrivateKey;
use crate::lanes::Portable;
use crate::natural::Natural;
use crate::vectors::LANES;

#[derive(Clone, Copy, Debug)]
pub struct SignRequest<'a> {
    pub key: &'a PrivateKey,
    /// The message as padded by [`Scheme::encode`](crate::Scheme::encode): as long as the modulus, and below it.
    pub message: &'a [u8],
}

#[derive(Clone, Copy, Debug)]
pub struct Multibuffer(Processor);

#[derive(Clone, Copy, Debug)]
enum Processor {
    #[cfg(target_arch = "x86_64")]
    Ifma(Ifma),
    Portable,
}

impl Multibuffer {
    /// Uses AVX-512 IFMA. Returns `None` if the processor lacks it.
    #[must_use]
    pub fn detect() -> Option<Self> {
        #[cfg(target_arch = "x86_64")]
        return Ifma::detect().map(Processor::Ifma).map(Self);
        #[cfg(not(target_arch = "x86_64"))]
        None
    }

    /// Uses ordinary integers, for tests: slower than one signature at a time, and without any guarantee of
    /// constant time.
    #[must_use]
    pub fn portable() -> Self {
        Self(Processor::Portable)
    }

    /// Returns the result of each request. Computes up to eight requests with keys of equal length together. A batch
    /// takes as long for one request as for eight, so a caller with fewer than six requests should sign by other means.
    #[must_use]
    pub fn sign(self, requests: &[SignRequest<'_>]) -> Vec<Result<Vec<u8>, Error>> {
        let mut answers = vec![Err(Error::Message); requests.len()];
        for len in LENGTHS {
            let of_length = |at: &usize| requests[*at].is_of(len);
            let places: Vec<usize> = (0..requests.len()).filter(of_length).collect();
            for places in places.chunks(LANES) {
                let batch: Vec<_> = places.iter().map(|at| requests[*at]).collect();
                let done = match self.0 {
                    #[cfg(target_arch = "x86_64")]
                    Processor::Ifma(lanes) => sign_batch(lanes, &batch),
                    Processor::Portable => sign_batch(Portable, &batch),
                };
                for (at, answer) in places.iter().zip(done) {
                    answers[*at] = answer;
                }
            }
        }
        answers
    }
}

impl SignRequest<'_> {
    /// Returns `true` if the modulus has `len` bytes and the message fits the modulus.
    fn is_of(&self, len: usize) -> bool {
        [self.key.modulus_len(), self.message.len()] == [len; 2]
            && self.number().is_below(&self.key.modulus.number)
    }

    fn number(&self) -> Natural {
        Natural::from_be(self.message, self.key.limbs())
    }
}

/// Signs one to eight messages that fit their keys, all of one length.
pub(crate) fn sign_batch<L: Lanes>(
    lanes: L,
    requests: &[SignRequest<'_>],
) -> Vec<Result<Vec<u8>, Error>> {
    let keys = std::array::from_fn(|lane| requests.get(lane).unwrap_or(&requests[0]).key);
    let messages: Vec<Natural> = requests.iter().map(SignRequest::number).collect();
    let Ok(signatures) = Batch::new(lanes, keys).sign(&messages) else {
        return vec![Err(Error::Random); requests.len()];
    };
    let len = keys[0].modulus_len();
    let answers = signatures.into_iter();
    answers
        .map(|signature| Ok(signature.ok_or(Error::Mismatch)?.to_be(len)))
        .collect()
}

const LENGTHS: [usize; 3] = [256, 384, 512];

#[cfg(test)]
mod tests;
