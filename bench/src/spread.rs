//! Medians, spreads, and whether two sets of rounds differ.
//!
//! With three to ten rounds, only what needs no assumption is said: the median, the range from least
//! to largest, and "not significant" when two ranges overlap.

/// Returns the median; the mean of the middle two for an even count.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = sorted.get(sorted.len() / 2)?;
    if sorted.len() % 2 == 1 {
        return Some(*upper);
    }
    let lower = sorted.get(sorted.len() / 2 - 1)?;
    Some(f64::midpoint(*lower, *upper))
}

/// Returns the least and the largest value.
pub fn range(values: &[f64]) -> Option<(f64, f64)> {
    let least = values.iter().copied().reduce(f64::min)?;
    Some((least, values.iter().copied().reduce(f64::max)?))
}

/// Returns half the range as a share of the median: the `±` of a table.
pub fn relative(values: &[f64]) -> Option<f64> {
    let (least, largest) = range(values)?;
    let median = median(values).filter(|m| *m != 0.0)?;
    Some((largest - least) / 2.0 / median)
}

/// Returns whether two sets differ: two rounds each at least, and ranges that do not overlap.
pub fn differ(a: &[f64], b: &[f64]) -> bool {
    let (Some((a_least, a_largest)), Some((b_least, b_largest))) = (range(a), range(b)) else {
        return false;
    };
    a.len() > 1 && b.len() > 1 && (a_largest < b_least || b_largest < a_least)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_odd_even_and_no_values() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[1.0, 2.0]), Some(1.5));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn overlapping_ranges_do_not_differ_and_one_round_proves_nothing() {
        assert!(differ(&[1.0, 2.0], &[2.1, 3.0]));
        assert!(!differ(&[1.0, 2.0], &[2.0, 3.0]));
        assert!(!differ(&[1.0], &[2.0]));
    }

    #[test]
    fn the_spread_is_half_the_range_over_the_median() {
        assert_eq!(relative(&[90.0, 100.0, 110.0]), Some(0.1));
        assert_eq!(relative(&[0.0, 0.0]), None);
    }
}
