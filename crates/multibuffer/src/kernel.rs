//! Computes products, squares and reductions of eight numbers at a time. A signature spends most of its time here.
//!
//! Numbers are divided into blocks of ten limbs. The product of two blocks is added to twenty columns: the sums of limb
//! products with equal weight. Ten columns are in registers at any time, and ten more registers contain the block of
//! the first operand. A row multiplies all ten limbs by one limb of the second operand; then the lowest column is
//! stored, and the next one loaded. The next block continues with the ten columns that remain. A column contains low
//! and high halves of products, and is below 2^61 for the longest numbers. Carries are resolved once, at the end.
//!
//! A square computes each product of two different limbs once and doubles it. A reduction is Montgomery's: column by
//! column, it adds the multiple of the modulus that makes the lowest column divisible by 2^52.
//!
//! All code is straight-line over public lengths. Source: Gueron and Krasnov, "Software Implementation of Modular
//! Exponentiation, Using Advanced Vector Instructions Architectures" (2012); Montgomery, "Modular Multiplication
//! Without Trial Division" (1985).

use becket_sys::lanes::{Lanes, Work};

use crate::natural::{BLOCK, LIMB_BITS, MASK};
use crate::vectors::{Eight, EightNaturals, LANES};

/// Entries per table of powers: one for each value of [`WINDOW`] exponent bits.
pub(crate) const ENTRIES: usize = 1 << WINDOW;
/// Bits of the exponent per step. Four divides 52, and a table of 2^4 powers fits into the L1 cache.
pub(crate) const WINDOW: u32 = 4;

/// Moduli of eight lanes, and the value -1 / modulus, modulo 2^52, of each.
pub(crate) struct Moduli {
    pub(crate) numbers: EightNaturals,
    pub(crate) minus_inverses: Eight,
}

/// Repeats a block of code for each limb of a block, with the limb's index as a constant.
macro_rules! each_limb {
    ($limb:ident $body:block) => { each_limb!($limb $body 0 1 2 3 4 5 6 7 8 9) };
    ($limb:ident $body:block $($value:literal)*) => { $({ const $limb: usize = $value; $body })* };
}

pub(crate) enum KernelStep<'a> {
    /// `x y` as columns: twice as many columns as `x` has limbs.
    Product {
        x: &'a [Eight],
        y: &'a [Eight],
        columns: &'a mut [Eight],
    },
    Square {
        x: &'a [Eight],
        columns: &'a mut [Eight],
    },
    /// The columns divided by R, modulo the modulus. The result exceeds the plain quotient by at
    /// most the modulus. Overwrites the columns.
    Reduce {
        columns: &'a mut [Eight],
        moduli: &'a Moduli,
        into: &'a mut [Eight],
    },
    /// `columns + z` as limbs.
    Sum {
        columns: &'a mut [Eight],
        z: &'a [Eight],
        into: &'a mut [Eight],
    },
    /// `x - y` modulo the modulus, stored in `x`; both must be below the modulus.
    Difference {
        x: &'a mut [Eight],
        y: &'a [Eight],
        moduli: &'a Moduli,
    },
    /// `x`, or `x` minus the modulus, whichever is below the modulus; `x` must be below twice the modulus.
    Normalize {
        x: &'a mut [Eight],
        moduli: &'a Moduli,
        scratch: &'a mut [Eight],
    },
    /// The table entry of each lane, selected by the exponent bits at `place`. Reads every entry, so that the accesses
    /// do not depend on the exponent.
    Select {
        table: &'a [Eight],
        exponents: &'a [Eight],
        place: u32,
        into: &'a mut [Eight],
    },
}

impl Work for KernelStep<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        match self {
            KernelStep::Product { x, y, columns } => product(lanes, x, y, columns),
            KernelStep::Square { x, columns } => square(lanes, x, columns),
            KernelStep::Reduce {
                columns,
                moduli,
                into,
            } => reduce(lanes, columns, moduli, into),
            KernelStep::Sum { columns, z, into } => sum(lanes, columns, z, into),
            KernelStep::Difference { x, y, moduli } => difference(lanes, x, y, moduli),
            KernelStep::Normalize { x, moduli, scratch } => normalize(lanes, x, moduli, scratch),
            KernelStep::Select {
                table,
                exponents,
                place,
                into,
            } => {
                let limb = lanes.load(&exponents[(WINDOW * place / LIMB_BITS) as usize].0);
                let digits = lanes.shift_right(limb, WINDOW * place % LIMB_BITS);
                let digits = lanes.and(digits, lanes.splat(ENTRIES as u64 - 1));
                select(lanes, table, digits, into);
            }
        }
    }
}

#[inline(always)]
fn product<L: Lanes>(lanes: L, x: &[Eight], y: &[Eight], columns: &mut [Eight]) {
    let blocks = x.as_chunks().0;
    for (i, factors) in y.as_chunks().0.iter().enumerate() {
        let mut sums = start(lanes, columns, i, i == 0);
        for (j, limbs) in blocks.iter().enumerate() {
            let is_new = i == 0 || j + 1 == blocks.len();
            let places = places(columns, i + j, is_new);
            add_products::<L, false>(lanes, &mut sums, limbs, factors, places);
        }
        finish(lanes, columns, i + blocks.len(), sums);
    }
}

#[inline(always)]
fn square<L: Lanes>(lanes: L, x: &[Eight], columns: &mut [Eight]) {
    let blocks = x.as_chunks().0;
    for (i, factors) in blocks.iter().enumerate() {
        let is_last = |j| j + 1 == blocks.len();
        let mut sums = start(lanes, columns, 2 * i, i == 0);
        let place = places(columns, 2 * i, i == 0 || is_last(i));
        add_triangle(lanes, &mut sums, factors, place);
        for (j, limbs) in blocks.iter().enumerate().skip(i + 1) {
            let place = places(columns, i + j, i == 0 || is_last(j));
            if j == i + 1 {
                add_products::<L, true>(lanes, &mut sums, limbs, factors, place);
            } else {
                add_products::<L, false>(lanes, &mut sums, limbs, factors, place);
            }
        }
        if is_last(i) {
            each_limb!(ROW {
                sums[ROW] = double::<L, ROW>(lanes, sums[ROW], &factors[(BLOCK + ROW) / 2]);
            });
        }
        finish(lanes, columns, i + blocks.len(), sums);
    }
}

#[inline(always)]
fn reduce<L: Lanes>(lanes: L, columns: &mut [Eight], moduli: &Moduli, into: &mut [Eight]) {
    let minus_inverses = lanes.load(&moduli.minus_inverses.0);
    let (blocks, _) = moduli.numbers.0.as_chunks();
    for i in 0..blocks.len() {
        // Each block of columns becomes zero. Its storage then holds the factors by which the
        // modulus was multiplied.
        let (cleared, columns) = columns.as_chunks_mut::<BLOCK>().0[i..].split_at_mut(1);
        let factors = &mut cleared[0];
        let mut sums = load(lanes, factors);
        clear_columns(
            lanes,
            &mut sums,
            &blocks[0],
            minus_inverses,
            (factors, &columns[0]),
        );
        let columns = columns.as_flattened_mut();
        for (j, limbs) in blocks[1..].iter().enumerate() {
            let places = places(columns, j, false);
            add_products::<L, false>(lanes, &mut sums, limbs, factors, places);
        }
        finish(lanes, columns, blocks.len() - 1, sums);
    }
    carry(lanes, &columns[into.len()..], into);
}

#[inline(always)]
fn sum<L: Lanes>(lanes: L, columns: &mut [Eight], z: &[Eight], into: &mut [Eight]) {
    for (column, limb) in columns.iter_mut().zip(z) {
        lanes.store(
            lanes.add(lanes.load(&column.0), lanes.load(&limb.0)),
            &mut column.0,
        );
    }
    carry(lanes, columns, into);
}

/// Converts columns to limbs, by resolving the carries.
#[inline(always)]
fn carry<L: Lanes>(lanes: L, columns: &[Eight], into: &mut [Eight]) {
    let mask = lanes.splat(MASK);
    let mut carried = lanes.splat(0);
    for (column, limb) in columns.iter().zip(into) {
        let sum = lanes.add(lanes.load(&column.0), carried);
        lanes.store(lanes.and(sum, mask), &mut limb.0);
        carried = lanes.shift_right(sum, LIMB_BITS);
    }
}

/// Stores `x - y` in `x`. Returns 1 in each lane in which `y` was larger, and 0 in the other lanes.
#[inline(always)]
fn subtract<L: Lanes>(lanes: L, x: &mut [Eight], y: &[Eight]) -> L::Vector {
    let mask = lanes.splat(MASK);
    let mut borrow = lanes.splat(0);
    for (limb, less) in x.iter_mut().zip(y) {
        let difference = lanes.sub(lanes.sub(lanes.load(&limb.0), lanes.load(&less.0)), borrow);
        lanes.store(lanes.and(difference, mask), &mut limb.0);
        borrow = lanes.shift_right(difference, 63);
    }
    borrow
}

#[inline(always)]
fn difference<L: Lanes>(lanes: L, x: &mut [Eight], y: &[Eight], moduli: &Moduli) {
    let borrow = subtract(lanes, x, y);
    let (zero, mask) = (lanes.splat(0), lanes.splat(MASK));
    let mut carried = zero;
    for (limb, modulus) in x.iter_mut().zip(&moduli.numbers.0) {
        let more = lanes.where_equal([borrow, zero], zero, lanes.load(&modulus.0));
        let sum = lanes.add(lanes.add(lanes.load(&limb.0), more), carried);
        lanes.store(lanes.and(sum, mask), &mut limb.0);
        carried = lanes.shift_right(sum, LIMB_BITS);
    }
}

#[inline(always)]
fn normalize<L: Lanes>(lanes: L, x: &mut [Eight], moduli: &Moduli, less: &mut [Eight]) {
    less.copy_from_slice(x);
    let borrow = subtract(lanes, less, &moduli.numbers.0);
    for (limb, reduced) in x.iter_mut().zip(less) {
        let [kept, reduced] = [&*limb, reduced].map(|limb| lanes.load(&limb.0));
        lanes.store(
            lanes.where_equal([borrow, lanes.splat(0)], reduced, kept),
            &mut limb.0,
        );
    }
}

#[inline(always)]
fn select<L: Lanes>(lanes: L, table: &[Eight], digits: L::Vector, into: &mut [Eight]) {
    let limbs = into.len();
    for (i, into) in into.as_chunks_mut::<BLOCK>().0.iter_mut().enumerate() {
        let mut chosen = [lanes.splat(0); BLOCK];
        for (number, entry) in (0..).zip(table.chunks_exact(limbs)) {
            let entry = &entry.as_chunks::<BLOCK>().0[i];
            let at = [digits, lanes.splat(number)];
            each_limb!(J {
                chosen[J] = lanes.where_equal(at, lanes.load(&entry[J].0), chosen[J]);
            });
        }
        each_limb!(J { lanes.store(chosen[J], &mut into[J].0); });
    }
}

/// Adds the products of two blocks to the columns. With `WHOLE`, the ten outgoing columns belong to
/// a square and receive no further products, so they are doubled and get the squares of single
/// limbs.
#[inline(always)]
fn add_products<L: Lanes, const WHOLE: bool>(
    lanes: L,
    sums: &mut [L::Vector; BLOCK],
    limbs: &[Eight; BLOCK],
    factors: &[Eight; BLOCK],
    (outgoing, incoming): (&mut [Eight; BLOCK], &[Eight; BLOCK]),
) {
    let limbs = load(lanes, limbs);
    each_limb!(ROW {
        let factor = lanes.load(&factors[ROW].0);
        each_limb!(J { sums[J] = lanes.add_low(sums[J], limbs[J], factor); });
        if WHOLE {
            sums[0] = double::<L, ROW>(lanes, sums[0], &factors[(BLOCK + ROW) / 2]);
        }
        lanes.store(sums[0], &mut outgoing[ROW].0);
        shift(lanes, sums, &incoming[ROW]);
        each_limb!(J { sums[J] = lanes.add_high(sums[J], limbs[J], factor); });
    });
}

/// Adds the products of each limb of a block with the higher limbs, and doubles the ten outgoing columns.
#[inline(always)]
fn add_triangle<L: Lanes>(
    lanes: L,
    sums: &mut [L::Vector; BLOCK],
    block: &[Eight; BLOCK],
    (outgoing, incoming): (&mut [Eight; BLOCK], &[Eight; BLOCK]),
) {
    let limbs = load(lanes, block);
    each_limb!(ROW {
        each_limb!(J {
            if (ROW + 1..BLOCK).contains(&J) {
                sums[J] = lanes.add_low(sums[J], limbs[J], limbs[ROW]);
            }
        });
        let whole = double::<L, ROW>(lanes, sums[0], &block[ROW / 2]);
        lanes.store(whole, &mut outgoing[ROW].0);
        shift(lanes, sums, &incoming[ROW]);
        each_limb!(J {
            if (ROW + 1..BLOCK).contains(&J) {
                sums[J] = lanes.add_high(sums[J], limbs[J], limbs[ROW]);
            }
        });
    });
}

/// Completes a column of a square: doubles the products of different limbs, and adds half of the square of
/// one limb.
#[inline(always)]
fn double<L: Lanes, const COLUMN: usize>(lanes: L, sum: L::Vector, limb: &Eight) -> L::Vector {
    let (twice, limb) = (lanes.add(sum, sum), lanes.load(&limb.0));
    if COLUMN.is_multiple_of(2) {
        lanes.add_low(twice, limb, limb)
    } else {
        lanes.add_high(twice, limb, limb)
    }
}

/// Clears the ten outgoing columns by adding multiples of the lowest block of the modulus. Carries
/// their contents to the next columns and stores the factors for the other blocks.
#[inline(always)]
fn clear_columns<L: Lanes>(
    lanes: L,
    sums: &mut [L::Vector; BLOCK],
    limbs: &[Eight; BLOCK],
    minus_inverses: L::Vector,
    (factors, incoming): (&mut [Eight; BLOCK], &[Eight; BLOCK]),
) {
    let limbs = load(lanes, limbs);
    each_limb!(ROW {
        let factor = lanes.add_low(lanes.splat(0), sums[0], minus_inverses);
        lanes.store(factor, &mut factors[ROW].0);
        // Adding the lower half of the lowest product makes the column divisible by 2^52, so the carry rounds up.
        let carried = lanes.shift_right(lanes.add(sums[0], lanes.splat(MASK)), LIMB_BITS);
        each_limb!(J {
            if J != 0 {
                sums[J] = lanes.add_low(sums[J], limbs[J], factor);
            }
        });
        shift(lanes, sums, &incoming[ROW]);
        each_limb!(J { sums[J] = lanes.add_high(sums[J], limbs[J], factor); });
        sums[0] = lanes.add(sums[0], carried);
    });
}

/// Drops the lowest column and loads the next column.
#[inline(always)]
fn shift<L: Lanes>(lanes: L, sums: &mut [L::Vector; BLOCK], next: &Eight) {
    each_limb!(J {
        sums[J] = if J == BLOCK - 1 { lanes.load(&next.0) } else { sums[(J + 1) % BLOCK] };
    });
}

#[inline(always)]
fn load<L: Lanes>(lanes: L, block: &[Eight; BLOCK]) -> [L::Vector; BLOCK] {
    let mut limbs = [lanes.splat(0); BLOCK];
    each_limb!(J { limbs[J] = lanes.load(&block[J].0); });
    limbs
}

/// Loads the ten columns of a block, or zeros if nothing was stored there yet.
#[inline(always)]
fn start<L: Lanes>(lanes: L, columns: &[Eight], at: usize, is_new: bool) -> [L::Vector; BLOCK] {
    load(
        lanes,
        if is_new {
            &ZEROS
        } else {
            &columns.as_chunks().0[at]
        },
    )
}

/// Returns the block of columns at `at`, to be overwritten, and the block after it. The second block is zero if
/// `is_new`.
#[inline(always)]
fn places(
    columns: &mut [Eight],
    at: usize,
    is_new: bool,
) -> (&mut [Eight; BLOCK], &[Eight; BLOCK]) {
    let (outgoing, rest) = columns.as_chunks_mut().0[at..].split_at_mut(1);
    (&mut outgoing[0], if is_new { &ZEROS } else { &rest[0] })
}

#[inline(always)]
fn finish<L: Lanes>(lanes: L, columns: &mut [Eight], at: usize, sums: [L::Vector; BLOCK]) {
    let block = &mut columns.as_chunks_mut::<BLOCK>().0[at];
    each_limb!(J { lanes.store(sums[J], &mut block[J].0); });
}

static ZEROS: [Eight; BLOCK] = [Eight([0; LANES]); BLOCK];
