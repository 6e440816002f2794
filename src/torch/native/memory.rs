//! The allocation record: how many bytes the tensors hold that this thread has made, and what for.

use std::ffi::c_void;
use std::marker::PhantomData;

use super::ffi;

/// Says what memory is allocated for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Tensors that a forward leaves for its backward, batches, and everything that has no purpose of its own.
    Activations,
    Parameters,
    Gradients,
    /// The optimizer's state, float32 parameters among it.
    Optimizer,
    /// Tensors that collectives read and write besides: gathered parameters, sums on their way.
    Buffers,
}

impl Purpose {
    /// All of them, in the order in which [`MemoryWatch::at_peak`] counts them.
    pub const ALL: [Purpose; 5] =
        [Purpose::Activations, Purpose::Parameters, Purpose::Gradients, Purpose::Optimizer, Purpose::Buffers];
}

/// Runs `make` with everything that it allocates on this thread counted under `purpose`, unless something within has
/// another purpose.
pub fn allocated_for<T>(purpose: Purpose, make: impl FnOnce() -> T) -> T {
    with(purpose as i32, make)
}

/// Runs `make` with nothing counted that it allocates on this thread, unless something within has a purpose.
pub fn uncounted<T>(make: impl FnOnce() -> T) -> T {
    with(-1, make)
}

fn with<T>(purpose: i32, make: impl FnOnce() -> T) -> T {
    struct Former(i32);
    impl Drop for Former {
        fn drop(&mut self) {
            // SAFETY: sets a number of this thread's.
            unsafe { ffi::lf_memory_purpose(self.0) };
        }
    }
    // SAFETY: as above.
    let _former = Former(unsafe { ffi::lf_memory_purpose(purpose) });
    make()
}

/// Counts bytes that are allocated on this thread from its start to its drop, until they are freed, on whichever thread.
/// Memory that was allocated before does not count. It is per thread, so it cannot be sent; stop watches in the reverse order
/// of their start.
pub struct MemoryWatch {
    scope: *mut c_void,
    not_send: PhantomData<*const ()>,
}

impl MemoryWatch {
    /// Begins to count what this thread allocates.
    pub fn start() -> MemoryWatch {
        // SAFETY: no arguments; null only if memory for a few words is lacking.
        let scope = unsafe { ffi::lf_memory_watch_start() };
        assert!(!scope.is_null(), "no memory for a memory watch");
        MemoryWatch { scope, not_send: PhantomData }
    }

    /// Returns the number of bytes held now.
    pub fn current(&self) -> i64 {
        // SAFETY: `scope` is alive until drop.
        unsafe { ffi::lf_memory_watch_current(self.scope) }
    }

    /// Returns the most bytes held at once since the start or the last `reset_peak`.
    pub fn peak(&self) -> i64 {
        // SAFETY: `scope` is alive until drop.
        unsafe { ffi::lf_memory_watch_peak(self.scope) }
    }

    /// Returns the bytes by purpose at the moment of the peak, in the order of [`Purpose::ALL`].
    pub fn at_peak(&self) -> [i64; 5] {
        let mut bytes = [0; 5];
        // SAFETY: `scope` is alive until drop, and five numbers are written.
        unsafe { ffi::lf_memory_watch_at_peak(self.scope, bytes.as_mut_ptr()) };
        bytes
    }

    /// Sets the peak to what is allocated now.
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

    use super::{MemoryWatch, Purpose, allocated_for};

    fn zeros(elements: i64) -> Tensor {
        Tensor::zeros([elements], (Kind::Float, Device::Cpu))
    }

    #[test]
    fn counts_allocations_and_frees() {
        let mut watch = MemoryWatch::start();
        let kept = zeros(1000);
        assert_eq!(watch.current(), 4000);
        drop(zeros(2000));
        assert_eq!((watch.current(), watch.peak()), (4000, 12000));
        watch.reset_peak();
        drop(kept);
        assert_eq!((watch.current(), watch.peak()), (0, 4000));
    }

    #[test]
    fn what_another_thread_frees_is_taken_off_the_account_of_who_made_it() {
        let outer = MemoryWatch::start();
        let watch = MemoryWatch::start();
        let gradients = allocated_for(Purpose::Gradients, || zeros(500));
        let sent = zeros(1000);
        std::thread::spawn(move || drop(sent)).join().unwrap();
        assert_eq!((watch.current(), watch.peak(), watch.at_peak()), (2000, 6000, [4000, 0, 2000, 0, 0]));
        drop(watch);
        // A block that outlives its watch counts in the one around it.
        assert_eq!(outer.current(), 2000);
        drop(gradients);
        assert_eq!((outer.current(), outer.peak()), (0, 6000));
    }

    #[test]
    fn what_the_allocator_of_a_gpu_reports_is_counted() {
        let report = |at: usize, bytes: i64| {
            // SAFETY: the address is a number to the record, which reads nothing there.
            unsafe { super::ffi::lf_memory_report(at as *mut std::ffi::c_void, bytes) };
        };
        let outer = MemoryWatch::start();
        let mut watch = MemoryWatch::start();
        allocated_for(Purpose::Gradients, || report(0x1000, 500));
        report(0x2000, 1000);
        super::uncounted(|| report(0x3000, 70));
        assert_eq!((watch.current(), watch.at_peak()), (1500, [1000, 0, 500, 0, 0]));
        report(0x1000, -500);
        report(0x3000, -70);
        // What was freed where nobody reports is taken off when its address comes again.
        report(0x2000, 800);
        assert_eq!((watch.current(), outer.current()), (800, 800));
        watch.reset_peak();
        drop(watch);
        report(0x2000, -800);
        assert_eq!((outer.current(), outer.peak()), (0, 1500));
    }
}
