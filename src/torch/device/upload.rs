//! Tensors of the host that go to a device while it computes.

use tch::{Device, Tensor};

/// The tensor on `device`. Unlike `to_device` it does not wait until a GPU has done what it was given before: the copy is one more task
/// behind that. Memory of the host that is not pinned may be freed at once, since the driver reads it in the call. Any shape, which
/// stays.
pub fn upload(tensor: &Tensor, device: Device) -> Tensor {
    match (tensor.device(), device) {
        (Device::Cpu, Device::Cuda(_)) => tensor.to_device_(device, tensor.kind(), true, false),
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
