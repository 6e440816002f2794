//! The rows of the transformer of actions: the robot's state, and noised actions with their time, by maps of the embodiment; and what
//! norms go by.
//!
//! Shapes: S draws of all samples, H actions of A numbers each, X numbers of a state, D width.

use tch::{Kind, Tensor};

use super::config::{GrootConfig, STD, of_part};
use super::time::{cosines_first, sines_first};
use crate::model::dit::TimeEmbedder;
use crate::model::tower_blocks::Part;
use crate::nn::CategoryLinear;
use crate::params::{Init, ParamSpec, ParamStore, Scope};

const STATE: [&str; 2] = ["state_encoder.layer1", "state_encoder.layer2"];
const ACTION: [&str; 3] = ["action_encoder.W1", "action_encoder.W2", "action_encoder.W3"];
const POSITIONS: &str = "position_embedding.weight";
const MASK_TOKEN: &str = "mask_token";
const TIME: &str = "model.timestep_encoder.timestep_embedder";
/// Sines and cosines of a time for the condition.
const CHANNELS: i64 = 256;

/// The maps before the layers.
pub(super) struct Rows {
    state: [CategoryLinear; 2],
    action: [CategoryLinear; 3],
    /// `[positions, D]`.
    positions: Option<Tensor>,
    /// `[1, 1, D]`.
    mask_token: Option<Tensor>,
    width: i64,
    horizon: i64,
}

/// The tensors that the rows of draws are made of.
pub(super) struct Drawn {
    /// `[S, 1, X]`, and what each draw's state counts: 0 where it is hidden, else 1, `[S]`; float32.
    pub state: Tensor,
    pub keeps: Option<Tensor>,
    /// The noise that is added to the row of each draw's state, `[S, 1, D]`, float32.
    pub state_noise: Option<Tensor>,
    /// `[S, H, A]`, float32.
    pub noised: Tensor,
    /// S times in buckets.
    pub times: Vec<i64>,
    /// `[S]`, int64.
    pub embodiment: Tensor,
}

/// Returns the parameters before the layers.
pub(super) fn specs(config: &GrootConfig) -> Vec<ParamSpec> {
    let (prefix, width) = (config.head_prefix(), config.actions.width());
    let map = |name: &str, inputs: i64, outputs: i64| {
        CategoryLinear::specs(&prefix, name, config.num_embodiments, inputs, outputs, STD)
    };
    let mut specs = map(STATE[0], config.state_dim, config.hidden_size);
    specs.extend(map(STATE[1], config.hidden_size, width));
    specs.extend(map(ACTION[0], config.action_dim, width));
    specs.extend(map(ACTION[1], 2 * width, width));
    specs.extend(map(ACTION[2], width, width));
    if let Some(entries) = config.max_positions {
        specs.push(ParamSpec::new(format!("{prefix}{POSITIONS}"), &[entries, width], Init::Normal(STD)));
    }
    if config.has_mask_token {
        specs.push(ParamSpec::new(format!("{prefix}{MASK_TOKEN}"), &[1, 1, width], Init::Normal(STD)));
    }
    let mut specs = of_part(config.tuned.projector, specs);
    specs.extend(of_part(config.tuned.diffusion_model, TimeEmbedder::specs(&prefix, TIME, CHANNELS, width)));
    specs
}

impl Rows {
    fn new(config: &GrootConfig, scope: &Scope<'_>) -> Rows {
        Rows {
            state: STATE.map(|name| CategoryLinear::new(scope, name)),
            action: ACTION.map(|name| CategoryLinear::new(scope, name)),
            positions: config.max_positions.map(|_| scope.take(POSITIONS)),
            mask_token: config.has_mask_token.then(|| scope.take(MASK_TOKEN)),
            width: config.actions.width(),
            horizon: config.horizon,
        }
    }

    /// Panics where the store lacks one of the parameters.
    pub fn part(config: &GrootConfig, params: &ParamStore) -> Part<Rows> {
        Part::new(params, config.head_prefix(), |scope| Rows::new(config, scope))
    }

    /// Returns the map of times to their condition.
    pub fn condition_part(config: &GrootConfig, params: &ParamStore) -> Part<TimeEmbedder> {
        Part::new(params, config.head_prefix(), |scope| TimeEmbedder::new(scope, TIME))
    }

    /// Returns the rows of all draws, `[S·(1 + H), D]`, of this kind.
    pub fn forward(&self, drawn: &Drawn, kind: Kind) -> Tensor {
        let of = &drawn.embodiment;
        let [first, second] = &self.state;
        let mut state = second.forward(&first.forward(&drawn.state, of).relu(), of);
        if let Some(keeps) = &drawn.keeps {
            let keeps = keeps.view([-1, 1, 1]);
            state *= &keeps;
            if let Some(hidden) = &self.mask_token {
                state = state + (1.0 - keeps) * hidden.to_kind(Kind::Float);
            }
        }
        if let Some(noise) = &drawn.state_noise {
            state = state + noise;
        }
        let [first, second, third] = &self.action;
        let actions = first.forward(&drawn.noised, of);
        let times = sines_first(&drawn.times, self.width, of.device()).unsqueeze(1);
        let timed = Tensor::cat(&[actions, times.expand([-1, self.horizon, -1], false)], -1);
        let mut actions = third.forward(&second.forward(&timed, of).silu(), of);
        if let Some(positions) = &self.positions {
            actions = actions + positions.narrow(0, 0, self.horizon).to_kind(Kind::Float);
        }
        Tensor::cat(&[state, actions], 1).flatten(0, 1).to_kind(kind)
    }
}

/// Returns the conditions of norms at S times: `[S, D]`, float32.
pub(super) fn condition(of: &TimeEmbedder, drawn: &Drawn) -> Tensor {
    of.forward(&cosines_first(&drawn.times, CHANNELS, drawn.embodiment.device())).silu()
}
