//! The loss of predictions on the tape, with its own backward.
//!
//! Shapes: T rows, D numbers of a row.

use tch::{Kind, Tensor};

use crate::tape::{Custom, Needs, ParamGrads, Slot, Tape};

/// Says what a difference of prediction and target costs; all in float32.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum LossKind {
    /// The square of the difference e.
    #[default]
    Mse,
    /// Half the square of the difference up to `delta`, from there on `delta · (|e| − delta / 2)`.
    Huber { delta: f64 },
    /// `delta² · (√(1 + (e / delta)²) − 1)`.
    PseudoHuber { delta: f64 },
    /// Half the square of the difference over `beta` up to `beta`, from there on `|e| − beta / 2`.
    SmoothL1 { beta: f64 },
}

/// Settings of the loss beside predictions and targets.
#[derive(Clone, Debug, PartialEq)]
pub struct FlowSettings {
    /// The run's, for noise.
    pub seed: u64,
    pub kind: LossKind,
    pub weight: super::TimeWeight,
    /// Samples have a column of weights of their tokens.
    pub masks: bool,
    /// Targets are drawn from the distributions that the autoencoder gives, and are not their means.
    pub draws_latents: bool,
}

impl Default for FlowSettings {
    fn default() -> FlowSettings {
        let (kind, weight) = (LossKind::Mse, super::TimeWeight::Even);
        FlowSettings { seed: 0, kind, weight, masks: false, draws_latents: false }
    }
}

impl LossKind {
    /// Returns the cost of each difference `e`.
    pub(in crate::model) fn value(self, e: &Tensor) -> Tensor {
        match self {
            LossKind::Mse => e.square(),
            LossKind::Huber { delta } => {
                let near = e.abs().clamp_max(delta);
                (e.abs() - &near * 0.5) * near
            }
            LossKind::PseudoHuber { delta } => ((e / delta).square() + 1.0).sqrt() * (delta * delta) - delta * delta,
            LossKind::SmoothL1 { beta } => LossKind::Huber { delta: beta }.value(e) / beta,
        }
    }

    /// Returns the derivative of the cost at each difference `e`.
    fn slope(self, e: &Tensor) -> Tensor {
        match self {
            LossKind::Mse => e * 2.0,
            LossKind::Huber { delta } => e.clamp(-delta, delta),
            LossKind::PseudoHuber { delta } => e / ((e / delta).square() + 1.0).sqrt(),
            LossKind::SmoothL1 { beta } => (e / beta).clamp(-1.0, 1.0),
        }
    }

    /// Records the sum of the costs of `predicted` `[T, D]`, each row's times its `weight` `[T, 1]`, times `scale`: a
    /// float64 scalar. The target is a slot of the same shape.
    pub fn record(self, tape: &mut Tape, predicted: Slot, target: Slot, weight: Tensor, scale: f64) -> Slot {
        let loss = WeightedError { kind: self, weight, scale };
        tape.custom("loss", &[], &[predicted, target], 1, Box::new(loss))[0]
    }
}

/// Reads predictions and targets `[T, D]`; writes the weighted sum of costs times `scale`, float64.
struct WeightedError {
    kind: LossKind,
    weight: Tensor,
    scale: f64,
}

impl WeightedError {
    fn error(reads: &[Tensor]) -> Tensor {
        reads[0].to_kind(Kind::Float) - reads[1].to_kind(Kind::Float)
    }
}

impl Custom for WeightedError {
    fn forward(&self, reads: &[Tensor], needs: Option<&Needs>) -> (Vec<Tensor>, Vec<Tensor>) {
        let loss = (self.kind.value(&Self::error(reads)) * &self.weight).sum(Kind::Double) * self.scale;
        (vec![loss], needs.map_or(Vec::new(), |_| reads.iter().map(Tensor::shallow_clone).collect()))
    }

    fn backward(
        &self,
        saved: Vec<Tensor>,
        grads: &[Option<Tensor>],
        needs: &Needs,
        _: Option<&ParamGrads<'_>>,
    ) -> Vec<Option<Tensor>> {
        let of_error = grads[0].as_ref().map(|grad| {
            self.kind.slope(&Self::error(&saved)) * &self.weight * (grad.to_kind(Kind::Float) * self.scale)
        });
        let of_read = |(at, read): (usize, &Tensor)| {
            let grad = of_error.as_ref().filter(|_| needs.reads[at])?.to_kind(read.kind());
            Some(if at == 0 { grad } else { -grad })
        };
        saved.iter().enumerate().map(of_read).collect()
    }
}
