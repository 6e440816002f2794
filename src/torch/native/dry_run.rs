//! Dry runs: a thread goes through a computation with all of its tensors and none of its work, so that the allocation
//! record ([`MemoryWatch`](super::MemoryWatch)) tells the memory that the computation takes.

use std::cell::Cell;
use std::marker::PhantomData;

use super::ffi;

thread_local! {
    static IS_DRY: Cell<bool> = const { Cell::new(false) };
}

/// While it lives, tensors on the CPU that this thread makes have a shape and an address, and values that nobody
/// computed: floating-point results are arbitrary, integers are computed from integers, and `topk` chooses evenly.
/// Memory is not touched, so a tensor may be larger than the machine's memory.
pub struct DryRun {
    not_send: PhantomData<*const ()>,
}

impl DryRun {
    /// # Panics
    /// The thread is in a dry run already.
    pub fn begin() -> DryRun {
        assert!(!IS_DRY.replace(true), "a dry run within a dry run");
        // SAFETY: sets this thread's own flags.
        unsafe { ffi::lf_dry_run(true) };
        DryRun { not_send: PhantomData }
    }
}

impl Drop for DryRun {
    fn drop(&mut self) {
        // SAFETY: as in `begin`.
        unsafe { ffi::lf_dry_run(false) };
        IS_DRY.set(false);
    }
}

/// Returns whether this thread is in a dry run.
pub fn is_dry_run() -> bool {
    IS_DRY.get()
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::{DryRun, is_dry_run};
    use crate::native::{MemoryWatch, Purpose, allocated_for, grad};

    const CPU: (Kind, Device) = (Kind::Float, Device::Cpu);

    /// Computes a product, its backward and an update of a square matrix; returns the bytes that are held after the product and at the
    /// end, and the most that were held at once.
    fn work(width: i64) -> [i64; 3] {
        let watch = MemoryWatch::start();
        let w = allocated_for(Purpose::Parameters, || Tensor::zeros([width, width], CPU)).set_requires_grad(true);
        let x = Tensor::ones([8, width], CPU);
        let y = (x.matmul(&w) * 2.0).tanh();
        let kept = watch.current();
        let dw = grad(&[&y], &[&Tensor::ones_like(&y)], &[&w]).unwrap().remove(0).unwrap();
        let _ = tch::no_grad(|| w.shallow_clone().g_sub_(&dw));
        [kept, watch.current(), watch.peak()]
    }

    #[test]
    fn a_dry_run_allocates_what_a_run_allocates() {
        let counted = work(100);
        let dry = DryRun::begin();
        assert_eq!(work(100), counted);
        // 64 TiB of parameters and gradients on any machine.
        let [_, held, _] = work(1 << 21);
        assert!(is_dry_run() && held > 1 << 45);
        drop(dry);
        assert!(!is_dry_run());
        assert_eq!(Tensor::ones([3], CPU).sum(Kind::Float).double_value(&[]), 3.0);
    }

    #[test]
    fn integers_are_computed_and_experts_chosen_evenly() {
        let _dry = DryRun::begin();
        let scores = Tensor::zeros([6, 3], CPU);
        let (_, chosen) = scores.topk(2, -1, true, false);
        let counts = chosen.flatten(0, 1).bincount::<Tensor>(None, 3);
        assert_eq!(Vec::<i64>::try_from(counts).unwrap(), [4, 4, 4]);
    }
}
