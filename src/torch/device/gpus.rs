//! Reads what CUDA, the driver and NCCL say of the GPUs, once CUDA's libraries are loaded.

use std::ffi::{CStr, c_int};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::OnceLock;

/// A GPU of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// The maker's name; empty where the driver does not say.
    pub name: String,
    /// Major and minor number of what it can compute.
    pub capability: (u32, u32),
    /// Bytes that nobody has taken.
    pub free: u64,
    pub memory: u64,
}

/// Versions of what a run on GPUs is made of; `None` where it does not say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stack {
    /// The driver's own, as `580.159.04`.
    pub driver: Option<String>,
    /// The newest CUDA that the driver serves, and the one that libtorch was built for: 13000 is 13.0.
    pub driver_cuda: Option<u32>,
    pub built_cuda: Option<u32>,
    /// 22809 is 2.28.9.
    pub nccl: Option<u32>,
}

const CAPABILITY_MAJOR: c_int = 75;
const CAPABILITY_MINOR: c_int = 76;

/// Returns a function of CUDA's run time, where it is loaded. The type is that of the function.
fn runtime_function<F: Copy>(name: &CStr) -> Option<F> {
    assert_eq!(size_of::<F>(), size_of::<*mut libc::c_void>(), "a type of functions");
    // SAFETY: the name is NUL-terminated.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    // SAFETY: it is as large as a pointer, and the callers below name CUDA's types.
    (!found.is_null()).then(|| unsafe { std::mem::transmute_copy(&found) })
}

/// Returns a number that a function of the run time writes into its only argument.
fn number(name: &CStr) -> Option<u32> {
    let get: unsafe extern "C" fn(*mut c_int) -> c_int = runtime_function(name)?;
    let mut found = 0;
    // SAFETY: one number is written.
    let status = unsafe { get(&mut found) };
    (status == 0).then_some(found as u32)
}

fn attribute(index: usize, attribute: c_int) -> Option<u32> {
    let get: unsafe extern "C" fn(*mut c_int, c_int, c_int) -> c_int = runtime_function(c"cudaDeviceGetAttribute")?;
    let mut found = 0;
    // SAFETY: one number is written.
    let status = unsafe { get(&mut found, attribute, index as c_int) };
    (status == 0).then_some(found as u32)
}

/// Makes the GPU this thread's current one: cuBLAS warns where a thread has none, and libtorch takes the first for set. Returns
/// whether it is; what CUDA says of one that is not there, the first tensor says again.
pub fn enter_gpu(index: usize) -> bool {
    let Some(enter) = runtime_function::<unsafe extern "C" fn(c_int) -> c_int>(c"cudaSetDevice") else { return false };
    // SAFETY: it takes a number.
    let status = unsafe { enter(index as c_int) };
    status == 0
}

/// Returns the free bytes and all of them. Makes the GPU this thread's current one.
fn memory(index: usize) -> Option<(u64, u64)> {
    if !enter_gpu(index) {
        return None;
    }
    let get: unsafe extern "C" fn(*mut usize, *mut usize) -> c_int = runtime_function(c"cudaMemGetInfo")?;
    let (mut free, mut all) = (0, 0);
    // SAFETY: two numbers are written.
    let status = unsafe { get(&mut free, &mut all) };
    (status == 0).then_some((free as u64, all as u64))
}

/// Returns the PCI bus id of a GPU as CUDA gives it, as `0000:0a:00.0`.
fn bus_id(index: usize) -> Option<String> {
    let get: unsafe extern "C" fn(*mut u8, c_int, c_int) -> c_int = runtime_function(c"cudaDeviceGetPCIBusId")?;
    let mut id = [0u8; 64];
    // SAFETY: at most 64 bytes are written, the last of them 0.
    let status = unsafe { get(id.as_mut_ptr(), id.len() as c_int, index as c_int) };
    let id = CStr::from_bytes_until_nul(&id).ok()?.to_str().ok()?;
    (status == 0).then(|| id.to_ascii_lowercase())
}

/// Returns a number for the GPU `index` of this process, the same in every process that uses it and no other GPU's; `None` where CUDA
/// does not say.
pub fn gpu_number(index: usize) -> Option<u64> {
    let bus = bus_id(index)?;
    // Hosts number their buses alike.
    let host = std::fs::read("/proc/sys/kernel/random/boot_id").ok()?;
    let mut hasher = DefaultHasher::new();
    (host, bus).hash(&mut hasher);
    Some(hasher.finish())
}

/// Returns a GPU's compute capability, major and minor number. Every layer asks for it, so CUDA is asked once. Call it when CUDA's
/// libraries are loaded.
fn capability(index: usize) -> Option<(u32, u32)> {
    static OF_ALL: OnceLock<Vec<(u32, u32)>> = OnceLock::new();
    let ask = |index: usize| Some((attribute(index, CAPABILITY_MAJOR)?, attribute(index, CAPABILITY_MINOR)?));
    let of_all = OF_ALL.get_or_init(|| (0..num_gpus()).map_while(ask).collect());
    of_all.get(index).copied()
}

fn num_gpus() -> usize {
    number(c"cudaGetDeviceCount").unwrap_or(0) as usize
}

/// Returns whether libtorch has flash attention on this device: a GPU of compute capability 8 or more.
pub fn has_flash_attention(device: tch::Device) -> bool {
    let tch::Device::Cuda(index) = device else { return false };
    capability(index).is_some_and(|(major, _)| major >= 8)
}

/// Returns whether libtorch has grouped products of bfloat16 on this device, which elsewhere it makes one after the other: a
/// GPU of compute capability 9.0 or 10.0.
pub fn has_grouped_products(device: tch::Device) -> bool {
    let tch::Device::Cuda(index) = device else { return false };
    matches!(capability(index), Some((9 | 10, 0)))
}

/// Returns the GPUs of this process, `None` for one that cannot be used; none before CUDA's libraries are loaded.
pub fn gpus() -> Vec<Option<Gpu>> {
    let gpu = |index: usize| {
        let (free, memory) = memory(index)?;
        let file = bus_id(index).map(|bus| Path::new("/proc/driver/nvidia/gpus").join(bus).join("information"));
        let text = file.and_then(|file| std::fs::read_to_string(file).ok()).unwrap_or_default();
        let name = model(&text).unwrap_or_default().to_owned();
        Some(Gpu { name, capability: capability(index)?, free, memory })
    };
    (0..num_gpus()).map(gpu).collect()
}

/// Returns the versions that this process has loaded.
pub fn stack() -> Stack {
    let text = std::fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    Stack {
        driver: driver(&text).map(str::to_owned),
        driver_cuda: number(c"cudaDriverGetVersion"),
        built_cuda: number(c"cudaRuntimeGetVersion"),
        nccl: number(c"ncclGetVersion"),
    }
}

/// Reads the maker's name from a GPU's `information` file.
fn model(information: &str) -> Option<&str> {
    information.lines().find_map(|line| line.strip_prefix("Model:")).map(str::trim)
}

/// Reads the driver's version from its `version` file.
fn driver(version: &str) -> Option<&str> {
    let line = version.lines().find(|line| line.starts_with("NVRM version:"))?;
    let is_number = |word: &&str| word.contains('.') && word.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    line.split_whitespace().find(is_number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drivers_files_are_read() {
        let version = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Tue Sep  1 12:00:00 UTC 2026\n\
                       GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n";
        assert_eq!(driver(version), Some("580.159.04"));
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.10  Release Build  (me@here)\n";
        assert_eq!((driver(open), driver("")), (Some("570.86.10"), None));
        assert_eq!(model("Model: \t\t NVIDIA H200\nIRQ:   \t\t 12\n"), Some("NVIDIA H200"));
    }

    #[test]
    fn without_cuda_there_are_no_gpus() {
        if crate::device::load_cuda().is_err() {
            assert!(gpus().is_empty() && !has_flash_attention(tch::Device::Cuda(0)) && bus_id(0).is_none());
        }
    }
}
