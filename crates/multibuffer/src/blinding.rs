//! What hides the base of a private power: a random number to the public exponent before, and its inverse after.
//!
//! A key keeps the pairs that are in no batch, and a pair is squared after each use, as AWS-LC and OpenSSL do it. After 32 uses
//! it is replaced by one from a new random number, whose inverse is a private power, too, to the primes less two. A pair
//! whose signature did not verify is not used again.

use std::sync::PoisonError;

use aws_lc_rs::error::Unspecified;
use aws_lc_rs::rand;
use zeroize::Zeroizing;

use crate::batch::Batch;
use crate::key::PrivateKey;
use crate::lanes::{Lanes, Numbers};
use crate::natural::Natural;

/// Of one key and a random number r, in Montgomery's form.
pub(crate) struct Blinding {
    /// r^65537
    factor: Natural,
    /// 1 / r
    inverse: Natural,
    /// How often it, or what it was squared from, was used.
    uses: u32,
}

#[cfg(test)]
impl Blinding {
    pub(crate) fn parts(&self) -> (Natural, Natural, u32) {
        (self.factor.clone(), self.inverse.clone(), self.uses)
    }
}

/// One per lane.
pub(crate) struct Blindings {
    pub(crate) factors: Numbers,
    pub(crate) inverses: Numbers,
    uses: Vec<u32>,
}

impl Blindings {
    /// Takes what the keys of so many lanes have, and makes what they have not.
    pub(crate) fn take<L: Lanes>(
        batch: &mut Batch<'_, L>,
        lanes: usize,
    ) -> Result<Self, Unspecified> {
        let limbs = batch.keys[0].limbs();
        let mut all = Self {
            factors: Numbers::zero(limbs),
            inverses: Numbers::zero(limbs),
            uses: vec![0; lanes],
        };
        let mut missing = Vec::new();
        for (lane, key) in batch.keys[..lanes].iter().enumerate() {
            let kept = key
                .blindings
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .pop();
            match kept {
                Some(blinding) => {
                    all.factors.set_lane(lane, &blinding.factor);
                    all.inverses.set_lane(lane, &blinding.inverse);
                    all.uses[lane] = blinding.uses;
                }
                None => missing.push(lane),
            }
        }
        if !missing.is_empty() {
            all.make(batch, &missing)?;
        }
        Ok(all)
    }

    fn make<L: Lanes>(
        &mut self,
        batch: &mut Batch<'_, L>,
        missing: &[usize],
    ) -> Result<(), Unspecified> {
        let mut numbers = Numbers::zero(batch.keys[0].limbs());
        for lane in missing {
            numbers.set_lane(*lane, &random_below(batch.keys[*lane])?);
        }
        let mut factors = batch.public_power(&numbers);
        let mut inverses = batch.private_power(&numbers, |prime| &prime.less_two);
        batch.whole.enter(&mut factors);
        batch.whole.enter(&mut inverses);
        for lane in missing {
            self.factors.set_lane(*lane, &factors.lane(*lane));
            self.inverses.set_lane(*lane, &inverses.lane(*lane));
        }
        Ok(())
    }

    /// Squares them, and gives them back to their keys: those that are not used up and whose lane is right.
    pub(crate) fn give_back<L: Lanes>(
        mut self,
        batch: &mut Batch<'_, L>,
        is_right: impl Fn(usize) -> bool,
    ) {
        batch.whole.square(&mut self.factors);
        batch.whole.square(&mut self.inverses);
        for (lane, (uses, key)) in self.uses.iter().zip(batch.keys).enumerate() {
            if uses + 1 < MOST_USES && is_right(lane) {
                let blinding = Blinding {
                    factor: self.factors.lane(lane),
                    inverse: self.inverses.lane(lane),
                    uses: uses + 1,
                };
                key.blindings
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(blinding);
            }
        }
    }
}

/// Draws until one is below the modulus, whose highest bit is set: twice, on average at most.
fn random_below(key: &PrivateKey) -> Result<Natural, Unspecified> {
    let mut bytes = Zeroizing::new(vec![0; key.modulus_len()]);
    loop {
        rand::fill(&mut bytes)?;
        let number = Natural::from_be(&bytes, key.limbs());
        if number.is_below(&key.modulus.number) {
            return Ok(number);
        }
    }
}

/// As AWS-LC has it (`BN_BLINDING_COUNTER`).
const MOST_USES: u32 = 32;
