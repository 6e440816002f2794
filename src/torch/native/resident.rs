//! Tables of constants that stay on the GPUs where they are read.

use std::cell::RefCell;
use std::collections::BTreeMap;

use tch::{Device, Tensor};

use super::memory::uncounted;

thread_local! {
    /// Has tables by their names and the numbers of their GPUs.
    static TABLES: RefCell<BTreeMap<(&'static str, usize), Tensor>> = const { RefCell::new(BTreeMap::new()) };
}

/// Returns the table of this `name`, of any shape, which `make` makes on the CPU, on `device`. Each thread copies it to a GPU once: a
/// copy from the host waits for all that the GPU has yet to do.
pub fn resident(name: &'static str, device: Device, make: impl FnOnce() -> Tensor) -> Tensor {
    match device {
        Device::Cuda(index) => kept((name, index), || make().to_device(device)),
        _ => make().to_device(device),
    }
}

fn kept(key: (&'static str, usize), make: impl FnOnce() -> Tensor) -> Tensor {
    TABLES.with_borrow_mut(|tables| tables.entry(key).or_insert_with(|| uncounted(make)).shallow_clone())
}

#[cfg(test)]
mod tests {
    use tch::{Device, Tensor};

    use super::{kept, resident};

    #[test]
    fn a_table_is_made_once_for_each_gpu_and_each_time_on_a_cpu() {
        let mut made = 0;
        let number = |key: (&'static str, usize)| {
            let table = kept(key, || {
                made += 1;
                Tensor::from_slice(&[made])
            });
            table.int64_value(&[0])
        };
        let keys = [("a", 0), ("a", 1), ("b", 0), ("a", 0), ("b", 0)];
        assert_eq!(keys.map(number), [1, 2, 3, 1, 3]);
        let of_cpu = |value: i64| resident("a", Device::Cpu, || Tensor::from_slice(&[value])).int64_value(&[0]);
        assert_eq!([7, 8].map(of_cpu), [7, 8]);
    }
}
