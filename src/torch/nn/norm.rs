//! Norms over the last dimension.

use tch::Tensor;

use super::params::ParamSpec;
use super::{Init, Scope};

/// Root mean square norm (Zhang and Sennrich 2019), as `Qwen3RMSNorm`: computed in float32.
pub struct RmsNorm {
    weight: Tensor,
    eps: f64,
}

impl RmsNorm {
    pub fn specs(prefix: &str, name: &str, width: i64) -> Vec<ParamSpec> {
        vec![ParamSpec::new(format!("{prefix}{name}.weight"), &[width], Init::Ones)]
    }

    pub fn new(scope: &Scope<'_>, name: &str, eps: f64) -> RmsNorm {
        RmsNorm { weight: scope.take(&format!("{name}.weight")), eps }
    }

    pub fn forward(&self, x: &Tensor) -> Tensor {
        x.rms_norm(self.weight.size(), Some(&self.weight), self.eps)
    }
}

/// Layer norm with weight and bias.
pub struct LayerNorm {
    weight: Tensor,
    bias: Tensor,
    eps: f64,
}

impl LayerNorm {
    pub fn specs(prefix: &str, name: &str, width: i64) -> Vec<ParamSpec> {
        vec![
            ParamSpec::new(format!("{prefix}{name}.weight"), &[width], Init::Ones),
            ParamSpec::new(format!("{prefix}{name}.bias"), &[width], Init::Zeros),
        ]
    }

    pub fn new(scope: &Scope<'_>, name: &str, eps: f64) -> LayerNorm {
        let (weight, bias) = (scope.take(&format!("{name}.weight")), scope.take(&format!("{name}.bias")));
        LayerNorm { weight, bias, eps }
    }

    pub fn forward(&self, x: &Tensor) -> Tensor {
        x.layer_norm(self.weight.size(), Some(&self.weight), Some(&self.bias), self.eps, false)
    }
}
