//! Fields compared with a naive model, and lanes compared with each other.

use num_bigint::BigUint;
use proptest::prelude::*;

use super::*;
use crate::lanes::Portable;
use crate::natural::{BLOCK, LIMB_BITS, MASK, Natural};

/// Bits of the longest modulus with two blocks: R is sixteen times as large.
const BITS: u32 = 2 * BLOCK as u32 * LIMB_BITS - 4;

fn big(number: &Natural) -> BigUint {
    let limbs = number.limbs().iter().rev();
    limbs.fold(BigUint::ZERO, |sum, limb| (sum << LIMB_BITS) + *limb)
}

/// Returns a number below a power of two, often with long runs of ones or zeros.
fn number(bits: u32) -> impl Strategy<Value = Natural> {
    let limbs = bits.div_ceil(LIMB_BITS) as usize;
    let limb = prop_oneof![3 => 0..=MASK, 1 => Just(0), 1 => Just(MASK)];
    proptest::collection::vec(limb, limbs).prop_map(move |mut limbs| {
        let spare = limbs.len() as u32 * LIMB_BITS - bits;
        if let Some(highest) = limbs.last_mut() {
            *highest &= MASK >> spare;
        }
        Natural::new(limbs)
    })
}

fn modulus() -> impl Strategy<Value = Natural> {
    number(BITS).prop_map(|number| {
        let mut limbs = number.limbs().to_vec();
        limbs[0] |= 3;
        Natural::new(limbs)
    })
}

fn eight(each: impl Strategy<Value = Natural>) -> impl Strategy<Value = [Natural; LANES]> {
    proptest::collection::vec(each, LANES).prop_map(|eight| eight.try_into().ok().unwrap())
}

/// Runs with all lanes, and compares their results.
fn by_all_lanes(
    moduli: &[Natural; LANES],
    run: impl Fn(&mut dyn Arithmetic) -> EightNaturals,
) -> EightNaturals {
    let moduli = moduli.clone().map(Modulus::new);
    let portable = run(&mut ModularField::new(Portable, moduli.each_ref()));
    #[cfg(target_arch = "x86_64")]
    if let Some(ifma) = becket_sys::ifma::Ifma::detect() {
        assert!(run(&mut ModularField::new(ifma, moduli.each_ref())) == portable);
    }
    portable
}

/// Operations of a field with any lanes.
trait Arithmetic {
    fn multiply(&mut self, x: &mut EightNaturals, y: &EightNaturals);
    fn square(&mut self, x: &mut EightNaturals);
    fn enter(&mut self, x: &mut EightNaturals);
    fn enter_wide(&mut self, wide: &EightNaturals) -> EightNaturals;
    fn leave(&mut self, x: &mut EightNaturals);
    fn subtract(&mut self, x: &mut EightNaturals, y: EightNaturals);
    fn times_modulus_plus(&mut self, x: &EightNaturals, z: &EightNaturals) -> EightNaturals;
    fn power(
        &mut self,
        base: &EightNaturals,
        exponents: &EightNaturals,
        bits: u32,
    ) -> EightNaturals;
}

impl<L: Lanes> Arithmetic for ModularField<L> {
    fn multiply(&mut self, x: &mut EightNaturals, y: &EightNaturals) {
        Self::multiply(self, x, y);
    }

    fn square(&mut self, x: &mut EightNaturals) {
        Self::square(self, x);
    }

    fn enter(&mut self, x: &mut EightNaturals) {
        Self::enter(self, x);
    }

    fn enter_wide(&mut self, wide: &EightNaturals) -> EightNaturals {
        Self::enter_wide(self, wide)
    }

    fn leave(&mut self, x: &mut EightNaturals) {
        Self::leave(self, x);
    }

    fn subtract(&mut self, x: &mut EightNaturals, y: EightNaturals) {
        Self::subtract(self, x, y);
    }

    fn times_modulus_plus(&mut self, x: &EightNaturals, z: &EightNaturals) -> EightNaturals {
        Self::times_modulus_plus(self, x, z)
    }

    fn power(
        &mut self,
        base: &EightNaturals,
        exponents: &EightNaturals,
        bits: u32,
    ) -> EightNaturals {
        Self::power(self, base, exponents, bits)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn products_match_a_naive_model(moduli in eight(modulus()), x in eight(number(BITS)), y in eight(number(BITS))) {
        let r = BigUint::from(1_u8) << (2 * BLOCK as u32 * LIMB_BITS);
        let product = by_all_lanes(&moduli, |field| {
            let mut product = EightNaturals::gather(x.each_ref());
            field.multiply(&mut product, &EightNaturals::gather(y.each_ref()));
            product
        });
        let square = by_all_lanes(&moduli, |field| {
            let mut square = EightNaturals::gather(x.each_ref());
            field.square(&mut square);
            square
        });
        for lane in 0..LANES {
            let [x, y, modulus] = [&x[lane], &y[lane], &moduli[lane]].map(big);
            for (result, exact) in [(&product, &x * &y), (&square, &x * &x)] {
                // Montgomery's guarantee: congruent to the product divided by R, and within this bound.
                let result = big(&result.lane(lane));
                prop_assert!(result <= &exact / &r + &modulus);
                prop_assert_eq!(result * &r % &modulus, exact % &modulus);
            }
        }
    }

    #[test]
    fn numbers_are_unchanged_by_montgomery_conversion_and_back(moduli in eight(modulus()), x in eight(number(BITS)), y in eight(number(BITS))) {
        let below = |x: &[Natural; LANES]| {
            let below = std::array::from_fn::<_, LANES, _>(|lane| {
                let rest = big(&x[lane]) % big(&moduli[lane]);
                Natural::from_be(&rest.to_bytes_be(), 2 * BLOCK)
            });
            EightNaturals::gather(below.each_ref())
        };
        let (x, y) = (below(&x), below(&y));
        let same = by_all_lanes(&moduli, |field| {
            let mut same = x.clone();
            field.enter(&mut same);
            field.leave(&mut same);
            same
        });
        prop_assert!(same == x);
        let difference = by_all_lanes(&moduli, |field| {
            let (mut x, mut y) = (x.clone(), y.clone());
            field.enter(&mut x);
            field.enter(&mut y);
            field.subtract(&mut x, y);
            field.leave(&mut x);
            x
        });
        let wide = by_all_lanes(&moduli, |field| field.times_modulus_plus(&x, &y));
        let rest = by_all_lanes(&moduli, |field| {
            let mut rest = field.enter_wide(&wide);
            field.leave(&mut rest);
            rest
        });
        prop_assert!(rest == y);
        for (lane, modulus) in moduli.iter().enumerate() {
            let modulus = big(modulus);
            let [x, y] = [&x, &y].map(|numbers| big(&numbers.lane(lane)));
            prop_assert_eq!(big(&wide.lane(lane)), &x * &modulus + &y);
            prop_assert_eq!(big(&difference.lane(lane)), (&x + &modulus - &y) % &modulus);
        }
    }

    #[test]
    fn powers_match_a_naive_model(moduli in eight(modulus()), x in eight(number(BITS)), exponents in eight(number(2 * LIMB_BITS))) {
        let power = by_all_lanes(&moduli, |field| {
            let mut base = EightNaturals::gather(x.each_ref());
            field.enter(&mut base);
            let mut power = field.power(&base, &EightNaturals::gather(exponents.each_ref()), 2 * LIMB_BITS);
            field.leave(&mut power);
            power
        });
        for lane in 0..LANES {
            let [x, exponent, modulus] = [&x[lane], &exponents[lane], &moduli[lane]].map(big);
            prop_assert_eq!(big(&power.lane(lane)), x.modpow(&exponent, &modulus));
        }
    }
}

#[test]
fn edges_are_no_exceptions() {
    #[cfg(target_arch = "x86_64")]
    if becket_sys::ifma::Ifma::detect().is_none() {
        becket_tidy::lacks("needs AVX-512 IFMA");
    }
    let ones = Natural::new([vec![MASK; 2 * BLOCK - 1], vec![MASK >> 4]].concat());
    let moduli = std::array::from_fn(|_| ones.clone());
    let mut less_one = ones.limbs().to_vec();
    less_one[0] -= 1;
    let (one, zero) = (
        Natural::from_be(&[1], 2 * BLOCK),
        Natural::from_be(&[], 2 * BLOCK),
    );
    let less_one = Natural::new(less_one);
    let lanes = [&zero, &one, &less_one, &ones, &zero, &one, &less_one, &ones];
    let power = by_all_lanes(&moduli, |field| {
        let mut base = EightNaturals::gather(lanes);
        field.enter(&mut base);
        let mut power = field.power(
            &base,
            &EightNaturals::gather([&one, &zero].repeat(4).try_into().unwrap()),
            8,
        );
        field.leave(&mut power);
        power
    });
    let expected = [&zero, &one, &less_one, &one, &zero, &one, &less_one, &one];
    assert!(power == EightNaturals::gather(expected));
    // The largest number whose square is below R times the modulus: all columns are full.
    let mut full = EightNaturals(vec![Eight([MASK; LANES]); 2 * BLOCK]);
    full.0[2 * BLOCK - 1] = Eight([MASK >> 3; LANES]);
    let square = by_all_lanes(&moduli, |field| {
        let mut square = full.clone();
        field.square(&mut square);
        square
    });
    let exact = big(&full.lane(0)).pow(2) % big(&ones);
    let r = BigUint::from(1_u8) << (2 * BLOCK as u32 * LIMB_BITS);
    assert_eq!(big(&square.lane(7)) * r % big(&ones), exact);
}
