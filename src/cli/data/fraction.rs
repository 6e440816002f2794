//! Fractions: read from the command line, and how many samples may be bad.

use crate::cli::exit;
use std::process::ExitCode;

/// Returns whether too many samples are bad.
pub(super) fn verdict(bad: u64, of: u64, max_bad: f64) -> ExitCode {
    if bad as f64 > max_bad * of as f64 { ExitCode::from(exit::FAILED) } else { ExitCode::SUCCESS }
}

/// Reads a fraction, 0 to 1.
pub(crate) fn fraction(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(part) if (0.0..=1.0).contains(&part) => Ok(part),
        _ => Err("must be a number from 0 to 1".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_are_parts_of_the_whole() {
        assert!(fraction("1.5").is_err() && fraction("nan").is_err() && fraction("0.25") == Ok(0.25));
    }
}
