//! The machine below the tensors: threads of the CPU, and CUDA's libraries, which are loaded when asked for.

mod auto;
mod cuda;
mod gpus;
mod threads;

pub use auto::settle;
#[cfg(test)]
pub(crate) use cuda::LIBRARY_FOLDER;
pub use cuda::{CudaError, library_folder, load_cuda};
pub use gpus::{Gpu, Stack, gpus, stack};
pub(crate) use gpus::{enter_gpu, gpu_number, has_flash_attention, has_grouped_products};
pub use threads::{CUBLAS_WORKSPACE, ENVIRONMENT, adds_in_order, needs_relaunch, set_intra_op_threads};
