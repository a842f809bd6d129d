//! Random bytes that need not be secret.
//!
//! A load tool has no secrets to keep: the random bytes of its ClientHello must differ from one another and nothing else. They
//! come from a generator that is started once per thread from the system's.

use std::cell::RefCell;

use fastrand::Rng;
use rustls::crypto::{GetRandomFailed, SecureRandom};

/// The TLS client's source of random bytes. **Not secure**, and two microseconds per handshake cheaper.
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
    fn no_two_hellos_are_alike() {
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
