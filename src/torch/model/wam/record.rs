//! The tape of a micro-batch: noised frames and actions, both streams through the layers, and the weighted errors of both velocities.
//!
//! Shapes: N samples, K draws of a sample's actions, T places of all samples' frames, P numbers of a place, H actions of a sample of A
//! numbers each.

use std::rc::Rc;

use tch::{Kind, Tensor};

use super::config::FRAME_WEIGHTS;
use super::flow::Bell;
use super::layout::{Layout, Samples};
use super::network::{Network, context};
use super::noise::Noise;
use super::stream::{Block, Stream};
use crate::device::upload;
use crate::model::batch::{MicroBatch, SampleRow};
use crate::model::dit::{Tables, exact_sinusoids};
use crate::model::foundation::FoundationTape;
use crate::model::objective::FlowSettings;
use crate::model::policy::{ACTIONS, PolicyNetwork, STATE, WEIGHTS};
use crate::model::towers::FeatureInput;
use crate::tape::{Policy, Slot, Tape};

/// Chooses the tables of a layout that a stream reads.
type TablesOf = fn(&Layout) -> &Tables;

/// The slots that all blocks of a stream read beside its rows.
struct Told {
    modulations: Slot,
    level: Slot,
    text: Slot,
}

/// A block of a stream, and what it reads beside the stream's rows.
struct Side<'a> {
    /// The beginning of the names of its segments.
    name: String,
    block: &'a Block,
    told: &'a Told,
    tables: TablesOf,
}

impl PolicyNetwork for Network {
    type Noise = Noise;

    fn draw(&self, batch: &MicroBatch, rows: &[SampleRow], seed: u64) -> Noise {
        Noise::draw(&self.config, rows, &self.samples(batch), seed)
    }

    fn record(
        &self,
        batch: &MicroBatch,
        rows: &[SampleRow],
        noise: &Noise,
        flow: &FlowSettings,
        _inputs: &[FeatureInput],
    ) -> FoundationTape {
        let samples = &self.samples(batch);
        let mut tape = Tape::new();
        let layout = Rc::new(Layout::new(&self.config, samples, self.num_draws(), self.device));
        let [text, latents] = [0, 1].map(|input| batch.feature_slot(&mut tape, input));
        let context = self.record_context(&mut tape, batch, text, &layout);
        let (frames, of_frames) = self.record_frames(&mut tape, samples, latents, noise, &layout);
        let (actions, of_actions) = self.record_actions(&mut tape, batch, noise);
        let given = std::iter::once(&0f32).chain(&noise.frame_times);
        let video: Vec<f64> = given.map(|time| self.config.video_flow.told(*time)).collect();
        let action: Vec<f64> = noise.action_times.iter().map(|time| self.config.action_flow.told(*time)).collect();
        let of_video = self.record_told(&mut tape, &self.video, &video, context);
        let of_action = self.record_told(&mut tape, &self.action, &action, context);
        let (mut x, mut y) = (frames, actions);
        for (number, (video, action)) in self.video.blocks.iter().zip(&self.action.blocks).enumerate() {
            let name = |of: &str| format!("layer {number} {of}");
            let video = Side { name: name("frames"), block: video, told: &of_video, tables: |layout| &layout.video };
            let action =
                Side { name: name("actions"), block: action, told: &of_action, tables: |layout| &layout.action };
            [x, y] = self.record_layer(&mut tape, [&video, &action], [x, y], &layout);
        }
        let (part, at) = (self.head.part.clone(), layout.clone());
        let forward = move |reads: &[Tensor]| vec![part.forward(&reads[0], &reads[1], &at.video.segments)];
        let x = tape.run("head of frames", &self.head.ids, self.policy, &[x, of_video.level], 1, forward)[0];
        let part = self.action_head.part.clone();
        let forward = move |reads: &[Tensor]| vec![part.forward(&reads[0])];
        let y = tape.run("head of actions", &self.action_head.ids, self.policy, &[y], 1, forward)[0];
        let [frame_weight, action_weight] = self.weights(batch, rows, noise, &layout);
        let of_frames = flow.kind.record(&mut tape, x, of_frames, frame_weight, batch.loss_scale);
        let of_actions = flow.kind.record(&mut tape, y, of_actions, action_weight, batch.loss_scale);
        let sum = |reads: &[Tensor]| vec![&reads[0] + &reads[1]];
        let loss = tape.run("losses", &[], Policy::Keep, &[of_frames, of_actions], 1, sum)[0];
        FoundationTape::of_loss(tape, vec![Vec::from_iter(text), Vec::from_iter(latents)], loss)
    }
}

impl Network {
    fn num_draws(&self) -> i64 {
        i64::from(self.config.options.noise_draws)
    }

    /// Returns the samples of a batch; of one without any, which another rank's batch is answered by, one that counts for nothing.
    fn samples(&self, batch: &MicroBatch) -> Samples {
        match batch.samples.is_empty() {
            true => Samples::filler(&self.config),
            false => Samples::of(&batch.input_ids(), &batch.cu_seqlens),
        }
    }

    /// Records the rows of text and of states.
    fn record_context(&self, tape: &mut Tape, batch: &MicroBatch, text: Option<Slot>, layout: &Rc<Layout>) -> Slot {
        let state = self.state.as_ref().map(|map| {
            let values = batch.columns.get(STATE).to_device(self.device);
            (map.part.clone(), values)
        });
        let (at, kind, width) = (layout.clone(), self.kind, self.config.video.text_dim);
        let forward = move |reads: &[Tensor]| {
            let state = state.as_ref().map(|(map, values)| (map.as_ref(), values));
            vec![context(reads.first(), state, width, &at, kind)]
        };
        let ids = self.state.as_ref().map_or(&[][..], |map| &map.ids);
        tape.run("context", ids, self.policy, &text.into_iter().collect::<Vec<_>>(), 1, forward)[0]
    }

    /// Records the rows of noised frames, of which the first of a sample is as it is, and their velocities `[T, P]`.
    fn record_frames(
        &self,
        tape: &mut Tape,
        samples: &Samples,
        latents: Option<Slot>,
        noise: &Noise,
        layout: &Layout,
    ) -> (Slot, Slot) {
        let times = layout.frames.iter().zip(&noise.frame_times).flat_map(|([first, others], time)| {
            std::iter::repeat_n(0f32, *first as usize).chain(std::iter::repeat_n(*time, *others as usize))
        });
        let times = upload(&Tensor::from_slice(&times.collect::<Vec<f32>>()).unsqueeze(1), self.device);
        let (noise, kind) = (upload(&noise.frames, self.device), self.kind);
        let zeros = Tensor::zeros([samples.num_latents(), self.config.video.patch_dim()], (Kind::Float, self.device));
        let forward = move |reads: &[Tensor]| {
            let clean = reads.first().map_or_else(|| zeros.shallow_clone(), |x| x.to_kind(Kind::Float));
            let noised: Tensor = &clean * (1.0 - &times) + &noise * &times;
            vec![noised.to_kind(kind), &noise - clean]
        };
        let latents: Vec<Slot> = latents.into_iter().collect();
        let written = tape.run("noise of frames", &[], Policy::Recompute, &latents, 2, forward);
        let part = self.patches.part.clone();
        let forward = move |reads: &[Tensor]| vec![part.forward(&reads[0])];
        (tape.run("patches", &self.patches.ids, self.policy, &[written[0]], 1, forward)[0], written[1])
    }

    /// Records the rows of noised actions, and their velocities `[N·K·H, A]`.
    fn record_actions(&self, tape: &mut Tape, batch: &MicroBatch, noise: &Noise) -> (Slot, Slot) {
        let actions = batch.columns.get(ACTIONS).to_device(self.device).to_kind(Kind::Float);
        let by_sample = actions.view([-1, 1, self.config.horizon, self.config.action_dim]);
        let actions = by_sample.expand([-1, self.num_draws(), -1, -1], false).flatten(0, 2);
        let noise_of = upload(&noise.actions, self.device);
        let times = upload(&Tensor::from_slice(&noise.action_times), self.device);
        let time = times.repeat_interleave_self_int(self.config.horizon, 0, None).unsqueeze(1);
        let noised: Tensor = &actions * (1.0 - &time) + &noise_of * &time;
        let noised = noised.to_kind(self.kind);
        let target = noise_of - actions;
        let part = self.encoder.part.clone();
        let forward = move |_: &[Tensor]| vec![part.forward(&noised)];
        let rows = tape.run("actions", &self.encoder.ids, self.policy, &[], 1, forward)[0];
        (rows, tape.run("velocity", &[], Policy::Keep, &[], 1, move |_| vec![target.shallow_clone()])[0])
    }

    /// Records the slots that a stream's blocks read of times and of `context`.
    fn record_told(&self, tape: &mut Tape, stream: &Stream, times: &[f64], context: Slot) -> Told {
        let waves = exact_sinusoids(times, stream.freq_dim, self.device);
        let (part, name) = (stream.time.part.clone(), stream.name);
        let forward = move |_: &[Tensor]| part.forward(&waves).into();
        let of_times = tape.run(format!("times of {name}"), &stream.time.ids, self.policy, &[], 2, forward);
        let part = stream.text.part.clone();
        let forward = move |reads: &[Tensor]| vec![part.forward(&reads[0])];
        let text = tape.run(format!("text of {name}"), &stream.text.ids, self.policy, &[context], 1, forward)[0];
        Told { modulations: of_times[0], level: of_times[1], text }
    }

    /// Records both streams behind a layer.
    fn record_layer(
        &self,
        tape: &mut Tape,
        [frames, actions]: [&Side<'_>; 2],
        [x, y]: [Slot; 2],
        layout: &Rc<Layout>,
    ) -> [Slot; 2] {
        let [q, k, v] = self.record_heads(tape, frames, x, layout);
        let [own_q, own_k, own_v] = self.record_heads(tape, actions, y, layout);

        let (part, at) = (frames.block.attention.part.clone(), layout.clone());
        let attend = move |reads: &[Tensor]| {
            let attended = at.frames_see.forward(&reads[0], &reads[1], &reads[2]);
            vec![part.finish(&attended, &reads[3], &at.video)]
        };
        let (name, ids) = (format!("{} attention", frames.name), &frames.block.attention.ids);
        let branch = tape.run(name, ids, self.policy, &[q, k, v, frames.told.modulations], 1, attend)[0];
        let x = tape.add(x, branch);

        let (part, at) = (actions.block.attention.part.clone(), layout.clone());
        let attend = move |reads: &[Tensor]| {
            let [keys, values] = [1, 2].map(|of: usize| Tensor::cat(&[&reads[of], &reads[of + 2]], 0));
            vec![part.finish(&at.actions_see.forward(&reads[0], &keys, &values), &reads[5], &at.action)]
        };
        let (name, ids) = (format!("{} attention", actions.name), &actions.block.attention.ids);
        let reads = [own_q, k, v, own_k, own_v, actions.told.modulations];
        let branch = tape.run(name, ids, self.policy, &reads, 1, attend)[0];
        let y = tape.add(y, branch);
        [self.record_rest(tape, frames, x, layout), self.record_rest(tape, actions, y, layout)]
    }

    /// Records the queries, keys and values of a stream's rows.
    fn record_heads(&self, tape: &mut Tape, side: &Side<'_>, x: Slot, layout: &Rc<Layout>) -> [Slot; 3] {
        let (attention, at, tables) = (&side.block.attention, layout.clone(), side.tables);
        let part = attention.part.clone();
        let heads = move |reads: &[Tensor]| part.heads(&reads[0], &reads[1], tables(&at)).into();
        let name = format!("{} queries keys values", side.name);
        let written = tape.run(name, &attention.ids, self.policy, &[x, side.told.modulations], 3, heads);
        [written[0], written[1], written[2]]
    }

    /// Records the rows behind attention to the text and the feed-forward.
    fn record_rest(&self, tape: &mut Tape, side: &Side<'_>, x: Slot, layout: &Rc<Layout>) -> Slot {
        let Side { block, told, name, .. } = side;
        let tables = side.tables;
        let (part, at) = (block.prompt.part.clone(), layout.clone());
        let forward = move |reads: &[Tensor]| vec![part.forward(&reads[0], &reads[1], None, tables(&at))];
        let y = tape.run(format!("{name} prompt"), &block.prompt.ids, self.policy, &[x, told.text], 1, forward)[0];
        let x = tape.add(x, y);
        let (part, at) = (block.mlp.part.clone(), layout.clone());
        let forward = move |reads: &[Tensor]| vec![part.forward(&reads[0], &reads[1], tables(&at))];
        let y = tape.run(format!("{name} mlp"), &block.mlp.ids, self.policy, &[x, told.modulations], 1, forward)[0];
        tape.add(x, y)
    }

    /// Returns the weights of the numbers of frames `[T, 1]` and of actions `[N·K·H, A]` in the loss: each sample is the mean of those that
    /// count, times the weight of its time, of which its draws have even shares; the others have 0.
    fn weights(&self, batch: &MicroBatch, rows: &[SampleRow], noise: &Noise, layout: &Layout) -> [Tensor; 2] {
        let config = &self.config;
        let [of_video, of_action] = &self.bells;
        let of_samples = |bell: &Bell, times: &[f32], weight: f64| {
            let num_draws = times.len() / rows.len();
            let of = |(number, time): (usize, &f32)| {
                let at = if batch.evaluates { 1.0 } else { bell.at(f64::from(*time)) };
                let counts = rows[number / num_draws].num_targets > 0;
                if counts { (weight * at / num_draws as f64) as f32 } else { 0.0 }
            };
            upload(&Tensor::from_slice(&times.iter().enumerate().map(of).collect::<Vec<f32>>()), self.device)
        };
        let column = |name: &str| batch.columns.get(name).to_device(self.device).to_kind(Kind::Float);
        let sum = |x: &Tensor, axes: &[i64]| x.sum_dim_intlist(axes, true, Kind::Float);

        let own = of_samples(of_action, &noise.action_times, config.action_flow.weight);
        let own = own.view([-1, self.num_draws(), 1, 1]);
        let counted = column(WEIGHTS).view([-1, 1, config.horizon, config.action_dim]);
        let actions = &counted * own / sum(&counted, &[2, 3]).clamp_min(config.action_dim as f64);

        let own = of_samples(of_video, &noise.frame_times, config.video_flow.weight).view([-1, 1]);
        let counted = column(FRAME_WEIGHTS).view([-1, config.num_frames - 1]);
        let frame = config.frame_rows();
        let numbers = (frame * config.video.patch_dim()) as f64;
        let counted = &counted * own / (sum(&counted, &[1]).clamp_min(1.0) * numbers);
        // The first frame of a sample is given, and one that has no others learns none.
        let of_sample = |(row, [first, others]): (i64, &[i64; 2])| {
            let given = Tensor::zeros([*first], (Kind::Float, self.device));
            let learned = counted.get(row).narrow(0, 0, others / frame).repeat_interleave_self_int(frame, 0, None);
            Tensor::cat(&[given, learned], 0)
        };
        let frames: Vec<Tensor> = (0..).zip(&layout.frames).map(of_sample).collect();
        [Tensor::cat(&frames, 0).unsqueeze(1), actions.view([-1, config.action_dim])]
    }
}
