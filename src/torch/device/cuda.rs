//! Loading libtorch's CUDA half at run time, so that one binary serves machines with and without it.

use super::threads::has_fixed_workspace;
use crate::native::use_deterministic_operators;
use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The variable that names the folder of a CUDA build of libtorch, where it is not beside the CPU one.
pub const LIBRARY_FOLDER: &str = "LOONGFORGE_TORCH_LIB";

#[derive(Debug, thiserror::Error)]
pub enum CudaError {
    #[error(
        "device cuda was asked for, but {path} does not exist: install the CUDA build of libtorch 2.11 and name its `lib` folder in {LIBRARY_FOLDER}, or use device: cpu"
    )]
    Absent { path: PathBuf },
    #[error("device cuda was asked for, but {path} could not be loaded: {message}")]
    Load { path: PathBuf, message: String },
    #[error(
        "device cuda was asked for and its libraries are loaded, but no GPU can be used: check the driver with nvidia-smi"
    )]
    NoDevice,
}

/// Loads `libtorch_cuda.so` and checks for a GPU; where cuBLAS has a work space of a fixed size, operators add in a fixed order from
/// now on. Call it before anything asks whether CUDA is there: libtorch
/// remembers the first answer.
///
/// # Errors
/// The library is not there or cannot be loaded, or there is no GPU.
pub fn load_cuda() -> Result<(), CudaError> {
    let folder = library_folder().unwrap_or_default();
    let path = folder.join("libtorch_cuda.so");
    if !path.exists() {
        return Err(CudaError::Absent { path });
    }
    open(&path)?;
    if !tch::Cuda::is_available() {
        return Err(CudaError::NoDevice);
    }
    // libtorch refuses products where cuBLAS has no work space of a fixed size.
    if has_fixed_workspace() {
        use_deterministic_operators();
    }
    Ok(())
}

/// Returns where `libtorch_cuda.so` would be.
pub fn library_folder() -> Option<PathBuf> {
    match std::env::var_os(LIBRARY_FOLDER) {
        Some(folder) => Some(PathBuf::from(folder)),
        None => folder_of("libtorch_cpu.so"),
    }
}

fn open(path: &Path) -> Result<(), CudaError> {
    let load = |message: String| CudaError::Load { path: path.to_path_buf(), message };
    let c_path = CString::new(path.as_os_str().as_bytes()).map_err(|_| load("its path contains a NUL byte".into()))?;
    // SAFETY: the path is NUL-terminated. The library's initializers register operators, which libtorch expects at
    // any time; it is never closed.
    let handle = unsafe { libc::dlopen(c_path.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    if !handle.is_null() {
        return Ok(());
    }
    // SAFETY: dlopen has just failed on this thread, so the message is a NUL-terminated string.
    let message = unsafe { CStr::from_ptr(libc::dlerror()) };
    Err(load(message.to_string_lossy().into_owned()))
}

/// Returns the folder that a library of this process was loaded from.
fn folder_of(library: &str) -> Option<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let path = maps.lines().filter_map(|line| line.find('/').map(|start| Path::new(&line[start..])));
    path.into_iter().find(|path| path.file_name().is_some_and(|name| name == library))?.parent().map(Path::to_path_buf)
}

#[cfg(test)]
mod tests {
    use super::{CudaError, folder_of, load_cuda};

    #[test]
    fn the_folder_of_libtorch_is_found() {
        let _ = tch::Tensor::from_slice(&[1f32]);
        assert!(folder_of("libtorch_cpu.so").unwrap().join("libtorch_cpu.so").exists());
    }

    #[test]
    fn a_machine_without_cuda_gets_a_clean_error() {
        match load_cuda() {
            Ok(()) => {}
            Err(error @ CudaError::Absent { .. }) => {
                assert!(error.to_string().contains("device: cpu"))
            }
            Err(error) => assert!(error.to_string().starts_with("device cuda was asked for")),
        }
    }
}
