//! The interval in which a rate lies that was counted.

/// Quantile of the normal distribution for 95 %.
const Z: f64 = 1.959_963_984_540_054;

/// Returns Wilson's interval of 95 % of a rate, both from 0 to 1; without any trial it is 0 to 1.
pub fn wilson(successes: usize, count: usize) -> [f64; 2] {
    if count == 0 {
        return [0.0, 1.0];
    }
    let (n, rate) = (count as f64, successes as f64 / count as f64);
    let middle = rate + Z * Z / (2.0 * n);
    let half = Z * (rate * (1.0 - rate) / n + Z * Z / (4.0 * n * n)).sqrt();
    [middle - half, middle + half].map(|value| (value / (1.0 + Z * Z / n)).clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_those_of_statsmodels() {
        // statsmodels 0.15: proportion_confint(n, 400, method="wilson").
        for (successes, expected) in [(392, [0.961037, 0.989832]), (1, [0.000441, 0.014023]), (0, [0.0, 0.009512])] {
            let found = wilson(successes, 400);
            assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{successes}: {found:?}");
        }
        assert_eq!(wilson(0, 0), [0.0, 1.0]);
        assert_eq!(wilson(5, 5)[1], 1.0);
    }
}
