//! The part of a pool's parameters that a rank keeps where replicas share them out (ZeRO; Rajbhandari et al. 2020).
//!
//! The parameters of one layer are a *unit*: they lie together, padded so that every rank has an equal slice. A rank always has its
//! slices; what else it has depends on [`ZeroStage`]. An [`Unsharder`] gathers and frees the rest.

use super::id::ALIGN;
use crate::comm::Mesh;

/// Says what replicas share out, each with all before it: ZeRO-1, -2 and -3.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ZeroStage {
    #[default]
    Nothing,
    /// The optimizer's state.
    State,
    /// Sums of gradients.
    Gradients,
    Parameters,
}

impl ZeroStage {
    /// Returns the stage of a level of `pools.*.zero`. Panics above 3.
    pub fn of_level(level: usize) -> ZeroStage {
        [ZeroStage::Nothing, ZeroStage::State, ZeroStage::Gradients, ZeroStage::Parameters][level]
    }
}

/// Among how many ranks what is shared out, and which of them this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sharding {
    pub shared: ZeroStage,
    pub rank: usize,
    pub world: usize,
    /// The slices of experts that are spread over ranks: those with the same experts share them out.
    pub of_experts: Slices,
    /// Parameters and slices begin at multiples of so many elements.
    pub align: i64,
}

/// Equal slices: how many, and which of them is this rank's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slices {
    pub rank: usize,
    pub world: usize,
}

impl Sharding {
    /// Makes a sharding in which everything is here.
    pub fn none() -> Sharding {
        Sharding::new(ZeroStage::Nothing, 0, 1)
    }

    /// Shares parameters out among ranks that have the same parameters.
    pub fn new(shared: ZeroStage, rank: usize, world: usize) -> Sharding {
        Sharding { shared, rank, world, of_experts: Slices { rank, world }, align: ALIGN }
    }

    /// Returns the same sharding, in which blocks of so many elements of a parameter are not cut.
    pub fn in_blocks(self, elements: i64) -> Sharding {
        Sharding { align: self.align.max(elements), ..self }
    }

    /// Shares parameters out among the ranks of `mesh` that have the same parts of parameters.
    pub fn among(shared: ZeroStage, mesh: &Mesh) -> Sharding {
        let of_experts = Slices { rank: mesh.expert_data.rank(), world: mesh.expert_data.world() };
        Sharding { of_experts, ..Sharding::new(shared, mesh.data.rank(), mesh.data.world()) }
    }

    /// Returns the slices of parameters that are experts spread over ranks, or are not.
    pub(super) fn slices(&self, of_experts: bool) -> Slices {
        if of_experts { self.of_experts } else { Slices { rank: self.rank, world: self.world } }
    }

    /// Returns whether nothing is shared: there is one rank, or the stage is 0.
    pub fn is_none(&self) -> bool {
        self.world == 1 || self.shared == ZeroStage::Nothing
    }
}
