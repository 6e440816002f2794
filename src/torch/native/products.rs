//! Linear maps and look-ups with autograd whose backward adds a parameter's gradient in place, where the backward that
//! runs has a place for it (see [`super::grad_into`]).

use tch::{Device, Kind, Tensor};

use super::error::last_error;
use super::ffi::{self, raw};
use super::fused::can_fuse;

/// `x` `[…, in]` times `weight` `[out, in]` transposed, plus `bias` `[out]`.
pub fn linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Tensor {
    if !can_fuse(x) || !can_fuse(weight) || x.kind() != weight.kind() {
        return x.linear(weight, bias);
    }
    // SAFETY: the tensors are alive, and libtorch checks their shapes; the result is new and nobody else's.
    let y = unsafe { ffi::lf_linear(raw(x), raw(weight), bias.map_or(std::ptr::null_mut(), raw)) };
    assert!(!y.is_null(), "linear: {}", last_error());
    // SAFETY: as above.
    unsafe { Tensor::from_ptr(y) }
}

/// The rows `ids` (int64) of `table` `[V, D]`; those of row `padding` pass no gradient on.
pub fn embedding(table: &Tensor, ids: &Tensor, padding: i64) -> Tensor {
    if !can_fuse(table) || ids.kind() != Kind::Int64 {
        return Tensor::embedding(table, ids, padding, false, false);
    }
    // SAFETY: the tensors are alive; libtorch checks the ids in the forward, so the backward stays within the table.
    let y = unsafe { ffi::lf_embedding(raw(table), raw(ids), padding) };
    assert!(!y.is_null(), "embedding: {}", last_error());
    // SAFETY: as above.
    unsafe { Tensor::from_ptr(y) }
}

/// Adds `a · b`, or `aᵀ · b`, to `sum`, float32. Without autograd. Panics where the shapes do not fit.
pub fn add_product(sum: &Tensor, a: &Tensor, transpose: bool, b: &Tensor) {
    let (a_size, b_size) = (a.size(), b.size());
    let fits = a_size.len() == 2 && b_size.len() == 2 && a.kind() == b.kind();
    let (rows, inner) = if transpose { (1, 0) } else { (0, 1) };
    assert!(fits && a_size[inner] == b_size[0] && sum.size() == [a_size[rows], b_size[1]], "{sum:?} += {a:?} {b:?}");
    assert!(sum.kind() == Kind::Float && (sum.device() != Device::Cpu || can_fuse(a)), "{sum:?} += {a:?} {b:?}");
    // SAFETY: the tensors are alive, and shapes and kinds were checked; strides and devices are checked there.
    let status = unsafe { ffi::lf_add_product(raw(sum), raw(a), transpose, raw(b)) };
    assert!(status == 0, "add_product: {}", last_error());
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::{add_product, embedding, linear};
    use crate::native::{grad, grad_into};

    fn random(shape: &[i64], kind: Kind) -> Tensor {
        Tensor::randn(shape, (Kind::Float, Device::Cpu)).to_kind(kind).set_requires_grad(true)
    }

    /// Relative to the largest.
    fn close(found: &Tensor, expected: &Tensor, tolerance: f64) -> bool {
        let (found, expected) = (found.to_kind(Kind::Double), expected.to_kind(Kind::Double));
        (&found - &expected).abs().max().double_value(&[]) <= tolerance * expected.abs().max().double_value(&[])
    }

    #[test]
    fn gradients_are_added_in_place_or_returned() {
        tch::manual_seed(7);
        for (kind, tolerance) in [(Kind::Float, 1e-5), (Kind::BFloat16, 2e-2)] {
            let (x, w, b) = (random(&[3, 20, 24], kind), random(&[40, 24], kind), random(&[40], kind));
            let dy = Tensor::randn([3, 20, 40], (Kind::Float, Device::Cpu)).to_kind(kind);
            let plain = x.linear(&w, Some(&b));
            let expected = grad(&[&plain], &[&dy], &[&x, &w, &b]).unwrap();
            let y = linear(&x, &w, Some(&b));
            assert_eq!(y.detach(), plain.detach());
            let returned = grad(&[&y], &[&dy], &[&x, &w, &b]).unwrap();
            let ones = |x: &Tensor| Tensor::ones(x.size(), (Kind::Float, Device::Cpu));
            let (sum_w, sum_b) = (ones(&w), ones(&b));
            let inputs = [(&x, None), (&w, Some(&sum_w)), (&b, Some(&sum_b))];
            let rest = grad_into(&[&linear(&x, &w, Some(&b))], &[&dy], &inputs).unwrap();
            assert!(rest[0].is_some() && rest[1].is_none() && rest[2].is_none());
            let added = [rest[0].as_ref().unwrap().shallow_clone(), sum_w - 1.0, sum_b - 1.0];
            for ((returned, added), expected) in returned.iter().zip(&added).zip(&expected) {
                let expected = expected.as_ref().unwrap();
                assert!(close(returned.as_ref().unwrap(), expected, tolerance) && close(added, expected, tolerance));
            }
        }
    }

    #[test]
    fn rows_looked_up_twice_count_twice_and_padding_not_at_all() {
        for kind in [Kind::Float, Kind::BFloat16] {
            let (table, ids) = (random(&[6, 130], kind), Tensor::from_slice(&[4i64, 2, 4, 0]));
            let dy = Tensor::randn([4, 130], (Kind::Float, Device::Cpu)).to_kind(kind);
            let plain = Tensor::embedding(&table, &ids, 2, false, false);
            let expected = grad(&[&plain], &[&dy], &[&table]).unwrap().remove(0).unwrap();
            let sum = Tensor::zeros([6, 130], (Kind::Float, Device::Cpu));
            let y = embedding(&table, &ids, 2);
            assert_eq!(y.detach(), plain.detach());
            assert!(grad_into(&[&y], &[&dy], &[(&table, Some(&sum))]).unwrap()[0].is_none());
            assert!(close(&sum, &expected, 1e-2) && sum.get(2).abs().max().double_value(&[]) == 0.0);
        }
    }

    #[test]
    fn products_are_added() {
        for kind in [Kind::Float, Kind::BFloat16] {
            let (a, b) = (random(&[9, 5], kind).detach(), random(&[9, 7], kind).detach());
            let sum = Tensor::ones([5, 7], (Kind::Float, Device::Cpu));
            add_product(&sum, &a, true, &b);
            let expected = a.to_kind(Kind::Float).tr().matmul(&b.to_kind(Kind::Float));
            assert!(close(&(&sum - 1.0), &expected, 1e-5));
            add_product(&sum, &a.tr().contiguous(), false, &b);
            assert!(close(&(sum - 1.0), &(expected * 2.0), 1e-5));
        }
    }
}
