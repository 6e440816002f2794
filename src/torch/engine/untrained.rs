//! The transformer of a diffusion model that a run does not train, in the actors of the one that it trains: samples need both.

use super::actor_spec::{EngineSpec, frozen_state, policy};
use super::foundation::UntrainedPart;
use super::pool_specs::splits;
use super::samples::SampleSpec;
use super::share::FoundationShare;
use super::trained::trained_stage;
use super::weight_budget::foundation_within_budget;
use crate::comm::Mesh;
use loongforge_core::config::Part;
use loongforge_core::engine::EngineError;
use loongforge_core::message::Replica;
use std::rc::Rc;
use tch::Device;

/// Returns this rank's part of the transformer that is not trained, laid out as the trained one, with the weights that the run began
/// with; `None`: the run makes no samples, or has no such transformer.
///
/// # Errors
/// It cannot be split as the pool says, or its weights are missing, or torn.
pub(super) fn untrained_part(
    spec: &EngineSpec,
    device: Device,
    mesh: &Rc<Mesh>,
) -> Result<Option<UntrainedPart>, EngineError> {
    let Some(SampleSpec { other: Some(other), boundary, .. }) = &spec.samples else { return Ok(None) };
    let (config, name) = (&spec.config, spec.me.pool);
    let frozen_precision = config.model.foundation.frozen_precision;
    let part = Part { freeze: Some(true), frozen_precision, ..Part::default() };
    let share = FoundationShare::new(&other.family, mesh.clone(), splits(&config.foundation_pool(name)), name)?;
    let params = trained_stage(share.specs(), &spec.model.tree, |_| ("model.foundation", &part))?;
    let params = foundation_within_budget(config, params)?;
    let state = share.join(frozen_state(config, device, params, mesh.data.clone(), share.sharding())?);
    let stages = share.stages(state.params(), policy(&part));
    let replica = Replica::new(name, mesh.place().dp as u32);
    Ok(Some(UntrainedPart::new(replica, stages, state, *boundary, other.is_high)))
}
