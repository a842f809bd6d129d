//! A batch from start to end: blinded, raised to the private exponents by the remainder theorem, unblinded, verified.
//!
//! Lanes that no request uses compute with the first key and zeros. Source: RFC 8017, sections 5.1.2 and 5.2.1; Kocher,
//! "Timing Attacks on Implementations of Diffie-Hellman, RSA, DSS, and Other Systems" (1996), section 10, for blinding;
//! Boneh, DeMillo and Lipton, "On the Importance of Checking Cryptographic Protocols for Faults" (1997), for verification.

use aws_lc_rs::error::Unspecified;

use crate::LANES;
use crate::blinding::Blindings;
use crate::field::Field;
use crate::key::{Prime, PrivateKey};
use crate::lanes::{Lanes, Numbers};
use crate::natural::Natural;

/// At most eight keys of one length, each in its lane.
pub(crate) struct Batch<'a, L> {
    pub(crate) keys: [&'a PrivateKey; LANES],
    /// Modulo the moduli of the keys.
    pub(crate) whole: Field<L>,
    by_p: Field<L>,
    by_q: Field<L>,
}

impl<'a, L: Lanes> Batch<'a, L> {
    pub(crate) fn new(lanes: L, keys: [&'a PrivateKey; LANES]) -> Self {
        Self {
            keys,
            whole: Field::new(lanes, keys.map(|key| &key.modulus)),
            by_p: Field::new(lanes, keys.map(|key| &key.p.modulus)),
            by_q: Field::new(lanes, keys.map(|key| &key.q.modulus)),
        }
    }

    /// The signature of each message, which is below the modulus of its lane; nothing where the signature does not verify.
    pub(crate) fn sign(
        &mut self,
        messages: &[Natural],
    ) -> Result<Vec<Option<Natural>>, Unspecified> {
        let blindings = Blindings::take(self, messages.len())?;
        let mut all = Numbers::zero(self.keys[0].limbs());
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

    /// Numbers to the power of 65537.
    pub(crate) fn public_power(&mut self, numbers: &Numbers) -> Numbers {
        let mut base = numbers.clone();
        self.whole.enter(&mut base);
        self.whole.public_power(&base)
    }

    /// Numbers to the power of a private exponent, which each prime has its part of; below the modulus.
    pub(crate) fn private_power(
        &mut self,
        numbers: &Numbers,
        exponent: impl Fn(&Prime) -> &Natural,
    ) -> Numbers {
        let bits = self.keys[0].bits() / 2;
        let exponents = [
            Numbers::gather(self.keys.map(|key| exponent(&key.p))),
            Numbers::gather(self.keys.map(|key| exponent(&key.q))),
        ];
        let base = self.by_p.enter_wide(numbers);
        let mut p_part = self.by_p.power(&base, &exponents[0], bits);
        let base = self.by_q.enter_wide(numbers);
        let mut q_part = self.by_q.power(&base, &exponents[1], bits);
        self.by_q.leave(&mut q_part);

        // Garner: q_part + q ((p_part - q_part) / q mod p).
        let mut q_part_by_p = q_part.clone();
        self.by_p.enter(&mut q_part_by_p);
        self.by_p.subtract(&mut p_part, q_part_by_p);
        let q_inverses = Numbers::gather(self.keys.map(|key| &key.q_inverse));
        self.by_p.multiply(&mut p_part, &q_inverses);
        self.by_p.reduce(&mut p_part);
        self.by_q.times_modulus_plus(&p_part, &q_part)
    }
}
