//! A tower and its projectors: pictures to features for the decoder.

use std::any::Any;
use std::rc::Rc;
use std::sync::Arc;

use loongforge_core::message::Grid;

use super::projector::{Projector, ProjectorConfig, ProjectorKind};
use super::tower::Tower;
use super::tower_config::TowerConfig;
use crate::model::encoder::{EncoderFamily, EncoderModel, EncoderTape};
use crate::model::parallel_errors::TensorParallelError;
use crate::model::tower_blocks::Divided;
use crate::params::{ParallelRank, ParamSpec, ParamStore};
use crate::tape::{Policy, Slot, Tape};

/// An encoder as data.
#[derive(Clone, Debug, PartialEq)]
pub struct VisionConfig {
    pub tower: TowerConfig,
    pub projector: ProjectorConfig,
    /// One for each of the tower's DeepStack blocks, in their order.
    pub deepstack: Vec<ProjectorConfig>,
}

impl VisionConfig {
    /// Returns Qwen3-VL's tower with other names in its mergers: of the norm, of the two maps, and of the list of DeepStack mergers.
    pub(in crate::model) fn with_mergers(
        mut self,
        norm_name: &'static str,
        maps: [&'static str; 2],
        list: &str,
    ) -> VisionConfig {
        for projector in std::iter::once(&mut self.projector).chain(&mut self.deepstack) {
            projector.prefix = projector.prefix.replace("deepstack_merger_list.", list);
            if let ProjectorKind::Mlp { norm, linears, .. } = &mut projector.kind {
                norm.iter_mut().for_each(|norm| norm.name = norm_name);
                *linears = maps;
            }
        }
        self
    }

    /// Returns the same tower with all names behind `prefix`, and without the parameters of a checkpoint by which nothing is computed.
    pub(in crate::model) fn under(mut self, prefix: &str) -> VisionConfig {
        for own in std::iter::once(&mut self.tower.prefix)
            .chain([&mut self.projector.prefix])
            .chain(self.deepstack.iter_mut().map(|it| &mut it.prefix))
        {
            own.insert_str(0, prefix);
        }
        let tower = TowerConfig { unused_blocks: 0, unused: Vec::new(), ..self.tower };
        VisionConfig { tower, ..self }
    }

    /// Returns the part of the tower that the rank at `place` computes. Projectors are not split.
    ///
    /// # Errors
    /// The heads cannot be split into as many parts.
    pub(in crate::model) fn local(&self, place: &ParallelRank) -> Result<VisionConfig, TensorParallelError> {
        let block = self.tower.block.divided(place, "vision_config.num_heads")?;
        Ok(VisionConfig { tower: TowerConfig { block, ..self.tower.clone() }, ..self.clone() })
    }
}

/// The encoder on the parameters of a store.
pub(in crate::model) struct VisionEncoder {
    tower: Tower,
    projector: Projector,
    deepstack: Vec<Projector>,
    policy: Policy,
}

impl EncoderFamily for VisionConfig {
    fn divided(&self, place: &ParallelRank) -> Result<Arc<dyn EncoderFamily>, TensorParallelError> {
        Ok(Arc::new(Divided { local: self.local(place)?, whole: self.clone(), place: *place }))
    }

    fn specs(&self) -> Vec<ParamSpec> {
        let projectors = std::iter::once(&self.projector).chain(&self.deepstack);
        self.tower.specs().into_iter().chain(projectors.flat_map(ProjectorConfig::specs)).collect()
    }

    fn build(&self, params: &ParamStore, policy: Policy) -> Box<dyn EncoderModel> {
        Box::new(VisionEncoder::new(self, params, policy))
    }

    fn num_outputs(&self) -> usize {
        1 + self.deepstack.len()
    }

    fn patch_dim(&self) -> i64 {
        self.tower.patch_dim()
    }

    fn prefixes(&self) -> [&str; 2] {
        [&self.tower.prefix, &self.projector.prefix]
    }

    fn is_projector(&self, name: &str) -> bool {
        let mut projectors = std::iter::once(&self.projector).chain(&self.deepstack);
        projectors.any(|it| it.kind != ProjectorKind::None && name.starts_with(&it.prefix))
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }

    fn num_features(&self, grid: Grid) -> usize {
        self.projector.num_features(self.tower.grid_out(grid)) + self.tower.num_kept(grid)
    }
}

impl VisionEncoder {
    /// Takes the parameters of the tower and its projectors, DeepStack's too; its tape keeps activations as `policy` says.
    pub(in crate::model) fn new(config: &VisionConfig, params: &ParamStore, policy: Policy) -> VisionEncoder {
        VisionEncoder {
            tower: Tower::new(&config.tower, params),
            projector: Projector::new(&config.projector, params),
            deepstack: config.deepstack.iter().map(|config| Projector::new(config, params)).collect(),
            policy,
        }
    }

    /// Records the encoding of items of these sizes, of their patches `[patches, patch_dim]`, on a tape: features `[N, dim]`, and
    /// those of each DeepStack level.
    pub(in crate::model) fn record_on(&self, tape: &mut Tape, grids: &[Grid], pixels: Slot) -> Vec<Slot> {
        let policy = self.policy;
        let states = self.tower.record(tape, grids, pixels, policy);
        let grids: Vec<Grid> = grids.iter().map(|grid| self.tower.config().grid_out(*grid)).collect();
        // Projectors are not split.
        tape.set_alike(self.tower.config().block.parallel.tp > 1);
        let mut outputs = vec![self.projector.record(tape, "projector".into(), &grids, states.last, policy)];
        for (number, (projector, states)) in self.deepstack.iter().zip(states.deepstack).enumerate() {
            outputs.push(projector.record(tape, format!("deepstack {number}"), &grids, states, policy));
        }
        outputs
    }
}

impl EncoderModel for VisionEncoder {
    /// Items' heights and widths are multiples of the merge size.
    fn record(&self, grids: &[Grid]) -> EncoderTape {
        let mut tape = Tape::new();
        let pixels = tape.input(false);
        let outputs = self.record_on(&mut tape, grids, pixels);
        EncoderTape { tape: Rc::new(tape), pixels, outputs }
    }
}
