//! An audio tower and its projector: clips to features for the decoder.

use std::rc::Rc;
use std::sync::Arc;

use loongforge_core::message::Grid;

use super::projector::{AudioProjector, AudioProjectorConfig};
use super::tower::AudioTower;
use super::tower_config::AudioTowerConfig;
use crate::model::encoder::{EncoderFamily, EncoderModel, EncoderTape};
use crate::model::parallel_errors::TensorParallelError;
use crate::model::tower_blocks::Divided;
use crate::params::{ParallelRank, ParamSpec, ParamStore};
use crate::tape::{Policy, Tape};

/// An encoder as data. A clip is an item of as many rows as it has frames, [`AudioTowerConfig::frames_behind`] more where
/// the tower has such.
#[derive(Clone, Debug, PartialEq)]
pub struct AudioConfig {
    pub tower: AudioTowerConfig,
    pub projector: AudioProjectorConfig,
}

/// The encoder on the parameters of a store.
struct AudioEncoder {
    tower: AudioTower,
    projector: AudioProjector,
    stack: i64,
    is_split: bool,
    policy: Policy,
}

impl EncoderFamily for AudioConfig {
    fn divided(&self, place: &ParallelRank) -> Result<Arc<dyn EncoderFamily>, TensorParallelError> {
        let block = self.tower.block.divided(place, "audio_config.encoder_attention_heads")?;
        let local = AudioConfig { tower: AudioTowerConfig { block, ..self.tower.clone() }, ..self.clone() };
        Ok(Arc::new(Divided { local, whole: self.clone(), place: *place }))
    }

    fn specs(&self) -> Vec<ParamSpec> {
        self.tower.specs().into_iter().chain(self.projector.specs()).collect()
    }

    fn build(&self, params: &ParamStore, policy: Policy) -> Box<dyn EncoderModel> {
        Box::new(AudioEncoder {
            tower: AudioTower::new(&self.tower, params),
            projector: AudioProjector::new(&self.projector, params),
            stack: self.projector.stack,
            is_split: self.tower.block.parallel.tp > 1,
            policy,
        })
    }

    fn patch_dim(&self) -> i64 {
        self.tower.num_mel_bins
    }

    fn prefixes(&self) -> [&str; 2] {
        [&self.tower.prefix, &self.projector.prefix]
    }

    fn is_projector(&self, name: &str) -> bool {
        self.projector.has(name)
    }

    fn num_features(&self, grid: Grid) -> usize {
        (self.tower.num_states(grid.num_cells() as i64) / self.projector.stack) as usize
    }
}

impl EncoderModel for AudioEncoder {
    fn record(&self, grids: &[Grid]) -> EncoderTape {
        let mut tape = Tape::new();
        let pixels = tape.input(false);
        let states = self.tower.record(&mut tape, grids, self.stack, pixels, self.policy);
        // Projectors are not split.
        tape.set_alike(self.is_split);
        let features = self.projector.record(&mut tape, states, self.policy);
        EncoderTape { tape: Rc::new(tape), pixels, outputs: vec![features] }
    }
}
