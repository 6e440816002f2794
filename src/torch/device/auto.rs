//! `device: auto`: CUDA where it can be used, else the CPU, and what there is to say of that.

use super::cuda::{CudaError, load_cuda};
use loongforge_core::config::Device;
use std::path::{Path, PathBuf};

/// Returns the device that `auto` is on this machine, or the one that was asked for; with why, and how to have another. Call it before
/// anything asks whether CUDA is there: libtorch remembers the first answer.
pub fn settle(device: Device) -> (Device, String) {
    match device {
        // Libraries of a gigabyte are not loaded for nothing.
        Device::Auto => choose(gpu(Path::new("/dev")).map(|gpu| (load_cuda(), gpu))),
        asked => (asked, format!("device: {asked}")),
    }
}

/// `found`: a GPU's file, and whether CUDA could be loaded for it.
fn choose(found: Option<(Result<(), CudaError>, PathBuf)>) -> (Device, String) {
    let said = match found {
        Some((Ok(()), _)) => {
            let device = Device::Cuda(None);
            return (device, "device: cuda, every actor uses the next GPU (device=cpu for the CPU)".to_owned());
        }
        None => "no GPU was found (device=cuda for one)".to_owned(),
        Some((Err(CudaError::Absent { path }), gpu)) => format!(
            "a GPU was found ({}), but this is the CPU build of libtorch: {} does not exist; name the `lib` folder of the CUDA \
             build of libtorch 2.11 in {}",
            gpu.display(),
            path.display(),
            super::cuda::LIBRARY_FOLDER
        ),
        Some((Err(error), _)) => error.to_string(),
    };
    (Device::Cpu, format!("device: cpu; {said}"))
}

/// Returns a GPU's file in a folder of devices.
fn gpu(dev: &Path) -> Option<PathBuf> {
    let files = std::fs::read_dir(dev).ok()?.flatten();
    let mut gpus: Vec<PathBuf> = files.map(|file| file.path()).filter(|path| is_gpu(path)).collect();
    gpus.sort();
    gpus.into_iter().next()
}

/// Returns whether a file is a GPU's: `nvidia0`, and not `nvidiactl`; `dxg`, through which Windows lends its GPUs.
fn is_gpu(path: &Path) -> bool {
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else { return false };
    let is_number = |number: &str| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    name == "dxg" || name.strip_prefix("nvidia").is_some_and(is_number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_choice_says_how_to_change_it() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["nvidiactl", "nvidia-uvm", "null"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        assert_eq!(gpu(folder.path()), None);
        std::fs::write(folder.path().join("nvidia3"), "").unwrap();
        let found = gpu(folder.path()).unwrap();
        assert_eq!(found, folder.path().join("nvidia3"));
        assert!(is_gpu(Path::new("/dev/dxg")));

        let absent = || Err(CudaError::Absent { path: "lib/libtorch_cuda.so".into() });
        let (device, said) = choose(Some((absent(), found.clone())));
        assert!(device == Device::Cpu && said.contains("nvidia3") && said.contains("LOONGFORGE_TORCH_LIB"), "{said}");
        let (device, said) = choose(None);
        assert!(device == Device::Cpu && said.contains("device=cuda"), "{said}");
        let (device, said) = choose(Some((Ok(()), found.clone())));
        assert!(device == Device::Cuda(None) && said.contains("device=cpu"), "{said}");
        assert!(choose(Some((Err(CudaError::NoDevice), found))).1.contains("nvidia-smi"));
        assert_eq!(settle(Device::Cuda(Some(2))), (Device::Cuda(Some(2)), "device: cuda:2".to_owned()));
    }
}
