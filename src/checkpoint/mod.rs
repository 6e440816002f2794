//! Checkpoints and model folders as such, without a run: what is in them, whether they are whole, how they differ, and
//! the same weights in another form.

mod diff;
mod export;
mod fit;
mod inspect;
mod saved_config;
mod verify;

pub use diff::{Difference, TensorDiff, diff};
pub use export::{Export, ExportError, export};
pub use fit::{FitError, expect_fit, load_options};
pub use inspect::inspect;
pub use saved_config::saved_config;
pub use verify::verify;

/// Whole numbers in groups of three.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let lead = digits.len() % 3;
    let groups = digits.as_bytes()[lead..].chunks(3).map(|group| String::from_utf8_lossy(group).into_owned());
    let first = (lead > 0).then(|| digits[..lead].to_owned());
    first.into_iter().chain(groups).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_readable() {
        assert_eq!([grouped(7), grouped(1000), grouped(1_234_567)], ["7", "1,000", "1,234,567"]);
    }
}
