//! Qwen-Image's transformer on its parameters, or a stage of its blocks, and how it is recorded.

use std::ops::Range;
use std::rc::Rc;

use loongforge_core::message::ItemMeta;
use tch::{Device, Kind, Tensor};

use super::block::{self, Attention, Context, EPS, FeedForward};
use super::config::QwenImageConfig;
use super::embed::Embed;
use super::layout::{self, Layout};
use crate::device::upload;
use crate::model::batch::SampleRow;
use crate::model::dit::maps::{outer_map, zeroed};
use crate::model::dit::network::{Begin, Network, Regions, Stream, Work};
use crate::model::dit::sample::Sample;
use crate::model::stage::Stage;
use crate::model::tower_blocks::Part;
use crate::nn::Linear;
use crate::params::{ParamSpec, ParamStore};
use crate::tape::{Policy, Slot, Tape};

pub(in crate::model::dit) struct QwenImage {
    config: QwenImageConfig,
    embed: Option<Embed>,
    blocks: Vec<Block>,
    /// The number of the first block.
    first: usize,
    /// The map of the last modulation, and the output's.
    head: Option<Part<(Linear, Linear)>>,
    device: Device,
    kind: Kind,
}

struct Block {
    /// The modulations of pictures and those of text.
    modulations: Part<[Linear; 2]>,
    attention: Part<Attention>,
    pictures: Part<FeedForward>,
    text: Part<FeedForward>,
    /// True for the last block, whose text nothing reads.
    is_last: bool,
}

/// The inputs of all blocks beside their hidden states.
struct Told {
    /// Noise levels of all rows, and of samples.
    levels: [Slot; 2],
    context: Rc<Context>,
    regions: Regions,
    policy: Policy,
}

impl QwenImageConfig {
    /// Returns the parameters of a stage.
    pub(in crate::model::dit) fn specs(&self, stage: &Stage) -> Vec<ParamSpec> {
        let (prefix, width) = (self.prefix.as_str(), self.width());
        let block = |number| block::specs(self, &format!("{prefix}transformer_blocks.{number}."));
        let mut specs = if stage.is_first { Embed::specs(self) } else { Vec::new() };
        specs.extend(stage.layers.clone().flat_map(block));
        if stage.is_last {
            specs.extend(zeroed(outer_map(prefix, "norm_out.linear", width, 2 * width)));
            specs.extend(zeroed(outer_map(prefix, "proj_out", width, self.patch_dim())));
        }
        specs
    }
}

impl QwenImage {
    /// Panics where the store lacks one of the stage's parameters.
    pub fn new(config: &QwenImageConfig, stage: &Stage, params: &ParamStore) -> QwenImage {
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
                is_last: number + 1 == config.num_layers,
            }
        };
        let head = || {
            Part::new(params, prefix, |scope| (Linear::new(scope, "norm_out.linear"), Linear::new(scope, "proj_out")))
        };
        QwenImage {
            embed: stage.is_first.then(|| Embed::new(config, params)),
            blocks: stage.layers.clone().map(block).collect(),
            first: stage.layers.start,
            head: stage.is_last.then(head),
            device: params.flat().device(),
            kind: params.flat().kind(),
            config: config.clone(),
        }
    }
}

impl Network for QwenImage {
    fn counted(&self, sample: &Sample) -> Range<i64> {
        0..sample.num_tokens()
    }

    fn has_target(&self, row: &SampleRow, latents: &[ItemMeta]) -> bool {
        latents.iter().map(|item| item.num_features as usize).sum::<usize>() >= row.num_tokens
    }

    fn own_targets(&self, work: &Work<'_>) -> Option<Vec<i64>> {
        layout::own_targets(&self.config, work)
    }

    fn own_rows(&self, work: &Work<'_>) -> Vec<Vec<i64>> {
        layout::own_rows(&self.config, work)
    }

    fn streams(&self, work: &Work<'_>) -> Vec<Stream> {
        let (width, wide) = (self.config.width(), if self.kind == Kind::Double { Kind::Double } else { Kind::Float });
        let layout = Layout::new(&self.config, work, self.device);
        let stream = |rows: i64, kind| Stream { shape: vec![rows, width], kind };
        vec![
            stream(layout.num_tokens, self.kind),
            stream(layout.context.num_text, self.kind),
            stream(layout.levels.len() as i64, wide),
            stream(layout.of_samples.len() as i64, wide),
        ]
    }

    fn record(&self, tape: &mut Tape, work: &Work<'_>, begin: Begin) -> Vec<Slot> {
        let layout = Layout::new(&self.config, work, self.device);
        let (regions, policy) = (Regions::new(&self.config.parallel), work.policy);
        regions.set_alike(tape, true);
        let mut streams = match begin {
            Begin::Latents(latents) => {
                let embed = self.embed.as_ref().expect("the first stage");
                embed.record(tape, work, &latents, &layout)
            }
            Begin::Streams(streams) => streams,
        };
        regions.set_alike(tape, false);
        let Layout { context, targets, head, .. } = layout;
        let levels = [2, 3].map(|at: usize| regions.enter(tape, streams[at]));
        let told = Told { levels, context: Rc::new(context), regions, policy };
        for (number, block) in (self.first..).zip(&self.blocks) {
            let [x, text] = block.record(tape, &format!("block {number}"), [streams[0], streams[1]], &told);
            (streams[0], streams[1]) = (x, text);
        }
        let Some(Part { part, ids }) = &self.head else { return streams };
        regions.set_alike(tape, true);
        let mut x = streams[0];
        if let Some(targets) = targets {
            x = tape.take_rows(x, Rc::new(upload(&Tensor::from_slice(&targets), self.device)));
        }
        let part = part.clone();
        let forward = move |reads: &[Tensor]| {
            let (modulation, output) = &*part;
            // The scale comes first.
            let table = modulation.forward_wide(&reads[1]).unflatten(-1, [2, -1]).flip([1]);
            vec![output.forward(&head.modulate(&reads[0], &table, 0, EPS))]
        };
        let velocity = tape.run("head", ids, policy, &[x, streams[3]], 1, forward);
        regions.set_alike(tape, false);
        velocity
    }
}

impl Block {
    /// Records pictures and text behind the block.
    fn record(&self, tape: &mut Tape, name: &str, [x, text]: [Slot; 2], told: &Told) -> [Slot; 2] {
        let (context, regions, policy) = (&told.context, told.regions, told.policy);
        let part = self.modulations.part.clone();
        let forward =
            move |reads: &[Tensor]| [0, 1].map(|at| part[at].forward_wide(&reads[at]).unflatten(-1, [6, -1])).into();
        let ids = &self.modulations.ids;
        let modulations = tape.run(format!("{name} modulations"), ids, policy, &told.levels, 2, forward);
        let entered = [regions.enter(tape, x), regions.enter(tape, text)];
        let written = self.record_attention(tape, name, entered, [modulations[0], modulations[1]], told);
        let y = regions.leave(tape, written[0]);
        let x = tape.add(x, y);
        let (part, at) = (self.pictures.part.clone(), context.clone());
        let forward = move |reads: &[Tensor]| vec![part.forward(&reads[0], &reads[1], &at.pictures)];
        let reads = [regions.enter(tape, x), modulations[0]];
        let y = tape.run(format!("{name} mlp"), &self.pictures.ids, policy, &reads, 1, forward)[0];
        let y = regions.leave(tape, y);
        let x = tape.add(x, y);
        if self.is_last {
            return [x, text];
        }
        let y = regions.leave(tape, written[1]);
        let text = tape.add(text, y);
        let (part, at) = (self.text.part.clone(), context.clone());
        let forward = move |reads: &[Tensor]| vec![part.forward(&reads[0], &reads[1], &at.text)];
        let reads = [regions.enter(tape, text), modulations[1]];
        let y = tape.run(format!("{name} text mlp"), &self.text.ids, policy, &reads, 1, forward)[0];
        let y = regions.leave(tape, y);
        [x, tape.add(text, y)]
    }

    /// Records the gated branches of pictures and, where something reads it, of text.
    fn record_attention(
        &self,
        tape: &mut Tape,
        name: &str,
        [x, text]: [Slot; 2],
        modulations: [Slot; 2],
        told: &Told,
    ) -> Vec<Slot> {
        let (context, policy) = (&told.context, told.policy);
        let (part, at, ids) = (self.attention.part.clone(), context.clone(), &self.attention.ids);
        let (with_text, reads) = (!self.is_last, [x, text, modulations[0], modulations[1]]);
        let num_written = 1 + usize::from(with_text);
        let Some(row) = context.samples.shared() else {
            let forward =
                move |reads: &[Tensor]| part.forward([&reads[0], &reads[1]], [&reads[2], &reads[3]], &at, with_text);
            return tape.run(format!("{name} attention"), ids, policy, &reads, num_written, forward);
        };
        let scale = part.scale();
        let heads = move |reads: &[Tensor]| part.heads([&reads[0], &reads[1]], [&reads[2], &reads[3]], &at).into();
        let heads = tape.run(format!("{name} queries keys values"), ids, policy, &reads, 3, heads);
        let y = row.attention(tape, name, [heads[0], heads[1], heads[2]], scale, policy);
        let (part, at) = (self.attention.part.clone(), context.clone());
        let finish = move |reads: &[Tensor]| part.finish(&reads[0], [&reads[1], &reads[2]], &at, with_text);
        let reads = [y, modulations[0], modulations[1]];
        tape.run(format!("{name} attention output"), ids, policy, &reads, num_written, finish)
    }
}
