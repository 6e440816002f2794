//! Whole tensors from the slices that ranks have of a pool.

use super::placed::StateSlice;
use super::train_state::TrainState;
use crate::native::NativeError;
use crate::params::{FlatParam, ParamId, ZeroStage};
use tch::Tensor;

impl TrainState {
    /// Gathers the parameters that other ranks have changed, where they are to be whole between steps.
    pub(super) fn gather(&self) -> Result<(), NativeError> {
        let Some(zero) = self.zero.as_ref().filter(|_| self.params.sharding().shared < ZeroStage::Parameters) else {
            return Ok(());
        };
        let trained: Vec<&FlatParam> = self.params.units().iter().filter(|unit| unit.is_trained()).collect();
        zero.gather(&trained)
    }

    /// Returns the gradient of parameter `id` that waits for its commit, float32, in the shape `[…]` of its spec, gathered as
    /// [`TrainState::gather_state`] does.
    ///
    /// # Errors
    /// A rank is gone or did not come in time.
    ///
    /// # Panics
    /// Nothing was reduced.
    pub fn reduced(&self, id: ParamId) -> Result<Tensor, NativeError> {
        self.gather_state(id, self.reduced.as_ref().expect("gradients were reduced"))
    }

    /// Runs `body` while all parameters are here; every rank calls it where they are shared out.
    ///
    /// # Errors
    /// A rank is gone or did not come in time.
    pub fn with_whole<T>(&self, body: impl FnOnce() -> T) -> Result<T, NativeError> {
        let Some(zero) = &self.zero else { return Ok(body()) };
        let units: Vec<&FlatParam> = self.params.units().iter().filter(|unit| unit.is_apart()).collect();
        for unit in &units {
            unit.allocate();
            zero.gather(&[unit])?;
        }
        let made = body();
        units.iter().for_each(|unit| unit.release());
        Ok(made)
    }

    /// Returns the values of what this rank's optimizer changes, `[num_owned]`, in the parameters' type, laid out as its state.
    pub fn own_values(&self) -> Tensor {
        let flat = self.params.flat().detach();
        match self.params.sharding().shared {
            ZeroStage::Nothing => flat.narrow(0, 0, self.params.num_trained()),
            ZeroStage::Parameters => flat.narrow(0, 0, self.params.num_owned()),
            _ => self.own_slices(&flat),
        }
    }

    /// Returns parameter `id` from `own` `[num_owned]`, which lies in slices as the parameters do: in the shape `[…]` of its spec, on
    /// every rank, each of which calls this function.
    ///
    /// # Errors
    /// A rank is gone or did not come in time.
    pub fn gather_state(&self, id: ParamId, own: &Tensor) -> Result<Tensor, NativeError> {
        self.gather_slice(id, &StateSlice::of(own, self.params.owned_range(id).1))
    }

    /// Works like [`TrainState::gather_state`] for a slice that lies anywhere; where the slice has one element for a block of the
    /// parameter's, a flat tensor `[blocks]` of all blocks is returned.
    ///
    /// # Errors
    /// Fails as that function does.
    pub fn gather_slice(&self, id: ParamId, own: &StateSlice<'_>) -> Result<Tensor, NativeError> {
        let (spec, (part, _)) = (self.params.spec(id), self.params.owned_range(id));
        let part = own.range(&part);
        let mine = own.tensor.narrow(0, if part.is_empty() { 0 } else { own.at }, part.end - part.start);
        let shape = own.shape(&spec.shape);
        let unit = self.params.unit_of(id).map(|unit| &self.params.units()[unit]);
        let Some((zero, unit)) = self.zero.as_ref().zip(unit) else { return Ok(mine.view(shape.as_slice())) };
        // Every rank gives its part in its place among zeros, on the group's device, wherever the state is.
        let (kind, device) = (own.tensor.kind(), self.params.flat().device());
        let whole = Tensor::zeros([shape.iter().product::<i64>()], (kind, device));
        whole.narrow(0, part.start, part.end - part.start).copy_(&mine);
        zero.group_of(unit).all_reduce_sum(&whole)?;
        Ok(whole.view(shape.as_slice()))
    }
}
