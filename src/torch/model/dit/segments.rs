//! Modulation by segment: a row of tokens has few different modulations, one for each sample's noise level, and another for
//! its clean tokens. Tokens of one modulation lie side by side, so that a table has a row for each modulation and none for
//! each token.
//!
//! Shapes: T tokens, R rows of a table, N kinds of modulations, D width.

use tch::{Device, Kind, Tensor};

use crate::device::upload;
use crate::native::{RowSegments, can_modulate, gate_rows, modulate_rows};
use crate::nn::take_rows;

/// Says which row of a table each token has.
pub(in crate::model) struct Segments {
    /// The tokens of each segment, in their order.
    lens: Vec<i64>,
    /// The row of each segment.
    rows: Vec<i64>,
    way: Way,
}

/// Brings the rows of a table to their tokens.
enum Way {
    /// All segments have one length, and the rows in their order.
    Even,
    Ranges,
    /// Segments are so short that each token is given its own copy of a row: `[T]`, int64.
    Copies(Tensor),
}

/// Tokens of a segment below which rows are copied, on average.
const SHORT: i64 = 8;

impl Segments {
    /// `(tokens, row)` of each segment; those without tokens are left out.
    pub fn new(segments: &[(i64, i64)], num_rows: i64, device: Device) -> Segments {
        let kept = segments.iter().filter(|(len, _)| *len > 0);
        let (lens, rows): (Vec<i64>, Vec<i64>) = kept.copied().unzip();
        let in_order = rows.len() as i64 == num_rows && (0..).zip(&rows).all(|(at, row)| at == *row);
        let num_tokens = lens.iter().sum::<i64>();
        let way = match () {
            () if in_order && lens.windows(2).all(|two| two[0] == two[1]) => Way::Even,
            () if num_tokens < SHORT * lens.len() as i64 => {
                let of = lens.iter().zip(&rows).flat_map(|(len, row)| std::iter::repeat_n(*row, *len as usize));
                Way::Copies(upload(&Tensor::from_slice(&of.collect::<Vec<_>>()), device))
            }
            () => Way::Ranges,
        };
        Segments { lens, rows, way }
    }

    /// Returns every token's `x` `[T, D]` and its rows of `tables` `[R, D]` through `change`, whose arguments broadcast.
    fn map<const N: usize>(
        &self,
        x: &Tensor,
        tables: [&Tensor; N],
        change: impl Fn(&Tensor, [&Tensor; N]) -> Tensor,
    ) -> Tensor {
        if self.lens.is_empty() {
            return x.shallow_clone();
        }
        match &self.way {
            Way::Even => {
                let rows = tables.map(|table| table.unsqueeze(1));
                change(&x.unflatten(0, [self.lens.len() as i64, -1]), rows.each_ref()).flatten(0, 1)
            }
            Way::Copies(index) => {
                let rows = tables.map(|table| take_rows(table, index));
                change(x, rows.each_ref())
            }
            Way::Ranges => {
                let rows = tables.map(|table| table.split(1, 0));
                let parts = x.split_with_sizes(&self.lens, 0);
                let changed = parts
                    .iter()
                    .zip(&self.rows)
                    .map(|(part, row)| change(part, rows.each_ref().map(|rows| &rows[*row as usize])));
                Tensor::cat(&changed.collect::<Vec<_>>(), 0)
            }
        }
    }

    /// Returns the layer norm of `x` without weights, times one plus the scale, plus the shift: those of kinds `first + 1` and `first` of
    /// `table` `[R, N, D]`. In float32, returned in the kind of `x`.
    pub fn modulate(&self, x: &Tensor, table: &Tensor, first: i64, eps: f64) -> Tensor {
        let table = wide(table);
        if can_modulate(x, &table) {
            return modulate_rows(x, &table, self.rows(), first, eps);
        }
        let normed = wide(x).layer_norm([*x.size().last().unwrap_or(&0)], None::<&Tensor>, None::<&Tensor>, eps, false);
        let (shift, factor) = (table.select(1, first), table.select(1, first + 1) + 1.0);
        self.map(&normed, [&shift, &factor], |x, [shift, factor]| shift.addcmul(x, factor)).to_kind(x.kind())
    }

    /// Returns `y` times the gate, kind `kind` of `table` `[R, N, D]`: in float32, returned in the kind of `y`.
    pub fn gate(&self, y: &Tensor, table: &Tensor, kind: i64) -> Tensor {
        let table = wide(table);
        if can_modulate(y, &table) {
            return gate_rows(y, &table, self.rows(), kind);
        }
        self.map(&wide(y), [&table.select(1, kind)], |y, [gate]| y * gate).to_kind(y.kind())
    }

    fn rows(&self) -> RowSegments<'_> {
        RowSegments { lens: &self.lens, rows: &self.rows }
    }
}

/// Returns `x` in float32, or as it is where it is float64.
pub(super) fn wide(x: &Tensor) -> Tensor {
    if x.kind() == Kind::Double { x.shallow_clone() } else { x.to_kind(Kind::Float) }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::Segments;
    use crate::native::grad;

    /// All ways against a copy of a row for each token: values and gradients, in float32 fused and in float64 not.
    #[test]
    fn every_token_has_its_row() {
        tch::manual_seed(3);
        let cases: [&[(i64, i64)]; 4] = [
            &[(12, 0), (12, 1), (12, 2)],
            &[(20, 1), (0, 0), (75, 0), (1, 2)],
            &[(5, 2), (1, 0), (30, 2)],
            &[(1, 2), (2, 0), (3, 1)],
        ];
        for (segments, number) in
            cases.into_iter().flat_map(|segments| [Kind::Float, Kind::Double].map(|kind| (segments, kind)))
        {
            let index: Vec<i64> = segments.iter().flat_map(|(len, row)| vec![*row; *len as usize]).collect();
            let random = |shape: &[i64]| Tensor::randn(shape, (number, Device::Cpu)).set_requires_grad(true);
            let (x, table) = (random(&[index.len() as i64, 6]), random(&[3, 4, 6]));
            let of = |kind: i64| table.select(1, kind).index_select(0, &Tensor::from_slice(&index));
            let normed = x.layer_norm([6], None::<&Tensor>, None::<&Tensor>, 1e-6, false);
            let found = Segments::new(segments, 3, Device::Cpu);
            let pairs = [
                (found.modulate(&x, &table, 1, 1e-6), normed * (of(2) + 1.0) + of(1)),
                (found.gate(&x, &table, 3), &x * of(3)),
            ];
            let seed = Tensor::randn(x.size(), (number, Device::Cpu));
            for (found, expected) in pairs {
                assert!(found.allclose(&expected, 1e-5, 1e-6, false), "{segments:?}");
                let grads = |y: &Tensor| grad(&[y], &[&seed], &[&x, &table]).unwrap().into_iter().map(Option::unwrap);
                for (found, expected) in grads(&found).zip(grads(&expected)) {
                    assert!(found.allclose(&expected, 1e-4, 1e-5, false), "{segments:?}");
                }
            }
        }
    }
}
