//! The parameters of a layer as one flat parameter, which ranks share out.

use tch::Tensor;

use super::sharding::Slices;
use super::spec::ParamSpec;
use crate::native::{Purpose, allocate, allocated_for, release};

/// Parameters that are sliced together.
pub struct FlatParam {
    pub(super) name: String,
    pub(super) trained: bool,
    /// The start in the store's order, with the gaps.
    pub(super) start: i64,
    pub(super) len: i64,
    /// The place where this rank's slice begins among its slices.
    pub(super) at: i64,
    pub(super) whole: Tensor,
    pub(super) own: Tensor,
    pub(super) slices: Slices,
    pub(super) of_experts: bool,
    /// True if it is whole only while it is in use.
    pub(super) apart: bool,
}

impl FlatParam {
    /// Returns where a layer begins in the names of its parameters: up to the first number, or else the module.
    pub(super) fn name_of(spec: &ParamSpec) -> String {
        let parts: Vec<&str> = spec.name.split('.').collect();
        let number = parts.iter().position(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()));
        parts[..number.map_or(parts.len().max(2) - 1, |number| number + 1)].join(".")
    }

    /// Returns the prefix of its parameters' names.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether the parameters in it are trained.
    pub fn is_trained(&self) -> bool {
        self.trained
    }

    /// Returns all of it, `[len]`: what a collective fills. Its memory may be released.
    pub fn whole(&self) -> &Tensor {
        &self.whole
    }

    /// Returns this rank's slice `[own len]`, which is always there.
    pub fn own(&self) -> &Tensor {
        &self.own
    }

    /// Returns the first element and number of elements in the store's order.
    pub fn range(&self) -> (i64, i64) {
        (self.start, self.len)
    }

    /// Returns the first element and number of elements of this rank's slice among its slices of all units.
    pub fn own_range(&self) -> (i64, i64) {
        (self.at, self.own.numel() as i64)
    }

    /// Returns whether it is of experts that are spread over ranks: those with the same ones share them out.
    pub fn is_of_experts(&self) -> bool {
        self.of_experts
    }

    /// Returns whether it is whole only while it is in use: before that it has no memory, and no values.
    pub fn is_apart(&self) -> bool {
        self.apart
    }

    /// Memory for the parameters, which are not there yet.
    pub fn allocate(&self) {
        if self.apart {
            allocated_for(Purpose::Buffers, || allocate(&self.whole));
        }
    }

    /// Frees the whole parameters until they are gathered again, where they lie apart from the slices.
    pub fn release(&self) {
        if self.apart {
            release(&self.whole);
        }
    }

    /// This rank's elements, counted from the unit's start.
    pub(super) fn own_part(&self) -> std::ops::Range<i64> {
        let len = self.len / self.slices.world as i64;
        self.slices.rank as i64 * len..(self.slices.rank as i64 + 1) * len
    }
}

/// A part of what this rank's optimizer changes.
pub struct OwnedPart {
    /// The place in the optimizer's state.
    pub at: i64,
    pub values: Tensor,
    pub decays: bool,
    /// Multiplies the run's learning rate.
    pub rate: f64,
}
