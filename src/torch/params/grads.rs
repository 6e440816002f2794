//! Sums of gradients, float32.

use std::rc::Rc;

use tch::Tensor;

use super::id::ParamId;
use crate::native::{Purpose, allocate, allocated_for, release};

/// Gradients of the trained parameters of one `ParamStore`, in its order. Where replicas share gradients out, those of a
/// unit are whole only while they are computed, and what is always there is this rank's slices.
pub struct GradBuffer {
    pub(super) flat: Tensor,
    pub(super) views: Vec<Tensor>,
    pub(super) units: Vec<GradUnit>,
    /// The unit of every trained parameter, where there are units.
    pub(super) unit_of: Rc<[usize]>,
}

/// The gradients of one unit, whole.
pub(super) struct GradUnit {
    pub whole: Tensor,
    pub is_open: bool,
}

impl GradBuffer {
    /// Adds `grad` to a parameter's gradient. `grad` has the parameter's shape `[…]` and any floating-point type; the sum is float32.
    pub fn add(&mut self, id: ParamId, grad: &Tensor) {
        let _ = self.view(id).shallow_clone().g_add_(grad);
    }

    /// Returns a parameter's gradient so far, float32, a view of the parameter's shape `[…]`. Panics where gradients are shared out and
    /// the parameter's unit is not being computed.
    pub fn view(&self, id: ParamId) -> &Tensor {
        assert!(self.units.is_empty() || self.units[self.unit_of[id.index()]].is_open, "a gradient is elsewhere");
        &self.views[id.index()]
    }

    /// Returns all sums, or this rank's slices of them. It is `[len]`.
    pub fn flat(&self) -> &Tensor {
        &self.flat
    }

    /// Sets all gradients to zero.
    pub fn zero(&mut self) {
        let _ = self.flat.zero_();
    }

    /// Returns whether unit `unit` is being computed.
    pub fn is_open(&self, unit: usize) -> bool {
        self.units.get(unit).is_some_and(|unit| unit.is_open)
    }

    /// Begins to compute a unit: zeros.
    pub fn open(&mut self, unit: usize) {
        let unit = &mut self.units[unit];
        assert!(!unit.is_open, "gradients are begun twice");
        allocated_for(Purpose::Gradients, || allocate(&unit.whole));
        let _ = unit.whole.zero_();
        unit.is_open = true;
    }

    /// Returns the gradients of a unit that is open, `[len]`.
    pub fn whole(&self, unit: usize) -> &Tensor {
        assert!(self.units[unit].is_open, "gradients are elsewhere");
        &self.units[unit].whole
    }

    /// Adds `sum` to this rank's slice `at`, and frees the unit. `sum` is `[len]` of the slice.
    pub fn close(&mut self, unit: usize, at: i64, sum: &Tensor) {
        let _ = self.flat.narrow(0, at, sum.numel() as i64).g_add_(sum);
        let unit = &mut self.units[unit];
        release(&unit.whole);
        unit.is_open = false;
    }
}
