//! Random bytes that need not be secret.
//!
//! A load tool has no secrets to protect. The random bytes of its ClientHellos only have to differ. Each thread has its own
//! generator with a seed from the operating system.

use std::cell::RefCell;

use fastrand::Rng;
use rustls::crypto::{GetRandomFailed, SecureRandom};

/// Source of random bytes for the TLS client. **Not secure**, but two microseconds per handshake faster than a secure one.
#[derive(Debug)]
pub struct Careless;

impl SecureRandom for Careless {
    fn fill(&self, buffer: &mut [u8]) -> Result<(), GetRandomFailed> {
        SEQUENCE.with_borrow_mut(|sequence| {
            let random = match sequence {
                Some(random) => random,
                None => sequence.insert(Rng::with_seed(system_seed()?)),
            };
            random.fill(buffer);
            Ok(())
        })
    }
}

fn system_seed() -> Result<u64, GetRandomFailed> {
    let mut seed = [0; 8];
    aws_lc_rs::rand::fill(&mut seed).map_err(|_| GetRandomFailed)?;
    Ok(u64::from_le_bytes(seed))
}

thread_local! {
    static SEQUENCE: RefCell<Option<Rng>> = const { RefCell::new(None) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_bytes_differ_between_calls_and_threads() {
        let draw = || {
            let mut bytes = [0; 35];
            Careless.fill(&mut bytes).unwrap();
            bytes
        };
        let here = (draw(), draw());
        assert_ne!(here.0, here.1);
        assert_ne!(std::thread::spawn(draw).join().unwrap(), here.0);
    }
}
