//! The memory of a CPU tensor as bytes, for files to be read into and written from.

use tch::{Device, Tensor};

/// Returns the elements of a contiguous CPU tensor of any shape, in native order, which is little-endian on all our machines.
///
/// While the slice lives, nothing may use another handle of the same memory: the rule of libtorch's in-place operators.
///
/// # Panics
/// The tensor is not contiguous, or not on the CPU.
pub fn bytes_mut(tensor: &mut Tensor) -> &mut [u8] {
    let len = num_bytes(tensor);
    if len == 0 {
        return &mut [];
    }
    // SAFETY: a contiguous CPU tensor owns `len` initialized bytes from its data pointer on, and lives, borrowed
    // mutably, as long as the slice.
    unsafe { std::slice::from_raw_parts_mut(tensor.data_ptr().cast(), len) }
}

/// Works like [`bytes_mut`], for reading. The tensor may have any shape.
///
/// # Panics
/// Panics as [`bytes_mut`] does.
pub fn bytes(tensor: &Tensor) -> &[u8] {
    let len = num_bytes(tensor);
    if len == 0 {
        return &[];
    }
    // SAFETY: as in `bytes_mut`.
    unsafe { std::slice::from_raw_parts(tensor.data_ptr().cast(), len) }
}

fn num_bytes(tensor: &Tensor) -> usize {
    assert!(tensor.device() == Device::Cpu && tensor.is_contiguous(), "bytes of a contiguous CPU tensor");
    tensor.numel() * tensor.kind().elt_size_in_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_the_elements() {
        let tensor = Tensor::from_slice(&[1i32, 2, 3]);
        assert_eq!(bytes(&tensor), [1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0]);
        let mut part = tensor.narrow(0, 1, 1);
        bytes_mut(&mut part)[0] = 9;
        assert_eq!(Vec::<i32>::try_from(tensor).unwrap(), [1, 9, 3]);
        assert!(bytes(&Tensor::from_slice(&[0f32; 0])).is_empty());
    }
}
