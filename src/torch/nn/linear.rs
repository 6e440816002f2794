//! Linear maps with and without bias.

use tch::{Kind, Tensor};

use crate::native::linear;
use crate::params::Adapter;
use crate::params::ParamSpec;
use crate::params::{Init, Scope};

/// `y = x Wᵀ + b`, `weight` `[out, in]` (torch's `nn.Linear`), and an adapter's share where the store has one.
pub struct Linear {
    weight: Tensor,
    bias: Option<Tensor>,
    adapter: Option<Box<Adapter>>,
}

impl Linear {
    pub fn specs(prefix: &str, name: &str, inputs: i64, outputs: i64, bias: bool, std: f64) -> Vec<ParamSpec> {
        let weight = ParamSpec::new(format!("{prefix}{name}.weight"), &[outputs, inputs], Init::Normal(std));
        let mut specs = vec![ParamSpec { is_linear: true, ..weight }];
        if bias {
            specs.push(ParamSpec::new(format!("{prefix}{name}.bias"), &[outputs], Init::Zeros));
        }
        specs
    }

    pub fn new(scope: &Scope<'_>, name: &str) -> Linear {
        let weight = scope.take(&format!("{name}.weight"));
        Linear {
            weight,
            bias: scope.take_bias(&format!("{name}.bias")),
            adapter: scope.take_adapter(name).map(Box::new),
        }
    }

    /// The type of its weight.
    pub fn kind(&self) -> Kind {
        self.weight.kind()
    }

    /// `[out, in]`, the adapter's share included.
    pub fn merged_weight(&self) -> Tensor {
        match &self.adapter {
            Some(adapter) => adapter.merged(&self.weight),
            None => self.weight.shallow_clone(),
        }
    }

    pub fn forward(&self, x: &Tensor) -> Tensor {
        let y = linear(x, &self.weight, self.bias.as_ref());
        match &self.adapter {
            Some(adapter) => adapter.add_to(y, x, &self.weight, self.bias.as_ref()),
            None => y,
        }
    }
}
