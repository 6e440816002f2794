//! The errors of libtorch, with the operation that met each.

use std::ffi::CStr;
use std::path::PathBuf;

use super::ffi;

#[derive(Debug, thiserror::Error)]
pub enum NativeError {
    #[error("libtorch has no operator {name}: {message}")]
    UnknownOp { name: String, message: String },
    #[error("operator {name} failed: {message}")]
    Op { name: String, message: String },
    #[error("computing gradients failed: {message}")]
    Grad { message: String },
    #[error("process group {group:?}: rank {rank} of {world} could not join: {message}")]
    Join { group: String, rank: usize, world: usize, message: String },
    #[error("cannot open a store for process groups at {host}: {message}")]
    Store { host: String, message: String },
    #[error("process group {group:?}: {operation} failed on rank {rank} (has another process ended?): {message}")]
    Collective { group: String, rank: usize, operation: &'static str, message: String },
    #[error("a stream of the device failed: {message}")]
    Stream { message: String },
    #[error("the profiler of libtorch failed: {message}")]
    Profile { message: String },
    #[error("train.optimizer.offload.path: cannot create a file of {bytes} bytes in {folder}: {source}")]
    Disk { folder: PathBuf, bytes: usize, source: std::io::Error },
    #[error("{what} contains a NUL byte")]
    Nul { what: &'static str },
}

/// Returns the message of the last failed call on this thread.
pub(super) fn last_error() -> String {
    // SAFETY: the pointer is to a NUL-terminated thread-local string, copied before any other call can change it.
    let message = unsafe { CStr::from_ptr(ffi::lf_last_error()) };
    message.to_string_lossy().trim().to_string()
}
