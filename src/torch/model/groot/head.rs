//! The head behind the layers of actions: a norm whose scale and shift depend on the time, and maps to velocities.
//!
//! Shapes: S draws of L rows, H of them actions of A numbers, D width, Y that behind the norm.

use tch::{Kind, Tensor};

use super::block::{bare, modulated};
use super::config::{GrootConfig, STD, of_part, torch_std};
use crate::model::tower_blocks::Part;
use crate::nn::{CategoryLinear, Linear};
use crate::params::{ParamSpec, ParamStore};

/// The epsilon of the last norm.
const EPS: f64 = 1e-6;
const MODULATION: &str = "model.proj_out_1";
const OUT: &str = "model.proj_out_2";
const DECODER: [&str; 2] = ["action_decoder.layer1", "action_decoder.layer2"];

/// The maps on their parameters.
pub(super) struct Head {
    modulation: Linear,
    out: Linear,
    decoder: [CategoryLinear; 2],
    horizon: i64,
    num_rows: i64,
}

/// Returns the parameters behind the layers.
pub(super) fn specs(config: &GrootConfig) -> Vec<ParamSpec> {
    let (prefix, width, hidden) = (config.head_prefix(), config.actions.width(), config.hidden_size);
    let map = |name: &str, outputs: i64| Linear::specs(&prefix, name, width, outputs, true, torch_std(width));
    let outer = |spec: ParamSpec| ParamSpec { is_linear: false, ..spec };
    let maps = [map(MODULATION, 2 * width), map(OUT, hidden)].concat().into_iter().map(outer).collect();
    let decoder =
        |name: &str, outputs: i64| CategoryLinear::specs(&prefix, name, config.num_embodiments, hidden, outputs, STD);
    let decoder = [decoder(DECODER[0], hidden), decoder(DECODER[1], config.action_dim)].concat();
    [of_part(config.tuned.diffusion_model, maps), of_part(config.tuned.projector, decoder)].concat()
}

impl Head {
    /// Panics where the store lacks one of the parameters.
    pub fn part(config: &GrootConfig, params: &ParamStore) -> Part<Head> {
        Part::new(params, config.head_prefix(), |scope| Head {
            modulation: Linear::new(scope, MODULATION),
            out: Linear::new(scope, OUT),
            decoder: DECODER.map(|name| CategoryLinear::new(scope, name)),
            horizon: config.horizon,
            num_rows: config.num_rows(),
        })
    }

    /// Maps rows `[S·L, D]` to velocities `[S·H, A]`, float32. `condition` `[S, D]`; `embodiment` `[S]`.
    pub fn forward(&self, x: &Tensor, condition: &Tensor, embodiment: &Tensor) -> Tensor {
        let rows = x.unflatten(0, [-1, self.num_rows]).narrow(1, self.num_rows - self.horizon, self.horizon);
        let parts = self.modulation.forward_wide(condition).chunk(2, 1);
        // Shift comes first here, unlike in the layers.
        let x = modulated(&bare(&rows.flatten(0, 1), EPS), &parts[1], &parts[0]);
        let x = self.out.forward_wide(&x.to_kind(Kind::Float)).unflatten(0, [-1, self.horizon]);
        let [first, second] = &self.decoder;
        second.forward(&first.forward(&x, embodiment).relu(), embodiment).flatten(0, 1)
    }
}
