//! Signs a batch of messages: blinds them, raises them to the private exponents by the Chinese remainder theorem,
//! unblinds the results and verifies the signatures.
//!
//! Blinding multiplies the message by a random number raised to the public exponent. Unblinding multiplies the result
//! by the inverse of that random number. Each key stores its unused pairs of these two factors. A pair is squared after
//! each use, as in AWS-LC and OpenSSL, and is replaced after 32 uses. A pair whose signature did not verify is dropped.
//!
//! Unused lanes compute with the first key and zeros. Source: RFC 8017, sections 5.1.2 and 5.2.1; Kocher, "Timing
//! Attacks on Implementations of Diffie-Hellman, RSA, DSS, and Other Systems" (1996), section 10, for blinding; Boneh,
//! DeMillo and Lipton, "On the Importance of Checking Cryptographic Protocols for Faults" (1997), for verification.

use std::sync::PoisonError;

use aws_lc_rs::error::Unspecified;
use aws_lc_rs::rand;
use becket_sys::lanes::Lanes;
use zeroize::Zeroizing;

use crate::field::ModularField;
use crate::key::{Blinding, Prime, PrivateKey};
use crate::natural::Natural;
use crate::vectors::{EightNaturals, LANES};

/// At most eight keys of equal length, one per lane.
pub(crate) struct Batch<'a, L> {
    pub(crate) keys: [&'a PrivateKey; LANES],
    pub(crate) whole: ModularField<L>,
    by_p: ModularField<L>,
    by_q: ModularField<L>,
}

impl<'a, L: Lanes> Batch<'a, L> {
    pub(crate) fn new(lanes: L, keys: [&'a PrivateKey; LANES]) -> Self {
        Self {
            keys,
            whole: ModularField::new(lanes, keys.map(|key| &key.modulus)),
            by_p: ModularField::new(lanes, keys.map(|key| &key.p.modulus)),
            by_q: ModularField::new(lanes, keys.map(|key| &key.q.modulus)),
        }
    }

    /// Signs each message. A message must be below the modulus of its lane. Returns `None` for a signature that does
    /// not verify.
    pub(crate) fn sign(
        &mut self,
        messages: &[Natural],
    ) -> Result<Vec<Option<Natural>>, Unspecified> {
        let blindings = Blindings::take(self, messages.len())?;
        let mut all = EightNaturals::zero(self.keys[0].limbs());
        for (lane, message) in messages.iter().enumerate() {
            all.set_lane(lane, message);
        }
        self.whole.multiply(&mut all, &blindings.factors);
        let mut signatures = self.private_power(&all, |prime| &prime.exponent);
        self.whole.multiply(&mut signatures, &blindings.inverses);
        self.whole.reduce(&mut signatures);
        let verified = self.public_power(&signatures);
        let answers: Vec<_> = (0..)
            .zip(messages)
            .map(|(lane, message)| (verified.lane(lane) == *message).then(|| signatures.lane(lane)))
            .collect();
        blindings.give_back(self, |lane| answers[lane].is_some());
        Ok(answers)
    }

    pub(crate) fn public_power(&mut self, numbers: &EightNaturals) -> EightNaturals {
        let mut base = numbers.clone();
        self.whole.enter(&mut base);
        self.whole.public_power(&base)
    }

    /// Raises numbers to a private exponent, by the Chinese remainder theorem. `exponent` returns the exponent
    /// for a prime. The results are below the modulus.
    pub(crate) fn private_power(
        &mut self,
        numbers: &EightNaturals,
        exponent: impl Fn(&Prime) -> &Natural,
    ) -> EightNaturals {
        let bits = self.keys[0].bits() / 2;
        let exponents = [
            EightNaturals::gather(self.keys.map(|key| exponent(&key.p))),
            EightNaturals::gather(self.keys.map(|key| exponent(&key.q))),
        ];
        let base = self.by_p.enter_wide(numbers);
        let mut p_part = self.by_p.power(&base, &exponents[0], bits);
        let base = self.by_q.enter_wide(numbers);
        let mut q_part = self.by_q.power(&base, &exponents[1], bits);
        self.by_q.leave(&mut q_part);

        // Garner's algorithm: q_part + q ((p_part - q_part) / q mod p).
        let mut q_part_by_p = q_part.clone();
        self.by_p.enter(&mut q_part_by_p);
        self.by_p.subtract(&mut p_part, q_part_by_p);
        let q_inverses = EightNaturals::gather(self.keys.map(|key| &key.q_inverse));
        self.by_p.multiply(&mut p_part, &q_inverses);
        self.by_p.reduce(&mut p_part);
        self.by_q.times_modulus_plus(&p_part, &q_part)
    }
}

pub(crate) struct Blindings {
    pub(crate) factors: EightNaturals,
    pub(crate) inverses: EightNaturals,
    uses: Vec<u32>,
}

impl Blindings {
    /// Takes unused blinding pairs from the keys of the first `lanes` lanes, and creates missing
    /// pairs.
    pub(crate) fn take<L: Lanes>(
        batch: &mut Batch<'_, L>,
        lanes: usize,
    ) -> Result<Self, Unspecified> {
        let limbs = batch.keys[0].limbs();
        let mut all = Self {
            factors: EightNaturals::zero(limbs),
            inverses: EightNaturals::zero(limbs),
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
        let mut numbers = EightNaturals::zero(batch.keys[0].limbs());
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

    /// Squares the blinding pairs and returns them to their keys. Drops a pair after [`MOST_USES`]
    /// uses, or if its signature did not verify.
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

/// Draws random numbers until a number is below the modulus. The highest bit of the modulus is set, so two
/// draws on average are sufficient.
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

/// Maximum uses of a blinding pair, as in AWS-LC (`BN_BLINDING_COUNTER`).
const MOST_USES: u32 = 32;
