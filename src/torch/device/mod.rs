//! The machine below the tensors: threads of the CPU, and CUDA's libraries, which are loaded when asked for.

mod auto;
mod cuda;
mod threads;

pub use auto::settle;
pub use cuda::{CudaError, load_cuda};
#[cfg(test)]
pub(crate) use cuda::{LIBRARY_FOLDER, library_folder};
pub use threads::{QUIET_OPENMP, needs_relaunch, set_intra_op_threads};
