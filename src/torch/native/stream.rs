//! A stream for the copies of one thread, where a device has streams; on a CPU nothing happens.

use std::ffi::c_void;
use std::sync::LazyLock;

use tch::{Device, Kind, Tensor};

use super::error::{NativeError, last_error};
use super::ffi::{self, raw};
use super::op::{Arg, Op};

/// A stream of its own for the thread that made it, which stays the thread's current one on this device.
pub struct CopyStream {
    /// Names the device.
    like: Tensor,
}

/// A point in the work that a thread gave to a device.
pub struct Mark {
    mark: *mut c_void,
}

// SAFETY: an event may be waited for and freed on any thread.
unsafe impl Send for Mark {}

fn check(status: i32) -> Result<(), NativeError> {
    if status == 0 { Ok(()) } else { Err(NativeError::Stream { message: last_error() }) }
}

/// Returns a copy of `x`, of any shape, in pinned memory, from which and to which a GPU copies without the processor. Panics where there
/// is no GPU.
pub fn pinned(x: &Tensor) -> Tensor {
    // tch names the device, which libtorch has deprecated.
    static PIN: LazyLock<Op> =
        LazyLock::new(|| Op::find("aten::pin_memory", "").expect("an operator of libtorch 2.11"));
    let found = PIN.call(&[Arg::Tensor(x)]).unwrap_or_else(|error| panic!("pinned memory: {error}"));
    found.into_iter().next().expect("one tensor")
}

impl CopyStream {
    /// Makes a new stream the current one of this thread on `device`, for good; does nothing on a CPU.
    ///
    /// # Errors
    /// The device failed.
    pub fn enter(device: Device) -> Result<CopyStream, NativeError> {
        let like = Tensor::empty([0], (Kind::Uint8, device));
        // SAFETY: the tensor is alive.
        check(unsafe { ffi::lf_stream_enter(raw(&like)) })?;
        Ok(CopyStream { like })
    }

    /// Copies from now on come after what the other thread did before its mark.
    ///
    /// # Errors
    /// The device failed.
    pub fn wait_for(&self, mark: &Mark) -> Result<(), NativeError> {
        // SAFETY: both are alive.
        check(unsafe { ffi::lf_stream_await(mark.mark, raw(&self.like)) })
    }

    /// Returns when all copies are done.
    ///
    /// # Errors
    /// The device, or one of the copies, failed.
    pub fn synchronize(&self) -> Result<(), NativeError> {
        // SAFETY: the tensor is alive.
        check(unsafe { ffi::lf_stream_synchronize(raw(&self.like)) })
    }
}

impl Mark {
    /// Marks the end of what this thread has given to the device of `like`. Its shape does not count.
    ///
    /// # Errors
    /// The device failed.
    pub fn of(like: &Tensor) -> Result<Mark, NativeError> {
        // SAFETY: the tensor is alive; null on failure.
        let mark = unsafe { ffi::lf_stream_mark(raw(like)) };
        if mark.is_null() { Err(NativeError::Stream { message: last_error() }) } else { Ok(Mark { mark }) }
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        // SAFETY: freed once.
        unsafe { ffi::lf_mark_free(self.mark) }
    }
}
