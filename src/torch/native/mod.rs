//! The C++ shim beside stock tch, in safe Rust: gradients for given output gradients, operators by schema name,
//! a count of the bytes that tensors hold, and c10d's Gloo groups. The only room of this package, with `device`,
//! that may be unsafe.

mod autograd;
mod bytes;
mod delta;
mod error;
mod ffi;
mod fused;
mod gloo;
mod memory;
mod op;

pub use autograd::grad;
pub use bytes::{bytes, bytes_mut};
pub use delta::delta_scan;
pub use error::NativeError;
pub use fused::{Turn, can_fuse, norm_rope, swiglu};
pub use gloo::Gloo;
pub use memory::MemoryWatch;
pub use op::{Arg, Op};
