//! The bytes behind a tensor, given back and taken again under its views.

use tch::Tensor;

use super::error::last_error;
use super::ffi::{self, raw};

/// Frees the memory of `tensor`, of any shape, which begins its storage. Views of it, and graphs that saved them, stay as they are and
/// are not to be read until [`allocate`].
pub fn release(tensor: &Tensor) {
    resize(tensor, 0);
}

/// Gives `tensor`, of any shape, and its views new memory, whose contents are undefined.
pub fn allocate(tensor: &Tensor) {
    resize(tensor, (tensor.numel() * tensor.kind().elt_size_in_bytes()) as i64);
}

fn resize(tensor: &Tensor, bytes: i64) {
    // SAFETY: the tensor is alive; nobody reads the storage at the same time, since a `Tensor` is not `Sync`.
    let status = unsafe { ffi::lf_resize_storage(raw(tensor), bytes) };
    assert!(status == 0, "memory of a tensor: {}", last_error());
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::{allocate, release};
    use crate::native::{MemoryWatch, grad};

    #[test]
    fn a_graph_reads_what_came_back_under_its_leaves() {
        let watch = MemoryWatch::start();
        let flat = Tensor::ones([6], (Kind::Float, Device::Cpu));
        // Writes through it do not look to autograd like changes of the leaf.
        let outside = flat.data();
        let leaf = flat.narrow(0, 2, 4).view([2, 2]).set_requires_grad(true);
        let x = Tensor::from_slice(&[1f32, 2.0]).view([1, 2]).set_requires_grad(true);
        let y = x.matmul(&leaf.transpose(0, 1));
        let held = watch.current();
        release(&flat);
        assert_eq!(held - watch.current(), 24);
        allocate(&flat);
        outside.narrow(0, 0, 6).copy_(&Tensor::from_slice(&[0f32, 0.0, 1.0, 2.0, 3.0, 4.0]));
        let found = grad(&[&y], &[&Tensor::ones([1, 2], (Kind::Float, Device::Cpu))], &[&x, &leaf]).unwrap();
        assert_eq!(found[0].as_ref().unwrap(), &Tensor::from_slice(&[4f32, 6.0]).view([1, 2]));
        assert_eq!(found[1].as_ref().unwrap(), &Tensor::from_slice(&[1f32, 2.0, 1.0, 2.0]).view([2, 2]));
    }
}
