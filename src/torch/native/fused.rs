//! Element-wise chains of a transformer as one pass each, with autograd: float32 on the CPU.

use tch::{Device, Kind, Tensor};

use super::error::last_error;
use super::ffi::{self, raw};

/// Whether these operators take the tensor.
pub fn can_fuse(x: &Tensor) -> bool {
    x.kind() == Kind::Float && x.device() == Device::Cpu
}

/// An RMS norm by `weight` `[C]` and a rotation by `cos` and `sin` `[T, C]` (contiguous, half-split), either or both, of
/// `x` `[T, H, C]`. Panics where the shapes do not fit or `can_fuse` is false.
pub fn norm_rope(x: &Tensor, norm: Option<(&Tensor, f64)>, rope: Option<(&Tensor, &Tensor)>) -> Tensor {
    let size = x.size();
    assert!(can_fuse(x) && size.len() == 3, "norm_rope of {x:?}");
    assert!(norm.is_none_or(|(weight, _)| can_fuse(weight) && weight.size() == size[2..]), "weight of a norm_rope");
    let fits = |table: &Tensor| can_fuse(table) && table.is_contiguous() && table.size() == [size[0], size[2]];
    assert!(rope.is_none_or(|(cos, sin)| size[2] % 2 == 0 && fits(cos) && fits(sin)), "tables of a norm_rope");
    let null = std::ptr::null_mut();
    let (weight, eps) = norm.map_or((null, 0.0), |(weight, eps)| (raw(weight), eps));
    let (cos, sin) = rope.map_or((null, null), |(cos, sin)| (raw(cos), raw(sin)));
    // SAFETY: the tensors are alive, and kinds, devices and shapes were checked; the result is new and nobody else's.
    let y = unsafe { ffi::lf_norm_rope(raw(x), weight, cos, sin, eps) };
    assert!(!y.is_null(), "norm_rope: {}", last_error());
    // SAFETY: as above.
    unsafe { Tensor::from_ptr(y) }
}

/// `silu(gate) · up`. Panics where the shapes differ or `can_fuse` is false.
pub fn swiglu(gate: &Tensor, up: &Tensor) -> Tensor {
    assert!(can_fuse(gate) && can_fuse(up) && gate.size() == up.size(), "swiglu of {gate:?} and {up:?}");
    // SAFETY: the tensors are alive, and kinds, devices and shapes were checked; the result is new and nobody else's.
    let y = unsafe { ffi::lf_swiglu(raw(gate), raw(up)) };
    assert!(!y.is_null(), "swiglu: {}", last_error());
    // SAFETY: as above.
    unsafe { Tensor::from_ptr(y) }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::{norm_rope, swiglu};
    use crate::native::grad;

    fn random(shape: &[i64]) -> Tensor {
        Tensor::randn(shape, (Kind::Float, Device::Cpu)).set_requires_grad(true)
    }

    fn same(found: &Tensor, expected: &Tensor, leaves: &[&Tensor]) {
        assert!(found.allclose(expected, 1e-5, 1e-6, false));
        let seed = Tensor::randn(found.size(), (Kind::Float, Device::Cpu));
        let gradients = |y: &Tensor| grad(&[y], &[&seed], leaves).unwrap().into_iter().map(Option::unwrap);
        for (found, expected) in gradients(found).zip(gradients(expected)) {
            assert!(found.allclose(&expected, 1e-4, 1e-5, false));
        }
    }

    #[test]
    fn norm_and_rotation_equal_the_chain_of_operators() {
        tch::manual_seed(3);
        for (heads, width) in [(3, 24), (1, 10), (4, 64)] {
            // 70 tokens: more than one block of rows. The heads are a strided slice, as of a joint projection.
            let (joint, weight) = (random(&[70, heads + 2, width]), random(&[width]));
            let x = joint.narrow(1, 1, heads);
            let angles = random(&[70, width]).detach();
            let (cos, sin) = (angles.cos(), angles.sin());
            let rotated = |x: &Tensor| {
                let halves = x.chunk(2, -1);
                x * cos.unsqueeze(1) + Tensor::cat(&[-&halves[1], halves[0].shallow_clone()], -1) * sin.unsqueeze(1)
            };
            let normed = || x.rms_norm([width], Some(&weight), 1e-6);
            same(&norm_rope(&x, Some((&weight, 1e-6)), Some((&cos, &sin))), &rotated(&normed()), &[&joint, &weight]);
            same(&norm_rope(&x, Some((&weight, 1e-6)), None), &normed(), &[&joint, &weight]);
            same(&norm_rope(&x, None, Some((&cos, &sin))), &rotated(&x), &[&joint]);
        }
    }

    #[test]
    fn swiglu_equals_the_chain_of_operators_and_saturates() {
        let (gate, up) = (random(&[50, 33]), random(&[50, 33]));
        let (gate, up) = ((gate.detach() * 3).set_requires_grad(true), up);
        same(&swiglu(&gate, &up), &(gate.silu() * &up), &[&gate, &up]);
        let extreme = Tensor::from_slice(&[-1e4f32, -88.0, 0.0, 88.0, 1e4]);
        let ones = extreme.ones_like();
        assert!(swiglu(&extreme, &ones).allclose(&extreme.silu(), 1e-5, 1e-30, false));
    }

    #[test]
    fn the_number_of_threads_changes_no_bit() {
        let (x, weight) = (random(&[3000, 4, 24]), random(&[24]));
        let gradients = |threads: usize| {
            crate::device::set_intra_op_threads(threads);
            let y = norm_rope(&x, Some((&weight, 1e-6)), None);
            grad(&[&y], &[&x.detach()], &[&x, &weight]).unwrap()
        };
        assert_eq!(gradients(1), gradients(2));
    }
}
