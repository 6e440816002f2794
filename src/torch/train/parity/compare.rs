//! The steps of a layout against those of one process.

use super::report::{ParityReport, is_rounding};
use std::collections::HashMap;
use tch::Tensor;

/// The results of steps of AdamW.
pub struct Steps {
    /// The loss before each step, and after the last one.
    pub losses: Vec<f64>,
    pub grad_norms: Vec<f64>,
    /// The gradients of the first step, by the names of the checkpoint's tensors.
    pub gradients: Vec<(String, Tensor)>,
    /// The weights after the last step.
    pub weights: Vec<(String, Tensor)>,
    pub(crate) ill_conditioned: bool,
}

/// Compares the steps of a layout with those of one process.
pub fn compare_steps(found: &Steps, alone: &Steps) -> ParityReport {
    let mut report =
        ParityReport { of_layout: true, ill_conditioned: alone.ill_conditioned, ..ParityReport::default() };
    let slice = |values: &[f64]| Tensor::from_slice(values);
    report.compare("losses", "losses", &slice(&found.losses), &slice(&alone.losses));
    let (found_norms, norms) = (slice(&found.grad_norms), slice(&alone.grad_norms));
    let num_other_rate = norms.size()[0] - 1;
    report.compare("first grad_norm", "grad_norms", &found_norms.narrow(0, 0, 1), &norms.narrow(0, 0, 1));
    if num_other_rate > 0 {
        let later = |norms: &Tensor| norms.narrow(0, 1, num_other_rate);
        report.compare("later grad_norms", "grad_norms", &later(&found_norms), &later(&norms));
    }
    // What is zero in exact arithmetic is rounding on both sides, and AdamW makes whole steps of it.
    let rounding = 1e-7 * alone.grad_norms.first().copied().unwrap_or(0.0);
    let norms = |steps: &Steps| -> HashMap<String, f64> {
        steps.gradients.iter().map(|(name, gradient)| (name.clone(), gradient.norm().double_value(&[]))).collect()
    };
    let norms = [norms(alone), norms(found)];
    let is_rounding =
        |name: &str| is_rounding(norms.each_ref().map(|of| of.get(name).copied().unwrap_or(f64::NAN)), rounding);
    for (quantity, found, alone) in
        [("gradients", &found.gradients, &alone.gradients), ("weights", &found.weights, &alone.weights)]
    {
        let names = |list: &[(String, Tensor)]| list.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
        if names(found) != names(alone) {
            report.problems.push(format!("the names of the {quantity} differ from those of one process"));
        }
        for ((name, found), (_, expected)) in found.iter().zip(alone) {
            if !is_rounding(name) {
                report.compare(quantity, name, found, expected);
            }
        }
    }
    report
}
