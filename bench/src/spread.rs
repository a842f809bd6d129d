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

/// Returns the largest distance of a point from the straight line through all points (least squares), as a share of the
/// largest value. Returns `None` if there is no line.
pub fn from_line(points: &[(f64, f64)]) -> Option<f64> {
    let count = points.len() as f64;
    let (x, y) = points
        .iter()
        .fold((0.0, 0.0), |sum, p| (sum.0 + p.0, sum.1 + p.1));
    let (x, y) = (x / count, y / count);
    let square: f64 = points.iter().map(|p| (p.0 - x).powi(2)).sum();
    let slope = points.iter().map(|p| (p.0 - x) * (p.1 - y)).sum::<f64>() / square;
    let distances = points.iter().map(|p| (p.1 - y - slope * (p.0 - x)).abs());
    let most = points.iter().map(|p| p.1).fold(0.0, f64::max);
    let share = distances.fold(f64::NAN, f64::max) / most;
    share.is_finite().then_some(share)
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
    fn the_distance_from_a_line_is_relative_to_the_largest_value() {
        assert_eq!(from_line(&[(1.0, 5.0), (2.0, 7.0), (4.0, 11.0)]), Some(0.0));
        let bent = from_line(&[(0.0, 0.0), (1.0, 4.0), (2.0, 2.0)]).unwrap();
        assert!((bent - 0.5).abs() < 1e-9, "{bent}");
        assert_eq!(from_line(&[(1.0, 5.0)]), None);
    }

    #[test]
    fn the_spread_is_half_the_range_over_the_median() {
        assert_eq!(relative(&[90.0, 100.0, 110.0]), Some(0.1));
        assert_eq!(relative(&[0.0, 0.0]), None);
    }
}
