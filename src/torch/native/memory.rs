//! How many bytes this thread's CPU tensors hold: to measure activation memory and to test plans that save it.

use std::ffi::c_void;
use std::marker::PhantomData;

use super::ffi;

/// Counts bytes allocated and freed on this thread from its start to its drop. What was allocated before does not
/// count. It is per thread, so it cannot be sent; stop watches in the reverse order of their start.
pub struct MemoryWatch {
    scope: *mut c_void,
    not_send: PhantomData<*const ()>,
}

impl MemoryWatch {
    pub fn start() -> MemoryWatch {
        // SAFETY: no arguments; null only if memory for a few words is lacking.
        let scope = unsafe { ffi::lf_memory_watch_start() };
        assert!(!scope.is_null(), "no memory for a memory watch");
        MemoryWatch { scope, not_send: PhantomData }
    }

    /// Bytes held now.
    pub fn current(&self) -> i64 {
        // SAFETY: `scope` is alive until drop.
        unsafe { ffi::lf_memory_watch_current(self.scope) }
    }

    /// The most bytes held at once since the start or the last `reset_peak`.
    pub fn peak(&self) -> i64 {
        // SAFETY: `scope` is alive until drop.
        unsafe { ffi::lf_memory_watch_peak(self.scope) }
    }

    pub fn reset_peak(&mut self) {
        // SAFETY: `scope` is alive until drop.
        unsafe { ffi::lf_memory_watch_reset_peak(self.scope) }
    }
}

impl Drop for MemoryWatch {
    fn drop(&mut self) {
        // SAFETY: freed once, on the thread that started it.
        unsafe { ffi::lf_memory_watch_stop(self.scope) }
    }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::MemoryWatch;

    #[test]
    fn counts_allocations_and_frees() {
        let mut watch = MemoryWatch::start();
        let kept = Tensor::zeros([1000], (Kind::Float, Device::Cpu));
        assert_eq!(watch.current(), 4000);
        drop(Tensor::zeros([2000], (Kind::Float, Device::Cpu)));
        assert_eq!((watch.current(), watch.peak()), (4000, 12000));
        watch.reset_peak();
        drop(kept);
        assert_eq!((watch.current(), watch.peak()), (0, 4000));
    }
}
