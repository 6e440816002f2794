//! The tape of a micro-batch: Florence-2 once a sample, the transformer once a draw, and the weighted cost of actions.
//!
//! Shapes: N samples, K draws of each, H actions of a sample of A numbers each.

use std::rc::Rc;

use loongforge_core::schedule::TimeSampler;
use tch::{Kind, Tensor};

use super::config::DOMAIN;
use super::layout::Layout;
use super::loss::ActionCost;
use super::network::{Network, or_zeros};
use crate::device::upload;
use crate::model::batch::{MicroBatch, SampleRow};
use crate::model::columns::INPUT_IDS;
use crate::model::foundation::FoundationTape;
use crate::model::objective::FlowSettings;
use crate::model::policy::{ACTIONS, Noise, PolicyNetwork, PolicyOptions, STATE, WEIGHTS, shares, times_of};
use crate::model::towers::FeatureInput;
use crate::tape::{Policy, Slot, Tape};

impl PolicyNetwork for Network {
    type Noise = Noise;

    /// Times are even between actions, 0, and noise, 1.
    fn draw(&self, _batch: &MicroBatch, rows: &[SampleRow], seed: u64) -> Noise {
        let shape = [self.config.horizon, self.config.action_dim()];
        Noise::draw(rows, seed, shape, &TimeSampler::Uniform, self.config.options)
    }

    fn record(
        &self,
        batch: &MicroBatch,
        rows: &[SampleRow],
        noise: &Noise,
        flow: &FlowSettings,
        inputs: &[FeatureInput],
    ) -> FoundationTape {
        let mut tape = Tape::new();
        let PolicyOptions { noise_draws, insulate, .. } = self.config.options;
        let num_draws = noise_draws as usize;
        let ids = batch.input_ids();
        let layout = Rc::new(Layout::new(&self.config, &ids, &batch.cu_seqlens, num_draws, self.device));
        let domains = Rc::new(batch.columns.get(DOMAIN).to_device(self.device));
        let (features, x) = self.record_tokens(&mut tape, batch, &ids, &inputs[0]);
        let mut parts = vec![self.record_actions(&mut tape, batch, noise, &domains)];
        parts.extend(self.record_seen(&mut tape, x, &layout, &domains, insulate));
        let predicted = self.record_transformer(&mut tape, parts, &layout, &domains);
        let cost = self.cost(batch, rows, noise, flow);
        let scale = batch.loss_scale;
        let forward = move |reads: &[Tensor]| vec![cost.sum(&reads[0]) * scale];
        let loss = tape.run("loss", &[], Policy::Keep, &[predicted], 1, forward)[0];
        FoundationTape::of_loss(tape, vec![features], loss)
    }
}

impl Network {
    /// Records the rows of all tokens, and the slots of features.
    fn record_tokens(
        &self,
        tape: &mut Tape,
        batch: &MicroBatch,
        ids: &[i64],
        input: &FeatureInput,
    ) -> (Vec<Slot>, Slot) {
        let tokens = batch.columns.get(INPUT_IDS).to_device(self.device);
        let part = self.tokens.part.clone();
        let look_up = move |_: &[Tensor]| vec![part.look_up(&tokens)];
        let x = tape.run("embed", &self.tokens.ids, self.policy, &[], 1, look_up)[0];
        let Some(features) = batch.feature_slot(tape, 0) else { return (Vec::new(), x) };
        let rows = upload(&Tensor::from_slice(&input.rows(ids)), self.device);
        (vec![features], tape.put_rows(x, Rc::new(rows), features))
    }

    /// Records the transformer's rows of what Florence-2 makes, of other pictures, and of prompts, where there are such.
    fn record_seen(
        &self,
        tape: &mut Tape,
        x: Slot,
        layout: &Rc<Layout>,
        domains: &Rc<Tensor>,
        insulate: bool,
    ) -> Vec<Slot> {
        let encoded = self.language.record(tape, self.policy, x, &layout.texts, or_zeros);
        let mut parts = Vec::new();
        let free = move |x: &Tensor| if insulate { x.detach() } else { x.shallow_clone() };
        let [map, of_views] = &self.maps;
        let (part, at, of) = (map.part.clone(), layout.clone(), domains.clone());
        let forward = move |reads: &[Tensor]| vec![part.forward(&free(&reads[0]), &of, &at.encoded_lens)];
        parts.extend(tape.run("map of language", &map.ids, self.policy, &[encoded], 1, forward));
        if layout.views.is_some() {
            let (part, at, of) = (of_views.part.clone(), layout.clone(), domains.clone());
            let forward = move |reads: &[Tensor]| {
                let rows = at.views.as_ref().expect("samples have several pictures");
                vec![part.forward(&or_zeros(&free(&reads[0]), rows), &of, &at.view_lens)]
            };
            parts.extend(tape.run("map of views", &of_views.ids, self.policy, &[x], 1, forward));
        }
        if let Some(prompts) = &self.prompts {
            let (part, of) = (prompts.part.clone(), domains.clone());
            let forward = move |_: &[Tensor]| vec![part.forward(&of)];
            parts.extend(tape.run("prompts", &prompts.ids, self.policy, &[], 1, forward));
        }
        parts
    }

    /// Records the rows of noised actions.
    fn record_actions(&self, tape: &mut Tape, batch: &MicroBatch, noise: &Noise, domains: &Rc<Tensor>) -> Slot {
        let num_draws = i64::from(self.config.options.noise_draws);
        let [noise, times] = [&noise.noise, &noise.times].map(|x| upload(x, self.device));
        let actions = self.of_actions(batch, ACTIONS);
        let num_samples = actions.size()[0];
        let time = times.view([num_samples, num_draws, 1, 1]);
        let by_draw = noise.view([num_samples, num_draws, self.config.horizon, -1]);
        let noised: Tensor = by_draw * &time + actions * (1.0 - &time);
        let noised = noised.flatten(0, 2);
        let states = (self.config.state_dim > 0).then(|| batch.columns.get(STATE).to_device(self.device));
        let (part, of, kind) = (self.encoder.part.clone(), domains.clone(), self.kind);
        let forward = move |_: &[Tensor]| vec![part.forward(&noised, &times, states.as_ref(), &of).to_kind(kind)];
        tape.run("actions", &self.encoder.ids, self.policy, &[], 1, forward)[0]
    }

    /// Records the predicted actions `[N·K·H, A]` of the transformer's rows by their parts.
    fn record_transformer(&self, tape: &mut Tape, parts: Vec<Slot>, layout: &Rc<Layout>, domains: &Rc<Tensor>) -> Slot {
        let policy = self.policy;
        let (part, at) = (self.positions.part.clone(), layout.clone());
        let forward = move |reads: &[Tensor]| vec![part.forward(&reads.iter().collect::<Vec<_>>(), &at)];
        let mut x = tape.run("sequences", &self.positions.ids, policy, &parts, 1, forward)[0];
        for (number, block) in self.blocks.iter().enumerate() {
            let (part, at) = (block.attention.part.clone(), layout.clone());
            let forward = move |reads: &[Tensor]| vec![part.forward(&reads[0], &at.sequences)];
            let y = tape.run(format!("block {number} attention"), &block.attention.ids, policy, &[x], 1, forward)[0];
            x = tape.add(x, y);
            let part = block.mlp.part.clone();
            let forward = move |reads: &[Tensor]| vec![part.forward(&reads[0])];
            let y = tape.run(format!("block {number} mlp"), &block.mlp.ids, policy, &[x], 1, forward)[0];
            x = tape.add(x, y);
        }
        let x = tape.take_rows(x, Rc::new(layout.actions.shallow_clone()));
        let (part, of) = (self.decoder.part.clone(), domains.clone());
        let forward = move |reads: &[Tensor]| vec![part.forward(&reads[0], &of)];
        tape.run("decoder", &self.decoder.ids, policy, &[x], 1, forward)[0]
    }

    /// Returns a column of the samples' actions, `[N, 1, H, A]`, float32.
    fn of_actions(&self, batch: &MicroBatch, name: &str) -> Tensor {
        let values = batch.columns.get(name).to_device(self.device).to_kind(Kind::Float);
        values.view([-1, 1, self.config.horizon, self.config.action_dim()])
    }

    /// Returns the loss of predictions with its weights: each draw has an even share of its sample's, times the weight of its time; a
    /// sample that does not count has 0.
    fn cost(&self, batch: &MicroBatch, rows: &[SampleRow], noise: &Noise, flow: &FlowSettings) -> ActionCost {
        let num_draws = self.config.options.noise_draws as usize;
        let at = |time| if batch.evaluates { 1.0 } else { flow.weight.at(time) };
        let shares = shares(rows, &times_of(&noise.times), at, self.device);
        let each = |x: Tensor| x.expand([-1, num_draws as i64, -1, -1], false).flatten(0, 2);
        let weight = (self.of_actions(batch, WEIGHTS) * shares).flatten(0, 2);
        ActionCost::new(flow.kind, &self.config.space, each(self.of_actions(batch, ACTIONS)), &weight)
    }
}
