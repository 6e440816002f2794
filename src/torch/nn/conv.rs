//! A convolution along the rows of a packed sequence, whose segments have lengths of their own: the rows that each output
//! sees are gathered, so that nothing is padded and an output has the same bits whatever else lies in the sequence.
//!
//! Shapes: R rows, F their width, K taps, P outputs, D their width.

use tch::{Device, Tensor};

use super::attend::take_rows;
use crate::device::upload;
use crate::native::linear;
use crate::params::{Init, ParamSpec, Scope};

/// `weight` `[D, F, K]` and `bias` `[D]` (torch's `nn.Conv1d`).
pub struct RowConv {
    weight: Tensor,
    bias: Tensor,
}

/// The rows that the outputs see, made once a micro-batch.
pub struct Taps(Tensor);

impl Taps {
    /// `rows` are K for each output; `None` is a row of zeros. R is the number of rows that there will be.
    pub fn new(rows: impl Iterator<Item = Option<usize>>, num_rows: usize, device: Device) -> Taps {
        let rows: Vec<i64> = rows.map(|row| row.unwrap_or(num_rows) as i64).collect();
        Taps(upload(&Tensor::from_slice(&rows), device))
    }

    /// Maps `x` `[R, F]` to the rows that are seen, one after the other, `[P·K, F]`.
    pub fn gather(&self, x_RF: &Tensor) -> Tensor {
        take_rows(&x_RF.constant_pad_nd([0, 0, 0, 1]), &self.0)
    }
}

impl RowConv {
    /// Declares `weight` `[outputs, inputs, taps]`, normal with `std`, and `bias` `[outputs]`, zeros: the layout of
    /// `torch.nn.Conv1d`.
    pub fn specs(prefix: &str, name: &str, inputs: i64, outputs: i64, taps: i64, std: f64) -> Vec<ParamSpec> {
        vec![
            ParamSpec::new(format!("{prefix}{name}.weight"), &[outputs, inputs, taps], Init::Normal(std)),
            ParamSpec::new(format!("{prefix}{name}.bias"), &[outputs], Init::Zeros),
        ]
    }

    /// Takes `weight` and `bias` of this name.
    pub fn new(scope: &Scope<'_>, name: &str) -> RowConv {
        RowConv { weight: scope.take(&format!("{name}.weight")), bias: scope.take(&format!("{name}.bias")) }
    }

    /// Maps `x` `[R, F]` to `[P, D]`.
    pub fn forward(&self, x_RF: &Tensor, taps: &Taps) -> Tensor {
        let weight_DX = self.weight.transpose(1, 2).flatten(1, 2);
        let seen_PX = taps.gather(&x_RF.to_kind(self.weight.kind())).view([-1, weight_DX.size()[1]]);
        linear(&seen_PX, &weight_DX, Some(&self.bias))
    }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::{RowConv, Taps};
    use crate::native::grad;

    /// Two segments of 5 and 2 rows through three taps with stride 2 against libtorch's convolution of each.
    #[test]
    fn packed_segments_equal_the_convolution_of_each() {
        tch::manual_seed(1);
        let random = |shape: &[i64]| Tensor::randn(shape, (Kind::Float, Device::Cpu)).set_requires_grad(true);
        let (conv, x) = (RowConv { weight: random(&[4, 3, 3]), bias: random(&[4]) }, random(&[7, 3]));
        let segment = |start: i64, len: i64| {
            let outputs = (0..(len + 1) / 2).flat_map(|at| [2 * at - 1, 2 * at, 2 * at + 1]);
            outputs.map(move |at| (0..len).contains(&at).then_some((start + at) as usize))
        };
        let taps = Taps::new(segment(0, 5).chain(segment(5, 2)), 7, Device::Cpu);
        let found = conv.forward(&x, &taps);
        let alone = |start: i64, len: i64| {
            let x = x.narrow(0, start, len).tr().unsqueeze(0);
            x.conv1d(&conv.weight, Some(&conv.bias), 2, 1, 1, 1).squeeze_dim(0).tr()
        };
        let expected = Tensor::cat(&[alone(0, 5), alone(5, 2)], 0);
        assert_eq!(found.size(), [4, 4]);
        assert!(found.allclose(&expected, 1e-5, 1e-6, false));
        let seed = Tensor::randn([4, 4], (Kind::Float, Device::Cpu));
        let gradients =
            |y: &Tensor| grad(&[y], &[&seed], &[&x, &conv.weight, &conv.bias]).unwrap().into_iter().flatten();
        for (found, expected) in gradients(&found).zip(gradients(&expected)) {
            assert!(found.allclose(&expected, 1e-5, 1e-6, false));
        }
    }
}
