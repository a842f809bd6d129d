//! Random values of TLS that are not secret: nonces of tickets, IDs of origins.
//!
//! A call of AWS-LC's generator takes several hundred nanoseconds for any number of bytes, and
//! takes locks that all threads share. So each thread fetches 1 KiB at a time.
//!
//! A copy of this process, as made from a snapshot of a virtual machine, repeats up to 1 KiB of
//! values. Tickets tolerate repeated nonces (AES-GCM-SIV). Secrets, and randoms of hellos, come from
//! AWS-LC directly: a resumption with TLS 1.2 is fresh only because of the server's random.

use std::cell::RefCell;

use aws_lc_rs::error::Unspecified;
use aws_lc_rs::rand;
use rustls::crypto::{GetRandomFailed, SecureRandom};

/// Fills `bytes` with values that no peer can predict.
///
/// # Errors
///
/// Fails if AWS-LC provides no random bytes.
pub fn fill(bytes: &mut [u8]) -> Result<(), Unspecified> {
    FETCHED.with_borrow_mut(|fetched| fetched.fill(bytes))
}

/// Generator for rustls. Short values, such as the masks of ticket ages, come from [`fill`].
#[derive(Debug)]
pub struct TlsRandom;

impl SecureRandom for TlsRandom {
    fn fill(&self, bytes: &mut [u8]) -> Result<(), GetRandomFailed> {
        let filled = if bytes.len() < SHORTEST_SECRET {
            fill(bytes)
        } else {
            rand::fill(bytes)
        };
        filled.map_err(|_| GetRandomFailed)
    }
}

struct Fetched {
    bytes: [u8; 1024],
    /// Number of unused bytes, which are at the end.
    left: usize,
}

impl Fetched {
    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), Unspecified> {
        if bytes.len() > self.bytes.len() {
            return rand::fill(bytes);
        }
        if bytes.len() > self.left {
            rand::fill(&mut self.bytes)?;
            self.left = self.bytes.len();
        }
        let unused = &mut self.bytes[1024 - self.left..];
        let (taken, _) = unused.split_at_mut(bytes.len());
        bytes.copy_from_slice(taken);
        taken.fill(0);
        self.left -= bytes.len();
        Ok(())
    }
}

/// Minimum length of a random of a hello, or of a secret, in bytes.
const SHORTEST_SECRET: usize = 16;

thread_local! {
    static FETCHED: RefCell<Fetched> = const {
        RefCell::new(Fetched { bytes: [0; 1024], left: 0 })
    };
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_value_repeats_and_all_bytes_are_filled() {
        let mut seen = HashSet::new();
        for len in (8..200).chain([1024, 1025, 4000]).cycle().take(2000) {
            let mut bytes = vec![0; len];
            fill(&mut bytes).unwrap();
            assert!(seen.insert(bytes[..8].to_vec()));
            assert!(seen.insert(bytes[len - 8..].to_vec()) || len == 8);
        }
    }
}
