//! A rank's part of an encoder whose blocks are split.

use loongforge_core::message::Grid;

use crate::model::encoder::{EncoderFamily, EncoderModel};
use crate::params::{ParallelRank, ParamSpec, ParamStore, divide};
use crate::tape::Policy;

/// `local` has the sizes that the rank at `place` computes with.
#[derive(Debug)]
pub(in crate::model) struct Divided<C> {
    pub whole: C,
    pub local: C,
    pub place: ParallelRank,
}

impl<C: EncoderFamily> EncoderFamily for Divided<C> {
    fn specs(&self) -> Vec<ParamSpec> {
        divide(self.whole.specs(), self.local.specs(), &self.place)
    }

    fn build(&self, params: &ParamStore, policy: Policy) -> Box<dyn EncoderModel> {
        self.local.build(params, policy)
    }

    fn num_outputs(&self) -> usize {
        self.whole.num_outputs()
    }

    fn patch_dim(&self) -> i64 {
        self.whole.patch_dim()
    }

    fn prefixes(&self) -> [&str; 2] {
        self.whole.prefixes()
    }

    fn is_projector(&self, name: &str) -> bool {
        self.whole.is_projector(name)
    }

    fn num_features(&self, grid: Grid) -> usize {
        self.whole.num_features(grid)
    }
}
