//! The loss of an action space: the cost of each number times what it counts.
//!
//! Shapes: R actions, A numbers of each.

use loongforge_core::data::policy::ActionSpace;
use tch::{Device, Kind, Tensor};

use crate::device::upload;
use crate::model::objective::LossKind;

/// The loss of the difference of predicted and recorded actions.
pub(super) struct ActionCost {
    kind: LossKind,
    /// `[A]`: true for numbers whose prediction is a logit; `None`: there are none.
    logits: Option<Tensor>,
    /// `[R, A]`, float32.
    target: Tensor,
    weight: Tensor,
}

impl ActionCost {
    /// `target` `[R, A]`, and what each element counts beside its number's own weight, `weight` of the same shape; float32.
    pub fn new(kind: LossKind, space: &ActionSpace, target: Tensor, weight: &Tensor) -> ActionCost {
        let device = target.device();
        let is_logit: Vec<bool> = (0..space.dim()).map(|at| space.logits.contains(&at)).collect();
        let logits = (!space.logits.is_empty()).then(|| upload(&Tensor::from_slice(&is_logit), device));
        ActionCost { kind, logits, weight: weight * of_numbers(space, device), target }
    }

    /// Returns the sum over all elements of `predicted` `[R, A]`, float64.
    pub fn sum(&self, predicted: &Tensor) -> Tensor {
        let predicted = predicted.to_kind(Kind::Float);
        let cost = self.kind.value(&(&predicted - &self.target));
        let cost = match &self.logits {
            Some(logits) => cross_entropy(&predicted, &self.target).where_self(logits, &cost),
            None => cost,
        };
        (cost * &self.weight).sum(Kind::Double)
    }
}

/// Returns the weight of each number of an action in the loss, `[A]`.
fn of_numbers(space: &ActionSpace, device: Device) -> Tensor {
    upload(&Tensor::from_slice(&space.weights), device)
}

/// Returns the cross-entropy of logits and of probabilities between 0 and 1, as torch's `binary_cross_entropy_with_logits` does.
fn cross_entropy(logits: &Tensor, target: &Tensor) -> Tensor {
    logits.clamp_min(0.0) - logits * target + (-logits.abs()).exp().log1p()
}
