//! The tape of a micro-batch: the prefix once a sample, noised actions for each draw, both streams through the layers, and the
//! weighted error of velocities.
//!
//! Shapes: N samples, K draws of each, H actions of a sample of A numbers each.

use std::rc::Rc;

use tch::{Kind, Tensor};

use super::columns::{ACTIONS, STATE, WEIGHTS};
use super::config::{PolicyConfig, PolicyOptions, StateToken};
use super::family::PolicyNetwork;
use super::layer::Layer;
use super::layout::Layout;
use super::network::Network;
use super::noise::{Noise, shares, times_of};
use crate::device::upload;
use crate::model::batch::{MicroBatch, SampleRow};
use crate::model::columns::INPUT_IDS;
use crate::model::foundation::FoundationTape;
use crate::model::objective::FlowSettings;
use crate::model::towers::FeatureInput;
use crate::tape::{Policy, Slot, Tape};

impl PolicyNetwork for Network {
    type Noise = Noise;

    fn draw(&self, _batch: &MicroBatch, rows: &[SampleRow], seed: u64) -> Noise {
        let PolicyConfig { horizon, action_dim, times, options, .. } = &self.config;
        Noise::draw(rows, seed, [*horizon, *action_dim], times, *options)
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
        let PolicyOptions { noise_draws, insulate, flow_weight, .. } = self.config.options;
        let num_draws = noise_draws as usize;
        let targets = if self.tokens.is_some() { batch.targets() } else { Vec::new() };
        let mut layout = Layout::new(&self.config, &batch.cu_seqlens, &targets, num_draws, self.kind, self.device);
        layout.insulate = insulate;
        if self.learns_states_alone && !batch.feature_grads {
            layout = layout.with_states_apart(rows.len());
        }
        let layout = Rc::new(layout);
        let (features, mut x) = self.record_prefix(&mut tape, batch, &layout, &inputs[0]);
        let flowing = Flowing::new(self, batch, rows, noise, num_draws);
        let (mut actions, condition) = self.record_actions(&mut tape, batch, &flowing, num_draws);
        for (number, layer) in self.layers.iter().enumerate() {
            let name = format!("layer {number}");
            (x, actions) = self.record_layer(&mut tape, &name, layer, [x, actions], condition, &layout);
        }
        let part = self.head.part.clone();
        let reads: Vec<Slot> = std::iter::once(actions).chain(condition).collect();
        let forward = move |reads: &[Tensor]| vec![part.forward(&reads[0], reads.get(1))];
        let velocity = tape.run("head", &self.head.ids, self.policy, &reads, 1, forward)[0];
        let weight = flowing.weight(rows, |time| if batch.evaluates { 1.0 } else { flow.weight.at(time) });
        let target = flowing.target;
        let target = tape.run("target", &[], Policy::Keep, &[], 1, move |_| vec![target.shallow_clone()])[0];
        let loss = match &self.tokens {
            None => flow.kind.record(&mut tape, velocity, target, weight, batch.loss_scale),
            Some(head) => {
                let scale = batch.loss_scale * flow_weight;
                let of_actions = flow.kind.record(&mut tape, velocity, target, weight, scale);
                let of_tokens = head.record(&mut tape, x, &layout, batch, rows);
                let sum = |reads: &[Tensor]| vec![&reads[0] + &reads[1]];
                tape.run("losses", &[], Policy::Keep, &[of_actions, of_tokens], 1, sum)[0]
            }
        };
        FoundationTape::of_loss(tape, vec![features], loss)
    }
}

impl Network {
    /// Records the rows of the prefix, and the slots of features.
    fn record_prefix(
        &self,
        tape: &mut Tape,
        batch: &MicroBatch,
        layout: &Rc<Layout>,
        input: &FeatureInput,
    ) -> (Vec<Slot>, Slot) {
        let ids = batch.columns.get(INPUT_IDS).to_device(self.device);
        let part = self.embed.tokens.part.clone();
        let look_up = move |_: &[Tensor]| vec![part.look_up(&ids)];
        let mut x = tape.run("embed", &self.embed.tokens.ids, self.policy, &[], 1, look_up)[0];
        let features = batch.feature_slot(tape, 0);
        if let Some(features) = features {
            let rows = upload(&Tensor::from_slice(&input.rows(&batch.input_ids())), self.device);
            let scaled = self.config.scaled_pictures.then(|| {
                let part = self.embed.tokens.part.clone();
                let forward = move |reads: &[Tensor]| vec![part.scaled(&reads[0])];
                tape.run("scale of pictures", &[], Policy::Keep, &[features], 1, forward)[0]
            });
            x = tape.put_rows(x, Rc::new(rows), scaled.unwrap_or(features));
        }
        if let Some(state) = &self.embed.state {
            let values = batch.columns.get(STATE).to_device(self.device);
            let (part, at) = (state.part.clone(), layout.clone());
            let forward = move |reads: &[Tensor]| {
                let states = part.forward_wide(&values).to_kind(reads[0].kind());
                let all = Tensor::cat(&[&reads[0], &states], 0);
                vec![at.order.as_ref().map_or_else(|| all.shallow_clone(), |order| all.index_select(0, order))]
            };
            x = tape.run("state", &state.ids, self.policy, &[x], 1, forward)[0];
        }
        (features.into_iter().collect(), x)
    }

    /// Records the rows of noised actions, and the condition of their norms.
    fn record_actions(
        &self,
        tape: &mut Tape,
        batch: &MicroBatch,
        flowing: &Flowing,
        num_draws: usize,
    ) -> (Slot, Option<Slot>) {
        let state = (self.config.state == StateToken::Actions).then(|| {
            let states = batch.columns.get(STATE).to_device(self.device);
            states.repeat_interleave_self_int(num_draws as i64, 0, None)
        });
        let (part, kind) = (self.embed.actions.part.clone(), self.kind);
        let [noised, times] = [&flowing.noised, &flowing.times].map(Tensor::shallow_clone);
        let forward = move |_: &[Tensor]| {
            let (x, condition) = part.forward(&noised, &times, state.as_ref(), kind);
            std::iter::once(x).chain(condition).collect()
        };
        let num_written = if self.config.has_condition() { 2 } else { 1 };
        let written = tape.run("actions", &self.embed.actions.ids, self.policy, &[], num_written, forward);
        (written[0], written.get(1).copied())
    }

    /// Records both streams behind a layer; that of the prefix is what it was behind the last where nothing reads it there.
    fn record_layer(
        &self,
        tape: &mut Tape,
        name: &str,
        layer: &Layer,
        [x, actions]: [Slot; 2],
        condition: Option<Slot>,
        layout: &Rc<Layout>,
    ) -> (Slot, Slot) {
        let policy = self.policy;
        let (part, at, is_last) = (layer.prefix_heads.part.clone(), layout.clone(), layer.prefix.is_none());
        let forward = move |reads: &[Tensor]| {
            let (y, [k, v]) = part.prefix(&reads[0], &at);
            [k, v].into_iter().chain(y).collect()
        };
        let (named, ids) = (format!("{name} prefix attention"), &layer.prefix_heads.ids);
        let written = tape.run(named, ids, policy, &[x], if is_last { 2 } else { 3 }, forward);

        let (part, at) = (layer.action_heads.part.clone(), layout.clone());
        let with_condition = |reads: &[Slot]| reads.iter().copied().chain(condition).collect::<Vec<Slot>>();
        let forward = move |reads: &[Tensor]| {
            let keys = [&reads[1], &reads[2]];
            let keys = keys.map(|keys| if at.insulate { keys.detach() } else { keys.shallow_clone() });
            vec![part.actions(&reads[0], reads.get(3), &part.met(&keys), &at)]
        };
        let reads = with_condition(&[actions, written[0], written[1]]);
        let y = tape.run(format!("{name} action attention"), &layer.action_heads.ids, policy, &reads, 1, forward)[0];
        let actions = tape.add(actions, y);
        let part = layer.actions.part.clone();
        let forward = move |reads: &[Tensor]| vec![part.forward(&reads[0], reads.get(1))];
        let reads = with_condition(&[actions]);
        let y = tape.run(format!("{name} action mlp"), &layer.actions.ids, policy, &reads, 1, forward)[0];
        let actions = tape.add(actions, y);

        let Some(mlp) = &layer.prefix else { return (x, actions) };
        let x = tape.add(x, written[2]);
        let (part, at) = (mlp.part.clone(), layout.clone());
        let forward = move |reads: &[Tensor]| at.each_row(&reads[0], |x| vec![part.forward(x, None)]);
        let y = tape.run(format!("{name} prefix mlp"), &mlp.ids, policy, &[x], 1, forward)[0];
        (tape.add(x, y), actions)
    }
}

/// The draws of a micro-batch on their way from actions to noise, on the model's device, float32.
struct Flowing {
    /// `[N·K·H, A]`: actions and noise by their time.
    noised: Tensor,
    /// The velocities between actions and noise, `[N·K·H, A]`.
    target: Tensor,
    /// Times of noised actions, `[N·K]`, or of each of them, `[N·K·H]`, where some are given.
    times: Tensor,
    /// `[N·K]`, on the host: to read them back would wait for all that a GPU was given before.
    drawn_times: Tensor,
    /// `[N, 1, H, A]`, or for each draw `[N, K, H, A]`: what elements count.
    weights: Tensor,
}

impl Flowing {
    fn new(network: &Network, batch: &MicroBatch, rows: &[SampleRow], noise: &Noise, num_draws: usize) -> Flowing {
        let PolicyConfig { horizon, action_dim, .. } = network.config;
        let [actions, weights] = [ACTIONS, WEIGHTS].map(|name| {
            let values = batch.columns.get(name).to_device(network.device).to_kind(Kind::Float);
            values.view([rows.len() as i64, 1, horizon, action_dim])
        });
        let (noise_delays, drawn_times) = (&noise.delays, noise.times.shallow_clone());
        let [noise, times] = [&noise.noise, &noise.times].map(|x| upload(x, network.device));
        let by_draw = |x: &Tensor| x.view([rows.len() as i64, num_draws as i64, -1, action_dim]);
        let noise = by_draw(&noise);
        let time = times.view([rows.len() as i64, num_draws as i64, 1, 1]);
        let (time, weights, row_times) = match given(noise_delays, time.size()[1], horizon) {
            None => (time, weights, None),
            Some(free) => {
                let free = upload(&free, network.device);
                let time = &time * &free;
                let (weights, row_times) = (rest_of(&weights, &free), time.flatten(0, -1).contiguous());
                (time, weights, Some(row_times))
            }
        };
        let noised: Tensor = &time * &noise + (1.0 - &time) * &actions;
        Flowing {
            noised: noised.view([-1, action_dim]),
            target: (&noise - &actions).view([-1, action_dim]),
            times: row_times.unwrap_or(times),
            drawn_times,
            weights,
        }
    }

    /// Returns the weight of each element `[N·K·H, A]`: an even share of the sample's for each of its draws, times `at` of its time;
    /// nothing of a sample that does not count.
    fn weight(&self, rows: &[SampleRow], at: impl Fn(f64) -> f64) -> Tensor {
        let shares = shares(rows, &times_of(&self.drawn_times), at, self.weights.device());
        (&self.weights * shares).view(self.noised.size().as_slice())
    }
}

/// Returns `[N, K, H, 1]`, float32: 0 for the first actions of each draw, which are given, and 1 for those behind them; `None`: no draw
/// is given any. `delays` are those of `[N·K]` draws.
fn given(delays: &[u32], num_draws: i64, horizon: i64) -> Option<Tensor> {
    let free = |delay: &u32| (0..horizon).map(|step| f32::from(step >= i64::from(*delay))).collect::<Vec<_>>();
    let all: Vec<f32> = delays.iter().flat_map(free).collect();
    (!all.is_empty()).then(|| Tensor::from_slice(&all).view([-1, num_draws, horizon, 1]))
}

/// Returns the weights `[N, K, H, A]` of what is `free` `[N, K, H, 1]` alone, which count as much together as those of the whole chunk,
/// `[N, 1, H, A]`, did.
fn rest_of(weights: &Tensor, free: &Tensor) -> Tensor {
    let rest = weights * free;
    let sum = |x: &Tensor| x.sum_dim_intlist([2_i64, 3].as_slice(), true, Kind::Float);
    let left = sum(&rest);
    // Nothing is learned of a draw that is given all that counts.
    let share = sum(weights) / left.clamp_min(1e-6);
    rest * share * left.gt(0.0).to_kind(Kind::Float)
}
