//! Intra-op threads per actor, and whether operators add in a fixed order.

use loongforge_core::config::Device;

use super::environment::CUBLAS_WORKSPACE;

/// Returns whether cuBLAS has one of the work spaces with which libtorch takes it to be deterministic.
pub(super) fn has_fixed_workspace() -> bool {
    std::env::var(CUBLAS_WORKSPACE).is_ok_and(|size| [":4096:8", ":16:8"].contains(&size.as_str()))
}

/// Returns whether operators of this device, which is settled, add in an order that is always the same.
pub fn adds_in_order(device: Device) -> bool {
    !matches!(device, Device::Cuda(_)) || has_fixed_workspace()
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
