//! Wan's transformer on its parameters, or a stage of its blocks, and how it is recorded.

use std::ops::Range;
use std::rc::Rc;

use loongforge_core::message::ItemMeta;
use tch::{Device, Kind, Tensor};

use super::block::{self, FeedForward, PromptAttention, SelfAttention};
use super::config::WanConfig;
use super::embed::{Embed, Head};
use super::layout::{Context, ends, frame};
use crate::model::batch::SampleRow;
use crate::model::dit::network::{Begin, Network, Regions, Stream, Work};
use crate::model::dit::sample::Sample;
use crate::model::stage::Stage;
use crate::model::tower_blocks::Part;
use crate::params::{ParamSpec, ParamStore};
use crate::tape::{Policy, Slot, Tape};

pub(in crate::model::dit) struct Wan {
    config: WanConfig,
    embed: Option<Embed>,
    blocks: Vec<Block>,
    /// The number of the first block.
    first: usize,
    head: Option<Part<Head>>,
    device: Device,
    kind: Kind,
}

struct Block {
    attention: Part<SelfAttention>,
    prompt: Part<PromptAttention>,
    mlp: Part<FeedForward>,
}

/// The inputs of all blocks beside their hidden states; the slots are in a rank's part of them.
struct Told {
    modulations: Slot,
    text: Slot,
    pictures: Option<Slot>,
    context: Rc<Context>,
    regions: Regions,
    policy: Policy,
}

impl WanConfig {
    /// Returns the parameters of a stage.
    pub(in crate::model::dit) fn specs(&self, stage: &Stage) -> Vec<ParamSpec> {
        let block = |number| block::specs(self, &format!("{}blocks.{number}.", self.prefix));
        let mut specs = if stage.is_first { Embed::specs(self) } else { Vec::new() };
        specs.extend(stage.layers.clone().flat_map(block));
        specs.extend(if stage.is_last { Head::specs(self) } else { Vec::new() });
        specs
    }
}

impl Wan {
    /// Panics where the store lacks one of the stage's parameters.
    pub fn new(config: &WanConfig, stage: &Stage, params: &ParamStore) -> Wan {
        let prefix = config.prefix.as_str();
        let block = |number: usize| {
            let prefix = format!("{prefix}blocks.{number}.");
            Block {
                attention: Part::new(params, prefix.as_str(), |scope| SelfAttention::new(scope, config)),
                prompt: Part::new(params, prefix.as_str(), |scope| PromptAttention::new(scope, config)),
                mlp: Part::new(params, prefix.as_str(), |scope| FeedForward::new(scope, config)),
            }
        };
        Wan {
            embed: stage.is_first.then(|| Embed::new(config, params)),
            blocks: stage.layers.clone().map(block).collect(),
            first: stage.layers.start,
            head: stage.is_last.then(|| Part::new(params, prefix, |scope| Head::new(scope, config))),
            device: params.flat().device(),
            kind: params.flat().kind(),
            config: config.clone(),
        }
    }

    fn regions(&self) -> Regions {
        Regions::new(&self.config.parallel)
    }
}

impl Network for Wan {
    fn counted(&self, sample: &Sample) -> Range<i64> {
        if self.config.is_given(sample) { frame(sample)..sample.num_tokens() } else { 0..sample.num_tokens() }
    }

    fn has_target(&self, row: &SampleRow, latents: &[ItemMeta]) -> bool {
        // A condition has the target's size, but a given frame.
        let expected = if self.config.mask_channels() > 0 { 2 } else { 1 };
        let tokens = row.target.map_or(0, |target| target.grid.num_cells());
        latents.len() >= expected && latents[0].num_features as usize == tokens
    }

    fn own_targets(&self, work: &Work<'_>) -> Option<Vec<i64>> {
        work.share.map(|share| share.tokens(&ends(work)))
    }

    fn own_rows(&self, work: &Work<'_>) -> Vec<Vec<i64>> {
        self.own_targets(work).into_iter().collect()
    }

    fn streams(&self, work: &Work<'_>) -> Vec<Stream> {
        let (width, wide) = (self.config.width(), if self.kind == Kind::Double { Kind::Double } else { Kind::Float });
        let all = || work.samples.iter().map(Sample::num_tokens).sum();
        let num_tokens = self.own_targets(work).map_or_else(all, |own| own.len() as i64);
        let levels = self.config.segments(work).1.len() as i64;
        let stream = |shape: &[i64], kind| Stream { shape: shape.to_vec(), kind };
        let mut streams = vec![
            stream(&[num_tokens, width], self.kind),
            stream(&[levels, 6, width], wide),
            stream(&[levels, width], wide),
            stream(&[work.num_text + 1, width], self.kind),
        ];
        if self.config.image.is_some() && work.num_pictures > 0 {
            streams.push(stream(&[work.num_pictures, width], self.kind));
        }
        streams
    }

    fn record(&self, tape: &mut Tape, work: &Work<'_>, begin: Begin) -> Vec<Slot> {
        let context = Rc::new(self.config.context(work, self.device));
        let regions = self.regions();
        regions.set_alike(tape, true);
        let mut streams = match begin {
            Begin::Latents(latents) => {
                let embed = self.embed.as_ref().expect("the first stage");
                embed.record(tape, work, &context, &latents)
            }
            Begin::Streams(streams) => streams,
        };
        regions.set_alike(tape, false);
        let told = Told {
            modulations: regions.enter(tape, streams[1]),
            text: regions.enter(tape, streams[3]),
            pictures: streams.get(4).map(|pictures| regions.enter(tape, *pictures)),
            context: context.clone(),
            regions,
            policy: work.policy,
        };
        for (number, block) in (self.first..).zip(&self.blocks) {
            streams[0] = block.record(tape, &format!("block {number}"), streams[0], &told);
        }
        let Some(head) = &self.head else { return streams };
        regions.set_alike(tape, true);
        let part = head.part.clone();
        let forward = move |reads: &[Tensor]| vec![part.forward(&reads[0], &reads[1], &context.tables.segments)];
        let velocity = tape.run("head", &head.ids, work.policy, &[streams[0], streams[2]], 1, forward);
        regions.set_alike(tape, false);
        velocity
    }
}

impl Block {
    fn record(&self, tape: &mut Tape, name: &str, x: Slot, told: &Told) -> Slot {
        let regions = told.regions;
        let entered = regions.enter(tape, x);
        let y = self.record_attention(tape, name, entered, told);
        let y = regions.leave(tape, y);
        let x = tape.add(x, y);
        let entered = regions.enter(tape, x);
        let y = self.record_prompt(tape, name, entered, told);
        let y = regions.leave(tape, y);
        let x = tape.add(x, y);
        let entered = regions.enter(tape, x);
        let (part, at) = (self.mlp.part.clone(), told.context.clone());
        let forward = move |reads: &[Tensor]| vec![part.forward(&reads[0], &reads[1], &at.tables)];
        let reads = [entered, told.modulations];
        let y = tape.run(format!("{name} mlp"), &self.mlp.ids, told.policy, &reads, 1, forward)[0];
        let y = regions.leave(tape, y);
        tape.add(x, y)
    }

    fn record_attention(&self, tape: &mut Tape, name: &str, x: Slot, told: &Told) -> Slot {
        let (context, regions, policy) = (&told.context, told.regions, told.policy);
        let reads = [x, told.modulations];
        let (part, at, ids) = (self.attention.part.clone(), context.clone(), &self.attention.ids);
        let row = context.clips.shared();
        if !regions.are_split() && row.is_none() {
            let forward = move |reads: &[Tensor]| vec![part.forward(&reads[0], &reads[1], &at)];
            return tape.run(format!("{name} attention"), ids, policy, &reads, 1, forward)[0];
        }
        let projected = format!("{name} queries keys values");
        let heads = if regions.are_split() {
            let project = move |reads: &[Tensor]| part.project(&reads[0], &reads[1], &at.tables);
            let mut parts = tape.run(projected, ids, policy, &reads, 4, project);
            parts[3] = regions.sum_within(tape, parts[3]);
            let (part, at) = (self.attention.part.clone(), context.clone());
            let normed = move |reads: &[Tensor]| part.normed(reads, &at.tables).into();
            tape.run(format!("{name} heads"), ids, policy, &parts, 3, normed)
        } else {
            let heads = move |reads: &[Tensor]| part.heads(&reads[0], &reads[1], &at.tables).into();
            tape.run(projected, ids, policy, &reads, 3, heads)
        };
        let heads = [heads[0], heads[1], heads[2]];
        let (part, at) = (self.attention.part.clone(), context.clone());
        let Some(row) = row else {
            let attend = move |reads: &[Tensor]| {
                let y = at.clips.whole().forward(&reads[0], &reads[1], &reads[2]);
                vec![part.finish(&y, &reads[3], &at.tables)]
            };
            let reads = [&heads[..], &reads[1..]].concat();
            return tape.run(format!("{name} attention"), ids, policy, &reads, 1, attend)[0];
        };
        let y = row.attention(tape, name, heads, part.scale(), policy);
        let finish = move |reads: &[Tensor]| vec![part.finish(&reads[0], &reads[1], &at.tables)];
        tape.run(format!("{name} attention output"), ids, policy, &[y, reads[1]], 1, finish)[0]
    }

    fn record_prompt(&self, tape: &mut Tape, name: &str, x: Slot, told: &Told) -> Slot {
        let (regions, policy) = (told.regions, told.policy);
        let (part, at, ids) = (self.prompt.part.clone(), told.context.clone(), &self.prompt.ids);
        let reads: Vec<Slot> = [x, told.text].into_iter().chain(told.pictures).collect();
        if !regions.are_split() {
            let forward = move |reads: &[Tensor]| vec![part.forward(&reads[0], &reads[1], reads.get(2), &at.tables)];
            return tape.run(format!("{name} prompt"), ids, policy, &reads, 1, forward)[0];
        }
        // Of queries and each kind of keys their squares and values, and of each kind of keys what they stand for.
        let num_squares = reads.len();
        let num_parts = 3 * num_squares - 1;
        let project = move |reads: &[Tensor]| part.project(&reads[0], &reads[1], reads.get(2));
        let mut parts = tape.run(format!("{name} prompt queries keys values"), ids, policy, &reads, num_parts, project);
        parts.iter_mut().take(num_squares).for_each(|slot| *slot = regions.sum_within(tape, *slot));
        let part = self.prompt.part.clone();
        let finish = move |reads: &[Tensor]| vec![part.finish(reads, &at.tables)];
        tape.run(format!("{name} prompt"), ids, policy, &parts, 1, finish)[0]
    }
}
