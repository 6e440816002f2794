//! Linear maps and look-ups with autograd whose backward adds a parameter's gradient in place, where the backward that
//! runs has a place for it (see [`super::grad_into`]).

use loongforge_core::config::Products;
use tch::{Device, Kind, Tensor};

use super::error::last_error;
use super::ffi::{self, raw};
use super::fused::can_fuse;

/// Returns the products that `auto` stands for on this processor.
pub fn faster_products() -> Products {
    // SAFETY: it asks the processor and has no arguments.
    if unsafe { ffi::lf_is_faster_tiled() } { Products::Tiled } else { Products::Libtorch }
}

/// Checks that this processor can compute products so.
///
/// # Errors
/// They are tiled, and it lacks the instructions.
pub fn expect_products(products: Products) -> Result<(), String> {
    // SAFETY: it asks the processor and has no arguments.
    if matches!(products, Products::Tiled | Products::TiledBf16) && !unsafe { ffi::lf_can_tile() } {
        let lacks = "tiled products (`run.products`) need AVX2 with fused multiply-add, which this processor lacks";
        return Err(format!("{lacks}; `run.products=libtorch` works, but its results are not bit-identical"));
    }
    Ok(())
}

/// Sets how the products that are called from this thread are computed; before that they are as `auto` says.
///
/// # Errors
/// Fails as [`expect_products`] does.
pub fn set_products(products: Products) -> Result<(), String> {
    expect_products(products)?;
    let which = match products {
        Products::Tiled => 2,
        Products::TiledBf16 => 1,
        Products::Libtorch => 0,
        Products::Auto => -1,
    };
    // SAFETY: it sets a variable of this thread.
    unsafe { ffi::lf_set_tiled(which) };
    Ok(())
}

/// Returns `x` `[…, in]` times `weight` `[out, in]` transposed, plus `bias` `[out]`.
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

/// Returns the rows `ids` (int64) of `table` `[V, D]`; those of row `padding` pass no gradient on.
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

/// Adds `a · b`, `[N, K]` by `[K, M]`, or `aᵀ · b`, `[K, N]` by `[K, M]`, to `sum` `[N, M]`, float32, without autograd. Panics where
/// shapes or types do not fit.
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

/// Writes `a` `[M, K]` times `b` `[K, N]` to `to` `[M, N]`, or adds it where `add`; all of one kind. Autograd does not record it. Panics
/// where the shapes do not fit.
pub fn multiply(to: &Tensor, a: &Tensor, b: &Tensor, add: bool) {
    // SAFETY: the tensors are alive, and libtorch or the tiles check shapes and kinds.
    let status = unsafe { ffi::lf_multiply(raw(to), raw(a), raw(b), add) };
    assert!(status == 0, "multiply: {}", last_error());
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::{Products, add_product, embedding, expect_products, linear, multiply, set_products};
    use crate::native::{grad, grad_into};

    fn random(shape: &[i64], kind: Kind) -> Tensor {
        Tensor::randn(shape, (Kind::Float, Device::Cpu)).to_kind(kind).set_requires_grad(true)
    }

    /// Returns whether differences are small relative to the largest value.
    fn close(found: &Tensor, expected: &Tensor, tolerance: f64) -> bool {
        let (found, expected) = (found.to_kind(Kind::Double), expected.to_kind(Kind::Double));
        (&found - &expected).abs().max().double_value(&[]) <= tolerance * expected.abs().max().double_value(&[])
    }

    /// Calls `test` with every way that this processor has.
    fn with_products(test: impl Fn()) {
        for products in [Products::Libtorch, Products::TiledBf16, Products::Tiled]
            .into_iter()
            .filter(|way| expect_products(*way).is_ok())
        {
            set_products(products).unwrap();
            test();
        }
    }

    #[test]
    fn gradients_are_added_in_place_or_returned() {
        tch::manual_seed(7);
        with_products(gradients);
    }

    fn gradients() {
        for (kind, tolerance) in [(Kind::Float, 1e-5), (Kind::BFloat16, 2e-2)] {
            let (x, w, b) = (random(&[3, 20, 24], kind), random(&[40, 24], kind), random(&[40], kind));
            let dy = Tensor::randn([3, 20, 40], (Kind::Float, Device::Cpu)).to_kind(kind);
            let plain = x.linear(&w, Some(&b));
            let expected = grad(&[&plain], &[&dy], &[&x, &w, &b]).unwrap();
            let y = linear(&x, &w, Some(&b));
            assert!(close(&y.detach(), &plain.detach(), tolerance));
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
        tch::manual_seed(8);
        // Sizes on both sides of what tiles and their blocks hold; 4,098 pairs of bfloat16 are more than a block's line, and 2,200 rows of
        // 1,100 are more than are packed at a time.
        with_products(|| {
            for (rows, inner, columns) in [
                (9, 5, 7),
                (14, 32, 32),
                (15, 33, 65),
                (1, 1, 1),
                (100, 8197, 40),
                (3, 0, 2),
                (2, 33, 65),
                (4, 2100, 600),
                (2200, 1100, 20),
            ] {
                for kind in [Kind::Float, Kind::BFloat16] {
                    let (a, b) = (random(&[inner, rows], kind).detach(), random(&[inner, columns], kind).detach());
                    let room = Tensor::ones([rows, columns + 3], (Kind::Float, Device::Cpu));
                    let sum = room.narrow(1, 0, columns);
                    add_product(&sum, &a, true, &b);
                    let expected = a.to_kind(Kind::Double).tr().matmul(&b.to_kind(Kind::Double));
                    assert!(close(&sum, &(&expected + 1.0), 1e-5), "{rows} x {inner} x {columns}, {kind:?}");
                    add_product(&sum, &a.tr().contiguous(), false, &b);
                    assert!(close(&sum, &(&expected * 2.0 + 1.0), 1e-5), "{rows} x {inner} x {columns}, {kind:?}");
                    if kind == Kind::Float {
                        add_product(&sum, &a.tr(), false, &b.tr().contiguous().tr());
                        assert!(close(&sum, &(expected * 3.0 + 1.0), 1e-5), "{rows} x {inner} x {columns}");
                    }
                    assert_eq!(room.narrow(1, columns, 3), Tensor::ones([rows, 3], (Kind::Float, Device::Cpu)));
                }
            }
        });
    }

    #[test]
    fn a_single_row_may_have_any_stride_and_rows_may_be_one_in_memory() {
        tch::manual_seed(12);
        with_products(|| {
            for kind in [Kind::Float, Kind::BFloat16] {
                let values = |shape: &[i64]| random(shape, kind).detach();
                // A column as a row keeps the stride 1 from row to row.
                let single = (values(&[5, 1]).tr(), values(&[3, 1]).tr());
                let repeated = (values(&[1, 5]).expand([4, 5], false), values(&[4, 3]));
                for (a, b) in [single, repeated] {
                    let sum = Tensor::ones([5, 3], (Kind::Float, Device::Cpu));
                    add_product(&sum, &a, true, &b);
                    let expected = a.to_kind(Kind::Double).tr().matmul(&b.to_kind(Kind::Double)) + 1.0;
                    assert!(close(&sum, &expected, 1e-2), "{:?} and {:?}, {kind:?}", a.stride(), b.stride());
                }
            }
        });
    }

    #[test]
    fn products_of_one_kind_are_written_or_added() {
        tch::manual_seed(11);
        with_products(|| {
            for (kind, tolerance) in [(Kind::Float, 1e-5), (Kind::BFloat16, 1e-2)] {
                let (a, b) = (random(&[13, 50], kind).detach(), random(&[50, 37], kind).detach());
                let expected = a.to_kind(Kind::Double).matmul(&b.to_kind(Kind::Double));
                let room = Tensor::ones([13, 40], (kind, Device::Cpu));
                let to = room.narrow(1, 0, 37);
                multiply(&to, &a, &b, true);
                assert!(close(&to, &(&expected + 1.0), tolerance), "{kind:?}");
                multiply(&to, &a, &b.tr().contiguous().tr(), false);
                assert!(close(&to, &expected, tolerance), "{kind:?}");
                assert_eq!(room.narrow(1, 37, 3), Tensor::ones([13, 3], (kind, Device::Cpu)));
            }
        });
    }

    #[test]
    fn a_row_of_tiles_has_the_same_bits_with_any_threads_and_beside_any_rows() {
        if expect_products(Products::Tiled).is_err() {
            return;
        }
        set_products(Products::Tiled).unwrap();
        tch::manual_seed(9);
        let (x, w) = (random(&[300, 700], Kind::Float).detach(), random(&[200, 700], Kind::Float).detach());
        let outputs = |threads, rows| {
            crate::device::set_intra_op_threads(threads);
            linear(&x.narrow(0, 300 - rows, rows), &w, None).narrow(0, rows - 20, 20)
        };
        assert_eq!(outputs(1, 300), outputs(2, 300));
        assert_eq!(outputs(1, 300), outputs(1, 20));
    }

    #[test]
    fn few_rows_have_the_bits_that_they_have_among_many() {
        if expect_products(Products::Tiled).is_err() {
            return;
        }
        set_products(Products::Tiled).unwrap();
        tch::manual_seed(10);
        // Outputs on both sides of what a tile and a thread's columns hold; more inputs than a line of words.
        for (inputs, outputs) in [(1, 1), (7, 33), (40, 511), (2_100, 65), (64, 1_030)] {
            let (x, w) = (random(&[43, inputs], Kind::Float), random(&[outputs, inputs], Kind::Float));
            let (b, dy) = (random(&[outputs], Kind::Float), random(&[43, outputs], Kind::Float).detach());
            let products = |begin: i64, rows: i64| {
                let (x, dy) = (x.detach().narrow(0, begin, rows).set_requires_grad(true), dy.narrow(0, begin, rows));
                let y = linear(&x, &w, Some(&b));
                (y.detach(), grad(&[&y], &[&dy], &[&x]).unwrap().remove(0).unwrap())
            };
            let all = products(0, 43);
            for rows in 1..=15 {
                for begin in [0, 5, 17, 28] {
                    let among = (all.0.narrow(0, begin, rows), all.1.narrow(0, begin, rows));
                    assert_eq!(products(begin, rows), among, "{rows} rows from {begin}, {inputs} to {outputs}");
                }
            }
        }
    }
}
