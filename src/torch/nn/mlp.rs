//! Feed-forward blocks.

use tch::Tensor;

use super::{Activation, Linear};
use crate::params::ParamSpec;
use crate::params::Scope;

/// `down(act(gate(x)) · up(x))` (Shazeer 2020), as `LlamaMLP`; a SwiGLU where `act` is SiLU, as it is in published models.
pub struct SwiGlu {
    gate: Linear,
    up: Linear,
    down: Linear,
    act: Activation,
}

impl SwiGlu {
    /// `names` of gate, up and down.
    pub fn specs(prefix: &str, names: [&str; 3], width: i64, inner: i64, bias: bool, std: f64) -> Vec<ParamSpec> {
        let [gate, up, down] = names;
        let mut specs = Linear::specs(prefix, gate, width, inner, bias, std);
        specs.extend(Linear::specs(prefix, up, width, inner, bias, std));
        specs.extend(Linear::specs(prefix, down, inner, width, bias, std));
        specs
    }

    pub fn new(scope: &Scope<'_>, names: [&str; 3], act: Activation) -> SwiGlu {
        let [gate, up, down] = names.map(|name| Linear::new(scope, name));
        SwiGlu { gate, up, down, act }
    }

    pub fn forward(&self, x: &Tensor) -> Tensor {
        self.down.forward(&self.act.gated(&self.gate.forward(x), &self.up.forward(x)))
    }
}
