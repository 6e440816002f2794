//! Makes actions of one noise: at each time the policy predicts the actions anew from a mixture of the noise and of what it predicted
//! before. The states that it sees do not depend on the actions: they are computed once.
//!
//! Shapes: N samples, H actions of A numbers each, W width of the transformer.

use tch::{Device, Kind, Tensor};

use super::config::{DOMAIN, XvlaConfig};
use super::layout::Layout;
use super::network::{Network, or_zeros};
use crate::model::columns::INPUT_IDS;
use crate::model::policy::{Acting, Denoising, Observed, STATE};
use crate::params::ParamStore;
use crate::tape::Policy;

/// A policy that acts.
pub(super) struct SoftPrompted {
    network: Network,
}

/// The tensors of samples that all steps read.
struct Seen {
    layout: Layout,
    domains: Tensor,
    states: Option<Tensor>,
    /// The transformer's rows behind those of actions, `[rows, W]` each.
    parts: Vec<Tensor>,
}

impl Acting for SoftPrompted {
    fn act(&self, observed: Observed<'_>, Denoising { noise, num_steps, given }: Denoising<'_>) -> Option<Tensor> {
        if given.is_some() {
            return None;
        }
        let _no_grad = tch::no_grad_guard();
        let seen = self.see(observed);
        let noise = noise.to_device(self.network.device).to_kind(Kind::Float);
        let num_samples = observed.cu_seqlens.len() as i64 - 1;
        let mut actions = noise.zeros_like();
        for step in (1..=num_steps).rev() {
            let time = (step as f64 / num_steps as f64) as f32;
            let noised = &noise * f64::from(time) + actions * f64::from(1.0 - time);
            let times = Tensor::full([num_samples], f64::from(time), (Kind::Float, self.network.device));
            actions = self.predict(&seen, &noised, &times);
        }
        Some(self.network.decoder.part.squash(actions))
    }

    fn device(&self) -> Device {
        self.network.device
    }
}

impl SoftPrompted {
    /// Panics where the store lacks one of the policy's parameters.
    pub fn new(config: &XvlaConfig, params: &ParamStore) -> SoftPrompted {
        SoftPrompted { network: Network::new(config, params, Policy::Keep) }
    }

    fn see(&self, Observed { columns, cu_seqlens, features }: Observed<'_>) -> Seen {
        let Network { config, tokens: embed, language, maps, prompts, device, kind, .. } = &self.network;
        let tokens = columns.get(INPUT_IDS).to_device(*device);
        let ids = Vec::<i64>::try_from(tokens.to_device(Device::Cpu)).expect("a row of integers");
        let layout = Layout::new(config, &ids, cu_seqlens, 1, *device);
        let mut x = embed.part.look_up(&tokens);
        if let Some(features) = features.first() {
            let rows = tokens.eq(config.image_token).nonzero().squeeze_dim(1);
            x = x.index_copy(0, &rows, &features.to_device(*device).to_kind(*kind));
        }
        let encoded = language.forward(&x, &layout.texts, or_zeros);
        let domains = columns.get(DOMAIN).to_device(*device);
        let mut parts = vec![maps[0].part.forward(&encoded, &domains, &layout.encoded_lens)];
        if let Some(rows) = &layout.views {
            parts.push(maps[1].part.forward(&or_zeros(&x, rows), &domains, &layout.view_lens));
        }
        parts.extend(prompts.iter().map(|prompts| prompts.part.forward(&domains)));
        let states = (config.state_dim > 0).then(|| columns.get(STATE).to_device(*device));
        Seen { layout, domains, states, parts }
    }

    /// Returns the actions that are predicted from noised ones `[N·H, A]` at times `[N]`.
    fn predict(&self, seen: &Seen, noised: &Tensor, times: &Tensor) -> Tensor {
        let Network { encoder, positions, blocks, decoder, kind, .. } = &self.network;
        let actions = encoder.part.forward(noised, times, seen.states.as_ref(), &seen.domains).to_kind(*kind);
        let parts: Vec<&Tensor> = std::iter::once(&actions).chain(&seen.parts).collect();
        let mut x = positions.part.forward(&parts, &seen.layout);
        for block in blocks {
            x = &x + block.attention.part.forward(&x, &seen.layout.sequences);
            x = &x + block.mlp.part.forward(&x);
        }
        decoder.part.forward(&x.index_select(0, &seen.layout.actions), &seen.domains)
    }
}
