//! The velocity of a model that one process has whole.

use std::rc::Rc;

use tch::Tensor;

use crate::model::batch::MicroBatch;
use crate::model::foundation::{FoundationModel, Noised, VelocityTape};
use crate::model::towers::with_values;
use crate::native::NativeError;
use crate::params::ParamStore;
use crate::tape::Execution;

/// Returns the velocity `[T, P]` of a whole model that was built from `params`, without gradients. `features` `[N, width]` are by input
/// what towers have made of the batch's items. `None`: the model makes no latents.
///
/// # Errors
/// A transfer failed.
pub fn velocity(
    model: &dyn FoundationModel,
    params: &Rc<ParamStore>,
    batch: &MicroBatch,
    features: &[Vec<Tensor>],
    at: &Noised,
) -> Option<Result<Tensor, NativeError>> {
    let _no_grad = tch::no_grad_guard();
    let VelocityTape { tape, features: slots, velocity, .. } = model.record_velocity(batch, at)?;
    let velocity = velocity?;
    let flat = params.flat();
    let values = with_values(&slots, features).into_iter();
    let inputs = values.map(|(slot, x)| (slot, x.to_device(flat.device()).to_kind(flat.kind()))).collect();
    let mut run = Execution::forward_only(tape, params.clone(), inputs);
    Some(run.forward().map(|()| run.value(velocity).shallow_clone()))
}
