//! Products, squares and reductions of eight numbers at a time: where the time goes.
//!
//! Numbers are cut into blocks of ten limbs. A product of two blocks adds to twenty columns, ten of which are in registers at
//! any time, with one operand in ten others: a row multiplies all ten by one limb of the second operand, the lowest column is
//! then whole and leaves, and the next comes in. A column is a plain sum of halves of products, below 2^61 for the longest
//! numbers, and carries are resolved once, at the end.
//!
//! A square has its products of two different limbs computed once and doubled. A reduction is Montgomery's: a multiple of the
//! modulus is added that makes the lowest column divisible by 2^52, column by column.
//!
//! All is straight-line code over public lengths. Source: Gueron and Krasnov, "Software Implementation of Modular
//! Exponentiation, Using Advanced Vector Instructions Architectures" (2012); Montgomery, "Modular Multiplication Without
//! Trial Division" (1985).

use crate::lanes::{Eight, Lanes, Numbers};
use crate::natural::{LIMB_BITS, MASK};

/// Limbs of a block. Ten sums, ten limbs and a factor fit into 32 registers, and ten divides every length that is used.
pub(crate) const BLOCK: usize = 10;
/// Entries of a table of powers: one per value of [`WINDOW`] bits.
pub(crate) const ENTRIES: usize = 1 << WINDOW;
/// Bits of the exponent that are taken at a time. Four divide 52, and their table fits into the first cache.
pub(crate) const WINDOW: u32 = 4;

/// The moduli of eight lanes, and -1 over each of them modulo 2^52.
pub(crate) struct Moduli {
    pub(crate) numbers: Numbers,
    pub(crate) minus_inverses: Eight,
}

/// Repeats a block with a constant that runs through the limbs of a block.
macro_rules! each_limb {
    ($limb:ident $body:block) => { each_limb!($limb $body 0 1 2 3 4 5 6 7 8 9) };
    ($limb:ident $body:block $($value:literal)*) => { $({ const $limb: usize = $value; $body })* };
}

/// A step of the arithmetic: what the lanes compute in one call.
pub(crate) enum Step<'a> {
    /// `x y` as columns, twice as many as either has limbs.
    Product {
        x: &'a [Eight],
        y: &'a [Eight],
        columns: &'a mut [Eight],
    },
    /// `x x` as columns.
    Square {
        x: &'a [Eight],
        columns: &'a mut [Eight],
    },
    /// The columns, over R, modulo the modulus: at most the modulus more than the quotient. It uses the columns up.
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
    /// `x - y` modulo the modulus into `x`; both are below it.
    Difference {
        x: &'a mut [Eight],
        y: &'a [Eight],
        moduli: &'a Moduli,
    },
    /// `x`, or `x` less the modulus, whichever is below it; for an `x` below twice the modulus.
    Normalize {
        x: &'a mut [Eight],
        moduli: &'a Moduli,
        scratch: &'a mut [Eight],
    },
    /// Each lane's entry of the table, by the bits of its exponent at this place. Every entry is read.
    Select {
        table: &'a [Eight],
        exponents: &'a [Eight],
        place: u32,
        into: &'a mut [Eight],
    },
}

impl Step<'_> {
    #[inline(always)]
    pub(crate) fn take<L: Lanes>(self, lanes: L) {
        match self {
            Step::Product { x, y, columns } => product(lanes, x, y, columns),
            Step::Square { x, columns } => square(lanes, x, columns),
            Step::Reduce {
                columns,
                moduli,
                into,
            } => reduce(lanes, columns, moduli, into),
            Step::Sum { columns, z, into } => sum(lanes, columns, z, into),
            Step::Difference { x, y, moduli } => difference(lanes, x, y, moduli),
            Step::Normalize { x, moduli, scratch } => normalize(lanes, x, moduli, scratch),
            Step::Select {
                table,
                exponents,
                place,
                into,
            } => {
                let limb = lanes.load(&exponents[(WINDOW * place / LIMB_BITS) as usize]);
                let digits = lanes.shift_right(limb, WINDOW * place % LIMB_BITS);
                let digits = lanes.and(digits, lanes.splat(ENTRIES as u64 - 1));
                select(lanes, table, digits, into);
            }
        }
    }
}

#[inline(always)]
fn product<L: Lanes>(lanes: L, x: &[Eight], y: &[Eight], columns: &mut [Eight]) {
    zero(lanes, columns);
    for (i, factors) in y.as_chunks().0.iter().enumerate() {
        for (j, block) in x.as_chunks().0.iter().enumerate() {
            add_products(lanes, twenty(columns, i + j), block, factors);
        }
    }
}

#[inline(always)]
fn square<L: Lanes>(lanes: L, x: &[Eight], columns: &mut [Eight]) {
    zero(lanes, columns);
    let blocks = x.as_chunks().0;
    for (i, a) in blocks.iter().enumerate() {
        add_triangle(lanes, twenty(columns, 2 * i), a);
        for (j, b) in blocks.iter().enumerate().skip(i + 1) {
            add_products(lanes, twenty(columns, i + j), b, a);
        }
    }
    for (limb, pair) in x.iter().zip(columns.as_chunks_mut::<2>().0) {
        let limb = lanes.load(limb);
        let [low, high] = [&pair[0], &pair[1]].map(|column| {
            let sum = lanes.load(column);
            lanes.add(sum, sum)
        });
        lanes.store(lanes.add_low(low, limb, limb), &mut pair[0]);
        lanes.store(lanes.add_high(high, limb, limb), &mut pair[1]);
    }
}

#[inline(always)]
fn reduce<L: Lanes>(lanes: L, columns: &mut [Eight], moduli: &Moduli, into: &mut [Eight]) {
    let minus_inverses = lanes.load(&moduli.minus_inverses);
    if let Some((lowest, others)) = moduli.numbers.0.as_chunks().0.split_first() {
        for i in 0..=others.len() {
            let factors = clear_columns(lanes, twenty(columns, i), lowest, minus_inverses);
            for (j, block) in (i + 1..).zip(others) {
                add_products(lanes, twenty(columns, j), block, &factors);
            }
        }
    }
    carry(lanes, &columns[into.len()..], into);
}

#[inline(always)]
fn sum<L: Lanes>(lanes: L, columns: &mut [Eight], z: &[Eight], into: &mut [Eight]) {
    for (column, limb) in columns.iter_mut().zip(z) {
        lanes.store(lanes.add(lanes.load(column), lanes.load(limb)), column);
    }
    carry(lanes, columns, into);
}

/// Makes limbs of columns.
#[inline(always)]
fn carry<L: Lanes>(lanes: L, columns: &[Eight], into: &mut [Eight]) {
    let mask = lanes.splat(MASK);
    let mut carried = lanes.splat(0);
    for (column, limb) in columns.iter().zip(into) {
        let sum = lanes.add(lanes.load(column), carried);
        lanes.store(lanes.and(sum, mask), limb);
        carried = lanes.shift_right(sum, LIMB_BITS);
    }
}

/// `x - y` into `x`, and one for each lane in which `y` was larger.
#[inline(always)]
fn subtract<L: Lanes>(lanes: L, x: &mut [Eight], y: &[Eight]) -> L::Vector {
    let mask = lanes.splat(MASK);
    let mut borrow = lanes.splat(0);
    for (limb, less) in x.iter_mut().zip(y) {
        let difference = lanes.sub(lanes.sub(lanes.load(limb), lanes.load(less)), borrow);
        lanes.store(lanes.and(difference, mask), limb);
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
        let more = lanes.where_equal([borrow, zero], zero, lanes.load(modulus));
        let sum = lanes.add(lanes.add(lanes.load(limb), more), carried);
        lanes.store(lanes.and(sum, mask), limb);
        carried = lanes.shift_right(sum, LIMB_BITS);
    }
}

#[inline(always)]
fn normalize<L: Lanes>(lanes: L, x: &mut [Eight], moduli: &Moduli, less: &mut [Eight]) {
    less.copy_from_slice(x);
    let borrow = subtract(lanes, less, &moduli.numbers.0);
    for (limb, reduced) in x.iter_mut().zip(less) {
        let [kept, reduced] = [&*limb, reduced].map(|limb| lanes.load(limb));
        lanes.store(
            lanes.where_equal([borrow, lanes.splat(0)], reduced, kept),
            limb,
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
                chosen[J] = lanes.where_equal(at, lanes.load(&entry[J]), chosen[J]);
            });
        }
        each_limb!(J { lanes.store(chosen[J], &mut into[J]); });
    }
}

/// Adds the products of two blocks to twenty columns.
#[inline(always)]
fn add_products<L: Lanes>(
    lanes: L,
    columns: &mut [Eight; 2 * BLOCK],
    block: &[Eight; BLOCK],
    factors: &[Eight; BLOCK],
) {
    let (limbs, mut sums) = start(lanes, columns, block);
    each_limb!(ROW {
        let factor = lanes.load(&factors[ROW]);
        each_limb!(J { sums[J] = lanes.add_low(sums[J], limbs[J], factor); });
        lanes.store(sums[0], &mut columns[ROW]);
        shift(lanes, &mut sums, &columns[ROW + BLOCK]);
        each_limb!(J { sums[J] = lanes.add_high(sums[J], limbs[J], factor); });
    });
    finish(lanes, columns, sums);
}

/// Adds the products of each limb of a block with the higher ones to twenty columns.
#[inline(always)]
fn add_triangle<L: Lanes>(lanes: L, columns: &mut [Eight; 2 * BLOCK], block: &[Eight; BLOCK]) {
    let (limbs, mut sums) = start(lanes, columns, block);
    each_limb!(ROW {
        each_limb!(J {
            if (ROW + 1..BLOCK).contains(&J) {
                sums[J] = lanes.add_low(sums[J], limbs[J], limbs[ROW]);
            }
        });
        lanes.store(sums[0], &mut columns[ROW]);
        shift(lanes, &mut sums, &columns[ROW + BLOCK]);
        each_limb!(J {
            if (ROW + 1..BLOCK).contains(&J) {
                sums[J] = lanes.add_high(sums[J], limbs[J], limbs[ROW]);
            }
        });
    });
    finish(lanes, columns, sums);
}

/// Adds multiples of the lowest block of the modulus that clear the ten lowest of twenty columns, and carries on what these
/// held. Returns the factors, for the other blocks. The cleared columns are not written.
#[inline(always)]
fn clear_columns<L: Lanes>(
    lanes: L,
    columns: &mut [Eight; 2 * BLOCK],
    block: &[Eight; BLOCK],
    minus_inverses: L::Vector,
) -> [Eight; BLOCK] {
    let mut factors = [Eight::default(); BLOCK];
    let (limbs, mut sums) = start(lanes, columns, block);
    each_limb!(ROW {
        let factor = lanes.add_low(lanes.splat(0), sums[0], minus_inverses);
        lanes.store(factor, &mut factors[ROW]);
        // What the lower half of the lowest product would add makes the column divisible by 2^52: it rounds up.
        let carried = lanes.shift_right(lanes.add(sums[0], lanes.splat(MASK)), LIMB_BITS);
        each_limb!(J {
            if J != 0 {
                sums[J] = lanes.add_low(sums[J], limbs[J], factor);
            }
        });
        shift(lanes, &mut sums, &columns[ROW + BLOCK]);
        each_limb!(J { sums[J] = lanes.add_high(sums[J], limbs[J], factor); });
        sums[0] = lanes.add(sums[0], carried);
    });
    finish(lanes, columns, sums);
    factors
}

/// The limbs of a block, and the ten lowest of twenty columns.
#[inline(always)]
fn start<L: Lanes>(
    lanes: L,
    columns: &[Eight; 2 * BLOCK],
    block: &[Eight; BLOCK],
) -> ([L::Vector; BLOCK], [L::Vector; BLOCK]) {
    let mut limbs = [lanes.splat(0); BLOCK];
    let mut sums = [lanes.splat(0); BLOCK];
    each_limb!(J {
        limbs[J] = lanes.load(&block[J]);
        sums[J] = lanes.load(&columns[J]);
    });
    (limbs, sums)
}

/// Lets the lowest column go and the next one in.
#[inline(always)]
fn shift<L: Lanes>(lanes: L, sums: &mut [L::Vector; BLOCK], next: &Eight) {
    each_limb!(J {
        sums[J] = if J == BLOCK - 1 { lanes.load(next) } else { sums[(J + 1) % BLOCK] };
    });
}

/// Puts the ten highest of twenty columns back.
#[inline(always)]
fn finish<L: Lanes>(lanes: L, columns: &mut [Eight; 2 * BLOCK], sums: [L::Vector; BLOCK]) {
    each_limb!(J { lanes.store(sums[J], &mut columns[BLOCK + J]); });
}

/// The twenty columns from a block on.
#[inline(always)]
fn twenty(columns: &mut [Eight], block: usize) -> &mut [Eight; 2 * BLOCK] {
    let from = &mut columns[block * BLOCK..];
    from.first_chunk_mut()
        .expect("twice as many columns as limbs")
}

#[inline(always)]
fn zero<L: Lanes>(lanes: L, columns: &mut [Eight]) {
    for column in columns {
        lanes.store(lanes.splat(0), column);
    }
}
