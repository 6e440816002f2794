//! Describes how far our numbers are from the reference's, by quantity.

use crate::model::{Comparison, Comparisons};
use std::fmt;
use tch::{Device, Kind, Tensor};

/// The tolerance, as a share of each value of the reference.
const RELATIVE: f64 = 1e-4;
/// The tolerance, as a share of the largest value of the reference's tensor.
const ABSOLUTE: f64 = 1e-5;
/// The tolerance for a layout of several ranks, as a share of one process's values, and of the largest one of a tensor.
const OF_LAYOUT: f64 = 1e-5;
/// The same tolerance for weights after steps of AdamW, which divides small gradients by their size, rounding or not.
const OF_LAYOUT_WEIGHTS: f64 = 1e-3;
/// The factor of the tolerance of gradients' norms at weights that steps of AdamW have changed.
const AT_MOVED_WEIGHTS: f64 = 5.0;
/// The factor of the tolerance of an ill-conditioned model.
const ILL_CONDITIONED: f64 = 10.0;
/// The factor of the tolerance of an ill-conditioned model's gradient norms after steps of AdamW, which divides small gradients by their
/// size, noise or not.
const ILL_CONDITIONED_PATH: f64 = 500.0;

/// One quantity: logits, all gradients, …
#[derive(Debug)]
pub struct Row {
    pub quantity: &'static str,
    /// Tensors compared.
    pub count: usize,
    /// Largest difference, relative to the largest value of its tensor.
    pub error: f64,
    /// Largest difference as a part of what is tolerated: above 1 fails.
    pub excess: f64,
    /// The tensor of the largest excess.
    pub worst: String,
}

/// The result of a fixture.
#[derive(Debug, Default)]
pub struct ParityReport {
    pub rows: Vec<Row>,
    /// The tensors that could not be compared, such as those that only one side has, a sentence each.
    pub problems: Vec<String>,
    /// Set for gated delta nets: changing the weights of the fixtures' models by 1e-7 moves the reference's own
    /// gradients by 6e-5 of the largest, and the norms of the steps' gradients by 2 %.
    pub(super) ill_conditioned: bool,
    /// True if a layout is compared with one process.
    pub(super) of_layout: bool,
}

impl ParityReport {
    /// Returns whether all is within the tolerance, and something was compared.
    pub fn is_ok(&self) -> bool {
        self.problems.is_empty() && !self.rows.is_empty() && self.rows.iter().all(|row| row.excess <= 1.0)
    }

    /// Compares one tensor of a quantity. A value that is not a number fails.
    pub(super) fn compare(&mut self, quantity: &'static str, name: &str, found: &Tensor, expected: &Tensor) {
        if found.size() != expected.size() {
            return self.other_shape(quantity, name, found, expected);
        }
        let [found, expected] = [found, expected].map(|x| x.to_device(Device::Cpu).to_kind(Kind::Double));
        let largest = expected.abs().max().double_value(&[]);
        let difference = (found - &expected).abs();
        let factor = match (self.ill_conditioned, quantity) {
            (false, "later grad_norms") => AT_MOVED_WEIGHTS,
            (false, _) => 1.0,
            (true, "adamw.grad_norm" | "later grad_norms") => ILL_CONDITIONED_PATH,
            (true, _) => ILL_CONDITIONED,
        };
        let (relative, absolute) = match (self.of_layout, quantity) {
            (false, _) => (RELATIVE, ABSOLUTE),
            (true, "weights") => (OF_LAYOUT_WEIGHTS, OF_LAYOUT_WEIGHTS),
            (true, _) => (OF_LAYOUT, OF_LAYOUT),
        };
        let tolerated = ((expected.abs() * relative + largest * absolute) * factor).clamp_min(f64::MIN_POSITIVE);
        let excess = (&difference / tolerated).max().double_value(&[]);
        self.note(quantity, name, difference.max().double_value(&[]) / largest.max(f64::MIN_POSITIVE), excess);
    }

    /// Notes what [`Comparisons`] have, whose tolerances are their own.
    pub(super) fn add(&mut self, comparisons: Comparisons) {
        for Comparison { quantity, name, found, expected, share, scale } in comparisons.all {
            if found.size() != expected.size() {
                self.other_shape(quantity, &name, &found, &expected);
                continue;
            }
            let difference = if found.numel() == 0 { 0.0 } else { (found - expected).abs().max().double_value(&[]) };
            let tolerated = (share * scale).max(f64::MIN_POSITIVE);
            self.note(quantity, &name, difference / scale.max(f64::MIN_POSITIVE), difference / tolerated);
        }
        self.problems.extend(comparisons.problems);
    }

    fn other_shape(&mut self, quantity: &str, name: &str, found: &Tensor, expected: &Tensor) {
        let (found, expected) = (found.size(), expected.size());
        self.problems.push(format!("{quantity} {name}: shape {found:?}, but the reference has {expected:?}"));
    }

    /// Notes the largest difference of one tensor, as a share of its largest value and of what is tolerated.
    fn note(&mut self, quantity: &'static str, name: &str, error: f64, excess: f64) {
        let [error, excess] = [error, excess].map(|x| if x.is_nan() { f64::INFINITY } else { x });
        let new = Row { quantity, count: 1, error, excess, worst: name.to_owned() };
        match self.rows.iter_mut().find(|row| row.quantity == quantity) {
            None => self.rows.push(new),
            Some(row) => {
                row.count += 1;
                row.error = row.error.max(error);
                if excess > row.excess {
                    (row.excess, row.worst) = (excess, new.worst);
                }
            }
        }
    }
}

/// Returns whether both norms of a gradient, the reference's and ours, are at most `rounding`. A norm that is NaN is
/// not.
pub(super) fn is_rounding(norms: [f64; 2], rounding: f64) -> bool {
    norms.iter().all(|norm| *norm <= rounding)
}

impl fmt::Display for ParityReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "  {:<18} {:>7} {:>10} {:>10}  worst", "quantity", "tensors", "error", "tolerated")?;
        for row in &self.rows {
            let verdict = if row.excess <= 1.0 { "" } else { "  FAILED" };
            let used = format!("{:.1} %", 100.0 * row.excess);
            writeln!(
                f,
                "  {:<18} {:>7} {:>10.1e} {used:>10}  {}{verdict}",
                row.quantity, row.count, row.error, row.worst
            )?;
        }
        self.problems.iter().try_for_each(|problem| writeln!(f, "  FAILED {problem}"))
    }
}

#[cfg(test)]
mod tests {
    use super::{Comparisons, ParityReport, is_rounding};
    use tch::Tensor;

    #[test]
    fn the_tolerance_is_relative_and_of_the_largest_value() {
        let excess = |found: [f64; 2]| {
            let mut report = ParityReport::default();
            report.compare("logits", "x", &Tensor::from_slice(&found), &Tensor::from_slice(&[0.0, 10.0]));
            (report.rows[0].excess, report.is_ok())
        };
        assert_eq!(excess([0.0, 10.0]), (0.0, true));
        assert!(excess([0.9e-4, 10.0]).1 && !excess([1.1e-4, 10.0]).1);
        assert!(excess([0.0, 10.001]).1 && !excess([0.0, 10.0012]).1);
        assert!(!excess([f64::NAN, 10.0]).1);
    }

    #[test]
    fn a_gradient_that_is_not_a_number_is_compared_also_where_the_reference_has_none() {
        assert!(is_rounding([0.0, 1e-9], 1e-8) && !is_rounding([0.0, 1e-7], 1e-8));
        assert!(!is_rounding([0.0, f64::NAN], 1e-8) && !is_rounding([f64::NAN, 0.0], 1e-8));
    }

    #[test]
    fn comparisons_have_tolerances_of_their_own() {
        let report = |found: [f64; 2], share: f64| {
            let mut comparisons = Comparisons::default();
            comparisons.add("actions", "x", &Tensor::from_slice(&found), &Tensor::from_slice(&[0.0, 10.0]), share);
            comparisons.equal("tokens", "y", &[1, 2], &[1, found[0] as i64 + 2]);
            let mut report = ParityReport::default();
            report.add(comparisons);
            report
        };
        assert!(report([0.9e-4, 10.0], 1e-5).is_ok() && !report([1.1e-4, 10.0], 1e-5).is_ok());
        assert!(!report([1.0, 10.0], 1.0).is_ok(), "whole numbers are equal or not");
        assert!(!report([f64::NAN, 10.0], 1.0).is_ok());
        let mut other = Comparisons::default();
        other.equal("tokens", "y", &[1], &[1, 2]);
        let mut report = report([0.0, 10.0], 1e-5);
        report.add(other);
        assert!(!report.is_ok() && report.to_string().contains("FAILED tokens y: shape [1]"), "{report}");
    }

    #[test]
    fn nothing_compared_or_another_shape_is_no_success() {
        let mut report = ParityReport::default();
        assert!(!report.is_ok());
        report.compare("logits", "x", &Tensor::from_slice(&[1f32]), &Tensor::from_slice(&[1f32, 2.0]));
        assert!(!report.is_ok() && report.to_string().contains("FAILED logits x"));
    }
}
