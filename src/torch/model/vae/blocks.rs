//! The blocks of a causal 3-D autoencoder, on values `[T, H, W, C]`: frames, rows, columns, channels, contiguous. So a frame is
//! a picture in the channels-last layout that convolutions on the CPU are fastest in, and a norm is over neighbors in memory.

use tch::{Kind, Tensor};

use super::past::Past;
use crate::native::linear;
use crate::params::Scope;

/// A convolution whose taps in time see a frame and those before it; before the first frame are zeros. Each tap is a
/// convolution of a frame, which on the CPU is up to 1.4 times as fast as one of a volume; taps that see zeros are left out.
pub(super) struct CausalConv {
    /// `[out, in, taps in time, taps, taps]`.
    weight: Tensor,
    bias: Tensor,
}

impl CausalConv {
    /// Takes the weight `[out, in, frames, rows, columns]` and the bias of this name.
    pub fn new(scope: &Scope<'_>, name: &str) -> CausalConv {
        CausalConv { weight: scope.take(&format!("{name}.weight")), bias: scope.take(&format!("{name}.bias")) }
    }

    /// Maps `[T, H, W, C]` to `[T, H, W, out]`, after the frames that `past` has kept.
    pub fn forward(&self, x_THWC: &Tensor, past: &mut Past) -> Tensor {
        let looks_back = self.weight.size()[2] - 1;
        let before = if looks_back > 0 { past.frames(Some(x_THWC), looks_back) } else { None };
        let num_before = before.as_ref().map_or(0, |frames| frames.size()[0]);
        self.frames(before.iter().chain([x_THWC]), (num_before, 1))
    }

    /// Returns the output at frame number `first` of those that `parts` are, one after the other, and at every `stride`th behind it.
    /// Parts are `[T, H, W, C]`; returns `[frames, H, W, out]`.
    pub fn frames<'a>(&self, parts: impl Iterator<Item = &'a Tensor>, (first, stride): (i64, usize)) -> Tensor {
        let frames: Vec<Tensor> = parts.flat_map(|part| part.split(1, 0)).collect();
        // From the last tap on, which sees the frame itself.
        let taps: Vec<Tensor> = self.weight.unbind(2).iter().rev().map(Tensor::contiguous).collect();
        let output = |frame: usize| {
            let mut sum = conv2d(&frames[frame], &taps[0], Some(&self.bias), 1);
            for (tap, before) in taps[1..].iter().zip(frames[..frame].iter().rev()) {
                sum += conv2d(before, tap, None, 1);
            }
            sum
        };
        let outputs: Vec<Tensor> = (first as usize..frames.len()).step_by(stride).map(output).collect();
        if outputs.len() == 1 { outputs[0].shallow_clone() } else { Tensor::cat(&outputs, 0) }
    }
}

/// Maps `[T, H, W, in]` to `[T, H', W', out]`, frame by frame, with `weight` `[out, in, taps, taps]`: every pixel, with zeros around the
/// picture; or every second one, with a column of zeros on the right and a row below.
pub(super) fn conv2d(x_THWC: &Tensor, weight: &Tensor, bias: Option<&Tensor>, stride: i64) -> Tensor {
    let (x, sides) = match stride {
        1 => (x_THWC.shallow_clone(), weight.size()[2] / 2),
        _ => (x_THWC.constant_pad_nd([0, 0, 0, 1, 0, 1]), 0),
    };
    let y = x.permute([0, 3, 1, 2]).conv2d(weight, bias, stride, sides, 1, 1);
    y.permute([0, 2, 3, 1]).contiguous()
}

/// Values of a part that is normed at once.
const PART: i64 = 1 << 17;

/// `x / ‖x‖ · √C · gamma` over channels, the quotient in float32 at least.
pub(super) struct ChannelNorm {
    gamma: Tensor,
}

impl ChannelNorm {
    /// Takes the scale `gamma` of this name.
    pub fn new(scope: &Scope<'_>, name: &str) -> ChannelNorm {
        ChannelNorm { gamma: scope.take(&format!("{name}.gamma")) }
    }

    /// Maps `[T, H, W, C]` to `[T, H, W, C]`.
    pub fn forward(&self, x_THWC: &Tensor) -> Tensor {
        self.by_parts(x_THWC, |y| y)
    }

    /// Returns the norm with SiLU behind it. `[T, H, W, C]` to `[T, H, W, C]`.
    pub fn activated(&self, x_THWC: &Tensor) -> Tensor {
        self.by_parts(x_THWC, |mut y| y.silu_())
    }

    /// Computes the norm, and `then` behind it, of so many places at once that the values between two steps stay in the processor's
    /// cache.
    fn by_parts(&self, x_THWC: &Tensor, then: impl Fn(Tensor) -> Tensor) -> Tensor {
        let (kind, channels) = (x_THWC.kind(), self.gamma.size()[0]);
        let gamma = self.gamma.flatten(0, -1) * (channels as f64).sqrt();
        let part = |x: &Tensor| {
            let x = if kind == Kind::Double { x.shallow_clone() } else { x.to_kind(Kind::Float) };
            let mut y = &x / x.norm_scalaropt_dim(2, -1, true).clamp_min(1e-12);
            y *= &gamma;
            then(y)
        };
        let (x, y) = (x_THWC.view([-1, channels]), x_THWC.empty_like());
        let parts = x.split(PART / channels, 0).into_iter().zip(y.view([-1, channels]).split(PART / channels, 0));
        parts.for_each(|(x, mut y)| y.copy_(&part(&x)));
        y
    }
}

/// Two convolutions, each behind a norm and SiLU, beside a shortcut.
pub(super) struct Residual {
    norms: [ChannelNorm; 2],
    convs: [CausalConv; 2],
    /// `None` where both widths are equal.
    shortcut: Option<CausalConv>,
}

impl Residual {
    /// Takes both norms and convolutions, and the shortcut of a block that is wider behind it than before.
    pub fn new(scope: &Scope<'_>, name: &str, is_wider: bool) -> Residual {
        let of = |part: &str| format!("{name}.{part}");
        Residual {
            norms: ["norm1", "norm2"].map(|part| ChannelNorm::new(scope, &of(part))),
            convs: ["conv1", "conv2"].map(|part| CausalConv::new(scope, &of(part))),
            shortcut: is_wider.then(|| CausalConv::new(scope, &of("conv_shortcut"))),
        }
    }

    /// Maps `[T, H, W, C]` to `[T, H, W, out]`.
    pub fn forward(&self, x_THWC: &Tensor, past: &mut Past) -> Tensor {
        let y = self.convs[0].forward(&self.norms[0].activated(x_THWC), past);
        let mut y = self.convs[1].forward(&self.norms[1].activated(&y), past);
        y += match &self.shortcut {
            Some(conv) => conv.forward(x_THWC, past),
            None => x_THWC.shallow_clone(),
        };
        y
    }
}

/// Attention among the pixels of a frame, with one head as wide as the state.
pub(super) struct FrameAttention {
    norm: ChannelNorm,
    maps: [(Tensor, Tensor); 2],
}

impl FrameAttention {
    /// Takes the norm and the maps `to_qkv` and `proj`, which checkpoints store as convolutions of one pixel.
    pub fn new(scope: &Scope<'_>, name: &str) -> FrameAttention {
        let map = |part: &str| ["weight", "bias"].map(|tensor| scope.take(&format!("{name}.{part}.{tensor}")));
        FrameAttention {
            norm: ChannelNorm::new(scope, &format!("{name}.norm")),
            maps: ["to_qkv", "proj"].map(|part| map(part).into()),
        }
    }

    /// Maps `[T, H, W, C]` to `[T, H, W, C]`.
    pub fn forward(&self, x_THWC: &Tensor) -> Tensor {
        let [to_qkv, proj] = self.maps.each_ref().map(|(weight, bias)| (weight.flatten(1, -1), bias));
        let qkv = linear(&self.norm.forward(x_THWC).flatten(1, 2).unsqueeze(1), &to_qkv.0, Some(to_qkv.1));
        let [q, k, v] = <[Tensor; 3]>::try_from(qkv.chunk(3, -1)).expect("three parts");
        let y = Tensor::scaled_dot_product_attention::<Tensor>(&q, &k, &v, None, 0.0, false, None, false);
        x_THWC + linear(&y, &proj.0, Some(proj.1)).view_as(x_THWC)
    }
}
