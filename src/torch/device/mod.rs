//! The machine below the tensors: environment and threads of the CPU, and CUDA's libraries, which are loaded when asked for.

mod auto;
mod cuda;
mod environment;
mod gpus;
mod threads;
mod upload;

pub use auto::settle;
#[cfg(test)]
pub(crate) use cuda::LIBRARY_FOLDER;
pub use cuda::{CudaError, library_folder, load_cuda};
pub use environment::{CUBLAS_WORKSPACE, ENVIRONMENT, missing_variables};
pub use gpus::{Gpu, Stack, gpus, stack};
pub(crate) use gpus::{enter_gpu, gpu_number, has_flash_attention, has_grouped_products};
pub use threads::{adds_in_order, set_intra_op_threads};
pub use upload::upload;
