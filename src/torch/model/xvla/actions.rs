//! Rows of noised actions, and actions of rows.
//!
//! Shapes: N samples, S draws of all samples, H actions of a draw of A numbers each, X numbers of a state, W width.

use tch::{Device, Kind, Tensor};

use super::config::{EPS, XvlaConfig};
use super::domain::DomainLinear;
use crate::nn::LayerNorm;
use crate::params::{ParamSpec, Scope};

const ENCODER: &str = "action_encoder";
const DECODER: &str = "action_decoder";
const NORM: &str = "norm";
/// The longest period of the features of a time, in radians a unit of time.
const MAX_PERIOD: f64 = 100.0;

/// The map of noised actions, states and times.
pub(super) struct ActionEncoder {
    map: DomainLinear,
    /// `[A]` and `[X]`: 0 for numbers that are not seen, 1 for others.
    seen: [Tensor; 2],
    time_dim: i64,
    horizon: i64,
}

/// The norm behind the last block, and the map to actions.
pub(super) struct ActionDecoder {
    norm: LayerNorm,
    map: DomainLinear,
    squashed: Vec<i64>,
}

/// Returns the parameters of both.
pub(super) fn specs(config: &XvlaConfig) -> Vec<ParamSpec> {
    let (prefix, actions) = (config.transformer_prefix(), config.action_dim());
    let inputs = actions + config.time_dim + config.state_dim;
    let mut specs = DomainLinear::specs(&prefix, ENCODER, inputs, config.width, config.num_domains);
    specs.extend(LayerNorm::specs(&prefix, NORM, config.width));
    specs.extend(DomainLinear::specs(&prefix, DECODER, config.width, actions, config.num_domains));
    config.of_transformer(specs)
}

impl ActionEncoder {
    /// Takes the map of rows; numbers that the action space hides are read as zeros.
    pub fn new(config: &XvlaConfig, scope: &Scope<'_>, device: Device) -> ActionEncoder {
        let seen = |width: i64| {
            let is_seen = |at: i64| if config.space.hidden.contains(&(at as usize)) { 0f32 } else { 1.0 };
            Tensor::from_slice(&(0..width).map(is_seen).collect::<Vec<f32>>()).to_device(device)
        };
        ActionEncoder {
            map: DomainLinear::new(scope, ENCODER),
            seen: [seen(config.action_dim()), seen(config.state_dim)],
            time_dim: config.time_dim,
            horizon: config.horizon,
        }
    }

    /// Maps noised actions `[S·H, A]` at `times` `[S]` with `states` `[N, X]`, float32, of samples of `domains` `[N]` to rows `[S·H, W]`,
    /// float32.
    pub fn forward(&self, noised: &Tensor, times: &Tensor, states: Option<&Tensor>, domains: &Tensor) -> Tensor {
        let (num_draws, num_samples) = (times.size()[0], domains.size()[0]);
        let by_draw = (noised * &self.seen[0]).view([num_draws, self.horizon, -1]);
        let of_draw = |x: &Tensor| x.unsqueeze(1).expand([-1, self.horizon, -1], false);
        let mut parts = vec![by_draw];
        if let Some(states) = states {
            let states = (states * &self.seen[1]).repeat_interleave_self_int(num_draws / num_samples, 0, None);
            parts.push(of_draw(&states));
        }
        parts.push(of_draw(&waves(times, self.time_dim)));
        let lens = vec![num_draws / num_samples * self.horizon; num_samples as usize];
        self.map.forward(&Tensor::cat(&parts, 2).flatten(0, 1), domains, &lens)
    }
}

impl ActionDecoder {
    /// Takes the norm and the map to actions; [`ActionDecoder::squash`] squashes the numbers that the action space says.
    pub fn new(config: &XvlaConfig, scope: &Scope<'_>) -> ActionDecoder {
        ActionDecoder {
            norm: LayerNorm::new(scope, NORM, EPS),
            map: DomainLinear::new(scope, DECODER),
            squashed: config.space.squashed.iter().map(|at| *at as i64).collect(),
        }
    }

    /// Returns the rows of actions `[S·H, W]` of samples of `domains` `[N]` to actions `[S·H, A]`, float32; some of them logits.
    pub fn forward(&self, x: &Tensor, domains: &Tensor) -> Tensor {
        let x = self.norm.forward(x).to_kind(Kind::Float);
        let num_samples = domains.size()[0];
        self.map.forward(&x, domains, &vec![x.size()[0] / num_samples; num_samples as usize])
    }

    /// Returns the predicted actions as a robot takes them. `[S·H, A]` to the same shape.
    pub fn squash(&self, actions: Tensor) -> Tensor {
        if self.squashed.is_empty() {
            return actions;
        }
        let at = Tensor::from_slice(&self.squashed).to_device(actions.device());
        let squashed = actions.index_select(1, &at).sigmoid();
        actions.index_copy(1, &at, &squashed)
    }
}

/// Returns cosines and then sines of times `[S]`: `[S, width]`, with a 0 behind them where the width is odd. In float32 as the reference.
fn waves(times: &Tensor, width: i64) -> Tensor {
    let half = width / 2;
    let turns = (Tensor::arange(half, (Kind::Float, times.device())) * -MAX_PERIOD.ln() / half.max(1) as f64).exp();
    let angles = times.unsqueeze(1) * turns;
    Tensor::cat(&[angles.cos(), angles.sin()], 1).constant_pad_nd([0, width % 2])
}
