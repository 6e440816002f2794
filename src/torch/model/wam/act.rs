//! Makes actions of noise. Frames behind the first are not made: actions see the first alone, whose keys and values in every layer are
//! computed once.
//!
//! Shapes: N samples, H actions of A numbers each, T places of the samples' first frames.

use tch::{Device, Kind, Tensor};

use super::config::WamConfig;
use super::layout::{Layout, Samples};
use super::network::{Network, context};
use crate::model::columns::INPUT_IDS;
use crate::model::dit::exact_sinusoids;
use crate::model::policy::{Acting, Denoising, Observed, STATE};
use crate::params::ParamStore;
use crate::tape::Policy;

/// A policy that acts.
pub(super) struct JoinedActing {
    network: Network,
}

/// The tensors of samples that all steps read.
struct Seen {
    layout: Layout,
    /// Keys and values of the first frames in each layer, `[T, heads, channels]`.
    frames: Vec<[Tensor; 2]>,
    /// Rows of text and states as the stream of actions reads them.
    text: Tensor,
    num_samples: i64,
}

impl JoinedActing {
    /// Panics where the store lacks one of the policy's parameters.
    pub fn new(config: &WamConfig, params: &ParamStore) -> JoinedActing {
        JoinedActing { network: Network::new(config, params, Policy::Keep) }
    }

    /// Panics where a sample has no frame.
    fn see(&self, Observed { columns, cu_seqlens, features }: Observed<'_>) -> Seen {
        let Network { config, video, action, patches, state, device, kind, .. } = &self.network;
        let ids = Vec::<i64>::try_from(columns.get(INPUT_IDS).to_device(Device::Cpu)).expect("a row of integers");
        let samples = Samples::of(&ids, cu_seqlens);
        let layout = Layout::new(config, &samples, 1, *device);
        let [latents, texts] = [features.last(), features.first().filter(|_| features.len() > 1)]
            .map(|x| x.map(|x| x.to_device(*device).to_kind(*kind)));
        let states = state.as_ref().map(|map| (map.part.as_ref(), columns.get(STATE).to_device(*device)));
        let states = states.as_ref().map(|(map, values)| (*map, values));
        let context = context(texts.as_ref(), states, config.video.text_dim, &layout, *kind);
        let mut x = patches.part.forward(&latents.expect("the first frame of each sample"));
        let times = vec![0.0; 1 + samples.count() as usize];
        let [modulations, _] = video.time.part.forward(&exact_sinusoids(&times, video.freq_dim, *device));
        let text = video.text.part.forward(&context);
        let mut frames = Vec::new();
        for block in &video.blocks {
            let [q, k, v] = block.attention.part.heads(&x, &modulations, &layout.video);
            let y = layout.frames_see.forward(&q, &k, &v);
            x = block.finish(&x, &y, &modulations, &text, &layout.video);
            frames.push([k, v]);
        }
        Seen { text: action.text.part.forward(&context), num_samples: samples.count(), layout, frames }
    }

    /// Returns the velocity `[N·H, A]`, float32, of actions at one time, which the network is told as `told`.
    fn velocity(&self, seen: &Seen, actions: &Tensor, told: f64) -> Tensor {
        let Network { action, encoder, action_head, device, kind, .. } = &self.network;
        let mut x = encoder.part.forward(&actions.to_kind(*kind));
        let times = vec![told; seen.num_samples as usize];
        let [modulations, _] = action.time.part.forward(&exact_sinusoids(&times, action.freq_dim, *device));
        for (block, [k, v]) in action.blocks.iter().zip(&seen.frames) {
            let [q, own_k, own_v] = block.attention.part.heads(&x, &modulations, &seen.layout.action);
            let [k, v] = [(k, own_k), (v, own_v)].map(|(frames, own)| Tensor::cat(&[frames, &own], 0));
            let y = seen.layout.actions_see.forward(&q, &k, &v);
            x = block.finish(&x, &y, &modulations, &seen.text, &seen.layout.action);
        }
        action_head.part.forward(&x).to_kind(Kind::Float)
    }
}

impl Acting for JoinedActing {
    fn act(&self, observed: Observed<'_>, Denoising { noise, num_steps, given }: Denoising<'_>) -> Option<Tensor> {
        if given.is_some() {
            return None;
        }
        let _no_grad = tch::no_grad_guard();
        let seen = self.see(observed);
        let flow = self.network.config.action_flow;
        let mut actions = noise.to_device(self.network.device).to_kind(Kind::Float);
        for (time, by) in flow.steps(num_steps) {
            actions = &actions + self.velocity(&seen, &actions, flow.told(time)) * by;
        }
        Some(actions)
    }

    fn device(&self) -> Device {
        self.network.device
    }
}
