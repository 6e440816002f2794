//! The transformer of a diffusion model that a run does not train, in the actors of the one that it trains: samples need both.

use super::actor_spec::{EngineSpec, frozen_state, policy};
use super::foundation::UntrainedPart;
use super::lora::TrainedError;
use super::pool_specs::splits;
use super::samples::{SampleSpec, untrained_part, untrained_stage};
use super::share::FoundationShare;
use crate::comm::Mesh;
use crate::params::ParamSpec;
use loongforge_core::engine::EngineError;
use loongforge_core::message::Replica;
use std::rc::Rc;
use tch::Device;

/// This rank's share of the transformer that is not trained, laid out as the trained one.
pub(super) struct UntrainedShare<'a> {
    spec: &'a EngineSpec,
    mesh: Rc<Mesh>,
    share: FoundationShare,
    boundary: f64,
    is_high: bool,
}

impl<'a> UntrainedShare<'a> {
    /// Returns the share of a rank; `None`: the run makes no samples, or has no such transformer.
    ///
    /// # Errors
    /// It cannot be split as the pool says.
    pub fn of(spec: &'a EngineSpec, mesh: &Rc<Mesh>) -> Result<Option<Self>, EngineError> {
        let Some(SampleSpec { other: Some(other), boundary, .. }) = &spec.samples else { return Ok(None) };
        let name = spec.me.pool;
        let splits = splits(&spec.config.foundation_pool(name));
        let share = FoundationShare::new(&other.family, mesh.clone(), splits, name)?;
        Ok(Some(Self { spec, mesh: mesh.clone(), share, boundary: *boundary, is_high: other.is_high }))
    }

    /// Returns the parameters of this rank.
    ///
    /// # Errors
    /// A weight cannot be rounded.
    pub fn params(&self) -> Result<Vec<ParamSpec>, TrainedError> {
        untrained_stage(self.share.specs(), &self.spec.model.tree, &self.spec.config)
    }

    /// Returns this rank's part on its parameters, with the weights that the run began with.
    ///
    /// # Errors
    /// The weights are missing, or torn.
    pub fn build(self, device: Device, params: Vec<ParamSpec>) -> Result<UntrainedPart, EngineError> {
        let Self { spec, mesh, share, boundary, is_high } = self;
        let state = share.join(frozen_state(&spec.config, device, params, mesh.data.clone(), share.sharding())?);
        let stages = share.stages(state.params(), policy(&untrained_part(&spec.config)));
        let replica = Replica::new(spec.me.pool, mesh.place().dp as u32);
        Ok(UntrainedPart::new(replica, stages, state, boundary, is_high))
    }
}
