//! Matrix products of rows that are sorted by expert with a stack of their experts' matrices.

use tch::{Device, Kind, Tensor};

/// Consecutive rows of each expert. On a GPU the counts stay there; on the CPU plain products of slices are faster
/// than libtorch's grouped one, by 10 % and more.
pub(super) enum Groups {
    /// Start and length of each expert's rows.
    Host(Vec<(i64, i64)>),
    /// Ends of each expert's rows, int32.
    Device(Tensor),
}

impl Groups {
    /// Makes the groups of rows that `counts_E` `[E]`, int64, are the numbers of.
    pub fn new(counts_E: &Tensor) -> Groups {
        if counts_E.device() != Device::Cpu {
            return Groups::Device(counts_E.cumsum(0, Kind::Int64).to_kind(Kind::Int));
        }
        let counts = Vec::<i64>::try_from(counts_E).expect("counts are integers");
        let starts = counts.iter().scan(0, |end, count| {
            *end += count;
            Some(*end - count)
        });
        Groups::Host(starts.zip(counts.iter().copied()).collect())
    }

    /// `[N, A]` rows times their experts' `[E, B, A]` transposed: `[N, B]`; or `[N, B]` rows times `[E, B, A]`.
    pub fn products(&self, rows: &Tensor, weights: &Tensor, transposed: bool) -> Tensor {
        let weights = if transposed { weights.transpose(1, 2) } else { weights.shallow_clone() };
        match self {
            Groups::Host(groups) => {
                let out = Tensor::empty([rows.size()[0], weights.size()[2]], (rows.kind(), rows.device()));
                for (weight, rows, out) in filled(groups, &weights, rows, &out) {
                    let _ = rows.mm_out(&out, &weight);
                }
                out
            }
            Groups::Device(ends) => rows.internal_grouped_mm(&weights, Some(ends), None, None),
        }
    }

    /// `sum` plus the products of `[N, B]` rows with their experts' `[E, B, A]`.
    pub fn add_products(&self, sum: Tensor, rows: &Tensor, weights: &Tensor) -> Tensor {
        match self {
            Groups::Host(groups) => {
                for (weight, rows, sum) in filled(groups, weights, rows, &sum) {
                    let _ = sum.addmm_out(&sum, &rows, &weight);
                }
                sum
            }
            Groups::Device(_) => sum + self.products(rows, weights, false),
        }
    }

    /// Each expert's `[N, B]` transposed times its `[N, A]`, into `out` `[E, B, A]`; zeros where it has no rows.
    pub fn outer_products(&self, left: &Tensor, right: &Tensor, out: &Tensor) {
        match self {
            Groups::Host(groups) => {
                for (expert, &(start, len)) in (0..).zip(groups) {
                    let mut out = out.get(expert);
                    if len == 0 {
                        let _ = out.zero_();
                    } else {
                        let _ = left.narrow(0, start, len).tr().mm_out(&out, &right.narrow(0, start, len));
                    }
                }
            }
            Groups::Device(ends) => {
                let found = left.tr().internal_grouped_mm(right, Some(ends), None, None);
                out.shallow_clone().copy_(&found);
            }
        }
    }

    /// The sum of each expert's rows `[N, B]`: `[E, B]`; zeros where it has none.
    pub fn sums(&self, rows: &Tensor, num_experts: i64) -> Tensor {
        // Products with columns of ones, of which a GPU takes eight at least: they add in an order that is always the same.
        let ones = Tensor::ones([rows.size()[0], 8], (rows.kind(), rows.device()));
        let out = Tensor::empty([num_experts, rows.size()[1], 8], (rows.kind(), rows.device()));
        self.outer_products(rows, &ones, &out);
        out.select(2, 0)
    }
}

/// Weight, rows and output of every expert that has rows.
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

    use super::Groups;

    fn random(shape: &[i64]) -> Tensor {
        Tensor::randn(shape, (Kind::Float, Device::Cpu))
    }

    #[test]
    fn the_grouped_product_of_libtorch_is_the_same() {
        let (rows, weights) = (random(&[7, 16]), random(&[3, 8, 16]));
        let counts = Tensor::from_slice(&[2i64, 0, 5]);
        let device = Groups::Device(counts.cumsum(0, Kind::Int64).to_kind(Kind::Int));
        let (host, left) = (Groups::new(&counts), random(&[7, 8]));
        assert!(host.products(&rows, &weights, true).allclose(
            &device.products(&rows, &weights, true),
            1e-5,
            1e-6,
            false
        ));
        let sum = |groups: &Groups| groups.add_products(rows.copy(), &left, &weights);
        assert!(sum(&host).allclose(&sum(&device), 1e-5, 1e-6, false));
        let outer = |groups: &Groups| {
            let out = weights.empty_like();
            groups.outer_products(&left, &rows, &out);
            out
        };
        assert!(outer(&host).allclose(&outer(&device), 1e-5, 1e-6, false));
    }
}
