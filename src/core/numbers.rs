//! Figures of several numbers.

/// Sorts numbers and returns the one in the middle, of two the greater.
///
/// # Panics
/// There is none.
pub fn median(numbers: &mut [f64]) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::median;

    #[test]
    fn the_median_is_in_the_middle_or_above_it() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [2.0, 4.0, 1.0, 3.0]), 3.0);
    }
}
