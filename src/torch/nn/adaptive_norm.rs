//! A root mean square norm whose scale and shift, and the gate of the branch behind it, are linear maps of a condition (AdaLN of
//! Peebles and Xie 2023 with the norm of Zhang and Sennrich 2019), as Pi0.5's action expert has it.
//!
//! Shapes: S groups of rows that share a condition, L rows of each, D width.

use tch::{Kind, Tensor};

use super::Linear;
use crate::params::{Init, ParamSpec, Scope};

/// The map of a condition to scale, shift and gate.
pub struct AdaptiveNorm {
    dense: Linear,
    eps: f64,
}

/// The start of scale, shift and gate: branches whose gates are 0 add nothing at first.
const GATED: Init = Init::Parts(&[0.0, 0.0, 0.0]);
/// The start of a norm whose gates are 1.
const OPEN: Init = Init::Parts(&[0.0, 0.0, 1.0]);

impl AdaptiveNorm {
    /// `condition` is the width of a condition. All start at 0, or with `open` gates at 1.
    pub fn specs(prefix: &str, name: &str, width: i64, condition: i64, open: bool) -> Vec<ParamSpec> {
        let mut specs = Linear::specs(prefix, &format!("{name}.dense"), condition, 3 * width, true, 0.0);
        specs[0].init = Init::Zeros;
        specs[1].init = if open { OPEN } else { GATED };
        specs
    }

    /// Takes the map `dense` from a condition to scale, shift and gate.
    pub fn new(scope: &Scope<'_>, name: &str, eps: f64) -> AdaptiveNorm {
        AdaptiveNorm { dense: Linear::new(scope, &format!("{name}.dense")), eps }
    }

    /// Maps conditions `[S, C]`, float32, to scale, shift and gate: `[S, 3, D]`, float32.
    pub fn modulation(&self, condition: &Tensor) -> Tensor {
        self.dense.forward_wide(condition).unflatten(-1, [3, -1])
    }

    /// Returns the norm of `x` `[S·L, D]`, times one plus the scale, plus the shift of `modulation` `[S, 3, D]`: in float32, returned in
    /// the kind of `x`.
    pub fn forward(&self, x: &Tensor, modulation: &Tensor) -> Tensor {
        let [scale, shift] = [0, 1].map(|part| modulation.select(1, part).unsqueeze(1));
        let width = x.size()[1];
        let normed = grouped(x, modulation).rms_norm([width], None::<&Tensor>, self.eps);
        shift.addcmul(&normed, &(scale + 1.0)).flatten(0, 1).to_kind(x.kind())
    }
}

/// Returns `y` `[S·L, D]` times the gate of `modulation` `[S, 3, D]`: in float32, returned in the kind of `y`.
pub fn gate_rows_of(y: &Tensor, modulation: &Tensor) -> Tensor {
    (grouped(y, modulation) * modulation.select(1, 2).unsqueeze(1)).flatten(0, 1).to_kind(y.kind())
}

/// Returns `[S·L, D]` as `[S, L, D]`, in the kind of the modulation.
fn grouped(x: &Tensor, modulation: &Tensor) -> Tensor {
    let kind = if x.kind() == Kind::Double { Kind::Double } else { modulation.kind() };
    x.to_kind(kind).unflatten(0, [modulation.size()[0], -1])
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::{AdaptiveNorm, gate_rows_of};
    use crate::params::{ParamStore, Scope};

    /// The expected values follow the definition, a group at a time, with scale, shift and gate in this order.
    #[test]
    fn groups_have_their_own_scale_shift_and_gate() {
        tch::manual_seed(2);
        let store = ParamStore::new(AdaptiveNorm::specs("", "norm", 4, 3, true), Kind::Float, Device::Cpu);
        store.init_random(1);
        let bias = Vec::<f32>::try_from(store.get("norm.dense.bias").detach()).unwrap();
        assert_eq!(bias, [0., 0., 0., 0., 0., 0., 0., 0., 1., 1., 1., 1.]);
        let random = |shape: &[i64]| Tensor::randn(shape, (Kind::Float, Device::Cpu));
        store.set(store.id("norm.dense.weight"), &random(&[12, 3]));
        let norm = AdaptiveNorm::new(&Scope::new(&store, ""), "norm", 1e-6);
        let (x, condition) = (random(&[6, 4]), random(&[2, 3]));
        let modulation = norm.modulation(&condition);
        let (found, gated) = (norm.forward(&x, &modulation), gate_rows_of(&x, &modulation));
        for row in 0..6 {
            let parts = (condition.get(row / 3).matmul(&store.get("norm.dense.weight").detach().tr())
                + store.get("norm.dense.bias").detach())
            .chunk(3, 0);
            let own = x.get(row);
            let normed = &own * (own.square().mean(Kind::Float) + 1e-6).rsqrt();
            assert!(found.get(row).allclose(&(normed * (&parts[0] + 1.0) + &parts[1]), 1e-5, 1e-6, false));
            assert!(gated.get(row).allclose(&(own * &parts[2]), 1e-5, 1e-6, false));
        }
    }
}
