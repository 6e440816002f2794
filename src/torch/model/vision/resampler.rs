//! ERNIE-4.5-VL's resampler (`Ernie4_5_VLMoeVariableResolutionResamplerModel`): a stack of linear maps over blocks of
//! states, one over pairs of frames, and a map to the decoder's width. A picture is paired with itself.
//!
//! Shapes: M blocks, frame by frame, B values of a block, N features, E width of the decoder.

use tch::Tensor;

use crate::device::upload;
use crate::nn::{LayerNorm, Linear, RmsNorm, take_rows};
use crate::params::{ParamSpec, Scope};

pub(super) struct Resampler {
    spatial: Stack,
    temporal: Stack,
    mlp: Linear,
    after_norm: RmsNorm,
}

/// `norm(second(gelu(first(x))))`.
struct Stack {
    first: Linear,
    second: Linear,
    norm: LayerNorm,
}

impl Resampler {
    /// Declares the parameters: `block` values to as many, two blocks to one, and one to `outputs`. `std`: of the weights'
    /// first values.
    pub fn specs(prefix: &str, block: i64, outputs: i64, std: f64) -> Vec<ParamSpec> {
        let mut specs = Vec::new();
        for (name, inputs) in [("spatial_linear", block), ("temporal_linear", 2 * block)] {
            specs.extend(Linear::specs(prefix, &format!("{name}.0"), inputs, block, true, std));
            specs.extend(Linear::specs(prefix, &format!("{name}.2"), block, block, true, std));
            specs.extend(LayerNorm::specs(prefix, &format!("{name}.3"), block));
        }
        specs.extend(Linear::specs(prefix, "mlp", block, outputs, true, std));
        specs.extend(RmsNorm::specs(prefix, "after_norm", outputs));
        specs
    }

    /// Takes the parameters that [`Resampler::specs`] declares; `after_eps` is of the norm behind the last map.
    pub fn new(scope: &Scope<'_>, eps: f64, after_eps: f64) -> Resampler {
        let stack = |name: &str| Stack {
            first: Linear::new(scope, &format!("{name}.0")),
            second: Linear::new(scope, &format!("{name}.2")),
            norm: LayerNorm::new(scope, &format!("{name}.3"), eps),
        };
        Resampler {
            spatial: stack("spatial_linear"),
            temporal: stack("temporal_linear"),
            mlp: Linear::new(scope, "mlp"),
            after_norm: RmsNorm::new(scope, "after_norm", after_eps),
        }
    }

    /// Maps `[M, B]` to `[N, E]`; `frames` are the frames of each item and the blocks of a frame.
    pub fn forward(&self, x_MB: &Tensor, frames: &[[i64; 2]]) -> Tensor {
        let x_MB = self.spatial.forward(x_MB);
        let halves = pairs(frames).map(|rows| take_rows(&x_MB, &upload(&Tensor::from_slice(&rows), x_MB.device())));
        let x_NB = self.temporal.forward(&Tensor::cat(&halves, -1));
        self.after_norm.forward(&self.mlp.forward(&x_NB))
    }
}

impl Stack {
    fn forward(&self, x: &Tensor) -> Tensor {
        self.norm.forward(&self.second.forward(&self.first.forward(x).gelu("none")))
    }
}

/// Returns the two blocks of each feature: of frames 2i and 2i + 1, or twice of the one frame. A last odd frame has no pair and is
/// dropped, as in the reference.
fn pairs(frames: &[[i64; 2]]) -> [Vec<i64>; 2] {
    let (mut even, mut odd) = (Vec::new(), Vec::new());
    let mut start = 0;
    for &[count, blocks] in frames {
        let pairs = if count == 1 { vec![[0, 0]] } else { (0..count / 2).map(|i| [2 * i, 2 * i + 1]).collect() };
        for [first, second] in pairs {
            even.extend((0..blocks).map(|block| start + first * blocks + block));
            odd.extend((0..blocks).map(|block| start + second * blocks + block));
        }
        start += count * blocks;
    }
    [even, odd]
}

#[cfg(test)]
mod tests {
    use super::pairs;

    #[test]
    fn frames_are_paired_and_a_picture_with_itself() {
        let [even, odd] = pairs(&[[1, 2], [4, 1], [3, 1]]);
        assert_eq!(even, [0, 1, 2, 4, 6]);
        assert_eq!(odd, [0, 1, 3, 5, 7]);
    }
}
