//! Large numbers as people read them.

/// Formats bytes as `999 B`, `1.23 MB`, `145 GB`.
pub fn bytes(count: u64) -> String {
    let (figure, unit) = scaled(count as f64, ["B", "kB", "MB", "GB", "TB", "PB"]);
    format!("{figure} {unit}")
}

/// Formats a number as `8.03B` for billions: three digits and a unit.
pub fn short(value: f64) -> String {
    let (figure, unit) = scaled(value, ["", "K", "M", "B", "T", "Q"]);
    format!("{figure}{unit}")
}

/// Formats a number as `950`, `12.3k`, `4.56M`: what changes from step to step has all its digits up to ten thousand, so that it stays
/// comparable.
pub(super) fn compact(value: f64) -> String {
    match value.abs() {
        v if v >= 1e6 => format!("{:.2}M", value / 1e6),
        v if v >= 1e4 => format!("{:.1}k", value / 1e3),
        _ => format!("{value:.0}"),
    }
}

fn scaled(mut value: f64, units: [&'static str; 6]) -> (String, &'static str) {
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < units.len() {
        (value, unit) = (value / 1000.0, unit + 1);
    }
    let decimals = match value {
        _ if unit == 0 => 0,
        value if value >= 99.95 => 0,
        value if value >= 9.995 => 1,
        _ => 2,
    };
    (format!("{value:.decimals$}"), units[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_and_a_unit() {
        assert_eq!([bytes(0), bytes(999), bytes(1500), bytes(1_234_567)], ["0 B", "999 B", "1.50 kB", "1.23 MB"]);
        assert_eq!([bytes(999_600), bytes(99_950_000)], ["1.00 MB", "100 MB"]);
        assert_eq!([short(8.03e9), short(48.2e9), short(12.0)], ["8.03B", "48.2B", "12"]);
    }

    #[test]
    fn figures_of_steps_have_units_from_ten_thousand_on() {
        let values = [0.0, 9999.0, 12_345.0, 4_560_000.0, -12_345.0];
        assert_eq!(values.map(compact), ["0", "9999", "12.3k", "4.56M", "-12.3k"]);
    }
}
