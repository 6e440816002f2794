//! Experts that every token goes through: one SwiGLU, scaled by a sigmoid gate where there is one (Qwen3-Next).

use tch::Tensor;

use super::config::{MoeConfig, SharedExpertsConfig};
use crate::nn::{Activation, Init, ParamSpec, Scope, SwiGlu};

const GATE_UP_DOWN: [&str; 3] = ["gate_proj", "up_proj", "down_proj"];

pub struct SharedExperts {
    mlp: SwiGlu,
    gate_1D: Option<Tensor>,
}

impl SharedExperts {
    /// Those of the config's `shared`, which is `shared` here.
    pub fn specs(
        prefix: &str,
        width: i64,
        config: &MoeConfig,
        shared: &SharedExpertsConfig,
        std: f64,
    ) -> Vec<ParamSpec> {
        let module = format!("{prefix}{}.", config.names.shared);
        let mut specs = SwiGlu::specs(&module, GATE_UP_DOWN, width, shared.intermediate_size, shared.bias, std);
        if shared.gated {
            specs.push(ParamSpec::new(format!("{prefix}{}", config.names.shared_gate), &[1, width], Init::Normal(std)));
        }
        specs
    }

    pub fn new(scope: &Scope<'_>, config: &MoeConfig, shared: &SharedExpertsConfig, act: Activation) -> SharedExperts {
        let names = GATE_UP_DOWN.map(|name| format!("{}.{name}", config.names.shared));
        SharedExperts {
            mlp: SwiGlu::new(scope, [&names[0], &names[1], &names[2]], act),
            gate_1D: shared.gated.then(|| scope.take(config.names.shared_gate)),
        }
    }

    /// `[T, D]` to `[T, D]`.
    pub fn forward(&self, x_TD: &Tensor) -> Tensor {
        let y_TD = self.mlp.forward(x_TD);
        match &self.gate_1D {
            Some(gate_1D) => x_TD.linear(gate_1D, None::<Tensor>).sigmoid() * y_TD,
            None => y_TD,
        }
    }
}
