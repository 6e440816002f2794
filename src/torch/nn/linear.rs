//! Linear maps with and without bias.

use tch::Tensor;

use super::params::ParamSpec;
use super::{Init, Scope};

/// `y = x Wᵀ + b`, `weight` `[out, in]` (torch's `nn.Linear`).
pub struct Linear {
    weight: Tensor,
    bias: Option<Tensor>,
}

impl Linear {
    pub fn specs(prefix: &str, name: &str, inputs: i64, outputs: i64, bias: bool, std: f64) -> Vec<ParamSpec> {
        let mut specs = vec![ParamSpec::new(format!("{prefix}{name}.weight"), &[outputs, inputs], Init::Normal(std))];
        if bias {
            specs.push(ParamSpec::new(format!("{prefix}{name}.bias"), &[outputs], Init::Zeros));
        }
        specs
    }

    pub fn new(scope: &Scope<'_>, name: &str) -> Linear {
        let weight = scope.take(&format!("{name}.weight"));
        Linear { weight, bias: scope.take_if(&format!("{name}.bias")) }
    }

    pub fn forward(&self, x: &Tensor) -> Tensor {
        x.linear(&self.weight, self.bias.as_ref())
    }
}
