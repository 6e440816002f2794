//! The norm of a tower or a projector: layer norm or root mean square norm, as its config says.

use tch::Tensor;

use crate::nn::{LayerNorm, NormConfig, RmsNorm};
use crate::params::{ParamSpec, Scope};

/// A norm and its epsilon.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TowerNorm {
    /// A layer norm with weight and bias, and its epsilon.
    Layer(f64),
    /// An RMS norm with a weight, and its epsilon.
    Rms(f64),
    /// The same with one plus the weight for a factor (Gemma).
    CenteredRms(f64),
}

/// A norm on its parameters.
pub(in crate::model) enum Norm {
    Layer(LayerNorm),
    Rms(RmsNorm),
}

impl TowerNorm {
    /// Declares the weight `[width]` of the norm, and the bias `[width]` of a layer norm.
    pub(in crate::model) fn specs(self, prefix: &str, name: &str, width: i64) -> Vec<ParamSpec> {
        match self {
            TowerNorm::Layer(_) => LayerNorm::specs(prefix, name, width),
            TowerNorm::Rms(_) => RmsNorm::specs(prefix, name, width),
            TowerNorm::CenteredRms(eps) => NormConfig { eps, zero_centered: true }.specs(prefix, name, width),
        }
    }

    /// Takes the parameters that [`TowerNorm::specs`] declares.
    pub(in crate::model) fn build(self, scope: &Scope<'_>, name: &str) -> Norm {
        match self {
            TowerNorm::Layer(eps) => Norm::Layer(LayerNorm::new(scope, name, eps)),
            TowerNorm::Rms(eps) => Norm::Rms(RmsNorm::new(scope, name, eps)),
            TowerNorm::CenteredRms(eps) => Norm::Rms(NormConfig { eps, zero_centered: true }.build(scope, name)),
        }
    }
}

impl Norm {
    /// Maps `[…, D]` to `[…, D]`.
    pub fn forward(&self, x: &Tensor) -> Tensor {
        match self {
            Norm::Layer(norm) => norm.forward(x),
            Norm::Rms(norm) => norm.forward(x),
        }
    }
}
