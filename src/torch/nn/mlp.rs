//! Feed-forward blocks.

use tch::Tensor;

use super::{Activation, Linear};
use crate::params::ParamSpec;
use crate::params::Scope;

/// Says how a checkpoint stores the two projections into a gated feed-forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateUp<'a> {
    Separate([&'a str; 2]),
    /// Gates before ups (Phi-3).
    Joint(&'a str),
}

/// `down(act(gate(x)) · up(x))` (Shazeer 2020), as `LlamaMLP`; a SwiGLU where `act` is SiLU, as it is in published models.
pub struct SwiGlu {
    /// Gate and up, or one for both.
    gate_up: Vec<Linear>,
    down: Linear,
    act: Activation,
}

impl SwiGlu {
    /// Names of the projections into it and of that out of it.
    pub fn specs(
        prefix: &str,
        (gate_up, down): (GateUp<'_>, &str),
        width: i64,
        inner: i64,
        bias: bool,
        std: f64,
    ) -> Vec<ParamSpec> {
        let into = |name: &str, outputs: i64| Linear::specs(prefix, name, width, outputs, bias, std);
        let mut specs: Vec<ParamSpec> = match gate_up {
            GateUp::Separate(names) => names.into_iter().flat_map(|name| into(name, inner)).collect(),
            GateUp::Joint(name) => {
                into(name, 2 * inner).into_iter().map(|spec| spec.in_sections(0, &[inner, inner])).collect()
            }
        };
        specs.extend(Linear::specs(prefix, down, inner, width, bias, std));
        specs
    }

    /// Takes gate and up projection, two maps or one, and the map `down` back to the hidden size; a bias where the store has
    /// one.
    pub fn new(scope: &Scope<'_>, (gate_up, down): (GateUp<'_>, &str), act: Activation) -> SwiGlu {
        let gate_up = match gate_up {
            GateUp::Separate(names) => names.iter().map(|name| Linear::new(scope, name)).collect(),
            GateUp::Joint(name) => vec![Linear::new(scope, name)],
        };
        SwiGlu { gate_up, down: Linear::new(scope, down), act }
    }

    /// Maps `[…, D]` to `[…, D]`.
    pub fn forward(&self, x: &Tensor) -> Tensor {
        let hidden = match self.gate_up.as_slice() {
            [joint] => joint.forward(x).chunk(2, -1),
            separate => separate.iter().map(|projection| projection.forward(x)).collect(),
        };
        self.down.forward(&self.act.gated(&hidden[0], &hidden[1]))
    }
}
