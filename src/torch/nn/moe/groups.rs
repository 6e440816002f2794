//! Matrix products of rows that are sorted by expert with a stack of their experts' matrices.

use std::cell::OnceCell;

use tch::{Kind, Tensor};

use crate::device::has_grouped_products;
use crate::native::multiply;

/// Consecutive rows of each expert. On a GPU the counts stay there; on the CPU plain products of slices are faster
/// than libtorch's grouped one, by 10 % and more.
pub(super) struct Groups {
    counts_E: Tensor,
    /// Ends of each expert's rows, int32, where products are grouped.
    ends: Option<Tensor>,
    /// Start and length of each expert's rows; of a GPU read when they are asked for.
    slices: OnceCell<Vec<(i64, i64)>>,
}

/// libtorch's grouped product takes fewer.
const MOST_GROUPS: i64 = 1024;

impl Groups {
    /// Makes the groups of rows that `counts_E` `[E]`, int64, are the numbers of.
    pub fn new(counts_E: &Tensor) -> Groups {
        Groups::of(counts_E, has_grouped_products(counts_E.device()) && counts_E.size()[0] < MOST_GROUPS)
    }

    fn of(counts_E: &Tensor, grouped: bool) -> Groups {
        let ends = grouped.then(|| counts_E.cumsum(0, Kind::Int64).to_kind(Kind::Int));
        Groups { counts_E: counts_E.shallow_clone(), ends, slices: OnceCell::new() }
    }

    fn slices(&self) -> &[(i64, i64)] {
        self.slices.get_or_init(|| {
            let counts = Vec::<i64>::try_from(&self.counts_E).expect("counts are integers");
            let starts = counts.iter().scan(0, |end, count| {
                *end += count;
                Some(*end - count)
            });
            starts.zip(counts.iter().copied()).collect()
        })
    }

    /// Returns the ends, where the grouped product takes these operands: rows of bfloat16, of which there are some.
    fn grouped(&self, operands: [&Tensor; 2]) -> Option<&Tensor> {
        let takes = |x: &Tensor| x.kind() == Kind::BFloat16 && x.numel() > 0 && is_aligned(x);
        self.ends.as_ref().filter(|_| operands.into_iter().all(takes))
    }

    /// Returns `[N, A]` rows times their experts' `[E, B, A]` transposed: `[N, B]`; or `[N, B]` rows times `[E, B, A]`.
    pub fn products(&self, rows: &Tensor, weights: &Tensor, transposed: bool) -> Tensor {
        let weights = if transposed { weights.transpose(1, 2) } else { weights.shallow_clone() };
        if let Some(ends) = self.grouped([rows, &weights]) {
            return rows.internal_grouped_mm(&weights, Some(ends), None, None);
        }
        let out = Tensor::empty([rows.size()[0], weights.size()[2]], (rows.kind(), rows.device()));
        for (weight, rows, out) in filled(self.slices(), &weights, rows, &out) {
            multiply(&out, &rows, &weight, false);
        }
        out
    }

    /// Returns `sum` plus the products of `[N, B]` rows with their experts' `[E, B, A]`.
    pub fn add_products(&self, sum: Tensor, rows: &Tensor, weights: &Tensor) -> Tensor {
        if self.grouped([rows, weights]).is_some() {
            return sum + self.products(rows, weights, false);
        }
        for (weight, rows, sum) in filled(self.slices(), weights, rows, &sum) {
            multiply(&sum, &rows, &weight, true);
        }
        sum
    }

    /// Each expert's `[N, B]` transposed times its `[N, A]`, into `out` `[E, B, A]`; zeros where it has no rows.
    pub fn outer_products(&self, left: &Tensor, right: &Tensor, out: &Tensor) {
        if let Some(ends) = self.grouped([&left.tr(), right]) {
            let made = left.tr().internal_grouped_mm(right, Some(ends), None, None);
            out.shallow_clone().copy_(&with_zeros(made, &self.counts_E));
            return;
        }
        for (expert, &(start, len)) in (0..).zip(self.slices()) {
            let mut out = out.get(expert);
            if len == 0 {
                let _ = out.zero_();
            } else {
                multiply(&out, &left.narrow(0, start, len).tr(), &right.narrow(0, start, len), false);
            }
        }
    }

    /// Returns the sum of each expert's rows `[N, B]`: `[E, B]`; zeros where it has none.
    pub fn sums(&self, rows: &Tensor, num_experts: i64) -> Tensor {
        // Products with columns of ones, of which a GPU takes eight at least: they add in an order that is always the same.
        let ones = Tensor::ones([rows.size()[0], 8], (rows.kind(), rows.device()));
        let out = Tensor::empty([num_experts, rows.size()[1], 8], (rows.kind(), rows.device()));
        self.outer_products(rows, &ones, &out);
        out.select(2, 0)
    }
}

/// Returns outer products `[E, B, A]`, of which those of experts without rows become zeros in their place: on GPUs of compute capability
/// 10 the grouped product may leave there what it finds in memory (pytorch/pytorch#172439).
fn with_zeros(mut products: Tensor, counts_E: &Tensor) -> Tensor {
    let _ = products.masked_fill_(&counts_E.eq(0i64).view([-1, 1, 1]), 0.0);
    products
}

/// Returns whether libtorch's grouped product takes a matrix, or a stack of them: it and its rows (or columns) start at multiples of 16
/// bytes.
fn is_aligned(x: &Tensor) -> bool {
    let (size, strides) = (x.size(), x.stride());
    let [.., rows, columns] = size[..] else { return false };
    let [.., row, column] = strides[..] else { return false };
    let step = match (row, column) {
        (1, step) if step >= rows.max(1) => step,
        (step, 1) if step >= columns.max(1) => step,
        _ => return false,
    };
    let bytes = x.kind().elt_size_in_bytes() as i64;
    step * bytes % 16 == 0 && (x.data_ptr() as usize).is_multiple_of(16)
}

/// Returns weight, rows and output of every expert that has rows.
fn filled<'a>(
    groups: &'a [(i64, i64)],
    weights: &'a Tensor,
    rows: &'a Tensor,
    out: &'a Tensor,
) -> impl Iterator<Item = (Tensor, Tensor, Tensor)> + 'a {
    let some = (0..).zip(groups).filter(|(_, (_, len))| *len > 0);
    some.map(move |(expert, &(start, len))| {
        (weights.get(expert), rows.narrow(0, start, len), out.narrow(0, start, len))
    })
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::{Groups, with_zeros};

    #[test]
    fn experts_without_rows_have_no_gradient_whatever_is_in_memory() {
        let found =
            with_zeros(Tensor::from_slice(&[1f32, f32::NAN, 3.0]).view([3, 1, 1]), &Tensor::from_slice(&[2i64, 0, 5]));
        assert_eq!(found.view([-1]), Tensor::from_slice(&[1f32, 0.0, 3.0]));
    }

    fn random(shape: &[i64]) -> Tensor {
        Tensor::randn(shape, (Kind::Float, Device::Cpu)).to_kind(Kind::BFloat16)
    }

    #[test]
    fn the_grouped_product_of_libtorch_is_the_same() {
        let counts = Tensor::from_slice(&[2i64, 0, 5]);
        // Rows of 8 and 16 numbers it takes; of rows of 6 and 10 each expert's product is made alone.
        for (inner, outer) in [(16, 8), (10, 8), (16, 6), (10, 6)] {
            let (rows, weights) = (random(&[7, inner]), random(&[3, outer, inner]));
            let (host, device) = (Groups::new(&counts), Groups::of(&counts, true));
            let takes = (inner, outer) == (16, 8);
            assert_eq!(device.grouped([&rows, &weights]).is_some(), inner == 16);
            let left = random(&[7, outer]);
            assert_eq!(device.grouped([&left.tr(), &rows]).is_some(), takes);
            let close = |x: &Tensor, y: &Tensor| assert!(x.allclose(y, 1e-2, 5e-2, false), "{inner} {outer}");
            close(&host.products(&rows, &weights, true), &device.products(&rows, &weights, true));
            let sum = |groups: &Groups| groups.add_products(rows.copy(), &left, &weights);
            close(&sum(&host), &sum(&device));
            let found = |groups: &Groups| {
                let out = weights.empty_like();
                groups.outer_products(&left, &rows, &out);
                out
            };
            close(&found(&host), &found(&device));
        }
    }
}
