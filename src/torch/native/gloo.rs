//! A c10d process group over Gloo, with a rendezvous through a file.

use std::ffi::{CString, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use tch::Tensor;

use super::error::{NativeError, last_error};
use super::ffi::{self, raw};

/// A member of a group of `world` processes (or threads). Every collective is called by every rank in the same order.
pub struct Gloo {
    name: String,
    rank: usize,
    group: *mut c_void,
}

// SAFETY: c10d groups lock what they share; a `Gloo` moves between threads as a whole and is not shared.
unsafe impl Send for Gloo {}

impl Gloo {
    /// Waits until all ranks have named the same file and group, at most `timeout`, which later bounds each collective
    /// too. `host` is this machine's address as the other ranks reach it.
    pub fn join(
        path: &Path,
        name: &str,
        host: &str,
        rank: usize,
        world: usize,
        timeout: Duration,
    ) -> Result<Gloo, NativeError> {
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
        Ok(Gloo { name: name.to_string(), rank, group })
    }

    /// In place: the sum over ranks. The tensor is contiguous.
    pub fn all_reduce_sum(&self, tensor: &Tensor) -> Result<(), NativeError> {
        // SAFETY: the group and the tensor are alive; the call returns when the collective has ended.
        self.check("all_reduce", unsafe { ffi::lf_all_reduce_sum(self.group, raw(tensor)) })
    }

    /// `output` takes the ranks' inputs one after the other: `world` times the elements of `input`, both contiguous.
    pub fn all_gather(&self, output: &Tensor, input: &Tensor) -> Result<(), NativeError> {
        // SAFETY: as above.
        self.check("all_gather", unsafe { ffi::lf_all_gather(self.group, raw(output), raw(input)) })
    }

    /// In place: the values of rank `root`.
    pub fn broadcast(&self, tensor: &Tensor, root: usize) -> Result<(), NativeError> {
        // SAFETY: as above.
        self.check("broadcast", unsafe { ffi::lf_broadcast(self.group, raw(tensor), root as i32) })
    }

    pub fn barrier(&self) -> Result<(), NativeError> {
        // SAFETY: as above.
        self.check("barrier", unsafe { ffi::lf_barrier(self.group) })
    }

    fn check(&self, operation: &'static str, status: i32) -> Result<(), NativeError> {
        if status == 0 {
            return Ok(());
        }
        Err(NativeError::Collective { group: self.name.clone(), rank: self.rank, operation, message: last_error() })
    }
}

impl Drop for Gloo {
    fn drop(&mut self) {
        // SAFETY: freed once.
        unsafe { ffi::lf_gloo_free(self.group) }
    }
}
