//! Random numbers that need not be secret.
//!
//! A load tool has no secrets to keep: the random bytes of its ClientHello must differ from one
//! another and nothing else. They come from SplitMix64 (Steele, Lea and Flood, 2014), started once per
//! thread from the system's generator. The same generator, with a seed that the report names, draws
//! the arrival times of an open loop.

use std::cell::RefCell;

use rustls::crypto::{GetRandomFailed, SecureRandom};

/// SplitMix64.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Starts the sequence that belongs to this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Draws 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Draws an exponentially distributed number of mean 1.
    pub fn exponential(&mut self) -> f64 {
        let uniform = ((self.next_u64() >> 11) as f64 + 1.0) / (1u64 << 53) as f64;
        -uniform.ln()
    }
}

/// The TLS client's source of random bytes. **Not secure**, and two microseconds per handshake cheaper.
#[derive(Debug)]
pub struct Careless;

impl SecureRandom for Careless {
    fn fill(&self, buffer: &mut [u8]) -> Result<(), GetRandomFailed> {
        SEQUENCE.with_borrow_mut(|sequence| {
            let random = match sequence {
                Some(random) => random,
                None => sequence.insert(Random::new(system_seed()?)),
            };
            for piece in buffer.chunks_mut(8) {
                let bytes = random.next_u64().to_le_bytes();
                piece
                    .iter_mut()
                    .zip(bytes)
                    .for_each(|(to, from)| *to = from);
            }
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
    static SEQUENCE: RefCell<Option<Random>> = const { RefCell::new(None) };
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
