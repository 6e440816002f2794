//! Chains of libtorch's operators with a backward of a few operators, for GPUs: see `cpp/chains.cpp`.

use tch::{Kind, Tensor};

use super::error::last_error;
use super::ffi::{self, raw};

/// Returns the rows `index` of `x`, in which each row of `x` is at `back`: `x` `[M, W]`, `index` `[N]` and `back` `[M]`, int64, to
/// `[N, W]`. The gradient of a row is what comes at its place in `back`, and at no other, times its number in `counts` `[M, 1]` where
/// there are such. Panics where the shapes do not fit.
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

/// Turns channels i and i + R/2 of `x` `[T, H, R]` as pairs, by cosines and sines `[T, R]` whose halves are alike and which get no
/// gradient. Computed in the wider kind, returned in that of `x`; `[T, H, R]`. Panics where the shapes do not fit.
pub fn turn_halves(x: &Tensor, cos: &Tensor, sin: &Tensor) -> Tensor {
    let size = x.size();
    let fits = |table: &Tensor| table.size() == [size[0], size[2]];
    assert!(size.len() == 3 && size[2] % 2 == 0 && fits(cos) && fits(sin), "turns of {x:?} by {cos:?}");
    // SAFETY: the tensors are alive, and shapes were checked; the result is new and nobody else's.
    let y = unsafe { ffi::lf_turn_halves(raw(x), raw(cos), raw(sin)) };
    assert!(!y.is_null(), "turn_halves: {}", last_error());
    // SAFETY: as above.
    unsafe { Tensor::from_ptr(y) }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::{reorder_rows, turn_halves};
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

    #[test]
    fn turns_equal_the_chain_of_operators() {
        tch::manual_seed(7);
        let random = |size: &[i64]| Tensor::randn(size, (Kind::Float, Device::Cpu));
        let angles = random(&[9, 4]);
        let angles = Tensor::cat(&[&angles, &angles], -1);
        for (kind, tables, tolerance) in [
            (Kind::Float, Kind::Float, 1e-6),
            (Kind::BFloat16, Kind::Float, 0.1),
            (Kind::BFloat16, Kind::BFloat16, 0.1),
        ] {
            // A strided slice, as of a joint projection.
            let x = random(&[9, 5, 8]).to_kind(kind).set_requires_grad(true);
            let heads = x.narrow(1, 1, 3);
            let [cos, sin] = [angles.cos(), angles.sin()].map(|table| table.to_kind(tables));
            let halves = heads.chunk(2, -1);
            let crossed = Tensor::cat(&[halves[1].neg(), halves[0].shallow_clone()], -1);
            let expected = (&heads * cos.unsqueeze(1) + crossed * sin.unsqueeze(1)).to_kind(kind);
            let found = turn_halves(&heads, &cos, &sin);
            assert_eq!(found.kind(), kind);
            let seed = random(&[9, 3, 8]).to_kind(kind);
            let gradient = |y: &Tensor| grad(&[y], &[&seed], &[&x]).unwrap().remove(0).unwrap();
            for (found, expected) in [(gradient(&found), gradient(&expected)), (found.detach(), expected.detach())] {
                let error = (found.to_kind(Kind::Float) - expected.to_kind(Kind::Float)).abs().max().double_value(&[]);
                assert!(error <= tolerance, "{kind:?}, {tables:?}: {error}");
            }
        }
    }
}
