//! Batches with faults, and the pairs that a key stores between batches.

use std::cell::Cell;
use std::sync::OnceLock;

use becket_sys::lanes::Work;

use super::*;
use crate::vectors::Eight;
use crate::{Hash, Padding, Scheme};

const SCHEME: Scheme = Scheme {
    hash: Hash::Sha256,
    padding: Padding::Pkcs1,
};

fn key() -> PrivateKey {
    PrivateKey::from_pkcs8(include_bytes!("../../testdata/rsa-2048.der")).unwrap()
}

/// Eight padded messages.
fn messages() -> &'static [Vec<u8>] {
    static MESSAGES: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    MESSAGES.get_or_init(|| {
        let key = key();
        (0..8)
            .map(|at| SCHEME.encode(&key, &[at]).unwrap())
            .collect()
    })
}

fn requests(key: &PrivateKey) -> Vec<SignRequest<'_>> {
    messages()
        .iter()
        .map(|message| SignRequest { key, message })
        .collect()
}

/// Lanes that compute like the portable ones, but flip one bit once, in one lane.
#[derive(Clone, Copy)]
struct Faulty<'a> {
    /// Remaining operations before the fault.
    left: &'a Cell<u64>,
    lane: usize,
    bit: u32,
}

impl Faulty<'_> {
    #[inline(never)]
    fn touch(self, mut words: Eight) -> Eight {
        self.left.set(self.left.get().wrapping_sub(1));
        if self.left.get() == 0 {
            words.0[self.lane] ^= 1 << self.bit;
        }
        words
    }
}

impl Lanes for Faulty<'_> {
    type Vector = Eight;

    fn run(self, work: impl Work) {
        work.run(self);
    }

    fn load(self, from: &[u64; LANES]) -> Eight {
        Eight(*from)
    }

    fn store(self, words: Eight, to: &mut [u64; LANES]) {
        *to = words.0;
    }

    fn splat(self, word: u64) -> Eight {
        Portable.splat(word)
    }

    #[inline(never)]
    fn add(self, a: Eight, b: Eight) -> Eight {
        self.touch(Portable.add(a, b))
    }

    fn sub(self, a: Eight, b: Eight) -> Eight {
        self.touch(Portable.sub(a, b))
    }

    #[inline(never)]
    fn and(self, a: Eight, b: Eight) -> Eight {
        self.touch(Portable.and(a, b))
    }

    fn shift_right(self, a: Eight, bits: u32) -> Eight {
        self.touch(Portable.shift_right(a, bits))
    }

    #[inline(never)]
    fn add_low(self, sum: Eight, a: Eight, b: Eight) -> Eight {
        self.touch(Portable.add_low(sum, a, b))
    }

    #[inline(never)]
    fn add_high(self, sum: Eight, a: Eight, b: Eight) -> Eight {
        self.touch(Portable.add_high(sum, a, b))
    }

    #[inline(never)]
    fn where_equal(self, at: [Eight; 2], then: Eight, otherwise: Eight) -> Eight {
        self.touch(Portable.where_equal(at, then, otherwise))
    }
}

#[test]
fn a_bit_flip_fails_only_its_lane_and_is_never_output() {
    let key = key();
    let right = sign_batch(Portable, &requests(&key));
    let left = Cell::new(0);
    let of = |lane, bit, at| {
        left.set(at);
        Faulty {
            left: &left,
            lane,
            bit,
        }
    };
    // With stored blinding pairs, as in nearly every batch.
    assert_eq!(sign_batch(of(0, 0, 0), &requests(&key)), right);
    let operations = 0_u64.wrapping_sub(left.get());
    let mut random = fastrand::Rng::with_seed(52);
    let mut caught = 0;
    for _ in 0..24 {
        let (lane, bit) = (random.usize(..LANES), random.u32(..52));
        // Not in the last hundredth: the squares computed there are blinding pairs for the next batch.
        let at = random.u64(1..operations / 100 * 99);
        let found = sign_batch(of(lane, bit, at), &requests(&key));
        for (other, (found, right)) in found.iter().zip(&right).enumerate() {
            let is_caught = other == lane && *found == Err(Error::Mismatch);
            assert!(
                is_caught || found == right,
                "lane {other}, bit {bit} of {lane} at {at}"
            );
            caught += usize::from(is_caught);
        }
    }
    assert!(caught > 3, "only {caught} of 24 faults changed a result");
}

#[test]
fn a_damaged_key_fails_without_affecting_its_batch() {
    let (key, mut damaged) = (key(), key());
    let mut limbs = damaged.q.exponent.limbs().to_vec();
    limbs[3] ^= 1 << 40;
    damaged.q.exponent = Natural::new(limbs);
    let right = sign_batch(Portable, &requests(&key));
    let mut requests = requests(&key);
    requests[5].key = &damaged;
    let found = sign_batch(Portable, &requests);
    for (lane, (found, right)) in found.iter().zip(&right).enumerate() {
        let expected = if lane == 5 {
            &Err(Error::Mismatch)
        } else {
            right
        };
        assert_eq!(found, expected);
    }
}

#[test]
fn blindings_change_with_each_use_and_are_replaced() {
    let key = key();
    let one = &requests(&key)[..1];
    let kept = || {
        let kept = key.blindings.lock().unwrap();
        kept.first().map(|blinding| blinding.parts())
    };
    let mut seen = Vec::new();
    for uses in 1..=33 {
        assert!(sign_batch(Portable, one)[0].is_ok());
        match kept() {
            Some((factor, inverse, found)) => {
                assert_eq!(found, uses % 32);
                seen.push(factor.limbs().to_vec());
                seen.push(inverse.limbs().to_vec());
            }
            None => assert_eq!(uses, 32),
        }
    }
    let all = seen.len();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!((all, seen.len()), (64, 64));
}

/// Types that contain numbers of a key erase them on drop.
#[test]
fn key_numbers_are_zeroized() {
    fn erased<T: zeroize::ZeroizeOnDrop>() {}
    erased::<Natural>();
    erased::<crate::vectors::EightNaturals>();
    let mut number = Natural::new(vec![7; 20]);
    zeroize::Zeroize::zeroize(&mut number);
    assert!(number.limbs().is_empty());
}
