//! Experts that every token goes through: one SwiGLU, scaled by a sigmoid gate where there is one (Qwen3-Next).

use tch::Tensor;

use super::config::{MoeConfig, SharedExpertsConfig};
use crate::nn::{Activation, GateUp, SwiGlu};
use crate::params::Adapter;
use crate::params::{Init, ParamSpec, Scope};

const GATE_UP: [&str; 2] = ["gate_proj", "up_proj"];
const DOWN: &str = "down_proj";

pub struct SharedExperts {
    mlp: SwiGlu,
    gate: Option<Gate>,
}

struct Gate {
    weight_1D: Tensor,
    adapter: Option<Adapter>,
}

impl SharedExperts {
    /// Returns the parameters of the config's `shared`, which is `shared` here.
    pub fn specs(
        prefix: &str,
        width: i64,
        config: &MoeConfig,
        shared: &SharedExpertsConfig,
        std: f64,
    ) -> Vec<ParamSpec> {
        let module = format!("{prefix}{}.", config.names.shared);
        let mut specs = SwiGlu::specs(
            &module,
            (GateUp::Separate(GATE_UP), DOWN),
            width,
            shared.intermediate_size,
            shared.bias,
            std,
        );
        if shared.gated {
            let name = format!("{prefix}{}", config.names.shared_gate);
            specs.push(ParamSpec { is_linear: true, ..ParamSpec::new(name, &[1, width], Init::Normal(std)) });
        }
        specs
    }

    /// Takes the SwiGLU and, where `shared` is gated, the map `[1, D]` of the gate.
    pub fn new(scope: &Scope<'_>, config: &MoeConfig, shared: &SharedExpertsConfig, act: Activation) -> SharedExperts {
        let named = |name: &str| format!("{}.{name}", config.names.shared);
        let ([gate, up], down) = (GATE_UP.map(named), named(DOWN));
        SharedExperts {
            mlp: SwiGlu::new(scope, (GateUp::Separate([&gate, &up]), &down), act),
            gate: shared.gated.then(|| Gate::new(scope, config.names.shared_gate)),
        }
    }

    /// Maps `[T, D]` to `[T, D]`.
    pub fn forward(&self, x_TD: &Tensor) -> Tensor {
        let y_TD = self.mlp.forward(x_TD);
        match &self.gate {
            Some(gate) => gate.forward(x_TD).sigmoid() * y_TD,
            None => y_TD,
        }
    }
}

impl Gate {
    fn new(scope: &Scope<'_>, name: &str) -> Gate {
        let weight_1D = scope.take(name);
        Gate { weight_1D, adapter: name.strip_suffix(".weight").and_then(|module| scope.take_adapter(module)) }
    }

    /// Maps `[T, D]` to `[T, 1]`.
    fn forward(&self, x_TD: &Tensor) -> Tensor {
        let y_T1 = x_TD.linear(&self.weight_1D, None::<Tensor>);
        match &self.adapter {
            Some(adapter) => adapter.add_to(y_T1, x_TD, &self.weight_1D, None),
            None => y_T1,
        }
    }
}
