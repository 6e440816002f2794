//! A branch of a layer: a norm and the module behind it, and the region that its segment runs in.

use crate::nn::RmsNorm;
use crate::params::ParamId;
use crate::tape::Slot;

/// A branch's module with its norm, and the parameters of both that a segment running them differentiates by.
pub(super) struct Branch<T: ?Sized> {
    pub norm_ids: Vec<ParamId>,
    pub ids: Vec<ParamId>,
    pub norm: RmsNorm,
    pub module: Box<T>,
}

/// The region that a branch's segment runs in.
pub(super) struct Entered {
    pub x: Slot,
    /// True if the norm was recorded before it.
    pub is_normed: bool,
    /// The ids of the segment.
    pub ids: Vec<ParamId>,
}
