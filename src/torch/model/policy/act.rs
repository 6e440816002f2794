//! Makes actions of noise by Euler's steps. The prefix does not depend on the actions: its keys and values are made once.
//!
//! Shapes: N samples, H actions of A numbers each.

use tch::{Device, Kind, Tensor};

use super::columns::STATE;
use super::config::{PolicyConfig, StateToken};
use super::layout::Layout;
use super::network::Network;
use super::robot::{Acting, Denoising, Observed};
use crate::model::columns::INPUT_IDS;
use crate::params::ParamStore;
use crate::tape::Policy;

/// A policy of two streams that acts.
pub(super) struct TwoStreams {
    network: Network,
}

/// The tensors of samples that all steps read.
struct Seen {
    layout: Layout,
    /// The keys and values that actions meet in each layer.
    keys: Vec<[Tensor; 2]>,
    /// `[N, X]`, where states have rows in the actions' stream.
    state: Option<Tensor>,
}

impl Acting for TwoStreams {
    fn act(&self, observed: Observed<'_>, from: Denoising<'_>) -> Option<Tensor> {
        let Network { config, device, .. } = &self.network;
        if from.given.is_some() && !config.has_condition() {
            return None;
        }
        let _no_grad = tch::no_grad_guard();
        let seen = self.see(observed);
        let num_samples = observed.cu_seqlens.len() as i64 - 1;
        let begun = from.given.map(|given| Begun::new(&given.to_device(*device), config.horizon));
        let put = |x: Tensor| begun.as_ref().map_or_else(|| x.shallow_clone(), |begun| begun.put(&x));
        let mut x = put(from.noise.to_device(*device).to_kind(Kind::Float));
        for step in 0..from.num_steps {
            let time = f64::from((1.0 - step as f64 / from.num_steps as f64) as f32);
            let times = match &begun {
                None => Tensor::full([num_samples], time, (Kind::Float, *device)),
                Some(begun) => &begun.is_free * time,
            };
            x = put(&x - self.velocity(&seen, &x, &times) / from.num_steps as f64);
        }
        Some(x)
    }

    fn device(&self) -> Device {
        self.network.device
    }
}

/// A chunk whose first actions are known.
struct Begun {
    /// `[N, d, A]`.
    given: Tensor,
    /// 0 of actions that are given, else 1, `[N·H]`.
    is_free: Tensor,
    horizon: i64,
}

impl Begun {
    fn new(given: &Tensor, horizon: i64) -> Begun {
        let (num_samples, delay) = (given.size()[0], given.size()[1]);
        let places = Tensor::arange(horizon, (Kind::Int64, given.device()));
        let is_free = places.ge(delay).to_kind(Kind::Float).repeat([num_samples]);
        Begun { given: given.to_kind(Kind::Float), is_free, horizon }
    }

    /// Returns the actions `[N·H, A]` with those that are given in their places.
    fn put(&self, x: &Tensor) -> Tensor {
        let (num_samples, delay) = (self.given.size()[0], self.given.size()[1]);
        let rest = x.unflatten(0, [num_samples, self.horizon]).narrow(1, delay, self.horizon - delay);
        Tensor::cat(&[&self.given, &rest], 1).flatten(0, 1)
    }
}

impl TwoStreams {
    /// Panics where the store lacks one of the policy's parameters.
    pub fn new(config: &PolicyConfig, params: &ParamStore) -> TwoStreams {
        TwoStreams { network: Network::new(config, params, Policy::Keep) }
    }

    fn see(&self, Observed { columns, cu_seqlens, features }: Observed<'_>) -> Seen {
        let Network { config, embed, layers, device, kind, .. } = &self.network;
        let layout = Layout::new(config, cu_seqlens, &[], 1, *kind, *device);
        let ids = columns.get(INPUT_IDS).to_device(*device);
        let mut x = embed.tokens.part.look_up(&ids);
        if let Some(features) = features.first() {
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

    /// Returns the velocity at noised actions `[N·H, A]` and times `[N]`, or `[N·H]` where each has its own.
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
