//! Makes actions of noise by Euler's steps. The states that actions see do not depend on the actions: they are made once.
//!
//! Shapes: N samples, H actions of A numbers each.

use tch::{Device, Kind, Tensor};

use super::config::{EMBODIMENT, GrootConfig};
use super::context::ContextLayer;
use super::layout::Layout;
use super::network::{Layer, Network};
use super::rows::{Drawn, condition};
use crate::model::columns::INPUT_IDS;
use crate::model::policy::{Acting, Denoising, Observed, STATE};
use crate::params::ParamStore;
use crate::tape::Policy;

/// A policy that acts.
pub(super) struct GrootActing {
    network: Network,
}

impl GrootActing {
    /// Panics where the store lacks one of the policy's parameters.
    pub fn new(config: &GrootConfig, params: &ParamStore) -> GrootActing {
        GrootActing { network: Network::new(config, params, Policy::Keep) }
    }

    /// Returns the states that actions see of samples.
    fn context(&self, mut x: Tensor, at: &Layout) -> Tensor {
        let context = &self.network.context;
        if let Some(norm) = &context.norm {
            x = norm.part.forward_wide(&x);
        }
        for layer in &context.layers {
            x = &x + ContextLayer::attended(&layer.attend.part, &x, at);
            x = &x + layer.feed_forward.part.forward(&x, &at.dropout[0]);
        }
        x
    }

    /// Returns the velocity from noise to actions, `[N·H, A]`.
    fn velocity(&self, drawn: &Drawn, context: &Tensor, at: &Layout) -> Tensor {
        let network = &self.network;
        let condition = condition(&network.condition.part, drawn);
        let mut x = network.rows.part.forward(drawn, network.kind);
        for layer in &network.layers {
            let seen = layer.sees.tokens(at).map(|seen| context.index_select(0, &seen.tokens));
            x = &x + Layer::attended((&layer.attend.part, layer.sees), &x, &condition, seen.as_ref(), at);
            x = &x + layer.feed_forward.part.forward(&x, &at.dropout[1]);
        }
        network.head.part.forward(&x, &condition, &drawn.embodiment)
    }
}

impl Acting for GrootActing {
    fn act(&self, observed: Observed<'_>, Denoising { noise, num_steps, given }: Denoising<'_>) -> Option<Tensor> {
        if given.is_some() {
            return None;
        }
        let _no_grad = tch::no_grad_guard();
        let Observed { columns, cu_seqlens, features } = observed;
        let Network { config, device, .. } = &self.network;
        let ids = Vec::<i64>::try_from(columns.get(INPUT_IDS)).expect("a row of integers");
        let at = Layout::new(config, (&ids, cu_seqlens), 1, [None, None], *device);
        let context = self.context(self.network.states(columns, cu_seqlens, features), &at);
        let num_samples = cu_seqlens.len() - 1;
        let mut drawn = Drawn {
            state: columns.get(STATE).to_device(*device).to_kind(Kind::Float).unsqueeze(1),
            keeps: None,
            state_noise: None,
            noised: noise.to_device(*device).to_kind(Kind::Float).unflatten(0, [-1, config.horizon]),
            times: Vec::new(),
            embodiment: columns.get(EMBODIMENT).to_device(*device),
        };
        for step in 0..num_steps {
            let bucket = (step as f64 / num_steps as f64 * config.num_buckets as f64) as i64;
            drawn.times = vec![bucket; num_samples];
            let velocity = self.velocity(&drawn, &context, &at).view(drawn.noised.size().as_slice());
            drawn.noised = &drawn.noised + velocity / num_steps as f64;
        }
        Some(drawn.noised.flatten(0, 1))
    }

    fn device(&self) -> Device {
        self.network.device
    }
}
