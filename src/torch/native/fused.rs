//! Element-wise chains of a transformer as one pass each, with autograd: on the CPU, in float32 arithmetic.

use tch::{Device, Kind, Tensor};

use super::error::last_error;
use super::ffi::{self, raw};

/// Returns whether these operators take a tensor of this type and device: float32 or bfloat16 on the CPU. Its shape does not count.
pub fn can_fuse(x: &Tensor) -> bool {
    matches!(x.kind(), Kind::Float | Kind::BFloat16) && x.device() == Device::Cpu
}

/// Returns whether these operators take a tensor of this type and device, float32 on the CPU, as the cosines or sines of a rotation. Its
/// shape does not count.
pub fn is_table(x: &Tensor) -> bool {
    x.kind() == Kind::Float && x.device() == Device::Cpu
}

/// A rotation of the first R channels of every head.
#[derive(Clone, Copy)]
pub struct Turn<'a> {
    /// `[T, R]`, contiguous, float32.
    pub cos: &'a Tensor,
    pub sin: &'a Tensor,
    /// True if channels 2i and 2i + 1 are a pair, and come out half-split; else i and i + R/2.
    pub neighbors: bool,
}

/// Returns the RMS norm by `weight` `[C]`, a rotation, or both of them, of `x` `[T, H, C]`, in its shape. Panics where the shapes do not
/// fit or `can_fuse` is false.
pub fn norm_rope(x: &Tensor, norm: Option<(&Tensor, f64)>, turn: Option<Turn<'_>>) -> Tensor {
    norm_rope_parts(x, norm, turn, 1)
}

/// Works like [`norm_rope`] on `x` `[T, H, C]`, whose normed rows `[C]` are `parts` heads that share a norm, of which each is turned.
pub fn norm_rope_parts(x: &Tensor, norm: Option<(&Tensor, f64)>, turn: Option<Turn<'_>>, parts: i64) -> Tensor {
    let size = x.size();
    assert!(can_fuse(x) && size.len() == 3 && parts > 0 && size[2] % parts == 0, "norm_rope of {x:?}");
    assert!(norm.is_none_or(|(weight, _)| can_fuse(weight) && weight.size() == size[2..]), "weight of a norm_rope");
    let neighbors = turn.is_some_and(|turn| turn.neighbors);
    if let Some(Turn { cos, sin, .. }) = turn {
        let turning = cos.size().last().copied().unwrap_or(0);
        let fits = |table: &Tensor| is_table(table) && table.is_contiguous() && table.size() == [size[0], turning];
        assert!(turning % 2 == 0 && turning <= size[2] / parts && fits(cos) && fits(sin), "tables of a norm_rope");
    }
    let null = std::ptr::null_mut();
    let (weight, eps) = norm.map_or((null, 0.0), |(weight, eps)| (raw(weight), eps));
    let (cos, sin) = turn.map_or((null, null), |turn| (raw(turn.cos), raw(turn.sin)));
    // SAFETY: the tensors are alive, and kinds, devices and shapes were checked; the result is new and nobody else's.
    let y = unsafe { ffi::lf_norm_rope(raw(x), weight, cos, sin, parts, neighbors, eps) };
    assert!(!y.is_null(), "norm_rope: {}", last_error());
    // SAFETY: as above.
    unsafe { Tensor::from_ptr(y) }
}

/// Returns the GELU of `x`, of any shape, by its approximation with tanh. Panics where `can_fuse` is false.
pub fn gelu_tanh(x: &Tensor) -> Tensor {
    assert!(can_fuse(x), "gelu_tanh of {x:?}");
    // SAFETY: the tensor is alive, and its kind and device were checked; the result is new and nobody else's.
    let y = unsafe { ffi::lf_gelu_tanh(raw(x)) };
    assert!(!y.is_null(), "gelu_tanh: {}", last_error());
    // SAFETY: as above.
    unsafe { Tensor::from_ptr(y) }
}

/// Returns `silu(gate) · up`, of one shape, which may be any. Panics where shapes or types differ or `can_fuse` is false.
pub fn swiglu(gate: &Tensor, up: &Tensor) -> Tensor {
    assert!(
        can_fuse(gate) && gate.kind() == up.kind() && can_fuse(up) && gate.size() == up.size(),
        "swiglu of {gate:?} and {up:?}"
    );
    // SAFETY: the tensors are alive, and kinds, devices and shapes were checked; the result is new and nobody else's.
    let y = unsafe { ffi::lf_swiglu(raw(gate), raw(up)) };
    assert!(!y.is_null(), "swiglu: {}", last_error());
    // SAFETY: as above.
    unsafe { Tensor::from_ptr(y) }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::{Turn, gelu_tanh, norm_rope, norm_rope_parts, swiglu};
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
        for (heads, width, turning) in [(3, 24, 24), (1, 10, 10), (4, 64, 64), (2, 24, 6)] {
            // 70 tokens: more than one block of rows. The heads are a strided slice, as of a joint projection.
            let (joint, weight) = (random(&[70, heads + 2, width]), random(&[width]));
            let x = joint.narrow(1, 1, heads);
            let angles = random(&[70, turning]).detach();
            let (cos, sin) = (angles.cos(), angles.sin());
            let rotated = |x: &Tensor, neighbors: bool| {
                let (x, rest) = (x.narrow(2, 0, turning), x.narrow(2, turning, width - turning));
                let halves = match neighbors {
                    true => [x.slice(2, 0, None, 2), x.slice(2, 1, None, 2)],
                    false => [x.narrow(2, 0, turning / 2), x.narrow(2, turning / 2, turning / 2)],
                };
                let crossed = Tensor::cat(&[-&halves[1], halves[0].shallow_clone()], -1);
                let turned = Tensor::cat(&halves, -1) * cos.unsqueeze(1) + crossed * sin.unsqueeze(1);
                Tensor::cat(&[turned, rest], -1)
            };
            let turn = |neighbors: bool| Some(Turn { cos: &cos, sin: &sin, neighbors });
            let norm = Some((&weight, 1e-6));
            let normed = || x.rms_norm([width], Some(&weight), 1e-6);
            same(&norm_rope(&x, norm, turn(false)), &rotated(&normed(), false), &[&joint, &weight]);
            same(&norm_rope(&x, norm, turn(true)), &rotated(&normed(), true), &[&joint, &weight]);
            same(&norm_rope(&x, norm, None), &normed(), &[&joint, &weight]);
            same(&norm_rope(&x, None, turn(false)), &rotated(&x, false), &[&joint]);
            same(&norm_rope(&x, None, turn(true)), &rotated(&x, true), &[&joint]);
        }
    }

    #[test]
    fn heads_that_share_a_norm_are_turned_each() {
        tch::manual_seed(4);
        let (x, weight, angles) = (random(&[70, 3, 8]), random(&[24]), random(&[70, 8]).detach());
        let (cos, sin) = (angles.cos(), angles.sin());
        let turn = |neighbors: bool| Some(Turn { cos: &cos, sin: &sin, neighbors });
        for neighbors in [false, true] {
            let normed = x.flatten(1, 2).rms_norm([24], Some(&weight), 1e-6).unflatten(1, [3, 8]);
            let found = norm_rope_parts(&x.view([70, 1, 24]), Some((&weight, 1e-6)), turn(neighbors), 3);
            same(&found.view([70, 3, 8]), &norm_rope(&normed, None, turn(neighbors)), &[&x, &weight]);
        }
    }

    #[test]
    fn gelu_equals_libtorchs_and_saturates() {
        let x = (random(&[50, 33]).detach() * 3).set_requires_grad(true);
        same(&gelu_tanh(&x), &x.gelu("tanh"), &[&x]);
        let extreme = Tensor::from_slice(&[-1e4f32, -30.0, -0.0, 30.0, 1e4]);
        assert!(gelu_tanh(&extreme).allclose(&extreme.gelu("tanh"), 1e-5, 1e-30, false));
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
