//! Intra-op threads per actor, and the environment without which libgomp's waiting threads fight over few cores and cuBLAS
//! may give other bits.

use loongforge_core::config::Device;

/// The variables that the environment must have before libtorch is loaded. Its OpenMP workers spin while they wait, and
/// two actors' pools on two cores then run many times slower than one. With work space of a fixed size cuBLAS gives the
/// same bits each time. A launcher starts the program again with these set.
pub const ENVIRONMENT: [(&str, &str); 3] =
    [("OMP_WAIT_POLICY", "PASSIVE"), ("GOMP_SPINCOUNT", "0"), (CUBLAS_WORKSPACE, ":4096:8")];

/// Names the work space of cuBLAS.
pub const CUBLAS_WORKSPACE: &str = "CUBLAS_WORKSPACE_CONFIG";

/// Whether cuBLAS has one of the work spaces with which libtorch takes it to be deterministic.
pub(super) fn has_fixed_workspace() -> bool {
    std::env::var(CUBLAS_WORKSPACE).is_ok_and(|size| [":4096:8", ":16:8"].contains(&size.as_str()))
}

/// Returns whether operators of this device, which is settled, add in an order that is always the same.
pub fn adds_in_order(device: Device) -> bool {
    !matches!(device, Device::Cuda(_)) || has_fixed_workspace()
}

/// Returns whether the environment lacks one of `ENVIRONMENT`. A value that the user has set is left alone.
pub fn needs_relaunch() -> bool {
    ENVIRONMENT.iter().any(|(name, _)| std::env::var_os(name).is_none())
}

/// Sets how many threads one operator called from this thread may use.
pub fn set_intra_op_threads(count: usize) {
    // The first use of a thread overwrites its setting with the process's: let that happen before.
    let _ = tch::get_num_threads();
    tch::set_num_threads(count.max(1) as i32);
}

#[cfg(test)]
mod tests {
    use super::set_intra_op_threads;

    #[test]
    fn the_setting_is_of_one_thread() {
        let count_of = |count: usize| {
            std::thread::spawn(move || {
                set_intra_op_threads(count);
                let x = tch::Tensor::ones([256, 256], (tch::Kind::Float, tch::Device::Cpu));
                let _ = x.matmul(&x);
                tch::get_num_threads()
            })
        };
        let (one, two) = (count_of(1), count_of(2));
        assert_eq!((one.join().unwrap(), two.join().unwrap()), (1, 2));
    }
}
