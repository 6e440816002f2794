//! The tower on a tape: pictures of one size go through it together.

use std::rc::Rc;

use loongforge_core::message::Grid;
use tch::Tensor;

use super::block::{self, Among, Block};
use super::config::DavitConfig;
use super::embed::{self, ConvEmbed};
use super::projector::{self, Projector};
use crate::model::encoder::{EncoderFamily, EncoderModel, EncoderTape};
use crate::model::tower_blocks::Part;
use crate::params::{ParamSpec, ParamStore};
use crate::tape::{Policy, Slot, Tape};

/// The tower on the parameters of a store.
struct Davit {
    config: DavitConfig,
    stages: Vec<(Part<ConvEmbed>, Vec<Part<Block>>)>,
    projector: Part<Projector>,
    policy: Policy,
}

impl EncoderFamily for DavitConfig {
    fn specs(&self) -> Vec<ParamSpec> {
        let stage = |number: usize| {
            let blocks = (0..self.stages[number].depth).flat_map(move |block| Among::BOTH.map(|among| (block, among)));
            let blocks = blocks.flat_map(move |(block, among)| block::specs(self, number, block, among));
            embed::specs(self, number).into_iter().chain(blocks)
        };
        let tower = (0..self.stages.len()).flat_map(stage);
        let tower = tower.map(|spec| if self.frozen { spec.frozen() } else { spec });
        tower.chain(projector::specs(self)).collect()
    }

    fn build(&self, params: &ParamStore, policy: Policy) -> Box<dyn EncoderModel> {
        let stage = |number: usize| {
            let blocks = (0..self.stages[number].depth).flat_map(|block| Among::BOTH.map(|among| (block, among)));
            let block = |(block, among)| {
                let prefix = block::prefix_of(self, number, block, among);
                Part::new(params, prefix, |scope| Block::new(self, number, among, scope))
            };
            let embed = Part::new(params, ConvEmbed::prefix(self, number), |scope| ConvEmbed::new(self, number, scope));
            (embed, blocks.map(block).collect())
        };
        Box::new(Davit {
            stages: (0..self.stages.len()).map(stage).collect(),
            projector: Part::new(params, self.projector_prefix.as_str(), Projector::new),
            config: self.clone(),
            policy,
        })
    }

    fn patch_dim(&self) -> i64 {
        self.in_channels * self.patch() * self.patch()
    }

    fn prefixes(&self) -> [&str; 2] {
        [&self.prefix, &self.projector_prefix]
    }

    fn is_projector(&self, name: &str) -> bool {
        name.starts_with(&self.projector_prefix)
    }

    fn num_features(&self, grid: Grid) -> usize {
        self.num_features_of(self.pixels(grid)) as usize
    }
}

impl EncoderModel for Davit {
    fn record(&self, grids: &[Grid]) -> EncoderTape {
        let mut tape = Tape::new();
        let pixels = tape.input(false);
        let mut first = 0;
        let mut features = Vec::new();
        for alike in grids.chunk_by(|one, other| one == other) {
            features.push(self.record_alike(&mut tape, pixels, first, alike));
            first += alike.iter().map(|grid| grid.num_cells() as i64).sum::<i64>();
        }
        let rows = match features.as_slice() {
            [only] => *only,
            all => tape.run("features", &[], self.policy, all, 1, |reads| vec![Tensor::cat(reads, 0)])[0],
        };
        EncoderTape { tape: Rc::new(tape), pixels, outputs: vec![rows] }
    }
}

impl Davit {
    /// Records pictures of one size, whose patches begin at row `first` of `pixels`; their features.
    fn record_alike(&self, tape: &mut Tape, pixels: Slot, first: i64, grids: &[Grid]) -> Slot {
        let (size, count) = (self.config.pixels(grids[0]), grids.len() as i64);
        let (patch, channels) = (self.config.patch(), self.config.in_channels);
        let [down, across] = size.map(|side| side / patch);
        let mut x = pixels;
        for (number, (embed, blocks)) in self.stages.iter().enumerate() {
            let part = embed.part.clone();
            let forward = move |reads: &[Tensor]| {
                if number > 0 {
                    return vec![part.forward(&reads[0])];
                }
                let patches = reads[0].narrow(0, first, count * down * across);
                let patches = patches.view([count, down, across, channels, patch, patch]);
                let pictures = patches.permute([0, 3, 1, 4, 2, 5]);
                vec![part.forward(&pictures.reshape([count, channels, size[0], size[1]]))]
            };
            x = tape.run(format!("stage {number} embed"), &embed.ids, self.policy, &[x], 1, forward)[0];
            for (at, block) in blocks.iter().enumerate() {
                let part = block.part.clone();
                let forward = move |reads: &[Tensor]| vec![part.forward(&reads[0])];
                let name = format!("stage {number} block {at}");
                x = tape.run(name, &block.ids, self.policy, &[x], 1, forward)[0];
            }
        }
        let part = self.projector.part.clone();
        let forward = move |reads: &[Tensor]| vec![part.forward(&reads[0])];
        tape.run("projector", &self.projector.ids, self.policy, &[x], 1, forward)[0]
    }
}
