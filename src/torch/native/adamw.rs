//! AdamW and the norm of a gradient over flat buffers, one pass each, on the CPU.

use tch::{Device, Kind, Tensor};

use super::error::last_error;
use super::ffi::{self, AdamWStep, raw};

/// Takes one step of `params`, float32, which is copied to `rounded`, bfloat16, where there is one; gradient and moments are float32.
/// Panics unless all are contiguous, on the CPU and have the same number of elements. The shape does not count.
pub fn adamw(params: &Tensor, rounded: Option<&Tensor>, grad: &Tensor, moments: [&Tensor; 2], step: &AdamWStep) {
    let fits = |x: &Tensor| is_flat(x) && x.kind() == Kind::Float && x.numel() == params.numel();
    assert!([params, grad, moments[0], moments[1]].into_iter().all(fits), "buffers of AdamW");
    let is_copy = |x: &Tensor| is_flat(x) && x.kind() == Kind::BFloat16 && x.numel() == params.numel();
    assert!(rounded.is_none_or(is_copy), "rounded parameters of AdamW");
    // SAFETY: the tensors are alive, and kinds, lengths, layout and device were checked.
    let status = unsafe {
        ffi::lf_adamw(
            raw(params),
            rounded.map_or(std::ptr::null_mut(), raw),
            raw(grad),
            raw(moments[0]),
            raw(moments[1]),
            step,
        )
    };
    assert!(status == 0, "adamw: {}", last_error());
}

/// Returns the sum of squares of `x`, contiguous float32 of any shape on the CPU; it is summed in float64, in blocks, and is the same for
/// any number of threads.
pub fn sum_of_squares(x: &Tensor) -> f64 {
    assert!(is_flat(x) && x.kind() == Kind::Float, "sum_of_squares of {x:?}");
    // SAFETY: the tensor is alive, and kind, layout and device were checked.
    unsafe { ffi::lf_sum_of_squares(raw(x)) }
}

fn is_flat(x: &Tensor) -> bool {
    x.device() == Device::Cpu && x.is_contiguous()
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::super::AdamWStep;
    use super::{adamw, sum_of_squares};

    #[test]
    fn a_step_equals_the_published_formula_and_clears_the_gradient() {
        let cpu = (Kind::Float, Device::Cpu);
        let random = || Tensor::randn([5000], cpu);
        let (p, g, m, v) = (random(), random(), random(), random().square());
        let wide = |x: &Tensor| x.to_kind(Kind::Double);
        let (grad, m1) = (wide(&g) * 0.5, wide(&m) * 0.9 + wide(&g) * 0.05);
        let v1 = wide(&v) * 0.95 + grad.square() * 0.05;
        let update = (&m1 / (1.0 - 0.9f64.powi(3))) / ((&v1 / (1.0 - 0.95f64.powi(3))).sqrt() + 1e-8);
        let expected = wide(&p) * (1.0 - 1e-3 * 0.1) - update * 1e-3;
        let rounded = p.to_kind(Kind::BFloat16);
        let step = AdamWStep {
            learning_rate: 1e-3,
            betas: [0.9, 0.95],
            eps: 1e-8,
            weight_decay: 0.1,
            number: 3,
            grad_scale: 0.5,
            zero_grad: true,
        };
        adamw(&p, Some(&rounded), &g, [&m, &v], &step);
        assert!(wide(&p).allclose(&expected, 1e-6, 1e-6, false) && wide(&m).allclose(&m1, 1e-5, 1e-6, false));
        assert!(wide(&v).allclose(&v1, 1e-5, 1e-6, false));
        assert_eq!(rounded, p.to_kind(Kind::BFloat16));
        assert_eq!(g.abs().max().double_value(&[]), 0.0);
    }

    #[test]
    fn the_norm_is_the_same_for_any_number_of_threads() {
        let x = Tensor::randn([300_000], (Kind::Float, Device::Cpu));
        let expected = x.to_kind(Kind::Double).square().sum(Kind::Double).double_value(&[]);
        let sums = [1, 2].map(|threads| {
            crate::device::set_intra_op_threads(threads);
            sum_of_squares(&x)
        });
        assert!(sums[0] == sums[1] && (sums[0] / expected - 1.0).abs() < 1e-6);
    }
}
