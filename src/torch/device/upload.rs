//! Tensors of the host that go to a device while it computes.

use tch::{Device, Tensor};

use crate::native::pinned;

/// The most bytes that are copied to pinned memory on their way, which libtorch keeps for the next ones.
const MAX_PINNED: usize = 16 << 20;

/// Returns the tensor, of any shape, on `device`. Unlike `to_device` it does not wait until a GPU has done what it was given before,
/// except for more than 16 MiB: the copy is one more task behind that. It reads pinned memory, which libtorch uses again only when the
/// copy is done, so that the tensor may be freed or changed at once: for other memory CUDA promises that only for copies that wait.
pub fn upload(tensor: &Tensor, device: Device) -> Tensor {
    let bytes = tensor.numel() * tensor.kind().elt_size_in_bytes();
    match (tensor.device(), device) {
        (Device::Cpu, Device::Cuda(_)) if (1..=MAX_PINNED).contains(&bytes) => {
            pinned(&tensor.contiguous()).to_device_(device, tensor.kind(), true, false)
        }
        _ => tensor.to_device(device),
    }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Tensor};

    use super::upload;

    #[test]
    fn what_stays_on_the_host_is_not_copied() {
        let x = Tensor::from_slice(&[1i64, 2, 3]);
        let there = upload(&x, Device::Cpu);
        assert_eq!((there.data_ptr(), &there), (x.data_ptr(), &x));
    }
}
