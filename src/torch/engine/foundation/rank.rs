//! The part of a foundation that a rank has: its stages, and the training state of their parameters.

use crate::engine::stages::Stages;
use crate::model::{Column, FeatureInput};
use crate::params::ZeroStage;
use crate::train::TrainState;
use loongforge_core::message::Replica;
use std::rc::Rc;
use tch::Device;

/// One rank's part of a foundation replica.
pub(in crate::engine) struct Rank {
    pub(super) replica: Replica,
    pub(super) stages: Stages,
    pub(in crate::engine) state: TrainState,
}

impl Rank {
    pub(super) fn device(&self) -> Device {
        self.state.params().flat().device()
    }

    /// Returns the columns that data actors send of samples.
    pub(super) fn columns(&self) -> &Rc<[Column]> {
        self.stages.any().columns()
    }

    /// Returns the features that the model reads.
    pub(super) fn inputs(&self) -> &[FeatureInput] {
        self.stages.any().inputs()
    }

    /// Returns whether replicas meet within a micro-batch, and therefore need as many each.
    pub(super) fn is_in_step(&self) -> bool {
        self.stages.in_step(self.state.params())
    }

    /// Returns whether ranks of the pool wait for each other within a step.
    pub(super) fn meets_others(&self) -> bool {
        self.stages.mesh.replica.world() > 1 || self.is_in_step()
    }

    /// Returns whether this rank reads the tokens of a continuation without others and without a tape: it has the whole foundation,
    /// and no weights that only a tape brings here.
    pub(super) fn continues_alone(&self) -> bool {
        self.has_whole_foundation() && self.state.params().frozen_units().is_empty()
    }

    /// Returns whether no other rank has a part of the foundation.
    pub(super) fn has_whole_foundation(&self) -> bool {
        let (mesh, sharding) = (&self.stages.mesh, self.state.params().sharding());
        let gathers = sharding.shared == ZeroStage::Parameters && sharding.world > 1;
        mesh.replica.world() == 1 && mesh.ep.world() == 1 && self.stages.pipeline.stages() == 1 && !gathers
    }
}
