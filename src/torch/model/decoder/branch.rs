//! A branch of a layer: a norm and the module behind it, and the region that its segment runs in.

use tch::Tensor;

use crate::nn::RmsNorm;
use crate::params::ParamId;
use crate::tape::Slot;

/// A branch's module with its norm, and the parameters of both that a segment running them differentiates by.
pub(super) struct Branch<T: ?Sized> {
    pub norm_ids: Vec<ParamId>,
    pub ids: Vec<ParamId>,
    /// `None` where the input is not normed.
    pub norm: Option<RmsNorm>,
    pub module: Box<T>,
}

impl<T: ?Sized> Branch<T> {
    /// Returns the module's input, made of the residual stream `[T, D]`, in its shape.
    pub fn input(&self, x_TD: &Tensor) -> Tensor {
        match &self.norm {
            Some(norm) => norm.forward(x_TD),
            None => x_TD.shallow_clone(),
        }
    }
}

/// The region that a branch's segment runs in.
pub(super) struct Entered {
    pub x: Slot,
    /// True if the norm was recorded before it.
    pub is_normed: bool,
    /// The ids of the segment.
    pub ids: Vec<ParamId>,
}
