//! c10d process groups, over Gloo and over NCCL, with a rendezvous through a file.
//!
//! NCCL's backend is part of libtorch_cuda, which is loaded where a GPU is asked for and never linked: its constructors
//! are looked up by name, and all else goes through the virtual functions of c10d's `Backend`.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use loongforge_core::engine::note_failed_collective;
use tch::Tensor;

use super::error::{NativeError, last_error};
use super::ffi::{self, raw};

/// The constructors of `c10d::ProcessGroupNCCL::Options` and of `c10d::ProcessGroupNCCL`.
pub(crate) const NCCL_SYMBOLS: [&CStr; 2] = [
    c"_ZN4c10d16ProcessGroupNCCL7OptionsC1Eb",
    c"_ZN4c10d16ProcessGroupNCCLC1EN3c1013intrusive_ptrINS_5StoreENS1_6detail34intrusive_target_default_null_typeIS3_EEEEiiNS2_INS0_7OptionsENS5_IS8_EEEE",
];

thread_local! {
    /// The count that the shim looks at on this thread.
    static INTERRUPTS: RefCell<Option<Arc<AtomicU32>>> = const { RefCell::new(None) };
}

/// Makes collectives over NCCL that this thread waits for fail as soon as `count` is not 0: the ranks that they need may be gone,
/// which NCCL itself notices after their timeout alone. Gloo notices it at once.
pub fn interrupt_by(count: Arc<AtomicU32>) {
    // SAFETY: the count is held until another one takes its place, which the shim knows by then, or the thread ends.
    unsafe { ffi::lf_interrupt_by(Arc::as_ptr(&count).cast()) };
    INTERRUPTS.set(Some(count));
}

/// A member of a group of `world` processes (or threads). Every collective is called by every rank in the same order.
pub struct Group {
    name: Arc<str>,
    rank: usize,
    world: usize,
    group: *mut c_void,
}

// SAFETY: c10d groups lock what they share; a `Group` moves between threads as a whole and is not shared.
unsafe impl Send for Group {}

impl Group {
    /// Joins a group over Gloo, for tensors in host memory. Waits until all ranks have named the same file and group, at most `timeout`,
    /// which later bounds each collective too. `host` is this machine's address as the other ranks reach it.
    ///
    /// # Errors
    /// A rank did not come in time, or cannot be reached.
    pub fn gloo(
        path: &Path,
        name: &str,
        host: &str,
        rank: usize,
        world: usize,
        timeout: Duration,
    ) -> Result<Group, NativeError> {
        let c_path =
            CString::new(path.as_os_str().as_bytes()).map_err(|_| NativeError::Nul { what: "the store's path" })?;
        let c_name = CString::new(name).map_err(|_| NativeError::Nul { what: "a process group's name" })?;
        let c_host = CString::new(host).map_err(|_| NativeError::Nul { what: "a host name" })?;
        // SAFETY: the strings are NUL-terminated and outlive the call.
        let group = unsafe {
            let (rank, world, timeout) = (rank as i32, world as i32, timeout.as_millis() as i64);
            ffi::lf_gloo_new(c_path.as_ptr(), c_name.as_ptr(), c_host.as_ptr(), rank, world, timeout)
        };
        if group.is_null() {
            return Err(NativeError::Join { group: name.to_string(), rank, world, message: last_error() });
        }
        Ok(Group { name: name.into(), rank, world, group })
    }

    /// Works like [`Group::gloo`] over NCCL, for tensors on this thread's CUDA device; every rank has a device of its own. A collective
    /// that was waited for is ordered before what the thread asks of its stream afterwards.
    ///
    /// # Errors
    /// libtorch_cuda is not loaded, or there is no GPU.
    pub fn nccl(path: &Path, name: &str, rank: usize, world: usize, timeout: Duration) -> Result<Group, NativeError> {
        let c_path =
            CString::new(path.as_os_str().as_bytes()).map_err(|_| NativeError::Nul { what: "the store's path" })?;
        let c_name = CString::new(name).map_err(|_| NativeError::Nul { what: "a process group's name" })?;
        let failed = |message: String| NativeError::Join { group: name.to_string(), rank, world, message };
        let find = |symbol: &CStr| {
            // SAFETY: the name is NUL-terminated.
            let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, symbol.as_ptr()) };
            let missing = "the NCCL backend is not available: libtorch_cuda of libtorch 2.11 must be loaded first";
            if found.is_null() { Err(failed(missing.into())) } else { Ok(found) }
        };
        let [options, backend] = NCCL_SYMBOLS.map(find);
        // SAFETY: the strings outlive the call; the symbols are constructors of the version that is linked, since the
        // CUDA half of libtorch does not load beside another CPU half.
        let group = unsafe {
            let (rank, world, timeout) = (rank as i32, world as i32, timeout.as_millis() as i64);
            ffi::lf_nccl_new(options?, backend?, c_path.as_ptr(), c_name.as_ptr(), rank, world, timeout)
        };
        if group.is_null() { Err(failed(last_error())) } else { Ok(Group { name: name.into(), rank, world, group }) }
    }

    /// Begins to sum a tensor of any shape over the ranks, in place.
    ///
    /// # Errors
    /// The collective cannot begin; a rank that is gone is an error of waiting for it.
    pub fn all_reduce_sum(&self, tensor: &Tensor) -> Result<Pending, NativeError> {
        // SAFETY: the group and the tensor are alive; the shim holds the tensor until the collective was waited for.
        self.begin("all_reduce", unsafe { ffi::lf_all_reduce_sum(self.group, raw(tensor)) })
    }

    /// Begins to take the greatest of each element over the ranks, in place. The tensor may have any shape.
    ///
    /// # Errors
    /// Fails as [`Group::all_reduce_sum`] does.
    pub fn all_reduce_max(&self, tensor: &Tensor) -> Result<Pending, NativeError> {
        // SAFETY: as above.
        self.begin("all_reduce", unsafe { ffi::lf_all_reduce_max(self.group, raw(tensor)) })
    }

    /// Begins to gather the ranks' inputs in `output`, one after the other: it has `world` times the elements of `input`. Both may have
    /// any shape.
    ///
    /// # Errors
    /// Fails as [`Group::all_reduce_sum`] does.
    pub fn all_gather(&self, output: &Tensor, input: &Tensor) -> Result<Pending, NativeError> {
        // SAFETY: as above.
        self.begin("all_gather", unsafe { ffi::lf_all_gather(self.group, raw(output), raw(input)) })
    }

    /// Begins to sum the ranks' inputs and to put this rank's part of the sum into `output`: `input` has `world` times its elements. Both
    /// may have any shape.
    ///
    /// # Errors
    /// Fails as [`Group::all_reduce_sum`] does.
    pub fn reduce_scatter_sum(&self, output: &Tensor, input: &Tensor) -> Result<Pending, NativeError> {
        // SAFETY: as above.
        self.begin("reduce_scatter", unsafe { ffi::lf_reduce_scatter_sum(self.group, raw(output), raw(input)) })
    }

    /// `sent[r]` rows of `input` go to rank `r`, and `taken[r]` rows of `output` come from it, in the order of the ranks.
    /// Panics where there is not one count a rank. Both are `[rows, …]` with rows of one size.
    ///
    /// # Errors
    /// Fails as [`Group::all_reduce_sum`] does.
    pub fn all_to_all(
        &self,
        output: &Tensor,
        input: &Tensor,
        taken: &[i64],
        sent: &[i64],
    ) -> Result<Pending, NativeError> {
        assert!(taken.len() == self.world && sent.len() == self.world, "a count for each of {} ranks", self.world);
        // SAFETY: as above; the counts are copied before the call returns.
        self.begin("all_to_all", unsafe {
            let (taken, sent, world) = (taken.as_ptr(), sent.as_ptr(), self.world as i32);
            ffi::lf_all_to_all(self.group, raw(output), raw(input), taken, sent, world)
        })
    }

    /// Begins to copy the values of rank `root` into the other ranks' tensors, in place. The tensor may have any shape.
    ///
    /// # Errors
    /// Fails as [`Group::all_reduce_sum`] does.
    pub fn broadcast(&self, tensor: &Tensor, root: usize) -> Result<Pending, NativeError> {
        // SAFETY: as above.
        self.begin("broadcast", unsafe { ffi::lf_broadcast(self.group, raw(tensor), root as i32) })
    }

    /// Begins to send a tensor of any shape to rank `to`, which receives it under the same tag.
    ///
    /// # Errors
    /// Fails as [`Group::all_reduce_sum`] does.
    pub fn send(&self, tensor: &Tensor, to: usize, tag: i32) -> Result<Pending, NativeError> {
        // SAFETY: as above.
        self.begin("send", unsafe { ffi::lf_send(self.group, raw(tensor), to as i32, tag) })
    }

    /// Begins to receive what rank `from` sends under this tag, of the same number of elements and kind, in place. The tensor may have
    /// any shape.
    ///
    /// # Errors
    /// Fails as [`Group::all_reduce_sum`] does.
    pub fn recv(&self, tensor: &Tensor, from: usize, tag: i32) -> Result<Pending, NativeError> {
        // SAFETY: as above.
        self.begin("recv", unsafe { ffi::lf_recv(self.group, raw(tensor), from as i32, tag) })
    }

    /// Begins a barrier, which ends when all ranks have begun it.
    ///
    /// # Errors
    /// Fails as [`Group::all_reduce_sum`] does.
    pub fn barrier(&self) -> Result<Pending, NativeError> {
        // SAFETY: as above.
        self.begin("barrier", unsafe { ffi::lf_barrier(self.group) })
    }

    fn begin(&self, operation: &'static str, pending: *mut c_void) -> Result<Pending, NativeError> {
        let pending = Pending { group: self.name.clone(), rank: self.rank, operation, pending };
        if pending.pending.is_null() { Err(pending.error()) } else { Ok(pending) }
    }
}

/// A collective on its way. Its tensors are not to be touched before it was waited for; one that is dropped is waited
/// for as well.
#[must_use]
pub struct Pending {
    group: Arc<str>,
    rank: usize,
    operation: &'static str,
    pending: *mut c_void,
}

impl Pending {
    /// Returns the collective's name.
    pub fn operation(&self) -> &'static str {
        self.operation
    }

    /// # Errors
    /// A rank is gone or did not come in time.
    pub fn wait(mut self) -> Result<(), NativeError> {
        if self.finish() == 0 { Ok(()) } else { Err(self.error()) }
    }

    fn finish(&mut self) -> i32 {
        let pending = std::mem::replace(&mut self.pending, std::ptr::null_mut());
        if pending.is_null() {
            return 0;
        }
        // SAFETY: made by `begin` and waited for once, which frees it.
        unsafe { ffi::lf_wait(pending) }
    }

    fn error(&self) -> NativeError {
        note_failed_collective();
        let (group, operation, rank) = (self.group.to_string(), self.operation, self.rank);
        NativeError::Collective { group, rank, operation, message: last_error() }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.finish();
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // SAFETY: freed once.
        unsafe { ffi::lf_group_free(self.group) }
    }
}

#[cfg(test)]
mod tests {
    use super::{ffi, interrupt_by, last_error};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    fn ends_within(timeout_ms: i64, thread_ms: i64) -> i32 {
        // SAFETY: it takes two numbers.
        unsafe { ffi::lf_ends_within(timeout_ms, thread_ms) }
    }

    #[test]
    fn whoever_is_interrupted_waits_no_longer() {
        let count = Arc::new(AtomicU32::new(1));
        interrupt_by(count.clone());
        assert_eq!(ends_within(120_000, 60_000), 0);
        count.store(0, Ordering::Relaxed);
        assert_eq!(ends_within(120_000, 0), 1);
    }

    #[test]
    fn a_thread_that_does_not_end_in_time_is_given_up() {
        assert_eq!([ends_within(60_000, 0), ends_within(20, 60_000)], [1, 0]);
        assert_eq!(ends_within(60_000, -1), -1);
        assert_eq!(last_error(), "a thread of less than no time");
    }
}
