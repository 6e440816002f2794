//! Norms over the last dimension.

use tch::{Kind, Tensor};

use super::Rope;
use crate::native::{Turn, can_fuse, norm_rope, norm_rope_parts};
use crate::params::ParamSpec;
use crate::params::{Init, Scope};

/// Root mean square norm (Zhang and Sennrich 2019), as `Qwen3RMSNorm`: computed in float32.
pub struct RmsNorm {
    weight: Tensor,
    eps: f64,
    zero_centered: bool,
}

impl RmsNorm {
    /// Declares `weight` `[width]`, ones.
    pub fn specs(prefix: &str, name: &str, width: i64) -> Vec<ParamSpec> {
        vec![ParamSpec::new(format!("{prefix}{name}.weight"), &[width], Init::Ones)]
    }

    /// Takes the weight of this name, which multiplies what is normalized.
    pub fn new(scope: &Scope<'_>, name: &str, eps: f64) -> RmsNorm {
        RmsNorm { weight: scope.take(&format!("{name}.weight")), eps, zero_centered: false }
    }

    /// `[…, D]` to `[…, D]`.
    pub fn forward(&self, x: &Tensor) -> Tensor {
        let weight = self.factor();
        if can_fuse(x) && x.dim() == 2 {
            return norm_rope(&x.unsqueeze(1), Some((&weight, self.eps)), None).squeeze_dim(1);
        }
        x.rms_norm(weight.size(), Some(&weight), self.eps)
    }

    /// The norm of rows of which this is a part, `[T, part]`: `squares` `[T, 1]`, float32, are the sums of squares of whole rows of
    /// `width` values, the weight is the part's.
    pub fn forward_part(&self, x: &Tensor, squares: &Tensor, width: i64) -> Tensor {
        let factor = (squares / width as f64 + self.eps).rsqrt();
        (x.to_kind(Kind::Float) * factor * self.factor().to_kind(Kind::Float)).to_kind(x.kind())
    }

    /// The norm of every head of `x_THC`, or, where the weight is `[H·C]`, of all heads together.
    pub fn forward_heads(&self, x_THC: &Tensor) -> Tensor {
        if self.num_parts(x_THC) > 1 {
            return self.forward(&x_THC.flatten(1, 2)).view_as(x_THC);
        }
        match can_fuse(x_THC) {
            true => norm_rope(x_THC, Some((&self.factor(), self.eps)), None),
            false => self.forward(x_THC),
        }
    }

    /// Works like `forward_heads`, and turns every head. Panics where `can_fuse` is false. `[T, H, C]` to `[T, H, C]`.
    pub fn forward_turned(&self, x_THC: &Tensor, turn: Turn<'_>) -> Tensor {
        let (parts, norm) = (self.num_parts(x_THC), self.factor());
        if parts == 1 {
            return norm_rope(x_THC, Some((&norm, self.eps)), Some(turn));
        }
        norm_rope_parts(&x_THC.flatten(1, 2).unsqueeze(1), Some((&norm, self.eps)), Some(turn), parts).view_as(x_THC)
    }

    /// Heads of `x_THC` that have a norm together.
    fn num_parts(&self, x_THC: &Tensor) -> i64 {
        self.weight.size()[0] / x_THC.size()[2]
    }

    /// The norm of every head of `x_THC`, and then the rotation. `[T, H, C]` to `[T, H, C]`.
    pub fn forward_rotated(&self, x_THC: &Tensor, rope: &Rope) -> Tensor {
        match rope.turn().filter(|_| can_fuse(x_THC)) {
            Some(turn) => norm_rope(x_THC, Some((&self.factor(), self.eps)), Some(turn)),
            None => rope.apply(&self.forward(x_THC)),
        }
    }

    fn factor(&self) -> Tensor {
        if self.zero_centered { &self.weight + 1.0 } else { self.weight.shallow_clone() }
    }
}

/// The norms of a decoder.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormConfig {
    pub eps: f64,
    /// True if the factor is one plus the weight (Gemma, Qwen3-Next).
    pub zero_centered: bool,
}

impl NormConfig {
    /// Declares `weight` `[width]`: zeros where one is added to it, as in Gemma and Qwen3-Next, else ones.
    pub fn specs(&self, prefix: &str, name: &str, width: i64) -> Vec<ParamSpec> {
        let init = if self.zero_centered { Init::Zeros } else { Init::Ones };
        vec![ParamSpec::new(format!("{prefix}{name}.weight"), &[width], init)]
    }

    /// Takes the weight that [`NormConfig::specs`] declares.
    pub fn build(&self, scope: &Scope<'_>, name: &str) -> RmsNorm {
        RmsNorm { zero_centered: self.zero_centered, ..RmsNorm::new(scope, name, self.eps) }
    }
}

/// Layer norm with weight and bias.
pub struct LayerNorm {
    weight: Tensor,
    bias: Tensor,
    eps: f64,
}

impl LayerNorm {
    /// Declares `weight` `[width]`, ones, and `bias` `[width]`, zeros.
    pub fn specs(prefix: &str, name: &str, width: i64) -> Vec<ParamSpec> {
        vec![
            ParamSpec::new(format!("{prefix}{name}.weight"), &[width], Init::Ones),
            ParamSpec::new(format!("{prefix}{name}.bias"), &[width], Init::Zeros),
        ]
    }

    /// Takes `weight` and `bias` of this name.
    pub fn new(scope: &Scope<'_>, name: &str, eps: f64) -> LayerNorm {
        let (weight, bias) = (scope.take(&format!("{name}.weight")), scope.take(&format!("{name}.bias")));
        LayerNorm { weight, bias, eps }
    }

    /// Works like `forward`, in float32 and back whatever the kind of `x` is. `[…, D]` to `[…, D]`.
    pub fn forward_wide(&self, x: &Tensor) -> Tensor {
        if matches!(x.kind(), Kind::Float | Kind::Double) {
            return self.forward(x);
        }
        let [x32, weight, bias] = [x, &self.weight, &self.bias].map(|of| of.to_kind(Kind::Float));
        x32.layer_norm(weight.size(), Some(&weight), Some(&bias), self.eps, false).to_kind(x.kind())
    }

    /// `[…, D]` to `[…, D]`.
    pub fn forward(&self, x: &Tensor) -> Tensor {
        x.layer_norm(self.weight.size(), Some(&self.weight), Some(&self.bias), self.eps, false)
    }
}
