//! Arithmetic modulo eight moduli of equal length, in Montgomery form.
//!
//! In this form, a number `x` is stored as `x R`, where R is 2^52 to the power of the number of limbs, and every number
//! is below twice its modulus. A [`ModularField`] owns the memory for intermediate products, and erases it on drop.

use becket_sys::lanes::Lanes;

use crate::kernel::{ENTRIES, KernelStep, Moduli, WINDOW};
use crate::natural::Modulus;
use crate::vectors::{Eight, EightNaturals, LANES};

pub(crate) struct ModularField<L> {
    lanes: L,
    moduli: Moduli,
    r_squared: EightNaturals,
    columns: EightNaturals,
}

impl<L: Lanes> ModularField<L> {
    pub(crate) fn new(lanes: L, moduli: [&Modulus; LANES]) -> Self {
        let numbers = EightNaturals::gather(moduli.map(|modulus| &modulus.number));
        Self {
            lanes,
            r_squared: EightNaturals::gather(moduli.map(|modulus| &modulus.r_squared)),
            columns: EightNaturals::zero(2 * numbers.0.len()),
            moduli: Moduli {
                numbers,
                minus_inverses: Eight(moduli.map(|modulus| modulus.minus_inverse)),
            },
        }
    }

    /// Stores `x y / R` in `x`. If both numbers are in Montgomery form, the result is their product
    /// in that form; if only one of them is, the result is their plain product.
    pub(crate) fn multiply(&mut self, x: &mut EightNaturals, y: &EightNaturals) {
        let columns = &mut self.columns.0;
        self.lanes.run(KernelStep::Product {
            x: &x.0,
            y: &y.0,
            columns,
        });
        self.divide_columns(&mut x.0);
    }

    /// Stores `x x / R` in `x`.
    pub(crate) fn square(&mut self, x: &mut EightNaturals) {
        let columns = &mut self.columns.0;
        self.lanes.run(KernelStep::Square { x: &x.0, columns });
        self.divide_columns(&mut x.0);
    }

    /// Converts a number below R into Montgomery form.
    pub(crate) fn enter(&mut self, x: &mut EightNaturals) {
        let columns = &mut self.columns.0;
        self.lanes.run(KernelStep::Product {
            x: &x.0,
            y: &self.r_squared.0,
            columns,
        });
        self.divide_columns(&mut x.0);
    }

    /// Converts a number below R times the modulus, with twice as many limbs, into Montgomery form.
    pub(crate) fn enter_wide(&mut self, wide: &EightNaturals) -> EightNaturals {
        let mut x = self.divide_by_r(wide);
        self.enter(&mut x);
        self.enter(&mut x);
        x
    }

    /// Converts a number in Montgomery form to a plain number below its modulus.
    pub(crate) fn leave(&mut self, x: &mut EightNaturals) {
        *x = self.divide_by_r(x);
        self.reduce(x);
    }

    /// Reduces a number below twice its modulus to below its modulus.
    pub(crate) fn reduce(&mut self, x: &mut EightNaturals) {
        self.lanes.run(KernelStep::Normalize {
            scratch: &mut self.columns.0[..x.0.len()],
            moduli: &self.moduli,
            x: &mut x.0,
        });
    }

    /// Stores `x - y` in `x`, for numbers in Montgomery form.
    pub(crate) fn subtract(&mut self, x: &mut EightNaturals, mut y: EightNaturals) {
        self.reduce(x);
        self.reduce(&mut y);
        self.lanes.run(KernelStep::Difference {
            x: &mut x.0,
            y: &y.0,
            moduli: &self.moduli,
        });
    }

    /// Returns `x m + z` with twice as many limbs, where m is the modulus, and `x` and `z` are plain numbers.
    pub(crate) fn times_modulus_plus(
        &mut self,
        x: &EightNaturals,
        z: &EightNaturals,
    ) -> EightNaturals {
        let mut sum = EightNaturals::zero(2 * x.0.len());
        let columns = &mut self.columns.0;
        self.lanes.run(KernelStep::Product {
            x: &x.0,
            y: &self.moduli.numbers.0,
            columns,
        });
        self.lanes.run(KernelStep::Sum {
            columns: &mut self.columns.0,
            z: &z.0,
            into: &mut sum.0,
        });
        sum
    }

    /// Returns `base` to the power of 65537 as a plain number below its modulus. The base must be in Montgomery
    /// form.
    pub(crate) fn public_power(&mut self, base: &EightNaturals) -> EightNaturals {
        let mut power = base.clone();
        for _ in 0..16 {
            self.square(&mut power);
        }
        self.multiply(&mut power, base);
        self.leave(&mut power);
        power
    }

    /// Returns `base` to the power of exponents of at most `bits` bits, in Montgomery form. The sequence of
    /// instructions does not depend on the exponents.
    pub(crate) fn power(
        &mut self,
        base: &EightNaturals,
        exponents: &EightNaturals,
        bits: u32,
    ) -> EightNaturals {
        let limbs = base.0.len();
        let mut entry = self.divide_by_r(&self.r_squared.clone());
        let mut table = EightNaturals::zero(ENTRIES * limbs);
        for place in table.0.chunks_exact_mut(limbs) {
            place.copy_from_slice(&entry.0);
            self.multiply(&mut entry, base);
        }
        let lanes = self.lanes;
        let mut chosen = EightNaturals::zero(limbs);
        let choose = |place, into: &mut EightNaturals| {
            lanes.run(KernelStep::Select {
                table: &table.0,
                exponents: &exponents.0,
                place,
                into: &mut into.0,
            });
        };
        let highest = bits.div_ceil(WINDOW) - 1;
        let mut power = EightNaturals::zero(limbs);
        choose(highest, &mut power);
        for place in (0..highest).rev() {
            for _ in 0..WINDOW {
                self.square(&mut power);
            }
            choose(place, &mut chosen);
            self.multiply(&mut power, &chosen);
        }
        power
    }

    /// Divides a number below R times the modulus, with at most twice as many limbs, by R.
    fn divide_by_r(&mut self, x: &EightNaturals) -> EightNaturals {
        let mut over_r = EightNaturals::zero(self.moduli.numbers.0.len());
        let (low, high) = self.columns.0.split_at_mut(x.0.len());
        low.copy_from_slice(&x.0);
        high.fill(Eight::default());
        self.divide_columns(&mut over_r.0);
        over_r
    }

    fn divide_columns(&mut self, into: &mut [Eight]) {
        self.lanes.run(KernelStep::Reduce {
            columns: &mut self.columns.0,
            moduli: &self.moduli,
            into,
        });
    }
}

#[cfg(test)]
mod tests;
