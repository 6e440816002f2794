//! Qwen-Image's transformer on its parameters, and how it is recorded.
//!
//! Shapes: T tokens of all samples' targets and references, K rows of text, R noise levels, D width, P numbers of a patch.

use std::ops::Range;
use std::rc::Rc;

use loongforge_core::message::ItemMeta;
use tch::{Device, Kind, Tensor};

use super::block::{self, Attention, EPS, FeedForward};
use super::config::QwenImageConfig;
use super::layout::Layout;
use crate::model::batch::SampleRow;
use crate::model::dit::maps::{outer_map, zeroed};
use crate::model::dit::network::{Latents, Network};
use crate::model::dit::sample::Sample;
use crate::model::dit::segments::wide;
use crate::model::dit::time::{TimeEmbedder, sinusoids};
use crate::model::tower_blocks::Part;
use crate::nn::{Linear, RmsNorm};
use crate::params::{ParamSpec, ParamStore};
use crate::tape::{Policy, Slot, Tape};

/// A noise level is embedded as this many times itself.
const TIMES: f64 = 1000.0;
/// Numbers of its sinusoids.
const FREQUENCIES: i64 = 256;

pub(in crate::model::dit) struct QwenImage {
    config: QwenImageConfig,
    patches: Part<Linear>,
    text: Part<(RmsNorm, Linear)>,
    time: Part<TimeEmbedder>,
    blocks: Vec<Block>,
    /// The map of the last modulation, and the output's.
    head: Part<(Linear, Linear)>,
    device: Device,
    kind: Kind,
}

struct Block {
    /// Of pictures and of text.
    modulations: Part<[Linear; 2]>,
    attention: Part<Attention>,
    pictures: Part<FeedForward>,
    text: Part<FeedForward>,
}

/// The parameters of a transformer.
pub(super) fn specs(config: &QwenImageConfig) -> Vec<ParamSpec> {
    let (prefix, width) = (config.prefix.as_str(), config.width());
    let mut specs = TimeEmbedder::specs(prefix, "time_text_embed.timestep_embedder", FREQUENCIES, width);
    specs.extend(RmsNorm::specs(prefix, "txt_norm", config.text_dim));
    specs.extend(outer_map(prefix, "img_in", config.patch_dim(), width));
    specs.extend(outer_map(prefix, "txt_in", config.text_dim, width));
    let block = |number| block::specs(config, &format!("{prefix}transformer_blocks.{number}."));
    specs.extend((0..config.num_layers).flat_map(block));
    specs.extend(zeroed(outer_map(prefix, "norm_out.linear", width, 2 * width)));
    specs.extend(zeroed(outer_map(prefix, "proj_out", width, config.patch_dim())));
    specs
}

impl QwenImage {
    /// Panics where the store was not made from [`specs`].
    pub fn new(config: &QwenImageConfig, params: &ParamStore) -> QwenImage {
        let prefix = config.prefix.as_str();
        let block = |number: usize| {
            let prefix = format!("{prefix}transformer_blocks.{number}.");
            Block {
                modulations: Part::new(params, prefix.as_str(), |scope| {
                    ["img_mod.1", "txt_mod.1"].map(|name| Linear::new(scope, name))
                }),
                attention: Part::new(params, prefix.as_str(), |scope| Attention::new(scope, config)),
                pictures: Part::new(params, prefix.as_str(), |scope| FeedForward::new(scope, "img")),
                text: Part::new(params, prefix.as_str(), |scope| FeedForward::new(scope, "txt")),
            }
        };
        QwenImage {
            patches: Part::new(params, prefix, |scope| Linear::new(scope, "img_in")),
            text: Part::new(params, prefix, |scope| {
                (RmsNorm::new(scope, "txt_norm", EPS), Linear::new(scope, "txt_in"))
            }),
            time: Part::new(params, prefix, |scope| TimeEmbedder::new(scope, "time_text_embed.timestep_embedder")),
            blocks: (0..config.num_layers).map(block).collect(),
            head: Part::new(params, prefix, |scope| {
                (Linear::new(scope, "norm_out.linear"), Linear::new(scope, "proj_out"))
            }),
            device: params.flat().device(),
            kind: params.flat().kind(),
            config: config.clone(),
        }
    }

    /// The patches of all pictures `[T, P]`: of each sample the noised target, and its references behind it.
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
        let rows = Tensor::from_slice(&rows).to_device(self.device);
        let forward = move |reads: &[Tensor]| vec![Tensor::cat(reads, 0).index_select(0, &rows)];
        tape.run("references", &[], Policy::Recompute, &[latents.noised, clean], 1, forward)[0]
    }

    /// The rows of text of these samples, where there may be others.
    fn record_text(&self, tape: &mut Tape, samples: &[Sample], latents: &Latents) -> Slot {
        let Some(text) = latents.text else {
            let none = Tensor::zeros([0, self.config.text_dim], (self.kind, self.device));
            return tape.run("no text", &[], Policy::Keep, &[], 1, move |_| vec![none.shallow_clone()])[0];
        };
        let rows: Vec<i64> = samples.iter().flat_map(|sample| sample.text.clone()).collect();
        match rows.len() as i64 == latents.num_text {
            true => text,
            false => tape.take_rows(text, Rc::new(Tensor::from_slice(&rows).to_device(self.device))),
        }
    }

    /// Embeddings `[R, D]`, behind their activation, of all noise levels and of those of samples.
    fn record_levels(&self, tape: &mut Tape, levels: &[f64], of_samples: &[i64], policy: Policy) -> Vec<Slot> {
        let waves = sinusoids(levels, TIMES, FREQUENCIES, self.device);
        let (part, own) = (self.time.part.clone(), Tensor::from_slice(of_samples).to_device(self.device));
        let all_own = of_samples.len() == levels.len();
        let forward = move |_: &[Tensor]| {
            let level = part.forward(&waves).silu();
            let of_samples = if all_own { level.shallow_clone() } else { level.index_select(0, &own) };
            vec![level, of_samples]
        };
        tape.run("noise levels", &self.time.ids, policy, &[], 2, forward)
    }
}

impl Network for QwenImage {
    fn counted(&self, sample: &Sample) -> Range<i64> {
        0..sample.num_tokens()
    }

    fn has_target(&self, row: &SampleRow, latents: &[ItemMeta]) -> bool {
        latents.iter().map(|item| item.num_features as usize).sum::<usize>() >= row.num_tokens
    }

    fn record(&self, tape: &mut Tape, samples: &[Sample], sigma: &[f64], latents: &Latents, policy: Policy) -> Slot {
        let Layout { context, levels, of_samples, targets, head } =
            Layout::new(&self.config, samples, sigma, self.device);
        let context = Rc::new(context);
        let input = self.record_input(tape, samples, latents);
        let part = self.patches.part.clone();
        let forward = move |reads: &[Tensor]| vec![part.forward(&reads[0])];
        let mut x = tape.run("patches", &self.patches.ids, policy, &[input], 1, forward)[0];
        let rows = self.record_text(tape, samples, latents);
        let part = self.text.part.clone();
        let forward = move |reads: &[Tensor]| vec![part.1.forward(&part.0.forward(&reads[0]))];
        let mut text = tape.run("text", &self.text.ids, policy, &[rows], 1, forward)[0];
        let level = self.record_levels(tape, &levels, &of_samples, policy);

        let last = self.blocks.len().saturating_sub(1);
        for (number, block) in self.blocks.iter().enumerate() {
            let part = block.modulations.part.clone();
            let forward = move |reads: &[Tensor]| {
                [0, 1].map(|at| part[at].forward_wide(&reads[at]).unflatten(-1, [6, -1])).into()
            };
            let name = format!("block {number} modulations");
            let modulations = tape.run(name, &block.modulations.ids, policy, &level, 2, forward);
            let (part, at, with_text) = (block.attention.part.clone(), context.clone(), number < last);
            let forward =
                move |reads: &[Tensor]| part.forward([&reads[0], &reads[1]], [&reads[2], &reads[3]], &at, with_text);
            let reads = [x, text, modulations[0], modulations[1]];
            let name = format!("block {number} attention");
            let written = tape.run(name, &block.attention.ids, policy, &reads, 1 + usize::from(with_text), forward);
            x = tape.add(x, written[0]);
            let (part, at) = (block.pictures.part.clone(), context.clone());
            let forward = move |reads: &[Tensor]| vec![part.forward(&reads[0], &reads[1], &at.pictures)];
            let name = format!("block {number} mlp");
            let y = tape.run(name, &block.pictures.ids, policy, &[x, modulations[0]], 1, forward)[0];
            x = tape.add(x, y);
            // Nothing reads the text of the last block.
            if with_text {
                text = tape.add(text, written[1]);
                let (part, at) = (block.text.part.clone(), context.clone());
                let forward = move |reads: &[Tensor]| vec![part.forward(&reads[0], &reads[1], &at.text)];
                let name = format!("block {number} text mlp");
                let y = tape.run(name, &block.text.ids, policy, &[text, modulations[1]], 1, forward)[0];
                text = tape.add(text, y);
            }
        }
        if let Some(targets) = targets {
            x = tape.take_rows(x, Rc::new(Tensor::from_slice(&targets).to_device(self.device)));
        }
        let part = self.head.part.clone();
        let forward = move |reads: &[Tensor]| {
            let (modulation, output) = &*part;
            // The scale comes first.
            let rows = wide(&modulation.forward_wide(&reads[1])).chunk(2, -1);
            vec![output.forward(&head.modulate(&reads[0], &rows[1], &rows[0], EPS))]
        };
        tape.run("head", &self.head.ids, policy, &[x, level[1]], 1, forward)[0]
    }
}
