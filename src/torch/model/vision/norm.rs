//! The norm of a vision tower or a projector: layer norm or root mean square norm, as its config says.

use tch::Tensor;

use crate::nn::{LayerNorm, RmsNorm};
use crate::params::{ParamSpec, Scope};

/// A norm and its epsilon.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum VisionNorm {
    /// With weight and bias.
    Layer(f64),
    /// With weight only.
    Rms(f64),
}

/// A norm on its parameters.
pub(super) enum Norm {
    Layer(LayerNorm),
    Rms(RmsNorm),
}

impl VisionNorm {
    pub(super) fn specs(self, prefix: &str, name: &str, width: i64) -> Vec<ParamSpec> {
        match self {
            VisionNorm::Layer(_) => LayerNorm::specs(prefix, name, width),
            VisionNorm::Rms(_) => RmsNorm::specs(prefix, name, width),
        }
    }

    pub(super) fn build(self, scope: &Scope<'_>, name: &str) -> Norm {
        match self {
            VisionNorm::Layer(eps) => Norm::Layer(LayerNorm::new(scope, name, eps)),
            VisionNorm::Rms(eps) => Norm::Rms(RmsNorm::new(scope, name, eps)),
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
