//! The convolution that begins a stage, with its norm.
//!
//! Shapes: B pictures, C channels, H rows, W columns.

use tch::Tensor;

use super::config::{DavitConfig, EPS};
use crate::nn::LayerNorm;
use crate::params::{Init, ParamSpec, Scope};

/// A convolution with bias.
pub(super) struct Conv {
    weight: Tensor,
    bias: Tensor,
    stride: i64,
    padding: i64,
    groups: i64,
}

impl Conv {
    /// Returns the parameters of a convolution, whose weight has the `shape` `[outputs, inputs of a group, rows, columns]`.
    pub fn specs(prefix: &str, name: &str, shape: [i64; 4], std: f64) -> Vec<ParamSpec> {
        vec![
            ParamSpec::new(format!("{prefix}{name}.weight"), &shape, Init::Normal(std)),
            ParamSpec::new(format!("{prefix}{name}.bias"), &[shape[0]], Init::Zeros),
        ]
    }

    /// Takes the weight `[out, in / groups, k, k]` and the bias of this name.
    pub fn new(scope: &Scope<'_>, name: &str, stride: i64, padding: i64, groups: i64) -> Conv {
        let (weight, bias) = (scope.take(&format!("{name}.weight")), scope.take(&format!("{name}.bias")));
        Conv { weight, bias, stride, padding, groups }
    }

    /// Maps `[B, C, H, W]` to `[B, C', H', W']`.
    pub fn forward(&self, x_BCHW: &Tensor) -> Tensor {
        let [stride, padding] = [self.stride, self.padding].map(|side| [side, side]);
        x_BCHW.conv2d(&self.weight, Some(&self.bias), stride, padding, [1, 1], self.groups)
    }
}

/// Convolution and norm of a stage (`Florence2VisionConvEmbed`).
pub(super) struct ConvEmbed {
    conv: Conv,
    norm: LayerNorm,
    norm_first: bool,
}

/// Returns the parameters of a stage's convolution.
pub(super) fn specs(config: &DavitConfig, stage: usize) -> Vec<ParamSpec> {
    let (prefix, own) = (ConvEmbed::prefix(config, stage), &config.stages[stage]);
    let inputs = if stage == 0 { config.in_channels } else { config.stages[stage - 1].width };
    let normed = if own.norm_first { inputs } else { own.width };
    let mut specs = Conv::specs(&prefix, "conv", [own.width, inputs, own.kernel, own.kernel], config.std);
    specs.extend(LayerNorm::specs(&prefix, "norm", normed));
    specs
}

impl ConvEmbed {
    /// Returns the prefix of the names of a stage's parameters.
    pub fn prefix(config: &DavitConfig, stage: usize) -> String {
        format!("{}convs.{stage}.", config.prefix)
    }

    /// Takes the convolution and the norm of a stage.
    pub fn new(config: &DavitConfig, stage: usize, scope: &Scope<'_>) -> ConvEmbed {
        let own = &config.stages[stage];
        ConvEmbed {
            conv: Conv::new(scope, "conv", own.stride, own.padding, 1),
            norm: LayerNorm::new(scope, "norm", EPS),
            norm_first: own.norm_first,
        }
    }

    /// Maps `[B, C, H, W]` to `[B, C', H', W']`.
    pub fn forward(&self, x_BCHW: &Tensor) -> Tensor {
        let normed = |x: &Tensor| self.norm.forward(&x.permute([0, 2, 3, 1])).permute([0, 3, 1, 2]);
        match self.norm_first {
            true => self.conv.forward(&normed(x_BCHW)),
            false => normed(&self.conv.forward(x_BCHW)),
        }
    }
}
