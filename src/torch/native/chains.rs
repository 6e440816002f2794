//! Chains of libtorch's operators with a backward of a few operators, for GPUs: see `cpp/chains.cpp`.

use tch::{Kind, Tensor};

use super::error::last_error;
use super::ffi::{self, raw};

/// The rows `index` of `x`, in which each row of `x` is at `back`: `x` `[M, W]`, `index` `[N]` and `back` `[M]`, int64, to `[N, W]`. The
/// gradient of a row is what comes at its place in `back`, and at no other, times its number in `counts` `[M, 1]` where there are such.
/// Panics where the shapes do not fit.
pub fn reorder_rows(x: &Tensor, index: &Tensor, back: &Tensor, counts: Option<&Tensor>) -> Tensor {
    let rows = x.size()[0];
    let fits = x.dim() == 2 && index.kind() == Kind::Int64 && back.kind() == Kind::Int64 && back.size() == [rows];
    assert!(fits && counts.is_none_or(|counts| counts.size() == [rows, 1]), "rows of {x:?} by {index:?} and {back:?}");
    let counts = counts.map_or(std::ptr::null_mut(), raw);
    // SAFETY: the tensors are alive, and libtorch checks that the rows are there; the result is new and nobody else's.
    let y = unsafe { ffi::lf_reorder_rows(raw(x), raw(index), raw(back), counts) };
    assert!(!y.is_null(), "reorder_rows: {}", last_error());
    // SAFETY: as above.
    unsafe { Tensor::from_ptr(y) }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::reorder_rows;
    use crate::native::grad;

    /// Two documents of two rows and of one, the second padded by its last row, and the way back.
    #[test]
    fn rows_come_back_as_they_went_but_for_padding() {
        tch::manual_seed(6);
        let random = |rows: i64| Tensor::randn([rows, 5], (Kind::Float, Device::Cpu)).set_requires_grad(true);
        let (tokens, rows) = (Tensor::from_slice(&[1i64, 2, 0, 0]), Tensor::from_slice(&[2i64, 0, 1]));
        let x = random(3);
        let y = reorder_rows(&x, &tokens, &rows, None);
        assert_eq!(y.detach(), x.detach().index_select(0, &tokens));
        // Padding has a gradient of zero.
        let seed = random(4).detach();
        let _ = seed.get(3).fill_(0.0);
        let expected = grad(&[&x.index_select(0, &tokens)], &[&seed], &[&x]).unwrap();
        assert_eq!(grad(&[&y], &[&seed], &[&x]).unwrap(), expected);

        let (x, counts) = (random(4), Tensor::from_slice(&[1f32, 1.0, 1.0, 0.0]).unsqueeze(1));
        let y = reorder_rows(&x, &rows, &tokens, Some(&counts));
        let seed = random(3).detach();
        let expected = grad(&[&x.index_select(0, &rows)], &[&seed], &[&x]).unwrap();
        assert_eq!(y.detach(), x.detach().index_select(0, &rows));
        assert_eq!(grad(&[&y], &[&seed], &[&x]).unwrap(), expected);
    }
}
