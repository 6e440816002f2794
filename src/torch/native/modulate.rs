//! Rows of tokens that are modulated by segments, and rows of two streams as one, with autograd: on the CPU, one pass each.

use tch::{Kind, Tensor};

use super::error::last_error;
use super::ffi::{self, raw};
use super::fused::{can_fuse, is_table};

/// Segments of tokens, which share a row of a table each.
#[derive(Clone, Copy)]
pub struct RowSegments<'a> {
    /// Tokens of each segment.
    pub lens: &'a [i64],
    /// The table's row of each segment.
    pub rows: &'a [i64],
}

impl RowSegments<'_> {
    fn check(&self, x: &Tensor, table: &Tensor, last: i64) {
        let ([num_tokens, width], [num_rows, num_kinds, wide]) = (sizes(x), sizes(table));
        assert!(can_modulate(x, table) && width == wide && last < num_kinds, "rows {x:?} with a table {table:?}");
        let fits = self.lens.len() == self.rows.len() && self.lens.iter().all(|len| *len >= 0);
        assert!(
            fits && self.lens.iter().sum::<i64>() == num_tokens,
            "segments of {num_tokens} tokens: {:?}",
            self.lens
        );
        assert!(self.rows.iter().all(|row| (0..num_rows).contains(row)), "rows of {num_rows}: {:?}", self.rows);
    }
}

fn sizes<const N: usize>(x: &Tensor) -> [i64; N] {
    <[i64; N]>::try_from(x.size()).unwrap_or_else(|size| panic!("{N} dimensions, not {size:?}"))
}

/// Returns whether these operators take `x` `[T, D]` and a table `[R, N, D]` of these types: `x` float32 or bfloat16, the table float32,
/// both on the CPU.
pub fn can_modulate(x: &Tensor, table: &Tensor) -> bool {
    can_fuse(x) && is_table(table)
}

/// Returns the layer norm of each token of `x` `[T, D]`, times one plus row `first + 1` of its segment's of `table` `[R, N, D]`, plus row
/// `first`. Panics where the shapes do not fit or [`can_modulate`] is false.
pub fn modulate_rows(x: &Tensor, table: &Tensor, segments: RowSegments<'_>, first: i64, eps: f64) -> Tensor {
    segments.check(x, table, first + 1);
    let (lens, rows, num) = (segments.lens.as_ptr(), segments.rows.as_ptr(), segments.lens.len() as i64);
    // SAFETY: the tensors are alive; kinds, devices, shapes and rows were checked; the result is new and nobody else's.
    let y = unsafe { ffi::lf_modulate(raw(x), raw(table), lens, rows, num, first, eps) };
    assert!(!y.is_null(), "modulate_rows: {}", last_error());
    // SAFETY: as above.
    unsafe { Tensor::from_ptr(y) }
}

/// Returns each token of `x` `[T, D]` times row `first` of its segment's of `table` `[R, N, D]`. Panics as [`modulate_rows`] does.
pub fn gate_rows(x: &Tensor, table: &Tensor, segments: RowSegments<'_>, first: i64) -> Tensor {
    segments.check(x, table, first);
    let (lens, rows, num) = (segments.lens.as_ptr(), segments.rows.as_ptr(), segments.lens.len() as i64);
    // SAFETY: the tensors are alive; kinds, devices, shapes and rows were checked; the result is new and nobody else's.
    let y = unsafe { ffi::lf_gate(raw(x), raw(table), lens, rows, num, first) };
    assert!(!y.is_null(), "gate_rows: {}", last_error());
    // SAFETY: as above.
    unsafe { Tensor::from_ptr(y) }
}

fn check_order(num_rows: i64, order: &Tensor) {
    let is_index = order.kind() == Kind::Int64 && order.is_contiguous() && order.device() == tch::Device::Cpu;
    assert!(is_index && order.size() == [num_rows], "an order of {num_rows} rows: {order:?}");
}

/// Returns the rows of `a` `[A, …]` and, behind them, `b` `[B, …]` in `order` `[A + B]`, int64, which has each of them once. Panics where
/// shapes or types do not fit or `can_fuse` is false.
pub fn join_rows(a: &Tensor, b: &Tensor, order: &Tensor) -> Tensor {
    let (a_size, b_size) = (a.size(), b.size());
    let fits = can_fuse(a) && can_fuse(b) && a.kind() == b.kind() && a_size[1..] == b_size[1..];
    assert!(fits, "rows of {a:?} and {b:?} together");
    check_order(a_size[0] + b_size[0], order);
    // SAFETY: the tensors are alive, and kinds, devices and shapes were checked; that rows are there is checked behind it. The
    // result is new and nobody else's.
    let y = unsafe { ffi::lf_join_rows(raw(a), raw(b), raw(order)) };
    assert!(!y.is_null(), "join_rows: {}", last_error());
    // SAFETY: as above.
    unsafe { Tensor::from_ptr(y) }
}

/// Undoes [`join_rows`]: returns the first `num_first` rows `[A, …]` and the others `[B, …]` of `both` `[A + B, …]`, which are in `order`
/// `[A + B]`, int64. Panics where shapes do not fit or `can_fuse` is false.
pub fn split_rows(both: &Tensor, order: &Tensor, num_first: i64) -> [Tensor; 2] {
    let num_rows = both.size()[0];
    assert!(can_fuse(both) && (0..=num_rows).contains(&num_first), "{num_first} rows of {both:?}");
    check_order(num_rows, order);
    let mut outputs = [std::ptr::null_mut(); 2];
    // SAFETY: as in `join_rows`; there is room for two outputs.
    let status = unsafe { ffi::lf_split_rows(raw(both), raw(order), num_first, outputs.as_mut_ptr()) };
    assert!(status == 0, "split_rows: {}", last_error());
    // SAFETY: both are new and nobody else's.
    outputs.map(|y| unsafe { Tensor::from_ptr(y) })
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::{RowSegments, gate_rows, join_rows, modulate_rows, split_rows};
    use crate::native::grad;

    fn random(shape: &[i64], kind: Kind) -> Tensor {
        Tensor::randn(shape, (Kind::Float, Device::Cpu)).to_kind(kind).set_requires_grad(true)
    }

    /// 200 tokens of three segments, two of which are more than a block; 37 numbers wide.
    #[test]
    fn the_number_of_threads_changes_no_bit_of_modulated_rows() {
        let segments = RowSegments { lens: &[70, 1, 129], rows: &[2, 0, 2] };
        for kind in [Kind::Float, Kind::BFloat16] {
            let (x, table) = (random(&[200, 4000], kind), random(&[3, 4, 4000], Kind::Float));
            let found = |threads: usize| {
                crate::device::set_intra_op_threads(threads);
                let y = gate_rows(&modulate_rows(&x, &table, segments, 1, 1e-6), &table, segments, 3);
                let grads = grad(&[&y], &[&x.detach()], &[&x, &table]).unwrap();
                (y.detach(), grads)
            };
            assert_eq!(found(1), found(2));
        }
    }

    #[test]
    fn rows_go_where_the_order_says_and_their_gradients_back() {
        for kind in [Kind::Float, Kind::BFloat16] {
            let (a, b) = (random(&[2, 3, 5], kind), random(&[3, 3, 5], kind));
            let order = Tensor::from_slice(&[3i64, 0, 4, 2, 1]);
            let both = Tensor::cat(&[&a, &b], 0);
            let (found, expected) = (join_rows(&a, &b, &order), both.index_select(0, &order));
            assert_eq!(found.detach(), expected.detach());
            let seed = random(&[5, 3, 5], kind).detach();
            let grads = |y: &Tensor| grad(&[y], &[&seed], &[&a, &b]).unwrap();
            assert_eq!(grads(&found), grads(&expected));
            let [first, last] = split_rows(&join_rows(&a, &b, &order), &order, 2);
            assert_eq!((first.detach(), last.detach()), (a.detach(), b.detach()));
            let back = grad(&[&last], &[&seed.narrow(0, 0, 3)], &[&a, &b]).unwrap();
            assert_eq!(back, [Some(a.detach() * 0.0), Some(seed.narrow(0, 0, 3))]);
        }
    }
}
