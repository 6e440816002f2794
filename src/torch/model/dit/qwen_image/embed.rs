//! The layers before Qwen-Image's blocks.
//!
//! Shapes: T tokens of all samples' targets and references, K rows of text, R noise levels, D width, P numbers of a patch.

use std::rc::Rc;

use tch::{Device, Kind, Tensor};

use super::block::EPS;
use super::config::QwenImageConfig;
use super::layout::Layout;
use crate::device::upload;
use crate::model::dit::maps::outer_map;
use crate::model::dit::network::{Latents, Work};
use crate::model::dit::sample::Sample;
use crate::model::dit::time::{TimeEmbedder, sinusoids};
use crate::model::tower_blocks::Part;
use crate::nn::{Linear, RmsNorm};
use crate::params::{ParamSpec, ParamStore};
use crate::tape::{Policy, Slot, Tape};

/// A noise level is embedded as this many times itself.
const TIMES: f64 = 1000.0;
/// Numbers of its sinusoids.
const FREQUENCIES: i64 = 256;
const TIME: &str = "time_text_embed.timestep_embedder";

pub(super) struct Embed {
    patches: Part<Linear>,
    text: Part<(RmsNorm, Linear)>,
    time: Part<TimeEmbedder>,
    text_dim: i64,
    device: Device,
    kind: Kind,
}

impl Embed {
    /// Declares the layers before the blocks: noise levels, the norm and the map of text states, and the map of patches.
    pub fn specs(config: &QwenImageConfig) -> Vec<ParamSpec> {
        let (prefix, width) = (config.prefix.as_str(), config.width());
        let mut specs = TimeEmbedder::specs(prefix, TIME, FREQUENCIES, width);
        specs.extend(RmsNorm::specs(prefix, "txt_norm", config.text_dim));
        specs.extend(outer_map(prefix, "img_in", config.patch_dim(), width));
        specs.extend(outer_map(prefix, "txt_in", config.text_dim, width));
        specs
    }

    /// Takes the parameters that [`Embed::specs`] declares.
    pub fn new(config: &QwenImageConfig, params: &ParamStore) -> Embed {
        let prefix = config.prefix.as_str();
        Embed {
            patches: Part::new(params, prefix, |scope| Linear::new(scope, "img_in")),
            text: Part::new(params, prefix, |scope| {
                (RmsNorm::new(scope, "txt_norm", EPS), Linear::new(scope, "txt_in"))
            }),
            time: Part::new(params, prefix, |scope| TimeEmbedder::new(scope, TIME)),
            text_dim: config.text_dim,
            device: params.flat().device(),
            kind: params.flat().kind(),
        }
    }

    /// Records pictures `[T, D]`, text `[K, D]`, and the embeddings of noise levels, behind their activation, float32: of all levels
    /// `[R, D]`, and of those that are samples' own.
    pub fn record(&self, tape: &mut Tape, work: &Work<'_>, latents: &Latents, layout: &Layout) -> Vec<Slot> {
        let (policy, levels, of_samples) = (work.policy, &layout.levels, &layout.of_samples);
        let own = |tape: &mut Tape, x: Slot, stream: usize| match &layout.own {
            Some(own) => tape.take_rows(x, own[stream].clone()),
            None => x,
        };
        let input = self.record_input(tape, work.samples, latents);
        let input = own(tape, input, 1);
        let part = self.patches.part.clone();
        let forward = move |reads: &[Tensor]| vec![part.forward(&reads[0])];
        let x = tape.run("patches", &self.patches.ids, policy, &[input], 1, forward)[0];
        let rows = self.record_rows(tape, work, latents);
        let rows = own(tape, rows, 0);
        let part = self.text.part.clone();
        let forward = move |reads: &[Tensor]| vec![part.1.forward(&part.0.forward(&reads[0]))];
        let text = tape.run("text", &self.text.ids, policy, &[rows], 1, forward)[0];

        let waves = sinusoids(levels, TIMES, FREQUENCIES, self.device);
        let (part, own) = (self.time.part.clone(), upload(&Tensor::from_slice(of_samples), self.device));
        let all_own = of_samples.len() == levels.len();
        let forward = move |_: &[Tensor]| {
            let level = part.forward(&waves).silu();
            let of_samples = if all_own { level.shallow_clone() } else { level.index_select(0, &own) };
            vec![level, of_samples]
        };
        let of_levels = tape.run("noise levels", &self.time.ids, policy, &[], 2, forward);
        vec![x, text, of_levels[0], of_levels[1]]
    }

    /// Records the patches of all pictures `[T, P]`: of each sample the noised target, and its references behind it.
    fn record_input(&self, tape: &mut Tape, samples: &[Sample], latents: &Latents) -> Slot {
        let Some(clean) = latents.clean.filter(|_| samples.iter().any(|sample| !sample.conditions.is_empty())) else {
            return latents.noised;
        };
        let num_noised = samples.iter().map(Sample::num_tokens).sum::<i64>();
        let (mut rows, mut at) = (Vec::new(), 0);
        for sample in samples {
            rows.extend(at..at + sample.num_tokens());
            at += sample.num_tokens();
            let references = sample.conditions.iter().flat_map(|(_, rows)| rows.clone());
            rows.extend(references.map(|row| num_noised + row));
        }
        let rows = upload(&Tensor::from_slice(&rows), self.device);
        let forward = move |reads: &[Tensor]| vec![Tensor::cat(reads, 0).index_select(0, &rows)];
        tape.run("references", &[], Policy::Recompute, &[latents.noised, clean], 1, forward)[0]
    }

    /// Records the rows of text of the samples, where there may be others.
    fn record_rows(&self, tape: &mut Tape, work: &Work<'_>, latents: &Latents) -> Slot {
        let Some(text) = latents.text else {
            let none = Tensor::zeros([0, self.text_dim], (self.kind, self.device));
            return tape.run("no text", &[], Policy::Keep, &[], 1, move |_| vec![none.shallow_clone()])[0];
        };
        let rows: Vec<i64> = work.samples.iter().flat_map(|sample| sample.text.clone()).collect();
        match rows.len() as i64 == work.num_text {
            true => text,
            false => tape.take_rows(text, Rc::new(upload(&Tensor::from_slice(&rows), self.device))),
        }
    }
}
