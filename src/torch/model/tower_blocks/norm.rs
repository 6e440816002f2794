//! The norm of a tower or a projector: layer norm or root mean square norm, as its config says.

use tch::Tensor;

use crate::nn::{LayerNorm, RmsNorm};
use crate::params::{ParamSpec, Scope};

/// A norm and its epsilon.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TowerNorm {
    /// With weight and bias.
    Layer(f64),
    /// With weight only.
    Rms(f64),
}

/// A norm on its parameters.
pub(in crate::model) enum Norm {
    Layer(LayerNorm),
    Rms(RmsNorm),
}

impl TowerNorm {
    pub(in crate::model) fn specs(self, prefix: &str, name: &str, width: i64) -> Vec<ParamSpec> {
        match self {
            TowerNorm::Layer(_) => LayerNorm::specs(prefix, name, width),
            TowerNorm::Rms(_) => RmsNorm::specs(prefix, name, width),
        }
    }

    pub(in crate::model) fn build(self, scope: &Scope<'_>, name: &str) -> Norm {
        match self {
            TowerNorm::Layer(eps) => Norm::Layer(LayerNorm::new(scope, name, eps)),
            TowerNorm::Rms(eps) => Norm::Rms(RmsNorm::new(scope, name, eps)),
        }
    }
}

impl Norm {
    pub fn forward(&self, x: &Tensor) -> Tensor {
        match self {
            Norm::Layer(norm) => norm.forward(x),
            Norm::Rms(norm) => norm.forward(x),
        }
    }
}
