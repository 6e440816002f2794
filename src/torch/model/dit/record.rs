//! The tape of a micro-batch: noise, the transformer, and the loss.
//!
//! Shapes: T tokens of all samples' targets, P numbers of a patch.

use std::rc::Rc;

use loongforge_core::message::{Grid, SampleId, Sigma, Target, Tower};
use tch::{Device, Kind, Tensor};

use super::network::{Begin, Latents, Network, Stream, Work};
use super::sample::{Sample, samples};
use super::share::Share;
use crate::device::upload;
use crate::model::batch::{MicroBatch, SampleRow};
use crate::model::columns::WEIGHTS;
use crate::model::foundation::{FoundationTape, Noised, VelocityTape};
use crate::model::objective::{self, Draw, FlowSettings, NoisePurpose};
use crate::model::stage::Stage;
use crate::model::towers::FeatureInput;
use crate::tape::{Boundary, Policy, Slot, Tape};

/// Tells the noise of latents that are drawn from that of their noise levels.
pub(super) const OF_LATENTS: u32 = 0;

/// Records the tape of any transformer.
pub(super) struct Recorder<'a> {
    pub network: &'a dyn Network,
    pub inputs: &'a [FeatureInput],
    pub stage: &'a Stage,
    pub flow: &'a FlowSettings,
    /// Numbers of a patch.
    pub patch_dim: i64,
    pub policy: Policy,
    pub device: Device,
    pub kind: Kind,
}

/// The features on a tape, by input; empty where there are no items for one.
struct Features {
    slots: Vec<Vec<Slot>>,
    /// Rows of each.
    counts: Vec<i64>,
}

impl Recorder<'_> {
    /// Records forward and loss of a micro-batch, with each sample's own noise.
    pub fn record(&self, batch: &MicroBatch) -> FoundationTape {
        self.record_with(batch, |row, shape| objective::noise(self.flow.seed, row.id, row.purpose, &shape))
    }

    /// Works like [`Recorder::record`], with the noise that `draw` makes of a sample and its shape `[tokens, P]`, float32.
    pub fn record_with(&self, batch: &MicroBatch, draw: impl Fn(&SampleRow, [i64; 2]) -> Tensor) -> FoundationTape {
        let mut tape = Tape::new();
        let features = self.features(&mut tape, &batch.num_features, batch.feature_grads);
        let fillers = [filler()];
        let rows = if batch.samples.is_empty() { &fillers } else { &*batch.samples };
        let found = samples(rows, 0, |_, _| true);
        let sigma: Vec<f64> = rows.iter().map(sigma).collect();
        let share = share_of(batch);
        let work = self.work(&found, &sigma, &features, share);
        let own = self.network.own_targets(&work);
        let own = own.map(|tokens| Rc::new(upload(&Tensor::from_slice(&tokens), self.device)));
        let (begin, target, inbound) = match self.stage.is_first {
            true => {
                let mut clean = self.record_targets(&mut tape, &found, features.of(self, Tower::Vae));
                if let Some(deviations) = features.deviations(self).filter(|_| !batch.evaluates) {
                    let deviations = self.record_targets(&mut tape, &found, Some(deviations));
                    clean = self.record_draws(&mut tape, rows.iter().zip(&found), [clean, deviations]);
                }
                let noises = rows.iter().zip(&found);
                let noises = noises.map(|(row, sample)| draw(row, [sample.num_tokens(), self.patch_dim]));
                let noise = upload(&Tensor::cat(&noises.collect::<Vec<_>>(), 0), self.device);
                let [noised, mut target] = self.record_noise(&mut tape, &work, clean, noise);
                if let Some(own) = &own {
                    target = tape.take_rows(target, own.clone());
                }
                (self.begin(&features, noised), target, Vec::new())
            }
            false => {
                let mut inbound = self.boundaries(&work, batch.feature_grads);
                inbound.iter_mut().for_each(|boundary| boundary.slot = tape.input(boundary.requires_grad));
                let mut streams: Vec<Slot> = inbound.iter().map(|boundary| boundary.slot).collect();
                let target = streams.pop().expect("the target");
                (Begin::Streams(streams), target, inbound)
            }
        };
        let mut written = self.network.record(&mut tape, &work, begin);
        let (mut outbound, mut loss) = (Vec::new(), None);
        if self.stage.is_last {
            let weight = upload(&self.weights(rows, &found, batch).unsqueeze(1), self.device);
            let weight = own.as_ref().map_or(weight.shallow_clone(), |own| weight.index_select(0, own));
            loss = Some(self.flow.kind.record(&mut tape, written[0], target, weight, batch.loss_scale));
        } else {
            written.push(target);
            outbound = self.boundaries(&work, batch.feature_grads);
            outbound.iter_mut().zip(written).for_each(|(boundary, slot)| boundary.slot = slot);
        }
        outbound.iter().map(|boundary| boundary.slot).chain(loss).for_each(|slot| tape.keep(slot));
        FoundationTape {
            tape: Rc::new(tape),
            features: features.slots,
            loss,
            predicted: None,
            measures: None,
            inbound,
            outbound,
            key_values: Vec::new(),
            routing: None,
        }
    }

    /// Returns this rank's rows of each stream of tokens among those of all ranks, `[rows]` each, int64; none where all are here.
    pub fn own_rows(&self, batch: &MicroBatch) -> Vec<Tensor> {
        let Some(share) = share_of(batch) else { return Vec::new() };
        let features = self.features(&mut Tape::new(), &batch.num_features, false);
        let found = samples(&batch.samples, 0, |_, _| true);
        let sigma: Vec<f64> = batch.samples.iter().map(sigma).collect();
        let rows = self.network.own_rows(&self.work(&found, &sigma, &features, Some(share)));
        rows.iter().map(|rows| upload(&Tensor::from_slice(rows), self.device)).collect()
    }

    /// Returns the boundaries to the next stage: the streams of blocks, and the target. Their slots are still to come.
    fn boundaries(&self, work: &Work<'_>, trains_features: bool) -> Vec<Boundary> {
        let all = || work.samples.iter().map(Sample::num_tokens).sum();
        let num_tokens = self.network.own_targets(work).map_or_else(all, |own| own.len() as i64);
        let target = Stream { shape: vec![num_tokens, self.patch_dim], kind: Kind::Float };
        self.stream_boundaries(work).into_iter().chain([boundary(target, trains_features)]).collect()
    }

    fn stream_boundaries(&self, work: &Work<'_>) -> Vec<Boundary> {
        self.network.streams(work).into_iter().map(|stream| boundary(stream, true)).collect()
    }

    /// Records the noised latents of all targets and what the transformer is to predict, float32: `[T, P]` each.
    fn record_noise(&self, tape: &mut Tape, work: &Work<'_>, clean: Slot, noise: Tensor) -> [Slot; 2] {
        let lens: Vec<i64> = work.samples.iter().map(Sample::num_tokens).collect();
        let levels: Vec<f32> = work.sigma.iter().map(|sigma| *sigma as f32).collect();
        let levels = Tensor::from_slice(&levels).repeat_interleave_self_tensor(&Tensor::from_slice(&lens), 0, None);
        let (levels, kind) = (upload(&levels.unsqueeze(1), self.device), self.kind);
        let forward = move |reads: &[Tensor]| {
            let clean = reads[0].to_kind(Kind::Float);
            let noised: Tensor = &clean * (1.0 - &levels) + &noise * &levels;
            vec![noised.to_kind(kind), &noise - clean]
        };
        let written = tape.run("noise", &[], Policy::Recompute, &[clean], 2, forward);
        [written[0], written[1]]
    }

    /// Returns the forward of a micro-batch whose samples are being made.
    pub fn record_velocity(&self, batch: &MicroBatch, at: &Noised) -> VelocityTape {
        let mut tape = Tape::new();
        let features = self.features(&mut tape, &batch.num_features, false);
        let fillers = [filler()];
        let rows = if batch.samples.is_empty() { &fillers } else { &*batch.samples };
        let found = samples(rows, at.prompt, |row, latents| self.network.has_target(row, latents));
        let work = self.work(&found, &at.sigma, &features, share_of(batch));
        let mut inbound = Vec::new();
        let begin = if self.stage.is_first {
            let noised = upload(&at.latents, self.device).to_kind(self.kind);
            let noised = tape.run("latents", &[], Policy::Keep, &[], 1, move |_| vec![noised.shallow_clone()]);
            self.begin(&features, noised[0])
        } else {
            inbound = self.stream_boundaries(&work);
            inbound.iter_mut().for_each(|boundary| boundary.slot = tape.input(false));
            Begin::Streams(inbound.iter().map(|boundary| boundary.slot).collect())
        };
        let written = self.network.record(&mut tape, &work, begin);
        let velocity = self.stage.is_last.then(|| written[0]);
        let mut outbound = if self.stage.is_last { Vec::new() } else { self.stream_boundaries(&work) };
        outbound.iter_mut().zip(written).for_each(|(boundary, slot)| boundary.slot = slot);
        outbound.iter().map(|boundary| boundary.slot).chain(velocity).for_each(|slot| tape.keep(slot));
        let own = self.network.own_targets(&work);
        VelocityTape { tape: Rc::new(tape), features: features.slots, inbound, outbound, velocity, own }
    }

    fn features(&self, tape: &mut Tape, num_features: &[i64], trains: bool) -> Features {
        let counts = (0..self.inputs.len()).map(|at| num_features.get(at).copied().unwrap_or(0)).collect::<Vec<i64>>();
        let slots = |(count, input): (&i64, &FeatureInput)| {
            let levels = if *count == 0 { 0 } else { input.num_tensors };
            (0..levels).map(|_| tape.input(trains)).collect()
        };
        let here = if self.stage.is_first { self.inputs } else { &[] };
        Features { slots: counts.iter().zip(here).map(slots).collect(), counts }
    }

    /// Records the clean latents of all targets `[T, P]`; zeros where there are none.
    fn record_targets(&self, tape: &mut Tape, samples: &[Sample], latents: Option<Slot>) -> Slot {
        let num_tokens = samples.iter().map(Sample::num_tokens).sum::<i64>();
        let size = [num_tokens, self.patch_dim];
        let Some(latents) = latents else {
            let zeros = Tensor::zeros(size, (self.kind, self.device));
            return tape.run("latents", &[], Policy::Keep, &[], 1, move |_| vec![zeros.shallow_clone()])[0];
        };
        let rows: Vec<i64> = samples.iter().flat_map(|sample| sample.target.clone().unwrap_or(0..0)).collect();
        assert_eq!(rows.len() as i64, num_tokens, "a feature for each token of a target");
        if samples.iter().all(|sample| sample.conditions.is_empty()) {
            return latents;
        }
        tape.take_rows(latents, Rc::new(upload(&Tensor::from_slice(&rows), self.device)))
    }

    /// Records latents that are drawn from their means and standard deviations, `[T, P]` each, float32.
    fn record_draws<'s>(
        &self,
        tape: &mut Tape,
        samples: impl Iterator<Item = (&'s SampleRow, &'s Sample)>,
        moments: [Slot; 2],
    ) -> Slot {
        let noise = |(row, sample): (&SampleRow, &Sample)| {
            let draw = Draw { seed: self.flow.seed, sample: row.id, purpose: row.purpose, number: 0 };
            draw.noise_of(OF_LATENTS, &[sample.num_tokens(), self.patch_dim])
        };
        let noise = upload(&Tensor::cat(&samples.map(noise).collect::<Vec<_>>(), 0), self.device);
        let forward = move |reads: &[Tensor]| {
            let [mean, deviation] = [&reads[0], &reads[1]].map(|x| x.to_kind(Kind::Float));
            vec![mean + deviation * &noise]
        };
        tape.run("draws", &[], Policy::Recompute, &moments, 1, forward)[0]
    }

    /// Returns the description of samples that the transformer reads.
    fn work<'b>(&self, samples: &'b [Sample], sigma: &'b [f64], features: &Features, share: Option<Share>) -> Work<'b> {
        let [num_text, num_pictures] = [Tower::Text, Tower::Vision].map(|tower| features.num_rows(self, tower));
        Work { samples, sigma, num_text, num_pictures, policy: self.policy, share }
    }

    fn begin(&self, features: &Features, noised: Slot) -> Begin {
        Begin::Latents(Latents {
            noised,
            clean: features.of(self, Tower::Vae),
            text: features.of(self, Tower::Text),
            pictures: features.of(self, Tower::Vision),
        })
    }

    /// Returns the weight of each token of all samples' targets in the loss `[T]`: a sample's weight is divided among those that count,
    /// by their masks where there are some, else evenly.
    fn weights(&self, rows: &[SampleRow], found: &[Sample], batch: &MicroBatch) -> Tensor {
        let masks =
            batch.columns.find_on_host(WEIGHTS).map(|column| Vec::<f32>::try_from(column).expect("a row of numbers"));
        let mut begin = 0;
        let mut weights = Vec::new();
        for (row, sample) in rows.iter().zip(found) {
            let counted = self.network.counted(sample);
            let of_token = |token: i64| match &masks {
                _ if !counted.contains(&token) => 0.0,
                Some(masks) => f64::from(masks[begin + token as usize]),
                None => 1.0,
            };
            let of_level = if batch.evaluates { 1.0 } else { self.flow.weight.at(sigma(row)) };
            let sum: f64 = (0..sample.num_tokens()).map(of_token).sum();
            let elements = sum * self.patch_dim as f64;
            let share = if elements > 0.0 { of_level * f64::from(row.num_targets) / elements } else { 0.0 };
            // In float32 a token that counts whole has exactly the share of an even division.
            weights.extend((0..sample.num_tokens()).map(|token| (share * of_token(token)) as f32));
            begin += row.num_tokens;
        }
        Tensor::from_slice(&weights)
    }
}

impl Features {
    fn of(&self, recorder: &Recorder<'_>, tower: Tower) -> Option<Slot> {
        let at = recorder.inputs.iter().position(|input| input.tower == tower)?;
        self.slots.get(at)?.first().copied()
    }

    /// Returns the standard deviations of latents; `None`: there are none.
    fn deviations(&self, recorder: &Recorder<'_>) -> Option<Slot> {
        let at = recorder.inputs.iter().position(|input| input.tower == Tower::Vae)?;
        self.slots.get(at)?.get(1).copied()
    }

    fn num_rows(&self, recorder: &Recorder<'_>, tower: Tower) -> i64 {
        let at = recorder.inputs.iter().position(|input| input.tower == tower);
        at.map_or(0, |at| self.counts[at])
    }
}

fn share_of(batch: &MicroBatch) -> Option<Share> {
    batch.row.as_ref().map(|row| Share { rank: row.rank(), ranks: row.split().num_ranks() })
}

/// Returns a boundary of a stream, whose slot is still to come.
fn boundary(Stream { shape, kind }: Stream, requires_grad: bool) -> Boundary {
    Boundary { slot: Tape::new().input(false), shape, kind, requires_grad }
}

fn sigma(row: &SampleRow) -> f64 {
    row.target.map_or(0.0, |target| target.sigma.get())
}

/// Returns one token that counts for nothing.
fn filler() -> SampleRow {
    SampleRow {
        id: SampleId(0),
        num_tokens: 1,
        num_targets: 0,
        target: Some(Target { grid: Grid { t: 1, h: 1, w: 1 }, sigma: Sigma::new(0.5) }),
        items: Vec::new(),
        purpose: NoisePurpose::Training,
    }
}
