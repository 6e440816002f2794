//! The machine below the tensors: threads of the CPU, and CUDA's libraries, which are loaded when asked for.

mod auto;
mod cuda;
mod threads;

pub use auto::settle;
#[cfg(test)]
pub(crate) use cuda::LIBRARY_FOLDER;
pub use cuda::{CudaError, library_folder, load_cuda};
pub use threads::{QUIET_OPENMP, needs_relaunch, set_intra_op_threads};
