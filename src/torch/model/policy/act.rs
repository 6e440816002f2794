//! Makes actions of noise by Euler's steps. The prefix does not depend on the actions: its keys and values are made once.
//!
//! Shapes: N samples, H actions of A numbers each.

use tch::{Device, Kind, Tensor};

use super::config::{PolicyConfig, STATE, StateToken};
use super::layout::Layout;
use super::network::Network;
use super::robot::Acting;
use crate::model::columns::{Columns, INPUT_IDS};
use crate::params::ParamStore;
use crate::tape::Policy;

/// A policy of two streams that acts.
pub(super) struct TwoStreams {
    network: Network,
}

/// What of samples all steps read.
struct Seen {
    layout: Layout,
    /// The keys and values that actions meet in each layer.
    keys: Vec<[Tensor; 2]>,
    /// `[N, X]`, where states have rows in the actions' stream.
    state: Option<Tensor>,
}

impl Acting for TwoStreams {
    fn act(
        &self,
        columns: &Columns,
        cu_seqlens: &[usize],
        features: &[Tensor],
        noise: &Tensor,
        num_steps: usize,
    ) -> Tensor {
        let _no_grad = tch::no_grad_guard();
        let seen = self.see(columns, cu_seqlens, features.first());
        let num_samples = cu_seqlens.len() as i64 - 1;
        let mut x = noise.to_device(self.network.device).to_kind(Kind::Float);
        for step in 0..num_steps {
            let time = (1.0 - step as f64 / num_steps as f64) as f32;
            let times = Tensor::full([num_samples], f64::from(time), (Kind::Float, self.network.device));
            x -= self.velocity(&seen, &x, &times) / num_steps as f64;
        }
        x
    }

    fn act_after(
        &self,
        columns: &Columns,
        cu_seqlens: &[usize],
        features: &[Tensor],
        noise: &Tensor,
        num_steps: usize,
        given: &Tensor,
    ) -> Option<Tensor> {
        if !self.network.config.has_condition() {
            return None;
        }
        let _no_grad = tch::no_grad_guard();
        let (device, horizon) = (self.network.device, self.network.config.horizon);
        let seen = self.see(columns, cu_seqlens, features.first());
        let (num_samples, delay) = (cu_seqlens.len() as i64 - 1, given.size()[1]);
        let given = given.to_device(device).to_kind(Kind::Float);
        let with_given = |x: &Tensor| {
            let rest = x.unflatten(0, [num_samples, horizon]).narrow(1, delay, horizon - delay);
            Tensor::cat(&[&given, &rest], 1).flatten(0, 1)
        };
        let is_free =
            Tensor::arange(horizon, (Kind::Int64, device)).ge(delay).to_kind(Kind::Float).repeat([num_samples]);
        let mut x = with_given(&noise.to_device(device).to_kind(Kind::Float));
        for step in 0..num_steps {
            let time = f64::from((1.0 - step as f64 / num_steps as f64) as f32);
            let velocity = self.velocity(&seen, &x, &(&is_free * time));
            x = with_given(&(x - velocity / num_steps as f64));
        }
        Some(x)
    }

    fn device(&self) -> Device {
        self.network.device
    }
}

impl TwoStreams {
    /// Panics where the store lacks one of the policy's parameters.
    pub fn new(config: &PolicyConfig, params: &ParamStore) -> TwoStreams {
        TwoStreams { network: Network::new(config, params, Policy::Keep) }
    }

    fn see(&self, columns: &Columns, cu_seqlens: &[usize], features: Option<&Tensor>) -> Seen {
        let Network { config, embed, layers, device, kind, .. } = &self.network;
        let layout = Layout::new(config, cu_seqlens, &[], 1, *kind, *device);
        let ids = columns.get(INPUT_IDS).to_device(*device);
        let mut x = embed.tokens.part.look_up(&ids);
        if let Some(features) = features {
            let rows = ids.eq(config.image_token).nonzero().squeeze_dim(1);
            let features = features.to_device(*device).to_kind(*kind);
            let features = if config.scaled_pictures { embed.tokens.part.scaled(&features) } else { features };
            x = x.index_copy(0, &rows, &features);
        }
        let state = (config.state != StateToken::None).then(|| columns.get(STATE).to_device(*device));
        if let Some((map, (state, order))) = embed.state.as_ref().zip(state.as_ref().zip(layout.order.as_ref())) {
            let rows = map.part.forward_wide(state).to_kind(*kind);
            x = Tensor::cat(&[x, rows], 0).index_select(0, order);
        }
        let mut keys = Vec::new();
        for layer in layers {
            let (y, own) = layer.prefix_heads.part.prefix(&x, &layout);
            keys.push(layer.action_heads.part.met(&own));
            if let Some((mlp, y)) = layer.prefix.as_ref().zip(y) {
                x = x + y;
                x = &x + mlp.part.forward(&x, None);
            }
        }
        let state = state.filter(|_| config.state == StateToken::Actions);
        Seen { layout, keys, state }
    }

    /// The velocity at noised actions `[N·H, A]` and times `[N]`, or `[N·H]` where each has its own.
    fn velocity(&self, seen: &Seen, noised: &Tensor, times: &Tensor) -> Tensor {
        let Network { embed, layers, head, kind, .. } = &self.network;
        let (mut x, condition) = embed.actions.part.forward(noised, times, seen.state.as_ref(), *kind);
        let condition = condition.as_ref();
        for (layer, keys) in layers.iter().zip(&seen.keys) {
            x = &x + layer.action_heads.part.actions(&x, condition, keys, &seen.layout);
            x = &x + layer.actions.part.forward(&x, condition);
        }
        head.part.forward(&x, condition)
    }
}
