//! An audio tower on its parameters, and how it is recorded: stem, blocks, and the states that become features.
//!
//! Shapes: F frames, S positions, K of them kept, D hidden size.

use std::rc::Rc;

use loongforge_core::message::Grid;
use tch::{Device, Tensor};

use super::layout::AudioLayout;
use super::stem::{Stem, StemInputs};
use super::tower_config::AudioTowerConfig;
use crate::device::upload;
use crate::model::tower_blocks::{Attention, Mlp, Norm, Part, beside};
use crate::nn::{Mask, PackedAttention, take_rows};
use crate::params::ParamStore;
use crate::tape::{Policy, Slot, Tape};

/// The tower of a config.
pub(super) struct AudioTower {
    config: AudioTowerConfig,
    stem: Part<Stem>,
    blocks: Vec<(Part<Attention>, Part<Mlp>)>,
    final_norm: Part<Norm>,
    device: Device,
}

impl AudioTower {
    /// Panics where the store was not made from this config's `specs`.
    pub fn new(config: &AudioTowerConfig, params: &ParamStore) -> AudioTower {
        let prefix = config.prefix.as_str();
        let block = |number: i64| {
            let prefix = config.layer_prefix(number);
            let attention = Part::new(params, prefix.as_str(), |scope| config.block.attention(scope));
            (attention, Part::new(params, prefix, |scope| config.block.mlp(scope)))
        };
        let (name, norm) = config.final_norm;
        AudioTower {
            stem: Part::new(params, prefix, |scope| Stem::new(config, scope)),
            blocks: (0..config.num_layers).map(block).collect(),
            final_norm: Part::new(params, prefix, |scope| norm.build(scope, name)),
            device: params.flat().device(),
            config: config.clone(),
        }
    }

    /// Records the tower on clips of these lengths; `stack` states at a time become a feature. `frames` is `[F, bins]`, the
    /// clips one after the other. Returns the slot of the states `[K, D]`, half as many where pairs are averaged.
    pub fn record(&self, tape: &mut Tape, grids: &[Grid], stack: i64, frames: Slot, policy: Policy) -> Slot {
        let config = &self.config;
        let layout = AudioLayout::new(grids, config, if config.pool { 2 * stack } else { stack });
        let windows = Rc::new(PackedAttention::new(&layout.windows, Mask::Full, self.device));

        let inputs = StemInputs::new(config, &layout, self.device);
        let stem = self.stem.part.clone();
        let forward = move |reads: &[Tensor]| vec![stem.forward(&reads[0], &inputs)];
        // What is not in a block all ranks compute alike.
        let is_split = config.block.parallel.tp > 1;
        tape.set_alike(is_split);
        let mut x = tape.run("stem", &self.stem.ids, policy, &[frames], 1, forward)[0];

        tape.set_alike(false);
        for (number, (attention, mlp)) in self.blocks.iter().enumerate() {
            let (branch, windows) = (attention.part.clone(), windows.clone());
            let forward = move |reads: &[Tensor]| vec![branch.forward(&reads[0], None, &windows)];
            x = beside(tape, x, is_split, |tape, x| {
                tape.run(format!("block {number} attention"), &attention.ids, policy, &[x], 1, forward)[0]
            });
            let branch = mlp.part.clone();
            let forward = move |reads: &[Tensor]| vec![branch.forward(&reads[0])];
            x = beside(tape, x, is_split, |tape, x| {
                tape.run(format!("block {number} mlp"), &mlp.ids, policy, &[x], 1, forward)[0]
            });
        }
        tape.set_alike(is_split);
        let rows = layout.kept_rows().map(|rows| upload(&Tensor::from_slice(&rows), self.device));
        let (norm, pool) = (self.final_norm.part.clone(), config.pool);
        let forward = move |reads: &[Tensor]| {
            let mut x = rows.as_ref().map_or_else(|| reads[0].shallow_clone(), |rows| take_rows(&reads[0], rows));
            if pool {
                x = x.view([-1, 2, x.size()[1]]).mean_dim(1, false, None);
            }
            vec![norm.forward(&x)]
        };
        tape.run("states", &self.final_norm.ids, policy, &[x], 1, forward)[0]
    }
}
