//! Computes medians and ranges. A run has too few rounds for statistics that assume a distribution.

/// Returns the median, which is the mean of the middle two values for an even count.
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

pub fn range(values: &[f64]) -> Option<(f64, f64)> {
    let least = values.iter().copied().reduce(f64::min)?;
    Some((least, values.iter().copied().reduce(f64::max)?))
}

/// Returns half the range divided by the median. Tables show it after `±`.
pub fn relative(values: &[f64]) -> Option<f64> {
    let (least, largest) = range(values)?;
    let median = median(values).filter(|m| *m != 0.0)?;
    Some((largest - least) / 2.0 / median)
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
    fn the_spread_is_half_the_range_over_the_median() {
        assert_eq!(relative(&[90.0, 100.0, 110.0]), Some(0.1));
        assert_eq!(relative(&[0.0, 0.0]), None);
    }
}
