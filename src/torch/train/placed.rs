//! The tensors of an optimizer's state, and which of their elements are off the device.

use super::offload::{Offload, Tier};
use crate::native::{NativeError, Purpose, allocated_for, is_dry_run, uncounted, zeros_on_disk};
use crate::params::ParamStore;
use std::ops::Range;
use tch::{Device, Kind, Tensor};

/// A tensor of the state, and where the part of a parameter that this rank has begins in it.
#[derive(Clone, Copy)]
pub struct StateSlice<'a> {
    pub tensor: &'a Tensor,
    pub at: i64,
    /// Elements of the parameter for each of the tensor's.
    pub block: i64,
}

impl<'a> StateSlice<'a> {
    /// Makes a slice of a flat tensor `[len]` that has one element for each of the parameter's, from element `at` on.
    pub fn of(tensor: &'a Tensor, at: i64) -> Self {
        Self { tensor, at, block: 1 }
    }

    /// Returns the tensor's elements for these of the parameter, counted from its first.
    pub(super) fn range(&self, part: &Range<i64>) -> Range<i64> {
        let start = part.start / self.block;
        start..start + (part.end - part.start + self.block - 1) / self.block
    }

    /// Returns the shape of the tensor of a whole parameter of this `shape`.
    pub(super) fn shape(&self, shape: &[i64]) -> Vec<i64> {
        match self.block {
            1 => shape.to_vec(),
            block => vec![(shape.iter().product::<i64>() + block - 1) / block],
        }
    }
}

/// The place of each tensor of the state.
pub(super) struct Places {
    offload: Option<Offload>,
    device: Device,
    /// The number of trained parameters, the first ones, whose state is off the device.
    pub num_away: usize,
    /// This rank's elements of these, and the gaps between them, in the order of the store.
    pub elements_away: i64,
}

impl Places {
    /// Chooses the part of the state that lies off the device: that of the first parameters, until the share that `offload` says is
    /// reached.
    pub fn new(params: &ParamStore, offload: Option<Offload>) -> Places {
        let owned: Vec<(i64, i64)> = params
            .trained_ids()
            .map(|id| params.owned_range(id))
            .map(|(part, at)| (part.end - part.start, at))
            .collect();
        let wanted = offload.as_ref().map_or(0.0, |offload| offload.fraction);
        let wanted = wanted * owned.iter().map(|(len, _)| *len as f64).sum::<f64>();
        let (mut so_far, mut num_away) = (0.0, 0);
        while num_away < owned.len() && so_far < wanted {
            so_far += owned[num_away].0 as f64;
            num_away += 1;
        }
        // Parts that are empty lie nowhere.
        let first_here = owned[num_away..].iter().find(|(len, _)| *len > 0).map(|(_, at)| *at);
        let elements_away = if num_away == 0 { 0 } else { first_here.unwrap_or(params.num_owned()) };
        Places { offload, device: params.flat().device(), num_away, elements_away }
    }

    /// Returns whether anything is away from a device that is not the host.
    pub fn is_across_a_bus(&self) -> bool {
        self.num_away > 0 && self.device != Device::Cpu
    }

    /// Returns a tensor of the state, zero, of which the first `away` elements are away.
    ///
    /// # Errors
    /// A disk is full or cannot be written to.
    pub fn zeros(&self, len: i64, away: i64, kind: Kind) -> Result<StateTensor, NativeError> {
        let on_host = |len| uncounted(|| Tensor::zeros([len], (kind, Device::Cpu)));
        let is_dry = is_dry_run();
        let away = match &self.offload {
            Some(Offload { to: Tier::Disk(folder), .. }) if !is_dry => zeros_on_disk(folder, away, kind)?,
            _ => on_host(away),
        };
        let rest = len - away.numel() as i64;
        let here = allocated_for(Purpose::Optimizer, || Tensor::zeros([rest], (kind, self.device)));
        Ok(StateTensor { away, here })
    }
}

/// A flat tensor of the optimizer's state, the first part of which may be away from the device.
pub(super) struct StateTensor {
    away: Tensor,
    here: Tensor,
}

impl StateTensor {
    /// Returns the `len` elements from `at` on, `[len]`, which are all away or all here.
    ///
    /// # Panics
    /// Some are away and some are not.
    pub fn narrow(&self, at: i64, len: i64) -> Tensor {
        let StateSlice { tensor, at, .. } = self.slice(at, 1);
        tensor.narrow(0, if len == 0 { 0 } else { at }, len)
    }

    /// Returns the part that begins at `at`, with `block` elements of the parameter for each of its own.
    pub fn slice(&self, at: i64, block: i64) -> StateSlice<'_> {
        let cut = self.away.numel() as i64;
        match at < cut {
            true => StateSlice { tensor: &self.away, at, block },
            false => StateSlice { tensor: &self.here, at: at - cut, block },
        }
    }

    /// Returns its flat tensors, `[elements]` each, without those that have no elements.
    pub fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        [&self.away, &self.here].into_iter().filter(|tensor| tensor.numel() > 0)
    }

    /// Returns the number of bytes that are away.
    pub fn bytes_away(&self) -> u64 {
        (self.away.numel() * self.away.kind().elt_size_in_bytes()) as u64
    }
}
